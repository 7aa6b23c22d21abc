"""Simplify: remove ops without effect, and replace several ops by one.

    transpose(transpose(x))   -> transpose(x)      x * 1, x - 0, cast to x's type -> x
    reshape(reshape(x))       -> reshape(x)        x / 4                          -> x * 0.25
    a @ transpose(b)          -> matmul(a, b, transpose_b)

All rules are exact: x + 0.0 is not x if x is -0.0, and two scales of floats are merged only if both
are powers of two whose product overflows exactly when the original does. Examples:
tests/passes/test_passes.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..common.dtypes import FLOATS, numpy_dtype
from ..ir.graph import Node
from ..ir.op import view_offset
from .rewrite import Rewriter, Rule

# -- arithmetic ------------------------------------------------------------------------------------

Number = float | int


def _is_zero(value: Number, is_float: bool) -> bool:
    return value == 0


def _is_negative_zero(value: Number, is_float: bool) -> bool:
    """Return True for the neutral element of addition: x + 0.0 changes -0.0."""
    return value == 0 and (not is_float or math.copysign(1.0, value) < 0)


def _is_positive_zero(value: Number, is_float: bool) -> bool:
    return value == 0 and (not is_float or math.copysign(1.0, value) > 0)


def _is_one(value: Number, is_float: bool) -> bool:
    return value == 1


def _neutral(sides: tuple[int, ...], is_neutral: Callable[[Number, bool], bool]) -> Rule:
    """Return the rule that replaces an op with a neutral constant by its other operand.

    sides: the operand positions where the constant may be.
    """

    def rule(r: Rewriter, node: Node) -> int | None:
        for side in sides:
            value = r.scalar(node.inputs[side])
            other = node.inputs[1 - side]
            if value is None or r[other].type != node.type or not r.same_device(other):
                continue
            if is_neutral(value, node.type.dtype in FLOATS):
                return other
        return None

    return rule


def _divide_by_power(r: Rewriter, node: Node) -> int | None:
    """Replace x / 4 by x * 0.25, which is exact if the inverse is a normal number."""
    value = r.scalar(node.inputs[1])
    if value is None or node.type.dtype != "float32" or not _is_power(value):
        return None
    if not 2.0**-100 <= abs(value) <= 2.0**100:
        return None
    inverse = _like(r, node.inputs[1], 1.0 / value)
    return r.emit("mul", (node.inputs[0], inverse))


def _is_power(value: Number) -> bool:
    return math.isfinite(value) and value != 0 and abs(math.frexp(value)[0]) == 0.5


def _like(r: Rewriter, constant: int, value: Number) -> int:
    """Return a constant of the type of another with a new value."""
    type_ = r[constant].type
    array = np.full(type_.shape, value, numpy_dtype(type_.dtype))
    return r.constant(array, ("value", type_, array.tobytes()))


def _scale_twice(r: Rewriter, node: Node) -> int | None:
    """Replace (x * a) * b by x * (a * b) for integers, and for floats if both are powers of two of
    at least 1: then a product is exact, or infinite in both forms.
    """
    found = _constant_side(r, node)
    if found is None:
        return None
    inner, outer = r[found[0]], found[1]
    nested = (
        _constant_side(r, inner) if inner.op == node.op and r.has_single_use(inner.id) else None
    )
    if nested is None or r[nested[0]].type != node.type:
        return None
    a, b = r.scalar(nested[1]), r.scalar(outer)
    if a is None or b is None or node.type.dtype not in ("float32", "int32"):
        return None
    if node.type.dtype == "float32":
        if not (_is_power(a) and _is_power(b) and min(abs(a), abs(b)) >= 1) or abs(a * b) > 2**100:
            return None
        return r.emit(node.op, (nested[0], _like(r, outer, a * b)))
    wrapped = int(np.int64(a * b).astype(np.int32))
    return r.emit(node.op, (nested[0], _like(r, outer, wrapped)))


def _constant_side(r: Rewriter, node: Node) -> tuple[int, int] | None:
    """Return the operand and the scalar constant of a product; None if there is no constant."""
    for side in (1, 0):
        if r.scalar(node.inputs[side]) is not None:
            return node.inputs[1 - side], node.inputs[side]
    return None


def _same_twice(r: Rewriter, node: Node) -> int | None:
    """Remove a repeated idempotent op: relu(relu(x)), abs(abs(x))."""
    operand = r[node.inputs[0]]
    return operand.id if operand.op == node.op and r.same_device(operand.id) else None


def _back_again(r: Rewriter, node: Node) -> int | None:
    """Remove a pair of inverse ops: neg(neg(x))."""
    operand = r[node.inputs[0]]
    if operand.op != node.op or not r.same_device(operand.id):
        return None
    return operand.inputs[0] if r.same_device(operand.inputs[0]) else None


# -- types and shapes ------------------------------------------------------------------------------


def _no_change(r: Rewriter, node: Node) -> int | None:
    """Remove an op that returns its operand, such as a cast to its own type."""
    operand = r[node.inputs[0]]
    return operand.id if operand.type == node.type and r.same_device(operand.id) else None


def _remove_identity_transpose(r: Rewriter, node: Node) -> int | None:
    axes = node.attrs.as_ints("axes")
    whole = axes == tuple(range(len(axes)))
    return node.inputs[0] if whole and r.same_device(node.inputs[0]) else None


def _reshape_twice(r: Rewriter, node: Node) -> int | None:
    operand = r[node.inputs[0]]
    if operand.op != "reshape" or not r.same_device(operand.id):
        return None
    if r[operand.inputs[0]].type == node.type and r.same_device(operand.inputs[0]):
        return operand.inputs[0]
    return r.emit("reshape", operand.inputs, {"shape": node.type.shape})


def _transpose_twice(r: Rewriter, node: Node) -> int | None:
    operand = r[node.inputs[0]]
    if operand.op != "transpose" or not r.same_device(operand.id):
        return None
    inner = operand.attrs.as_ints("axes")
    axes = tuple(inner[a] for a in node.attrs.as_ints("axes"))
    if axes == tuple(range(len(axes))) and r.same_device(operand.inputs[0]):
        return operand.inputs[0]
    return r.emit("transpose", operand.inputs, {"axes": axes})


def _transpose_of_ones(r: Rewriter, node: Node) -> int | None:
    """Replace a transpose that only moves axes of size 1 by a reshape."""
    operand = r[node.inputs[0]]
    if view_offset(node.declaration, (operand.type,), node.attrs) is None:
        return None
    return r.emit("reshape", node.inputs, {"shape": node.type.shape})


# -- states ----------------------------------------------------------------------------------------


def _copy_of_state(r: Rewriter, node: Node) -> int | None:
    """Copy a next value that is a view of a state, because `assign` reads each state as it was when
    the run began.
    """
    held, value = node.inputs
    if memory_of(r, value) != "state":
        return None
    type_ = r[value].type
    flat = r.emit("reshape", (value,), {"shape": (type_.size,)})
    copied = r.emit("concat", (flat,), {"axis": 0})
    return r.emit("assign", (held, r.emit("reshape", (copied,), {"shape": type_.shape})))


def memory_of(r: Rewriter, node_id: int) -> str:
    """Return the op that allocated the memory of a value, through views."""
    node = r[node_id]
    while node.inputs:
        types = tuple([r[i].type for i in node.inputs])
        if view_offset(node.declaration, types, node.attrs) is None:
            break
        node = r[node.inputs[0]]
    return node.op


# -- products --------------------------------------------------------------------------------------


def _fold_transpose(r: Rewriter, node: Node) -> int | None:
    """Fold transposes of operands into a matmul, which reads transposed operands at no cost."""
    inputs, attrs = list(node.inputs), dict(node.attrs)
    for side, flag in enumerate(("transpose_a", "transpose_b")):
        operand = r[inputs[side]]
        if operand.op != "transpose" or not r.same_device(operand.id):
            continue
        axes = operand.attrs.as_ints("axes")
        rank = len(axes)
        if axes != (*range(rank - 2), rank - 1, rank - 2):
            continue
        inputs[side] = operand.inputs[0]
        attrs[flag] = not attrs[flag]
    return r.emit("matmul", inputs, attrs) if tuple(inputs) != node.inputs else None


SIMPLER: dict[str, tuple[Rule, ...]] = {
    "add": (_neutral((0, 1), _is_negative_zero),),
    "sub": (_neutral((1,), _is_positive_zero),),
    "mul": (_neutral((0, 1), _is_one), _scale_twice),
    "div": (_neutral((1,), _is_one), _divide_by_power),
    "pow": (_neutral((1,), _is_one),),
    "bitwise_or": (_neutral((0, 1), _is_zero),),
    "bitwise_xor": (_neutral((0, 1), _is_zero),),
    "neg": (_back_again,),
    "relu": (_same_twice,),
    "abs": (_same_twice,),
    "floor": (_same_twice,),
    "ceil": (_same_twice,),
    "trunc": (_same_twice,),
    "positive": (_no_change,),
    "stop_gradient": (_no_change,),
    "cast": (_no_change,),
    "bitcast": (_no_change,),
    "expand": (_no_change,),
    "reshape": (_no_change, _reshape_twice),
    "transpose": (_remove_identity_transpose, _transpose_twice, _transpose_of_ones),
    "matmul": (_fold_transpose,),
    "assign": (_copy_of_state,),
}
"""The rules that simplify each op, in the order in which they are tried."""
