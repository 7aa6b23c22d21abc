"""Fuse activations that model files write as small ops: GELU (erf and tanh), SiLU, hard swish.

    x -> mul 0.7071 -> erf -> add 1 -> mul x -> mul 0.5      is      x -> gelu

Factors match in any order, and divisions match as multiplications by the inverse. Examples:
tests/passes/test_patterns.py.
"""

from __future__ import annotations

import math

from ..common.dtypes import FLOAT32
from ..ir.graph import Node
from .pattern import factors, isclose, power_of, scaled, single_use
from .rewrite import Rewriter

TANH_CUBE = 0.044715
"""The coefficient of the cube in the tanh approximation of GELU."""


def to_gelu(r: Rewriter, node: Node) -> int | None:
    """Match 0.5 x (1 + erf(x / sqrt(2))) and 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    if node.type.dtype != FLOAT32:
        return None
    number, others = factors(r, node)
    if len(others) != 2 or not isclose(number, 0.5):
        return None
    for x, gate in (others, reversed(others)):
        if r[x].type != node.type:
            continue
        one = single_use(r, gate, "add")
        shifted = None if one is None else factors(r, one, "add")
        if shifted is None or shifted[0] != 1.0 or len(shifted[1]) != 1:
            continue
        curve = single_use(r, shifted[1][0], "erf", "tanh")
        if curve is None:
            continue
        if curve.op == "erf" and _is_scaled(r, curve.inputs[0], x, math.sqrt(0.5)):
            return r.emit("gelu", (x,))
        if curve.op == "tanh" and _is_cubic(r, curve.inputs[0], x):
            return r.emit("gelu_tanh", (x,))
    return None


def _is_scaled(r: Rewriter, node_id: int, x: int, wanted: float, exponent: int = 1) -> bool:
    found = power_of(r, node_id, x)
    return found is not None and found[1] == exponent and isclose(found[0], wanted)


def _is_cubic(r: Rewriter, node_id: int, x: int) -> bool:
    """Return True for sqrt(2 / pi) (x + 0.044715 x^3), with or without x factored out."""
    product = single_use(r, node_id, "mul")
    number, others = (1.0, [node_id]) if product is None else factors(r, product)
    if not isclose(number, math.sqrt(2 / math.pi)):
        return False
    factored = x in others
    if factored:
        others.remove(x)
    bracket = single_use(r, others[0], "add") if len(others) == 1 else None
    if bracket is None:
        return False
    for one, cube in (bracket.inputs, reversed(bracket.inputs)):
        first = r.scalar(one) == 1.0 if factored else one == x
        if first and _is_scaled(r, cube, x, TANH_CUBE, 2 if factored else 3):
            return True
    return False


def to_silu(r: Rewriter, node: Node) -> int | None:
    """Match x sigmoid(x)."""
    for x, gate in (node.inputs, reversed(node.inputs)):
        curve = single_use(r, gate, "sigmoid")
        if curve is not None and curve.inputs[0] == x and r[x].type == node.type:
            return r.emit("silu", (x,))
    return None


def to_hard_swish(r: Rewriter, node: Node) -> int | None:
    """Match x clip(x + 3, 0, 6) / 6 and x hard_sigmoid(x) with slope 1 / 6."""
    if node.type.dtype != FLOAT32:
        return None
    product, number = node, 1.0
    if node.op == "div":
        divisor, found = r.scalar(node.inputs[1]), single_use(r, node.inputs[0], "mul")
        if not divisor or found is None:
            return None
        product, number = found, 1.0 / divisor
    more, others = factors(r, product)
    if len(others) != 2:
        return None
    for x, gate in (others, reversed(others)):
        if r[x].type != node.type:
            continue
        gate, scale = scaled(r, gate)
        if isclose(6 * number * more * scale * _slope(r, gate, x), 1.0):
            return r.emit("hard_swish", (x,))
    return None


def _slope(r: Rewriter, gate: int, x: int) -> float:
    """Return c / 6 if a value is c clip(x + 3, 0, 6) / 6, else 0."""
    if (sigmoid := single_use(r, gate, "hard_sigmoid")) is not None:
        slope, half = sigmoid.attrs.as_float("alpha"), sigmoid.attrs.as_float("beta")
        return 1 / 6 if sigmoid.inputs[0] == x and isclose(6 * slope, 1.0) and half == 0.5 else 0.0
    clipped = single_use(r, gate, "clip")
    inner = None if clipped is None else single_use(r, clipped.inputs[0], "add")
    if (
        clipped is None
        or inner is None
        or (clipped.attrs["low"], clipped.attrs["high"]) != (0.0, 6.0)
    ):
        return 0.0
    number, others = factors(r, inner, "add")
    return 1.0 if number == 3.0 and others == [x] else 0.0
