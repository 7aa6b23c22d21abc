"""Helpers of pattern rules: factors of a product, scalars, and values with a single use."""

from __future__ import annotations

import math

from ..ir.graph import Node
from .rewrite import Rewriter

CLOSE, CLOSE_OF_HALVES = 1e-5, 1e-6
"""Relative tolerances of numbers in model files: for numbers that decimal fractions approximate,
and for multiples of 1/64 such as 0.5, which are exact.
"""


def isclose(value: float | int | None, wanted: float) -> bool:
    """Return True if a number equals another up to the rounding of float32 or decimal fractions."""
    within = CLOSE_OF_HALVES if (64 * wanted).is_integer() else CLOSE
    return value is not None and math.isclose(value, wanted, rel_tol=within)


def single_use(r: Rewriter, node_id: int, *ops: str) -> Node | None:
    """Return a node with one of these ops that only the current node reads; else None."""
    node = r[node_id]
    return node if node.op in ops and r.has_single_use(node_id) else None


MAX_PARTS = 8
"""Maximum number of factors or terms that are collected; patterns have fewer."""


def factors(r: Rewriter, node: Node, op: str = "mul") -> tuple[float, list[int]]:
    """Return the product of the scalar constants of nested multiplications (or the sum for
    additions), and the other factors.

    A nested product with other readers counts as one factor, and so does the rest beyond MAX_PARTS.
    """
    number, others = 1.0 if op == "mul" else 0.0, list[int]()
    left, seen = list(reversed(node.inputs)), 1
    while left:
        operand = left.pop()
        value = r.scalar(operand)
        inner = single_use(r, operand, op) if seen < MAX_PARTS else None
        if value is not None:
            number = number * value if op == "mul" else number + value
        elif inner is not None:
            seen += 1
            left += reversed(inner.inputs)
        else:
            others.append(operand)
    return number, others


def scaled(r: Rewriter, node_id: int) -> tuple[int, float]:
    """Return (x, s) if a value is x times the scalar s, written as multiplications or divisions."""
    scale = 1.0
    while True:
        node = single_use(r, node_id, "mul", "div")
        found = None if node is None else _multiple(r, node)
        if found is None:
            return node_id, scale
        node_id, scale = found[0], scale * found[1]


def _multiple(r: Rewriter, node: Node) -> tuple[int, float] | None:
    left, right = node.inputs
    value = r.scalar(right)
    if value is not None and r[left].type == node.type:
        if node.op == "mul":
            return left, float(value)
        return (left, 1.0 / value) if value else None
    value = r.scalar(left)
    if value is not None and node.op == "mul" and r[right].type == node.type:
        return right, float(value)
    return None


def power_of(
    r: Rewriter, node_id: int, base: int, most: int = MAX_PARTS
) -> tuple[float, int] | None:
    """Return (a, n) if a value is a * base^n, in any notation, and no other node reads its parts.

    `most` limits the depth of the expression.
    """
    if node_id == base:
        return 1.0, 1
    value = r.scalar(node_id)
    if value is not None:
        return float(value), 0
    node = single_use(r, node_id, "pow", "square", "mul", "div")
    if node is None or most == 0:
        return None
    if node.op in ("square", "pow"):
        exponent = 2 if node.op == "square" else r.scalar(node.inputs[1])
        inner = power_of(r, node.inputs[0], base, most - 1)
        if inner is None or exponent not in (2, 3):
            return None
        return inner[0] ** exponent, inner[1] * int(exponent)
    left, right = (power_of(r, i, base, most - 1) for i in node.inputs)
    if left is None or right is None:
        return None
    if node.op == "mul":
        return left[0] * right[0], left[1] + right[1]
    return (left[0] / right[0], left[1]) if right[1] == 0 and right[0] else None


def is_square(r: Rewriter, node_id: int, base: int) -> bool:
    """Return True if a value is the square of another."""
    return power_of(r, node_id, base) == (1.0, 2)
