"""Precision: how exactly products, convolutions and attention are computed.

    float32   operands, sums and results in float32
    mixed     operands may be rounded to float16; products and sums in float32
    float16   operands, sums and results may be rounded to float16
    int8      as float32, but for products by weights of few bits: their other operand may be
              rounded to 8 bits in runs of 32 (vksched/ops/products/rounded.py)

It is an attribute of a node, set by a pass (vksched/passes/precision.py); a node without it is
float32. `Op.factors` names the operands that count. A word is a permission: a device that has no
float16 computes in float32, which is nearer to the real numbers. Types of values stay as they are.

Numpy does what a word allows, and no more than that: it rounds the operands, sums their products in
float32, and for "float16" rounds the result. What "int8" rounds the op itself does, as it knows the
weight's format. Examples: tests/ops/test_factors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from ...types import FLOAT32, NDArray
from .attrs import Attrs, AttrValue
from .op import Call, Op

PRECISION = "precision"
"""The attribute."""
SINGLE, MIXED, HALF, BYTES = PRECISIONS = ("float32", "mixed", "float16", "int8")
"""The words, the most exact one first."""


@lru_cache(maxsize=4096)
def precision_of(attrs: Attrs) -> str:
    """Returns the word of a node."""
    return str(attrs[PRECISION]) if PRECISION in attrs else SINGLE


def kept_precision(attrs: Attrs) -> dict[str, AttrValue]:
    """Returns the attribute of a node for another one that computes the same; {} without it."""
    return {PRECISION: attrs[PRECISION]} if PRECISION in attrs else {}


def with_word(attrs: Mapping[str, AttrValue], word: str) -> Attrs:
    """Returns the attributes of a node with another word."""
    bare = {name: value for name, value in attrs.items() if name != PRECISION}
    return Attrs(bare if word == SINGLE else {**bare, PRECISION: word})


def allows_half(attrs: Attrs) -> bool:
    """Whether a node's operands may be rounded to float16."""
    return precision_of(attrs) in (MIXED, HALF)


def may_round(call: Call) -> bool:
    """Whether a kernel may compute a call's products in float16: the call's precision and the
    device allow it. A variant that does so is named only where this holds.
    """
    allowed = call.limits.float16 and allows_half(call.attrs)
    return allowed and call.output.dtype == FLOAT32


def as_half(array: NDArray) -> NDArray:
    """Returns floats rounded to float16, in their own type; other arrays as they are."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 2:
        return array
    with np.errstate(all="ignore"):
        return array.astype(np.float16).astype(array.dtype)


def round_factors(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> tuple[NDArray, ...]:
    """Returns the operands of a call as its precision has them."""
    rounds = rounded_operands(op, attrs)
    return (
        tuple(as_half(x) if i in rounds else x for i, x in enumerate(inputs)) if rounds else inputs
    )


def rounded_operands(op: Op, attrs: Attrs) -> tuple[int, ...]:
    """Returns which operands numpy rounds to float16, as a node's precision says."""
    return op.factors if allows_half(attrs) else ()


def round_result(op: Op, result: NDArray, attrs: Attrs) -> NDArray:
    """Returns the result of a call as its precision has it."""
    return as_half(result) if op.factors and precision_of(attrs) == HALF else result
