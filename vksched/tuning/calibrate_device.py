"""Calibrate: measures one device within a budget, what matters most first.

    overheads --> transfers each way, by size --> calls, one after the other, while time is left
                                                    pass 1: a b c d   pass 2: a b c d   ...

Another program, or a processor that changes its speed, often makes calls longer for some tenths of
a second. So there are passes over all calls for some seconds, and the median of a call's times
counts: half of the passes have to be bad to spoil it.

Every step gives a result that can be used alone. A call that would take half a second is not
measured, nor is one that the device refuses. Complexity: one submission, or a few, for each call
and pass. Examples: tests/tuning/test_calibrate.py.
"""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..common.errors import DeviceError, OutOfMemory, VkschedError
from ..ir.op import Call, Op
from ..plan.costs.node_cost import COPY_IN, COPY_OUT, call_signature, call_work
from ..topology.device_spec import DeviceSpec
from ..topology.links import Link
from .benchmarker import Transfer
from .calibration_samples import CalibrationSample
from .calibration_types import (
    Calibration,
    Overheads,
    Sample,
    fit_link,
    sample_of,
    speeds_of,
)
from .search import LONGEST_S
from .tunable_calls import shader_hash

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of the transfers that are measured."""

SUBMISSIONS, TRANSFERS = FIRST_STEPS = (("submissions", ""), ("transfers", ""))
"""What is noted while these are measured, as op and bound are for a call."""
PASSES, MAX_PASSES, SPREAD_S = 5, 100, 2.0
"""There are so many passes at least, where time is left, and at most until they took so long."""
QUICK_RUNS, QUICK_PASSES = 4, 3
"""Runs of a long call that a quick measurement takes, and its passes, of which the shortest time
counts: other programs make times longer, and few passes have no median that is safe from that.
"""
QUICK_BYTES = 1 << 27
"""Of a call's operands and result at most, in a quick measurement."""
FAR_OFF = 10.0
"""From so many times a rough overhead on a quick measurement is not believed."""
LONG_ENOUGH = 10
"""Times the launch: what is shorter says nothing of the device's rates."""

Tell = Callable[[str, int, int], None]
"""Called with (what, done, total), in calls of all passes."""


class Benchmarker(Protocol):
    """What can be measured of a device: benchmarker.DeviceBenchmarker, or a stand-in of a test."""

    spec: DeviceSpec
    quick: bool
    readied_s: float

    @property
    def name(self) -> str: ...

    def overheads(self) -> Overheads: ...

    def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float: ...

    def transfers(self, size_bytes: int) -> tuple[Transfer, Transfer | None]: ...


class Note(Protocol):
    """Tells those who come after a crash what was being measured (crash_marker.CrashMarker)."""

    def begin(self, key: str, variant: str, shaders: str) -> None: ...


@dataclass
class Clocked:
    """A budget that runs from now on."""

    budget_s: float = math.inf
    forgiven_s: float = 0.0
    """Seconds that do not count."""

    def __post_init__(self) -> None:
        self._start = time.monotonic()

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._start - self.forgiven_s

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s

    @property
    def over(self) -> bool:
        return self.left_s <= 0


def calibrate(
    benchmarker: Benchmarker,
    wanted: Iterable[CalibrationSample],
    known: Calibration,
    budget: Clocked,
    tell: Tell,
    note: Note | None = None,
    thorough: bool = False,
) -> Calibration:
    """Returns what is known of a device with what was measured now.

    known: what needs no measuring: overheads and links that it has, and calls that are not wanted.
    thorough: whether to measure in many passes; else there is one, or few quick ones.

    Raises:
        DeviceError: the device failed.
    """
    found = Calibration(speeds_of(benchmarker.spec), when=datetime.date.today().isoformat())
    calls = list(wanted)
    same = known.speeds == found.speeds and not known.guessed
    overheads = known.overheads if same else None
    if overheads is None:
        tell(f"{benchmarker.name} submissions", 0, len(calls))
        _begin(note, SUBMISSIONS)
        overheads = _believed(benchmarker)
        found = replace(found, overheads=overheads)
    if known.link_in is None and benchmarker.spec.kind != "cpu" and not budget.over:
        tell(f"{benchmarker.name} transfers", 0, len(calls))
        _begin(note, TRANSFERS)
        found = _with_links(found, benchmarker, budget)
    taken = _taken(benchmarker, calls, budget, tell, note, thorough)
    samples: list[Sample] = []
    flops_per_s = bytes_per_s = 0.0
    for call, times in zip(calls, taken, strict=True):
        if not times:
            continue
        taken_s = min(times) if benchmarker.quick else statistics.median(times)
        shaders = shader_hash(call.op.name) if benchmarker.spec.kind == "vulkan" else ""
        samples.append(
            sample_of(
                call_signature(call.op, call.call),
                call.estimate_s,
                call.bound,
                taken_s,
                overheads.launch_s,
                shaders,
            )
        )
        if taken_s < LONG_ENOUGH * overheads.launch_s:
            continue
        work = call_work(benchmarker.spec, call.op, call.call)
        flops_per_s = max(flops_per_s, work.flops / taken_s)
        bytes_per_s = max(bytes_per_s, work.bytes_moved / taken_s)
    tell(benchmarker.name, 1, 1)
    return known.plus(
        replace(
            found,
            samples=(*found.samples, *_means(samples)),
            flops_per_s=flops_per_s,
            bytes_per_s=bytes_per_s,
        )
    )


def _believed(benchmarker: Benchmarker) -> Overheads:
    """Measures overheads. Quick ones are at most some times as long as the rough ones of such a
    device: a launch is a small difference of long times, where other programs are busy.
    """
    found, spec = benchmarker.overheads(), benchmarker.spec
    if not benchmarker.quick or not spec.launch_s:
        return found
    launch_s, submit_s = FAR_OFF * spec.launch_s, FAR_OFF * spec.submit_s
    return replace(
        found,
        launch_s=min(found.launch_s, launch_s),
        start_s=min(found.start_s, submit_s),
        submit_s=min(found.submit_s, submit_s),
        fence_s=min(found.fence_s, submit_s),
        run_s=min(found.run_s, submit_s),
        alone_s=min(found.alone_s, submit_s),
    )


def _taken(
    benchmarker: Benchmarker,
    calls: Sequence[CalibrationSample],
    budget: Clocked,
    tell: Tell,
    note: Note | None,
    thorough: bool,
) -> list[list[float]]:
    """Return the seconds of each call, by pass; none of a call that cannot be measured, or that
    the budget did not reach.
    """
    taken: list[list[float]] = [[] for _ in calls]
    least, most = (
        (PASSES, MAX_PASSES) if thorough else (1, QUICK_PASSES if benchmarker.quick else 1)
    )
    start_s, done = budget.spent_s, 0
    while done < least or (done < most and budget.spent_s - start_s < SPREAD_S and any(taken)):
        for number, (call, times) in enumerate(zip(calls, taken, strict=True)):
            if budget.over:
                return taken
            if len(times) < done:
                continue  # it could not be measured
            at = min(done, least - 1) * len(calls) + number
            if benchmarker.quick and not _is_quick(call, budget):
                continue
            tell(f"{benchmarker.name} {call.op.name}", at, least * len(calls))
            readied_s = benchmarker.readied_s
            taken_s = _seconds(benchmarker, call, note)
            budget.forgiven_s += benchmarker.readied_s - readied_s
            if taken_s is not None:
                times.append(taken_s)
        done += 1
    return taken


def _is_quick(wanted: CalibrationSample, budget: Clocked) -> bool:
    """Whether a call is measured in the time that is left, with operands that are made in no time
    and take little memory.
    """
    size_bytes = sum(type_.host_bytes for type_ in (*wanted.call.inputs, wanted.call.output))
    return size_bytes <= QUICK_BYTES and QUICK_RUNS * wanted.each_s <= budget.left_s


def _begin(note: Note | None, what: tuple[str, str]) -> None:
    if note is not None:
        note.begin(*what, "")


def _seconds(
    benchmarker: Benchmarker, wanted: CalibrationSample, note: Note | None
) -> float | None:
    """Returns what one call takes, None where it cannot be measured."""
    if wanted.seconds > LONGEST_S or wanted.estimate_s > LONGEST_S:
        return None  # it risks the device, and the budget
    _begin(note, wanted.kind)
    try:
        taken_s = benchmarker.seconds(wanted.op, wanted.call, wanted.weights)
    except OutOfMemory:
        return None
    except DeviceError:
        raise
    except VkschedError:
        return None
    return taken_s if taken_s > 0 else None


def _with_links(found: Calibration, benchmarker: Benchmarker, budget: Clocked) -> Calibration:
    """Measures transfers: their links, and the share of the device itself."""
    into: list[tuple[float, float]] = []
    out: list[tuple[float, float]] = []
    samples: list[Sample] = []
    few = benchmarker.quick and benchmarker.spec.limits.software  # it copies as the host does
    for size in SIZES[:-1] if few else SIZES:
        if budget.over and len(into) > 1:
            break
        try:
            there, back = benchmarker.transfers(size)
        except (OutOfMemory, VkschedError) as error:
            if isinstance(error, DeviceError) and not isinstance(error, OutOfMemory):
                raise
            break
        for way, one, times in ((COPY_IN, there, into), (COPY_OUT, back, out)):
            if one is None:
                continue
            times.append((size, one.host_s + (one.device_s or 0.0)))
            if one.device_s:
                estimate_s = 2 * size / benchmarker.spec.bytes_per_s
                samples.append(sample_of(way, estimate_s, "bytes", one.device_s, 0.0))
    return replace(
        found, link_in=_fit(into), link_out=_fit(out), samples=(*found.samples, *samples)
    )


def _fit(times: list[tuple[float, float]]) -> Link | None:
    return fit_link(times) if len(times) > 1 else None


def _means(samples: list[Sample]) -> list[Sample]:
    """Return one sample for each op, bound and size class, the geometric mean."""
    groups: dict[tuple[str, str, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.place, []).append(sample)
    return [
        replace(
            group[-1],
            size=sum(s.size for s in group) / len(group),
            factor=math.exp(sum(math.log(s.factor) for s in group) / len(group)),
        )
        for group in groups.values()
    ]
