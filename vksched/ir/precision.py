"""Precision: how exactly products, convolutions and attention are computed.

    float32   operands, sums and results in float32
    mixed     operands may be rounded to float16; products and sums in float32
    float16   operands, sums and results may be rounded to float16
    bfloat16  operands may be rounded to bfloat16, which has float32's range; products and sums in
              float32
    int8      as float32, but for products by weights of few bits: their other operand may be
              rounded to 8 bits in runs of 32 (vksched/ops/quantized/q8_activations.py)

It is an attribute of a node, set by a pass (vksched/passes/set_precision.py); a node without it is
float32. `Op.roundable_operands` names the operands that count. A word is a permission: a device
that has no float16 computes in float32, which is nearer to the real numbers. Types of values stay
as they are.

Numpy does what a word allows, and no more than that: it rounds the operands to the nearest value,
of two the even one, sums their products in float32, and for "float16" rounds the result. What
"int8" rounds the op itself does, as it knows the weight's format. Examples:
tests/ir/test_factors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from ..common.dtypes import FLOAT32, NDArray
from .attrs import Attrs, AttrValue
from .op import Call, Op

PRECISION = "precision"
"""The attribute."""
PRECISIONS = ("float32", "mixed", "float16", "bfloat16", "int8")
SINGLE, MIXED, HALF, BRAIN, BYTES = PRECISIONS
"""The words, the most exact one first."""


@lru_cache(maxsize=4096)
def precision_of(attrs: Attrs) -> str:
    """Return the word of a node."""
    return str(attrs[PRECISION]) if PRECISION in attrs else SINGLE


def kept_precision(attrs: Attrs) -> dict[str, AttrValue]:
    """Return the attribute of a node for another one that computes the same; {} without it."""
    return {PRECISION: attrs[PRECISION]} if PRECISION in attrs else {}


def with_word(attrs: Mapping[str, AttrValue], word: str) -> Attrs:
    """Return the attributes of a node with another word."""
    bare = {name: value for name, value in attrs.items() if name != PRECISION}
    return Attrs(bare if word == SINGLE else {**bare, PRECISION: word})


def allows_half(attrs: Attrs) -> bool:
    """Whether a node's operands may be rounded to float16."""
    return precision_of(attrs) in (MIXED, HALF)


def rounds_operands(attrs: Attrs) -> bool:
    """Whether a node's operands may be rounded to floats of 16 bits."""
    return precision_of(attrs) in (MIXED, HALF, BRAIN)


def may_round(call: Call) -> bool:
    """Whether a kernel may compute a call's products in float16: the call's precision and the
    device allow it. A variant that does so is named only where this holds.
    """
    allowed = call.limits.float16 and allows_half(call.attrs)
    return allowed and call.output.dtype == FLOAT32


def as_half(array: NDArray) -> NDArray:
    """Return floats rounded to float16, in their own type; other arrays as they are."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 2:
        return array
    with np.errstate(all="ignore"):
        return array.astype(np.float16).astype(array.dtype)


def bfloat16_bits(array: NDArray) -> NDArray:
    """Return float32 rounded to bfloat16, of two the even one, as the uint16 that hold it."""
    bits = array.view(np.uint32)
    upper = bits >> np.uint32(16)
    nearest = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    quiet = upper | np.uint32(0x40)  # a NaN stays one whatever bits are cut off
    made: NDArray = np.where(np.isnan(array), quiet, nearest).astype(np.uint16)
    return made


def as_bfloat16(array: NDArray) -> NDArray:
    """Return floats rounded to bfloat16, in their own type; other arrays as they are."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 2:
        return array
    with np.errstate(all="ignore"):
        bits = bfloat16_bits(np.ascontiguousarray(array, np.float32))
    wide: NDArray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide.astype(array.dtype, copy=False)


def as_factor(array: NDArray, word: str) -> NDArray:
    """Return an operand of a product as numpy rounds it for a word of `rounds_operands`."""
    return as_bfloat16(array) if word == BRAIN else as_half(array)


def round_operands(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> tuple[NDArray, ...]:
    """Return the operands of a call as its precision has them."""
    rounds, word = rounded_operands(op, attrs), precision_of(attrs)
    if not rounds:
        return inputs
    return tuple(as_factor(x, word) if i in rounds else x for i, x in enumerate(inputs))


def rounded_operands(op: Op, attrs: Attrs) -> tuple[int, ...]:
    """Return which operands numpy rounds, as a node's precision says."""
    return op.roundable_operands if rounds_operands(attrs) else ()


def round_result(op: Op, result: NDArray, attrs: Attrs) -> NDArray:
    """Return the result of a call as its precision has it."""
    return as_half(result) if op.roundable_operands and precision_of(attrs) == HALF else result
