"""Together: does one more device make a model slower? All devices by one plan, beside each alone.

    calibrate each device with the model's calls
    round 1: gpu:0 alone, gpu:1 alone, both    round 2: both, gpu:1 alone, gpu:0 alone    ...

The plan over all devices is that of "auto", so it may leave a device without work. It should take
at most `GOAL` times what the fastest device takes alone. All take turns, so that noise hits all
alike. Threads of a software device look for work for some milliseconds after a run, and slow the
next one. So the order changes, and a turn of short runs has several, of which the median counts.
Examples: tests/bench/test_multi_device.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from prediction_facts import Loaded, Model, calibrate, software_models

from vksched.bench.baselines.workloads import Spec
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.suite_loader import Facts, Suite, SuiteOptions
from vksched.common.errors import GraphError
from vksched.schedule import Objective
from vksched.scheduler.scheduler import Scheduler

ROUNDS = 9
"""At least so many, whatever the budget."""
STREAM = 8
"""So many runs are under way at once, or wait for that, where plans are for a stream."""
TURN_S = 0.05
"""Of one turn at least; a long run is a turn by itself."""
GOAL = 1.05
"""Times the fastest device alone that all devices together may take."""


@dataclass(frozen=True)
class Together:
    """Seconds of the runs of one model, by round; of a stream those between two results. alone_s:
    of each device. used: the devices to which the plan over all of them gives work.
    """

    alone_s: Mapping[str, Sequence[float]]
    all_s: Sequence[float]
    used: Sequence[str]

    @property
    def fastest(self) -> str:
        """The device that is fastest alone."""
        return min(self.alone_s, key=lambda name: statistics.median(self.alone_s[name]))

    @property
    def ratio(self) -> float:
        """All devices together over the fastest alone: the median of the rounds' own ratios."""
        alone_s = self.alone_s[self.fastest]
        return statistics.median(a / b for a, b in zip(self.all_s, alone_s, strict=True))


def together_facts(
    devices: Sequence[str],
    spec: Spec,
    budget_s: float,
    policy: str = "auto",
    objective: str = "latency",
) -> Iterator[ExtraMetric]:
    """Yield how long one model takes on each device alone, and on all of them by one plan.

    budget_s: for the rounds. Calibration comes on top. policy, objective: of all plans, as
    `Scheduler` takes them; for throughput the time between two results of a stream is measured.

    Raises:
        GraphError: there are not two devices. PlanError: the policy cannot carry out the model.
    """
    found = measure(devices, Model.of(spec), budget_s, policy=policy, objective=objective)
    yield from facts_of(spec.name, devices, found)


def facts_of(model: str, devices: Sequence[str], found: Together) -> Iterator[ExtraMetric]:
    """Yield what was measured of a model, as facts."""
    together = " + ".join(devices)
    for name, rounds_s in found.alone_s.items():
        yield ExtraMetric(together, f"{model}: {name} alone", statistics.median(rounds_s), "s")
    all_s = statistics.median(found.all_s)
    note = f"work on {', '.join(found.used)}"
    if found.ratio > GOAL:
        note += f"; over {100 * (GOAL - 1):.0f} % slower"
    name = f"{model}: all by one plan, beside {found.fastest} alone"
    yield ExtraMetric(together, name, all_s, "s", all_s / found.ratio, note)


def measure(
    devices: Sequence[str],
    model: Model,
    budget_s: float,
    calibrates: bool = True,
    policy: str = "auto",
    objective: str = "latency",
) -> Together:
    """Measure a model on each device alone and on all of them, in turns. calibrates: whether the
    devices are measured with the calls of the model first; else plans count by what is known.
    policy, objective: of all plans; see `together_facts`.
    """
    if len(devices) < 2:
        raise GraphError(
            f"[bench] expected two devices for suite devices, got {', '.join(devices) or 'none'}; "
            "try --devices A,B"
        )
    for device in devices if calibrates else ():
        calibrate(device, model)
    with ExitStack() as stack:

        def ready(names: Sequence[str]) -> Loaded:
            sched = Scheduler(names, policy, on_device_failure="raise", objective=objective)
            network = model.load(stack.enter_context(sched))
            stack.callback(network.close)
            network.result()
            return network

        alone = {name: ready([name]) for name in devices}
        both = ready(devices)
        taken: dict[str, list[float]] = {name: [] for name in devices}
        all_s: list[float] = []
        in_stream = Objective.of(objective).word == "throughput"
        seconds = _stream_seconds if in_stream else _seconds
        end_s = time.perf_counter() + budget_s
        turns = [*((alone[name], taken[name]) for name in devices), (both, all_s)]
        while len(all_s) < ROUNDS or time.perf_counter() < end_s:
            for network, found in turns:
                found.append(_turn(network, seconds))
            turns.reverse()
        plan = both.compiled.plan
        used = {plan.topology.devices[split.device].name for split in plan.splits}
        return Together(taken, all_s, sorted(used))


def _turn(network: Loaded, seconds: Callable[[Loaded], float]) -> float:
    """Return the seconds of a run, or of what else is measured: the median of those of a turn."""
    runs_s = [seconds(network)]
    while sum(runs_s) < TURN_S:
        runs_s.append(seconds(network))
    return statistics.median(runs_s)


def _seconds(network: Loaded) -> float:
    start = time.perf_counter()
    network.result()
    return time.perf_counter() - start


def _stream_seconds(network: Loaded) -> float:
    """Return the seconds between two results of a stream."""
    start = time.perf_counter()
    for future in [network.compiled.submit(**network.feeds) for _ in range(STREAM)]:
        future.result()
    return (time.perf_counter() - start) / STREAM


def _run_facts(devices: Sequence[str], specs: Sequence[Spec], options: SuiteOptions) -> Facts:
    aim = options.budget_s, options.policy, options.objective
    return {spec.name: together_facts(devices, spec, *aim) for spec in specs}


SUITE = Suite("devices", software_models, plans=True, run_facts=_run_facts)
