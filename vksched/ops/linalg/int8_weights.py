"""Weights of 8 bits as products of integers read them: four codes of a column in a word.

    words   tile | tile | ...     a tile holds 16 columns, the last one's missing ones are 0
    tile    16 sums of columns | 16 words of rows 0 .. 3 | 16 words of rows 4 .. 7 | ...

Codes have a sign: those without one are held less 128, and their zero points are too. The first row
of a column is in the lowest bits of its words.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import INT32, UINT32, NDArray, Shape, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Flag
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, register
from ...ir.sharding_rule import no_sharding
from ...ir.tensor import Tensor, apply
from ...ir.vjp import no_gradient
from ..lowering.chunking import element_parts

TILE, PER_WORD = 16, 4
SHIFT = 128
"""What codes without a sign are less than they stand for."""


def depth_of(rows: int) -> int:
    """Returns the words of a column of so many rows."""
    return -(-rows // PER_WORD)


def words_shape(shape: Shape) -> Shape:
    """Returns the shape of the words of matrices: (..., k, n) -> (..., tiles, 1 + words, 16)."""
    *batch, k, n = shape
    return (*batch, -(-n // TILE), 1 + depth_of(k), TILE)


def as_signed(codes: NDArray, signed: bool) -> NDArray:
    """Returns codes of 8 bits, of which other bits are left out, as int8, less 128 without sign."""
    own = codes.astype(np.int8) if signed else codes.astype(np.uint8) ^ np.uint8(SHIFT)
    return own.view(np.int8)


def pack(codes: NDArray) -> NDArray:
    """Returns matrices of int8 (..., k, n) as words."""
    *batch, k, n = codes.shape
    shape = words_shape(codes.shape)
    tiles, depth = shape[-3], shape[-2] - 1
    padded: NDArray = np.zeros((*batch, depth * PER_WORD, tiles * TILE), np.int8)
    padded[..., :k, :n] = codes
    by_tile = padded.reshape(*batch, depth, PER_WORD, tiles, TILE)
    order = np.moveaxis(by_tile, -2, -4)  # (..., tiles, depth, 4, 16)
    words: NDArray = np.empty(shape, np.uint32)
    words[..., 1:, :] = np.ascontiguousarray(order.swapaxes(-1, -2)).view(np.uint32)[..., 0]
    words[..., 0, :] = order.sum(axis=(-3, -2), dtype=np.int32).view(np.uint32)
    return words


def codes_of(words: NDArray, k: int, n: int) -> NDArray:
    """Returns the codes of words: int8 (..., k, n)."""
    *batch, tiles, depth, _ = words.shape
    codes = np.ascontiguousarray(words[..., 1:, :, None]).view(np.int8)
    # from (..., tiles, depth, 16, 4)
    lines = np.moveaxis(codes.swapaxes(-1, -2), -4, -2)  # (..., depth, 4, tiles, 16)
    made: NDArray = lines.reshape(*batch, (depth - 1) * PER_WORD, tiles * TILE)
    return made[..., :k, :n]


def check_words(op: str, words: TensorType, k: int, n: int) -> None:
    """Raises DTypeError or ShapeError unless these are the words of a matrix (k, n)."""
    if words.dtype != UINT32:
        raise DTypeError(f"[{op}] expected words of uint32, got {words.dtype}; try vs.pack_codes")
    expected = words_shape((k, n))
    if words.shape[-3:] != expected:
        raise ShapeError(
            f"[{op}] expected words {expected} of a matrix {(k, n)}, got {words.shape}"
        )


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (x,) = inputs
    if x.dtype != INT32:
        raise DTypeError(f"[pack_codes] expected codes as int32, got {x.dtype}; try vs.widen")
    if x.rank < 2:
        raise ShapeError(f"[pack_codes] expected matrices, got {x.shape}")
    return TensorType(words_shape(x.shape), UINT32)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return pack(as_signed(inputs[0], attrs.as_bool("signed")))


def _lower(call: Call) -> tuple[Dispatch, ...]:
    (x,) = call.inputs
    *batch, k, n = x.shape
    if not call.output.size:
        return ()
    columns = math.prod(call.output.shape[:-2]) * TILE
    rounds = (1 + PER_WORD) * depth_of(k) + 1
    parts = element_parts("pack_codes", columns, rounds, call.limits)
    if len(parts) > 1:
        raise UnsupportedOp(f"[pack_codes] {columns} columns of {k} rows are too many")
    push = (("columns", columns), ("k", k), ("n", n), ("flip", 0 if call.attrs["signed"] else 128))
    return (Dispatch("int8_pack_weights", (0, OUTPUT), parts[0][2], push),)


register(
    Op(
        "pack_codes",
        _infer,
        _reference,
        Kernel(("int8_pack_weights",), _lower),
        attrs={"signed": Flag()},
        operands=(1, 1),
        any_dtype=True,
    )
)
no_gradient("rounds to words, which are no numbers", "pack_codes")
no_sharding("makes words, which hold several rows", "pack_codes")


def pack_codes(codes: Tensor, *, signed: bool = False, name: str | None = None) -> Tensor:
    """The words by which products of integers read a matrix of weights.

    codes: int32 (..., k, n), -128 .. 127 where they are `signed`, else 0 .. 255, which are held
    less 128, as their zero points are -> uint32 (..., tiles, 1 + words of a column, 16).
    """
    return apply("pack_codes", (codes,), {"signed": signed}, name)
