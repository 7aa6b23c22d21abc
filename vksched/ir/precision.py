"""Precision modes of matmuls, convolutions and attention.

    float32   operands, sums and results in float32
    mixed     operands may be rounded to float16; products and sums in float32
    float16   operands, sums and results may be rounded to float16
    bfloat16  operands may be rounded to bfloat16, which has float32's range; products and sums in
              float32
    int8      as float32, except matmuls with quantized weights: activations may be quantized to
              8 bits in blocks of 32 (vksched/ops/quantized/q8_activations.py)

The precision is an attribute of a node, set by a pass (vksched/passes/set_precision.py); the
default is float32. `Op.roundable_operands` names the affected operands. A mode is a permission: a
device without float16 computes in float32, which is more accurate. Types of values do not change.

The numpy backend emulates each mode exactly: it rounds operands to nearest even, accumulates in
float32, and rounds the result for "float16". The op itself implements "int8", because it knows the
weight's format. Examples: tests/ir/test_factors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from ..common.dtypes import FLOAT32, NDArray
from .attrs import Attrs, AttrValue
from .op import Call, Op

PRECISION = "precision"
"""Name of the attribute."""
PRECISIONS = ("float32", "mixed", "float16", "bfloat16", "int8")
SINGLE, MIXED, HALF, BRAIN, BYTES = PRECISIONS
"""The modes, the most accurate first."""


@lru_cache(maxsize=4096)
def precision_of(attrs: Attrs) -> str:
    """Return the precision mode of a node."""
    return str(attrs[PRECISION]) if PRECISION in attrs else SINGLE


def precision_attrs(attrs: Attrs) -> dict[str, AttrValue]:
    """Return the precision attribute of a node, for an equivalent node; {} without one."""
    return {PRECISION: attrs[PRECISION]} if PRECISION in attrs else {}


def with_word(attrs: Mapping[str, AttrValue], word: str) -> Attrs:
    """Return the attributes of a node with another precision mode."""
    bare = {name: value for name, value in attrs.items() if name != PRECISION}
    return Attrs(bare if word == SINGLE else {**bare, PRECISION: word})


def allows_half(attrs: Attrs) -> bool:
    """Return True if a node's operands may be rounded to float16."""
    return precision_of(attrs) in (MIXED, HALF)


def rounds_operands(attrs: Attrs) -> bool:
    """Return True if a node's operands may be rounded to 16-bit floats."""
    return precision_of(attrs) in (MIXED, HALF, BRAIN)


def may_round(call: Call) -> bool:
    """Return True if a kernel may multiply in float16: the precision and the device permit it.

    float16 variants are offered only then.
    """
    allowed = call.limits.float16 and allows_half(call.attrs)
    return allowed and call.output.dtype == FLOAT32


def as_half(array: NDArray) -> NDArray:
    """Round floats to float16, in their original type; return other arrays unchanged."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 2:
        return array
    with np.errstate(all="ignore"):
        return array.astype(np.float16).astype(array.dtype)


def bfloat16_bits(array: NDArray) -> NDArray:
    """Round float32 to bfloat16, to nearest even, and return the bits as uint16."""
    bits = array.view(np.uint32)
    upper = bits >> np.uint32(16)
    nearest = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    quiet = upper | np.uint32(0x40)  # a NaN stays NaN after truncation
    rounded: NDArray = np.where(np.isnan(array), quiet, nearest).astype(np.uint16)
    return rounded


def as_bfloat16(array: NDArray) -> NDArray:
    """Round floats to bfloat16, in their original type; return other arrays unchanged."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 2:
        return array
    with np.errstate(all="ignore"):
        bits = bfloat16_bits(np.ascontiguousarray(array, np.float32))
    wide: NDArray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide.astype(array.dtype, copy=False)


def as_factor(array: NDArray, word: str) -> NDArray:
    """Round an operand as numpy does in a mode of `rounds_operands`."""
    return as_bfloat16(array) if word == BRAIN else as_half(array)


def round_operands(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> tuple[NDArray, ...]:
    """Round the operands of a call according to its precision."""
    rounds, word = rounded_operands(op, attrs), precision_of(attrs)
    if not rounds:
        return inputs
    return tuple(as_factor(x, word) if i in rounds else x for i, x in enumerate(inputs))


def rounded_operands(op: Op, attrs: Attrs) -> tuple[int, ...]:
    """Return the indices of the operands that numpy rounds at a node's precision."""
    return op.roundable_operands if rounds_operands(attrs) else ()


def round_result(op: Op, result: NDArray, attrs: Attrs) -> NDArray:
    """Round the result of a call according to its precision."""
    return as_half(result) if op.roundable_operands and precision_of(attrs) == HALF else result
