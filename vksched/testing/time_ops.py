"""Op timings: the largest sample of each op, on devices and on numpy."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..common.errors import UnsupportedOp
from ..ir.attrs import Attrs
from ..ir.op import view_offset
from .check_ops import select
from .kernel_runner import Runner
from .op_cases.op_sample import FunctionSample, OpSample


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The median time of one sample on one device, and the minimum on numpy in the same run."""

    op: str
    case: str
    device: str
    seconds: float
    numpy_s: float
    flops_per_s: float
    bytes_per_s: float


def largest(names: Sequence[str]) -> list[OpSample]:
    """Return the largest sample of each op by name. Raise UnsupportedOp for an unknown op, or if
    all are composed functions.
    """
    found: dict[str, tuple[float, OpSample]] = {}
    selected = select(names)
    functions = [case for case in selected if isinstance(case, FunctionSample)]
    if len(functions) == len(selected):
        asked = ", ".join(sorted({case.function for case in functions}))
        used = {node.op for case in functions for node in case.graph.ops}
        raise UnsupportedOp(
            f"[ops perf] expected ops, got {asked}: functions are not timed; try the ops they "
            f"come to: {', '.join(sorted(used))}"
        )
    for case in selected:
        if not isinstance(case, OpSample):
            continue
        attrs = Attrs(case.attrs)
        if view_offset(case.declaration, case.types, attrs) is not None:
            continue
        work = case.declaration.work(case.types, case.result_type(), attrs)
        size = work.flops + work.bytes_moved
        if case.op not in found or size > found[case.op][0]:
            found[case.op] = (size, case)
    if not found:
        raise UnsupportedOp(
            f"[ops perf] expected ops that take time, got {', '.join(names)}: all their cases are "
            "views"
        )
    return [case for _, (_, case) in sorted(found.items())]


def measure(case: OpSample, runners: Iterable[Runner], repeat: int) -> list[Timing]:
    """Return the times of one sample; devices that cannot run it are omitted."""
    attrs, out = Attrs(case.attrs), []
    work = case.declaration.work(case.types, case.result_type(), attrs)
    numpy_s = _fastest_s(case.expected, repeat)
    for runner in runners:
        try:
            times = runner.time(case, runner.device.limits, repeat)
        except UnsupportedOp:
            continue
        seconds = statistics.median(times)
        rates = (work.flops / seconds, work.bytes_moved / seconds)
        out.append(Timing(case.op, case.id, runner.device.name, seconds, numpy_s, *rates))
    return out


def _fastest_s(function: Any, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def timings_as_dicts(timings: Iterable[Timing]) -> list[dict[str, Any]]:
    """Return timings as plain data."""
    return [dataclasses.asdict(timing) for timing in timings]
