"""Proof of gradient rules: of each op by differences, and on each device by a run, as outcomes.

    differences     each case, in float64              testing/numeric_gradient.py
    second order    a few cases of each op             differences of the rule itself
    vulkan:0, ...   each case, in float32              the gradient graph on that device, optimized,
                                                       against the same in float64

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
    Compared,
    Function,
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
"""Of each op."""
OF_LARGEST, OF_VALUE = 1e-5, 1e-4
"""Errors that float32 may make: a share of the largest gradient, and one of the element's own."""
BITS, TRIALS, TIMES = 23, 3, 16.0
"""Digits that float32 keeps. Where an error is large, every value on the way is rounded so, so
often. The gradient may be wrong by as much as it changes then, times this: near a pole no float32
knows better, nor where large terms add up to nothing.
"""
ROUNDING = 2.0**-BITS
"""What a slope of 1 has anyway."""
HUGE, TINY = 1e37, 1e-37
"""Nothing is said of gradients beyond the first; below the second a driver may give 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One case of one op. by: "differences", "second order" or a device.

    directions, kinks: as in `Compared`; 0 on devices. error: a share of the largest term, on
    devices of the largest gradient. reason: why the case is not compared. wrong: what is wrong.
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
    """Return the cases of some ops, or of all that have a gradient rule.

    Raises:
        UnsupportedOp: there is no such op. VkschedError: one of them has no gradient.
    """
    wanted = {case.op for case in select(names) if isinstance(case, OpSample)}
    for op in sorted(wanted) if names else ():
        if rule_of(op) is None:
            why = why_no_gradient(op) or "has no rule yet"
            raise VkschedError(f"[ops grad] expected ops with a gradient, got {op}, which {why}")
    return [case for case in CASES if case.op in wanted and rule_of(case.op) is not None]


def reasons() -> dict[str, str]:
    """Return the ops without a gradient rule, with the reasons; "" where none is declared."""
    return {op: why_no_gradient(op) for op in computing_ops() if rule_of(op) is None}


def spread(cases: Sequence[OpSample], count: int) -> list[OpSample]:
    """Return so many of the cases, taken evenly."""
    taken = min(count, len(cases))
    return [cases[i * len(cases) // taken] for i in range(taken)]


def by_differences(cases: Iterable[OpSample], second: int = SECOND_CASES) -> Iterator[Outcome]:
    """Yield the outcome of each case by differences, op by op, and then so many of the second
    order.
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
    """Return the outcome of a case's gradient by differences of that; `first_order` had one."""
    try:
        reason = why_not_second(case)
    except VkschedError as wrong:
        return Outcome(case.op, case.id, SECOND, wrong=str(wrong))
    if reason:
        return Outcome(case.op, case.id, SECOND, reason=reason)
    return _outcome(case, SECOND, compare_second)


def _outcome(case: OpSample, by: str, run: Callable[[OpSample], Compared]) -> Outcome:
    try:
        found = run(case)
    except VkschedError as wrong:
        return Outcome(case.op, case.id, by, wrong=str(wrong))
    return Outcome(case.op, case.id, by, **dataclasses.asdict(found))


def on_device(device: str, cases: Iterable[OpSample]) -> Iterator[Outcome]:
    """Yield the outcome of each case on one device, in a scheduler of it alone."""
    with Scheduler([device], tune=False) as sched:
        for case in cases:
            yield on_scheduler(sched, device, case)


def why_not_on_devices(case: OpSample) -> str:
    """Return why the gradient of a case is not compared on devices; "" where it is."""
    if reason := why_not_compared(case):
        return reason
    finite = np.isfinite(in_float32(case).expected()).all()
    return "" if finite else "the result is not finite in float32"


def on_scheduler(sched: Scheduler, by: str, case: OpSample) -> Outcome:
    """Return the outcome of a case on a scheduler's devices. by: what they are called."""
    if reason := why_not_on_devices(case):
        return Outcome(case.op, case.id, by, reason=reason)
    narrow = in_float32(case)
    try:
        function, wide = function_of(narrow), function_of(in_float64(narrow))
        got = _run(sched, function)
        error, wrong = _far(got, wide)
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
    assert isinstance(results, dict)  # as the outputs that it was compiled from
    return results


def _far(got: Mapping[str, NDArray], wide: Function) -> tuple[float, str]:
    """Return the largest error, as a share of the largest gradient, and what is wrong."""
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
    """Return how much each gradient changes when all values on the way to it are rounded."""
    most = {name: np.zeros(a.shape) for name, a in exact.items()}
    rng = np.random.default_rng(2)
    for _ in range(TRIALS):
        found = evaluate(wide.backward, wide.feeds, partial(_rounded, rng=rng))
        for name, changed in found.items():
            with np.errstate(all="ignore"):
                most[name] = np.maximum(most[name], np.abs(changed - exact[name]))
    return most


def _rounded(array: NDArray, operands: tuple[NDArray, ...], rng: np.random.Generator) -> NDArray:
    """Return floats rounded to one of many grids. What an op only moves or picks stays, as masks
    tell by its being equal, and what is equal in one array stays so.
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
    """The outcomes of one op by one means, counted. cases: those that were compared."""

    op: str
    by: str
    cases: int = 0
    directions: int = 0
    kinks: int = 0
    error: float = 0.0
    wrong: int = 0


def summary(outcomes: Iterable[Outcome]) -> list[Row]:
    """Return one row for each op and means, in order of op."""
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
    """Return outcomes, and the ops that have none, as plain data."""
    return {
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
        "without": [{"op": op, "reason": why} for op, why in reasons().items()],
    }
