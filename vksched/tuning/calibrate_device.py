"""Calibration: measure the costs of one device within a time budget, the most important ones first.

    overheads --> transfers each way, by size --> calls, one after the other, while time is left
                                                    pass 1: a b c d   pass 2: a b c d   ...

Other programs or a changing clock rate often slow calls down for some tenths of a second. Therefore
there are passes over all calls for some seconds, and the median of a call's times counts: it stays
right unless half of the passes are disturbed.

The result of every step is usable without the next ones. A call that would take half a second is
not measured, nor one that the device does not support. Complexity: one submission, or a few, for
each call and pass. Examples: tests/tuning/test_calibrate.py.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
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
from .measurement import Measurement
from .search import LONGEST_S
from .tunable_calls import shader_hash

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Sizes of the measured transfers in bytes."""

SUBMISSIONS, TRANSFERS = FIRST_STEPS = (("submissions", ""), ("transfers", ""))
"""Entries of the crash marker for these measurements, in place of an op and its limiting
resource.
"""
PASSES, MAX_PASSES, SPREAD_S = 5, 100, 2.0
"""Minimum number of passes if time is left, and maximum number within SPREAD_S."""
QUICK_RUNS, QUICK_PASSES = 4, 3
"""Runs of a long call in a quick measurement, and its passes. The shortest time counts there: other
programs make times longer, and the median of few passes is not robust.
"""
QUICK_BYTES = 1 << 27
"""Maximum size of a call's operands and result in a quick measurement."""
MAX_QUICK_FACTOR = 10.0
"""Quick measurements of overheads are limited to this multiple of the rough ones."""
MIN_LAUNCHES = 10
"""Calls shorter than this multiple of the launch do not determine the device's rates."""


class Benchmarker(Protocol):
    """The measurements of a device: benchmarker.DeviceBenchmarker, or a substitute in tests."""

    spec: DeviceSpec
    quick: bool
    readied_s: float

    @property
    def name(self) -> str: ...

    def overheads(self) -> Overheads: ...

    def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float: ...

    def transfers(self, size_bytes: int) -> tuple[Transfer, Transfer | None]: ...


def calibrate(
    benchmarker: Benchmarker,
    wanted: Iterable[CalibrationSample],
    known: Calibration,
    session: Measurement,
    thorough: bool = False,
) -> Calibration:
    """Measure a device and return its calibration.

    Parameters
    ----------
    known
        A calibration with overheads, links and calls that need no measuring.
    thorough
        True for many passes, False for a single one or a few quick ones.

    Raises
    ------
    DeviceError
        The device failed.
    """
    found = Calibration(speeds_of(benchmarker.spec), when=datetime.date.today().isoformat())
    calls = list(wanted)
    same = known.speeds == found.speeds and not known.guessed
    overheads = known.overheads if same else None
    if overheads is None:
        session.tell(f"{benchmarker.name} submissions", 0, len(calls))
        session.marker.begin(*SUBMISSIONS, "")
        overheads = _measure_overheads(benchmarker)
        found = replace(found, overheads=overheads)
    if known.link_in is None and benchmarker.spec.kind != "cpu" and not session.over:
        session.tell(f"{benchmarker.name} transfers", 0, len(calls))
        session.marker.begin(*TRANSFERS, "")
        found = _measure_links(found, benchmarker, session)
    taken = _taken(benchmarker, calls, session, thorough)
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
        if taken_s < MIN_LAUNCHES * overheads.launch_s:
            continue
        work = call_work(benchmarker.spec, call.op, call.call)
        flops_per_s = max(flops_per_s, work.flops / taken_s)
        bytes_per_s = max(bytes_per_s, work.bytes_moved / taken_s)
    session.tell(benchmarker.name, 1, 1)
    return known.plus(
        replace(
            found,
            samples=(*found.samples, *_means(samples)),
            flops_per_s=flops_per_s,
            bytes_per_s=bytes_per_s,
        )
    )


def _measure_overheads(benchmarker: Benchmarker) -> Overheads:
    """Measure overheads. Quick results are limited to a multiple of the rough ones of similar
    devices: a launch is a small difference of long times, which other programs disturb.
    """
    found, spec = benchmarker.overheads(), benchmarker.spec
    if not benchmarker.quick or not spec.launch_s:
        return found
    launch_s, submit_s = MAX_QUICK_FACTOR * spec.launch_s, MAX_QUICK_FACTOR * spec.submit_s
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
    session: Measurement,
    thorough: bool,
) -> list[list[float]]:
    """Return the seconds of each call by pass. The list is empty for a call that cannot be measured
    or that the budget did not reach.
    """
    taken: list[list[float]] = [[] for _ in calls]
    min_passes, max_passes = (
        (PASSES, MAX_PASSES) if thorough else (1, QUICK_PASSES if benchmarker.quick else 1)
    )
    start_s, done = session.spent_s, 0
    while done < min_passes or (
        done < max_passes and session.spent_s - start_s < SPREAD_S and any(taken)
    ):
        for number, (call, times) in enumerate(zip(calls, taken, strict=True)):
            if session.over:
                return taken
            if len(times) < done:
                continue  # not measurable
            at = min(done, min_passes - 1) * len(calls) + number
            if benchmarker.quick and not _is_quick(call, session):
                continue
            session.tell(f"{benchmarker.name} {call.op.name}", at, min_passes * len(calls))
            readied_s = benchmarker.readied_s
            taken_s = _seconds(benchmarker, call, session)
            session.forgiven_s += benchmarker.readied_s - readied_s
            if taken_s is not None:
                times.append(taken_s)
        done += 1
    return taken


def _is_quick(wanted: CalibrationSample, session: Measurement) -> bool:
    """Return True if a call fits into the time that is left and its operands are small and quick to
    create.
    """
    size_bytes = sum(type_.host_bytes for type_ in (*wanted.call.inputs, wanted.call.output))
    return size_bytes <= QUICK_BYTES and QUICK_RUNS * wanted.each_s <= session.left_s


def _seconds(
    benchmarker: Benchmarker, wanted: CalibrationSample, session: Measurement
) -> float | None:
    """Return the seconds of one call, or None if it cannot be measured."""
    if wanted.seconds > LONGEST_S or wanted.estimate_s > LONGEST_S:
        return None  # it risks the device and the budget
    session.marker.begin(*wanted.kind, "")
    try:
        taken_s = benchmarker.seconds(wanted.op, wanted.call, wanted.weights)
    except OutOfMemory:
        return None
    except DeviceError:
        raise
    except VkschedError:
        return None
    return taken_s if taken_s > 0 else None


def _measure_links(
    found: Calibration, benchmarker: Benchmarker, session: Measurement
) -> Calibration:
    """Measure transfers and return the calibration with their links and the device's own part."""
    into: list[tuple[float, float]] = []
    out: list[tuple[float, float]] = []
    samples: list[Sample] = []
    few = benchmarker.quick and benchmarker.spec.limits.software  # its transfers are host copies
    for size in SIZES[:-1] if few else SIZES:
        if session.over and len(into) > 1:
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
    """Return one sample for each op, limiting resource and size class: the geometric mean."""
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
