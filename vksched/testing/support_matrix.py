"""Support matrix: supported ops by kind of device and element type, and reasons for gaps.

It is computed from the declarations: every sample is lowered with the limits of each kind.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from .. import ops
from ..common.dtypes import (
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    NARROW,
    UINT32,
)
from ..common.errors import UnsupportedOp
from ..ir.op import all_ops, computing_ops, get_op, view_offset
from ..ir.value_range import bounds_of_data, bounds_of_result, fits
from ..ir.vjp import rule_of, why_no_gradient
from ..ops.lowering.lower import lower
from ..topology.limits import Limits
from .op_cases.op_sample import OpSample
from .op_table import CASES, FUNCTIONS, is_taken

KINDS = {
    "GPU": Limits(1024, (1024, 1024, 64), (65535,) * 3, 32768, 128, 16, 1 << 30, 32),
    "CPU driver": Limits(storage_buffers=16, software=True),
    "Vulkan minimum": Limits(),
}
"""Typical limits of each kind of device; the minimum is Vulkan 1.1's guarantee."""
SHORT = {FLOAT32: "f32", FLOAT16: "f16", INT32: "i32", UINT32: "u32", BOOL: "b", INT64: "i64"}
SHORT[FLOAT64] = "f64"
SHORT |= {"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16"}
WIDER = {FLOAT16: FLOAT32, FLOAT64: FLOAT32, INT64: INT32, UINT32: INT32}
"""The type whose samples represent a type without samples of its own."""


@dataclass(frozen=True, slots=True)
class Support:
    """Support of one op.

    dtypes: types that numpy computes. on: types of the kernels for each kind of device. gaps:
    (kind, type, reason) of calls that fall back to the CPU. no_gradient: reason of a missing
    gradient, or "".
    """

    op: str
    dtypes: tuple[str, ...]
    on: dict[str, tuple[str, ...]]
    gaps: tuple[tuple[str, str, str], ...]
    no_gradient: str


@cache
def find_support() -> tuple[Support, ...]:
    """Return the support of every op, sorted by name."""
    by_op: dict[str, list[OpSample]] = {}
    for case in CASES:
        by_op.setdefault(case.op, []).append(case)
    names = computing_ops()
    return tuple(_support_of(name, by_op.get(name, [])) for name in names)


def _support_of(name: str, cases: list[OpSample]) -> Support:
    on: dict[str, list[str]] = {kind: [] for kind in KINDS}
    dtypes: list[str] = []
    gaps: dict[tuple[str, str, str], None] = {}
    for dtype in (*DTYPES, *NARROW):
        calls = list(_cases_of(cases, dtype))
        if not calls:
            continue
        dtypes.append(dtype)
        if dtype == FLOAT64:
            continue
        for kind, limits in KINDS.items():
            reasons = [_why_not(case, limits) for case in calls]
            gaps.update(((kind, dtype, reason), None) for reason in reasons if reason)
            if not all(reasons):
                on[kind].append(dtype)
    found = {kind: tuple(names) for kind, names in on.items()}
    why = "" if rule_of(name) else why_no_gradient(name) or "has no rule yet"
    return Support(name, tuple(dtypes), found, tuple(gaps), why)


def _cases_of(cases: Iterable[OpSample], dtype: str) -> Iterable[OpSample]:
    """Return the samples whose data has a type, or could be converted to it."""
    for case in cases:
        if _data_type(case) == dtype:
            yield case
        elif dtype in WIDER and _data_type(case) == WIDER[dtype] and case.op != "cast":
            other = case.as_dtypes({WIDER[dtype]: dtype})
            # else it has no operand of this type
            if is_taken(other) and _data_type(other) == dtype:
                yield other


def _data_type(case: OpSample) -> str:
    """Return the type of the first operand that is no index, or of the result."""
    indices = get_op(case.op).indices
    data = [t.dtype for i, t in enumerate(case.types) if i not in indices]
    numbers = [dtype for dtype in data if dtype != BOOL] or data
    return numbers[0] if numbers else case.result_type().dtype


def _why_not(case: OpSample, limits: Limits) -> str | None:
    call, op = case.call(limits), case.declaration
    if view_offset(op, call.inputs, call.attrs) is not None:
        return None
    try:
        lower(op, call)
    except UnsupportedOp as reason:
        return str(reason)
    if call.output.dtype != INT64:
        return None
    known = tuple(map(bounds_of_data, case.inputs))
    found = bounds_of_result(op, known, call.inputs, call.output, call.attrs)
    return None if fits(found) else "int64 results that are not known to fit 32 bits"


def as_dict() -> dict[str, Any]:
    """Return all support as plain data."""
    return {
        "ops": [
            {
                "op": s.op,
                "numpy": list(s.dtypes),
                **{kind: list(dtypes) for kind, dtypes in s.on.items()},
                "no_gradient": s.no_gradient,
                "gaps": [{"on": k, "dtype": d, "reason": r} for k, d, r in s.gaps],
            }
            for s in find_support()
        ],
        "functions": [{"function": n, "ops": list(o)} for n, o in find_functions()],
    }


@cache
def find_functions() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the composed functions, with the ops of their samples."""
    functions: dict[str, set[str]] = {}
    for case in FUNCTIONS:
        used = {n.op for n in case.graph.ops}
        if case.function in used:
            continue  # an op's own sample, with other ops around it
        functions.setdefault(case.function, set()).update(used)
    return tuple((name, tuple(sorted(used))) for name, used in sorted(functions.items()))


LEGEND = """\
numpy computes every op in every type listed. int64 has 32 bits on devices and runs there if its
values are known to fit. float16 is stored in 16 bits and computed in float32. i8, u8, i16 and u16
are types of weights. The last column holds the limits that the op cases meet.
"""


def as_markdown() -> str:
    """Return the tables of ops and functions, with a legend."""
    types = ", ".join(f"{short} {dtype}" for dtype, short in SHORT.items())
    types = textwrap.fill(f"Types: {types}.", 100)
    return f"{LEGEND}{types}\n\n{ops_table()}\n\n{functions_table()}\n"


def ops_table() -> str:
    """Return the table of ops in Markdown."""
    lines = ["| op | numpy | " + " | ".join(KINDS) + " | gradient | computed by numpy because |"]
    lines += ["|" + " --- |" * (len(KINDS) + 4)]
    for s in find_support():
        gradient = f"no: {s.no_gradient}" if s.no_gradient else "yes"
        cells = [_short(s.dtypes), *(_short(s.on[kind]) for kind in KINDS), gradient, _gaps(s)]
        lines.append(f"| {s.op} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def functions_table() -> str:
    """Return the table of composed functions and aliases in Markdown."""
    lines = ["| function | ops in its cases |", "| --- | --- |"]
    lines += [f"| {name} | {', '.join(used)} |" for name, used in find_functions()]
    aliases = sorted(set(ops.__all__) - set(dict(find_functions())) - set(all_ops()))
    if aliases:
        lines += ["", "Aliases: " + ", ".join(_alias(name) for name in aliases) + "."]
    return "\n".join(lines)


def _alias(name: str) -> str:
    return f"{name} = {getattr(ops, name).__name__}"


def _short(dtypes: Iterable[str]) -> str:
    return " ".join(SHORT[d] for d in dtypes) or "-"


def _gaps(s: Support) -> str:
    """Return the distinct reasons, with their kinds of device."""
    of: dict[str, dict[str, None]] = {}
    for kind, _, reason in s.gaps:
        of.setdefault(" ".join(reason.split()), {})[kind] = None
    return "; ".join(f"{', '.join(kinds)}: {reason}" for reason, kinds in of.items())
