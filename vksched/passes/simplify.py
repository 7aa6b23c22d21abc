"""Simplify: what changes nothing is left out, and what can be said by one op is.

    transpose(transpose(x))   -> transpose(x)      x * 1, x - 0, cast to x's type -> x
    reshape(reshape(x))       -> reshape(x)        x / 4                          -> x * 0.25
    a @ transpose(b)          -> matmul(a, b, transpose_b)

Only what is exact: x + 0.0 is no x where x is -0.0, and a scale of floats is folded into another
where both are powers of two that cannot overflow earlier than they did. Examples:
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
    """x + 0.0 is 0.0 for -0.0; x + -0.0 is x for all x."""
    return value == 0 and (not is_float or math.copysign(1.0, value) < 0)


def _is_positive_zero(value: Number, is_float: bool) -> bool:
    return value == 0 and (not is_float or math.copysign(1.0, value) > 0)


def _is_one(value: Number, is_float: bool) -> bool:
    return value == 1


def _neutral(sides: tuple[int, ...], is_neutral: Callable[[Number, bool], bool]) -> Rule:
    """Return the rule for an op of two operands that is the other one beside a neutral constant.

    sides: where that constant may stand.
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
    """x / 4 is x * 0.25, bit for bit, where the inverse is a normal number too."""
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
    """Return a constant of the same type with another value."""
    type_ = r[constant].type
    array = np.full(type_.shape, value, numpy_dtype(type_.dtype))
    return r.constant(array, ("value", type_, array.tobytes()))


def _scale_twice(r: Rewriter, node: Node) -> int | None:
    """(x * a) * b is x * (a * b) of integers, and of floats where both are powers of two that only
    make larger: then a product is exact, or infinite in both.
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
    """Return the operand and the scalar constant of a product."""
    for side in (1, 0):
        if r.scalar(node.inputs[side]) is not None:
            return node.inputs[1 - side], node.inputs[side]
    return None


def _same_twice(r: Rewriter, node: Node) -> int | None:
    """An op that changes nothing the second time: relu(relu(x)), abs(abs(x))."""
    operand = r[node.inputs[0]]
    return operand.id if operand.op == node.op and r.same_device(operand.id) else None


def _back_again(r: Rewriter, node: Node) -> int | None:
    """An op that undoes itself: neg(neg(x))."""
    operand = r[node.inputs[0]]
    if operand.op != node.op or not r.same_device(operand.id):
        return None
    return operand.inputs[0] if r.same_device(operand.inputs[0]) else None


# -- types and shapes ------------------------------------------------------------------------------


def _no_change(r: Rewriter, node: Node) -> int | None:
    """A cast to the type it has, a reshape to the shape it has, and their like."""
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


def _turn_twice(r: Rewriter, node: Node) -> int | None:
    operand = r[node.inputs[0]]
    if operand.op != "transpose" or not r.same_device(operand.id):
        return None
    inner = operand.attrs.as_ints("axes")
    axes = tuple(inner[a] for a in node.attrs.as_ints("axes"))
    if axes == tuple(range(len(axes))) and r.same_device(operand.inputs[0]):
        return operand.inputs[0]
    return r.emit("transpose", operand.inputs, {"axes": axes})


def _turn_of_ones(r: Rewriter, node: Node) -> int | None:
    """A transpose that only moves axes of size 1 is a reshape."""
    operand = r[node.inputs[0]]
    if view_offset(node.declaration, (operand.type,), node.attrs) is None:
        return None
    return r.emit("reshape", node.inputs, {"shape": node.type.shape})


# -- states ----------------------------------------------------------------------------------------


def _copy_of_state(r: Rewriter, node: Node) -> int | None:
    """A next value that has become a state's memory is copied first, as `assign` says: each state
    is read as it was when the run began.
    """
    held, value = node.inputs
    if memory_of(r, value) != "state":
        return None
    type_ = r[value].type
    flat = r.emit("reshape", (value,), {"shape": (type_.size,)})
    copied = r.emit("concat", (flat,), {"axis": 0})
    return r.emit("assign", (held, r.emit("reshape", (copied,), {"shape": type_.shape})))


def memory_of(r: Rewriter, node_id: int) -> str:
    """Return the op that made the memory in which a value lies."""
    node = r[node_id]
    while node.inputs:
        types = tuple([r[i].type for i in node.inputs])
        if view_offset(node.declaration, types, node.attrs) is None:
            break
        node = r[node.inputs[0]]
    return node.op


# -- products --------------------------------------------------------------------------------------


def _absorb_turns(r: Rewriter, node: Node) -> int | None:
    """A product reads its operands transposed at no cost."""
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
    "transpose": (_remove_identity_transpose, _turn_twice, _turn_of_ones),
    "matmul": (_absorb_turns,),
    "assign": (_copy_of_state,),
}
"""By op the rules that make it simpler, tried in order."""
