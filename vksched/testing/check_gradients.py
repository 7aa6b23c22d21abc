"""Gradient checks: each op by finite differences, and on each device against float64.

    differences     each case, in float64              testing/numeric_gradient.py
    second order    a few cases of each op             differences of the rule itself
    vulkan:0, ...   each case, in float32              the optimized gradient graph on that device,
                                                       against float64

Examples: tests/autograd/test_rules.py, tests/autograd/test_wrong_rules.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import VkschedError
from ..ir.op import computing_ops
from ..ir.vjp import rule_of, why_no_gradient
from ..scheduler.scheduler import Scheduler
from .check_ops import select
from .numeric_gradient import (
    Function,
    GradientComparison,
    compare,
    compare_second,
    evaluate,
    function_of,
    in_float32,
    in_float64,
    why_not_compared,
    why_not_second,
)
from .op_cases.op_sample import OpSample
from .op_table import CASES

DIFFERENCES, SECOND = "differences", "second order"
SECOND_CASES = 3
"""Second-order cases per op."""
OF_LARGEST, OF_VALUE = 1e-5, 1e-4
"""Tolerances of float32: relative to the largest gradient, and to the element."""
BITS, TRIALS, TIMES = 23, 3, 16.0
"""Mantissa bits of float32, number of trials, and safety factor. For a large error, every
intermediate value is rounded randomly to BITS. The error may be TIMES the resulting change: near a
pole or with cancellation no float32 is more exact.
"""
ROUNDING = 2.0**-BITS
"""Rounding error of a slope of 1."""
HUGE, TINY = 1e37, 1e-37
"""Larger gradients are not compared; smaller ones may be flushed to 0 by a driver."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One case of one op.

    by: "differences", "second order" or a device. directions, kinks: as in `GradientComparison`; 0
    on devices. error: relative to the largest term, on devices to the largest gradient. reason: why
    the case is not compared. wrong: description of an error, or "".
    """

    op: str
    case: str
    by: str
    directions: int = 0
    kinks: int = 0
    error: float = 0.0
    reason: str = ""
    wrong: str = ""


def cases_of(names: Sequence[str]) -> list[OpSample]:
    """Return the cases of some ops, or of all with a gradient rule.

    Raise UnsupportedOp for an unknown op, VkschedError for one without a gradient.
    """
    wanted = {case.op for case in select(names) if isinstance(case, OpSample)}
    for op in sorted(wanted) if names else ():
        if rule_of(op) is None:
            why = why_no_gradient(op) or "has no rule yet"
            raise VkschedError(f"[ops grad] expected ops with a gradient, got {op}, which {why}")
    return [case for case in CASES if case.op in wanted and rule_of(case.op) is not None]


def reasons() -> dict[str, str]:
    """Return the ops without a gradient rule, with the declared reason or ""."""
    return {op: why_no_gradient(op) for op in computing_ops() if rule_of(op) is None}


def spread(cases: Sequence[OpSample], count: int) -> list[OpSample]:
    """Return `count` of the cases, evenly spaced."""
    taken = min(count, len(cases))
    return [cases[i * len(cases) // taken] for i in range(taken)]


def by_differences(cases: Iterable[OpSample], second: int = SECOND_CASES) -> Iterator[Outcome]:
    """Yield the outcome of each case by differences, op by op, then `second` second-order outcomes
    per op.
    """
    groups: dict[str, list[OpSample]] = {}
    for case in cases:
        groups.setdefault(case.op, []).append(case)
    for group in groups.values():
        able: list[OpSample] = []
        for case in group:
            found = first_order(case)
            yield found
            if not found.reason:
                able.append(case)
        yield from map(second_order, spread(able, second))


def first_order(case: OpSample) -> Outcome:
    """Return the outcome of a case by differences."""
    if reason := why_not_compared(case):
        return Outcome(case.op, case.id, DIFFERENCES, reason=reason)
    return _outcome(case, DIFFERENCES, compare)


def second_order(case: OpSample) -> Outcome:
    """Return the outcome of a case's gradient by differences, if `first_order` has one."""
    try:
        reason = why_not_second(case)
    except VkschedError as wrong:
        return Outcome(case.op, case.id, SECOND, wrong=str(wrong))
    if reason:
        return Outcome(case.op, case.id, SECOND, reason=reason)
    return _outcome(case, SECOND, compare_second)


def _outcome(case: OpSample, by: str, run: Callable[[OpSample], GradientComparison]) -> Outcome:
    try:
        found = run(case)
    except VkschedError as wrong:
        return Outcome(case.op, case.id, by, wrong=str(wrong))
    return Outcome(case.op, case.id, by, **dataclasses.asdict(found))


def on_device(device: str, cases: Iterable[OpSample]) -> Iterator[Outcome]:
    """Yield the outcome of each case on one device, in a scheduler with only that device."""
    with Scheduler([device], tune=False) as sched:
        for case in cases:
            yield on_scheduler(sched, device, case)


def why_not_on_devices(case: OpSample) -> str:
    """Return why the gradient of a case is not compared on devices, or ""."""
    if reason := why_not_compared(case):
        return reason
    finite = np.isfinite(in_float32(case).expected()).all()
    return "" if finite else "the result is not finite in float32"


def on_scheduler(sched: Scheduler, by: str, case: OpSample) -> Outcome:
    """Return the outcome of a case on a scheduler's devices. by: name of these devices."""
    if reason := why_not_on_devices(case):
        return Outcome(case.op, case.id, by, reason=reason)
    narrow = in_float32(case)
    try:
        function, wide = function_of(narrow), function_of(in_float64(narrow))
        got = _run(sched, function)
        error, wrong = _largest_error(got, wide)
    except VkschedError as failed:
        return Outcome(case.op, case.id, by, wrong=str(failed))
    return Outcome(case.op, case.id, by, error=error, wrong=wrong)


def _run(sched: Scheduler, function: Function) -> dict[str, NDArray]:
    run = sched.compile(dict(function.gradients))
    try:
        read = {node.name for node in function.backward.inputs}
        results = run(**{name: a for name, a in function.feeds.items() if name in read})
    finally:
        run.close()
    assert isinstance(results, dict)  # by output name, as compiled
    return results


def _largest_error(got: Mapping[str, NDArray], wide: Function) -> tuple[float, str]:
    """Return the largest error relative to the largest gradient, and a description of errors."""
    exact = evaluate(wide.backward, wide.feeds)
    changes: dict[str, NDArray] = {}
    largest, weights = 0.0, float(np.abs(wide.feeds["c y"]).max(initial=0.0))
    for name, wanted in exact.items():
        actual = got[name].astype(np.float64)
        is_finite = np.isfinite(wanted) & (np.abs(wanted) < HUGE)
        bound = np.where(is_finite, np.abs(wanted), 0.0)
        top = float(bound.max(initial=0.0))
        with np.errstate(all="ignore"):
            error = np.where(is_finite, np.abs(actual - np.where(is_finite, wanted, 0.0)), 0.0)
        allowed = OF_VALUE * bound + OF_LARGEST * top + ROUNDING * weights + TINY
        if not (error <= allowed).all():
            changes = changes or _changes(wide, exact)
            allowed = allowed + TIMES * np.nan_to_num(changes[name], nan=np.inf)
        far = np.flatnonzero(~(error <= allowed))
        if far.size:
            at = far[0]
            return largest, (
                f"by {name}: {actual.flat[at]:.6g} where {wanted.flat[at]:.6g} was expected, and "
                f"{far.size - 1} others"
            )
        share = error.max(initial=0.0) / top if top else 0.0
        largest = max(largest, float(share))
    return largest, ""


def _changes(wide: Function, exact: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return the change of each gradient when all intermediate values are rounded."""
    most = {name: np.zeros(a.shape) for name, a in exact.items()}
    rng = np.random.default_rng(2)
    for _ in range(TRIALS):
        found = evaluate(wide.backward, wide.feeds, partial(_rounded, rng=rng))
        for name, changed in found.items():
            with np.errstate(all="ignore"):
                most[name] = np.maximum(most[name], np.abs(changed - exact[name]))
    return most


def _rounded(array: NDArray, operands: tuple[NDArray, ...], rng: np.random.Generator) -> NDArray:
    """Return floats rounded to a random grid. Values that an op only moves or selects stay exact,
    because masks compare them; equal values of one array stay equal.
    """
    if array.dtype.kind != "f":
        return array
    if operands and np.isin(array, np.concatenate([[0], *(o.ravel() for o in operands)])).all():
        return array
    grid = rng.uniform(1, 2)
    with np.errstate(all="ignore"):
        digits, exponents = np.frexp(array * grid)
        return np.asarray(np.ldexp(np.rint(np.ldexp(digits, BITS)), exponents - BITS) / grid)


@dataclasses.dataclass(slots=True)
class Row:
    """Counts of the outcomes of one op by one method. cases: number of compared cases."""

    op: str
    by: str
    cases: int = 0
    directions: int = 0
    kinks: int = 0
    error: float = 0.0
    wrong: int = 0


def summary(outcomes: Iterable[Outcome]) -> list[Row]:
    """Return one row per op and method, sorted by op."""
    rows: dict[tuple[str, str], Row] = {}
    for outcome in outcomes:
        row = rows.setdefault((outcome.op, outcome.by), Row(outcome.op, outcome.by))
        row.cases += not outcome.reason
        row.directions += outcome.directions
        row.kinks += outcome.kinks
        row.wrong += bool(outcome.wrong)
        if not outcome.wrong:
            row.error = max(row.error, outcome.error)
    return sorted(rows.values(), key=lambda row: row.op)


def as_dict(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return outcomes, and the ops without outcomes, as plain data."""
    return {
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
        "without": [{"op": op, "reason": why} for op, why in reasons().items()],
    }
