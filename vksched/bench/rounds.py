"""Rounds: interleave vksched and its baselines on a case, so that noise affects all equally.

    round 1: ours, baseline A, baseline B    round 2: ours, baseline A, baseline B    ...

A time is the median over rounds; a ratio is the median of the rounds' ratios. Results are checked
first: a runner with a wrong result is not timed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from .baseline_process import BaselineFailed
from .baselines.workloads import Spec, arrays_of, error_of, most_error, work_of

ROUNDS = 5
FEW = 2
OURS = "vksched"
MIN_S = 1e-8
"""Less than any call takes, for differences of times that are not positive."""


class Runner(Protocol):
    """A runner of cases: vksched or a baseline.

    latencies_s: latencies of the samples of a case by name, in seconds; only servers have some.
    """

    name: str
    version: str

    @property
    def latencies_s(self) -> dict[str, float]: ...

    def prepare(self, spec: Spec) -> dict[str, Any]:
        """Prepare a case.

        Return {"nmse": error} or {"result": array}, with {"note": configuration}; or {"skip":
        reason} or {"error": failure}.
        """

    def measure(self, seconds: float) -> list[float]:
        """Return the seconds per call, several times."""

    def drop(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class RunnerTiming:
    """Timing of one runner for one case.

    rounds_s: median of each round. reason: why there is no timing. wrong: the result was wrong.
    memory_bytes: peak memory, if known. latencies_s: latencies of a server by name, in seconds.
    """

    runner: str
    rounds_s: list[float] = field(default_factory=list)
    spread: float = 0.0
    nmse: float | None = None
    note: str = ""
    memory_bytes: float | None = None
    reason: str = ""
    wrong: bool = False
    latencies_s: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """The median of all rounds."""
        return statistics.median(self.rounds_s) if self.rounds_s else None


@dataclass
class Result:
    """One case on one device."""

    device: str
    spec: Spec
    figures: list[RunnerTiming]

    @property
    def ours(self) -> RunnerTiming | None:
        return next((f for f in self.figures if f.runner == OURS), None)

    def ratio(self, baseline: str) -> float | None:
        """Return the speedup relative to a baseline, or None without both timings."""
        other = next((f for f in self.figures if f.runner == baseline), None)
        if self.ours is None or other is None:
            return None
        return paired_ratio(other.rounds_s, self.ours.rounds_s)

    def fastest_baseline(self, but: Iterable[str] = ()) -> RunnerTiming | None:
        """Return the fastest baseline."""
        left_out = {OURS, *but}
        there = [f for f in self.figures if f.runner not in left_out and f.rounds_s]
        return min(there, key=lambda f: f.seconds or math.inf, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with the amount of work."""
        flops, moved = work_of(self.spec)
        figures = [{**asdict(f), "seconds": f.seconds} for f in self.figures]
        work = {"flops": flops, "bytes": moved}
        return {"device": self.device, "spec": self.spec.as_dict(), **work, "figures": figures}


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float | None:
    """Return the median of the rounds' ratios, or None without common rounds."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=False)]
    return statistics.median(ratios) if ratios else None


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, or None for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None


def measure_case(
    device: str,
    spec: Spec,
    runners: Sequence[Runner],
    budget_s: float,
    rounds: int = ROUNDS,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measure all runners on a case in interleaved rounds for about budget_s seconds.

    A baseline with a sample longer than half of the budget is dropped after FEW rounds, or after
    one round if it takes twice the budget. tell: reports progress, because preparation may take
    longer than the measurement.
    """
    figures = []
    for runner in runners:
        tell(f"{device} {spec.name}: {runner.name} gets ready")
        figures.append(_prepare(runner, spec))
    tell(f"{device} {spec.name}: rounds")
    taking_part = [(r, f) for r, f in zip(runners, figures, strict=True) if not f.reason]
    each_s = budget_s / max(1, rounds * len(taking_part))
    samples: dict[str, list[float]] = {runner.name: [] for runner in runners}
    most = {runner.name: rounds for runner in runners}
    for number in range(rounds):
        for runner, figure in taking_part:
            if figure.reason or number >= most[runner.name]:
                continue
            start = time.perf_counter()
            try:
                times = runner.measure(each_s)
            except BaselineFailed as error:
                figure.reason, figure.rounds_s = str(error), []
                continue
            took = time.perf_counter() - start
            if runner.name != OURS and took > budget_s / 2:
                most[runner.name] = min(rounds, FEW if took < 2 * budget_s else 1)
            figure.rounds_s.append(statistics.median(times))
            samples[runner.name] += times
    for runner, figure in taking_part:
        figure.latencies_s = dict(runner.latencies_s)
        runner.drop()
        if figure.rounds_s and (figure.seconds or 0.0) < MIN_S:
            figure.reason, figure.rounds_s = "its time is lost in the noise", []
        if figure.rounds_s:
            figure.spread = spread(samples[runner.name])
    return Result(device, spec, figures)


def spread(samples: Sequence[float]) -> float:
    """Return the interquartile range relative to the median."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def _prepare(runner: Runner, spec: Spec) -> RunnerTiming:
    answer = runner.prepare(spec)
    figure = RunnerTiming(runner.name, note=str(answer.get("note", "")))
    figure.memory_bytes = answer.get("bytes")
    if "skip" in answer or "error" in answer:
        figure.reason = str(answer.get("skip") or answer.get("error"))
        return figure
    error = answer.get("nmse")
    if "result" in answer:
        error = error_of(spec, arrays_of(spec), answer["result"])
    most = most_error(spec, runner.name)
    if not isinstance(error, float) or not error <= most:  # includes NaN
        figure.reason = f"wrong result: normalized squared error {error}, not {most:g} or less"
        figure.wrong = True
        return figure
    figure.nmse = error
    return figure
