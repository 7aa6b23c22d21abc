"""Prepacked int8 weights of integer matrix products: four values of a column per 32-bit word.

    words   tile | tile | ...     a tile holds 16 columns; the last tile is padded with zeros
    tile    16 sums of columns | 16 words of rows 0 .. 3 | 16 words of rows 4 .. 7 | ...

Stored values are signed: 128 is subtracted from unsigned values and from their zero points. The
first row of a column is in the lowest bits of its words.
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
"""Offset that is subtracted from unsigned values to store them as int8."""


def depth_of(rows: int) -> int:
    """Return the number of words of a column with this many rows."""
    return -(-rows // PER_WORD)


def words_shape(shape: Shape) -> Shape:
    """Return the shape of prepacked matrices: (..., k, n) -> (..., tiles, 1 + words, 16)."""
    *batch, k, n = shape
    return (*batch, -(-n // TILE), 1 + depth_of(k), TILE)


def as_signed(int8_values: NDArray, signed: bool) -> NDArray:
    """Return the lowest 8 bits of the values as int8; subtract 128 from unsigned values."""
    own = int8_values.astype(np.int8) if signed else int8_values.astype(np.uint8) ^ np.uint8(SHIFT)
    return own.view(np.int8)


def pack_int8(int8_values: NDArray) -> NDArray:
    """Return int8 matrices (..., k, n) as packed words."""
    *batch, k, n = int8_values.shape
    shape = words_shape(int8_values.shape)
    tiles, depth = shape[-3], shape[-2] - 1
    padded: NDArray = np.zeros((*batch, depth * PER_WORD, tiles * TILE), np.int8)
    padded[..., :k, :n] = int8_values
    by_tile = padded.reshape(*batch, depth, PER_WORD, tiles, TILE)
    order = np.moveaxis(by_tile, -2, -4)  # (..., tiles, depth, 4, 16)
    words: NDArray = np.empty(shape, np.uint32)
    words[..., 1:, :] = np.ascontiguousarray(order.swapaxes(-1, -2)).view(np.uint32)[..., 0]
    words[..., 0, :] = order.sum(axis=(-3, -2), dtype=np.int32).view(np.uint32)
    return words


def unpack_int8(words: NDArray, k: int, n: int) -> NDArray:
    """Return the int8 values (..., k, n) of packed words."""
    *batch, tiles, depth, _ = words.shape
    int8_values = np.ascontiguousarray(words[..., 1:, :, None]).view(np.int8)
    # from (..., tiles, depth, 16, 4)
    lines = np.moveaxis(int8_values.swapaxes(-1, -2), -4, -2)  # (..., depth, 4, tiles, 16)
    padded: NDArray = lines.reshape(*batch, (depth - 1) * PER_WORD, tiles * TILE)
    return padded[..., :k, :n]


def check_words(op: str, words: TensorType, k: int, n: int) -> None:
    """Check the type and shape of the packed words of a (k, n) matrix.

    Raises
    ------
    DTypeError, ShapeError
        If they are wrong.
    """
    if words.dtype != UINT32:
        raise DTypeError(f"[{op}] expected words of uint32, got {words.dtype}; try vs.prepack_int8")
    expected = words_shape((k, n))
    if words.shape[-3:] != expected:
        raise ShapeError(
            f"[{op}] expected words of shape {expected} for a matrix {(k, n)}, got {words.shape}"
        )


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (x,) = inputs
    if x.dtype != INT32:
        raise DTypeError(
            f"[prepack_int8] expected quantized values as int32, got {x.dtype}; "
            "try vs.dequantize_linear"
        )
    if x.rank < 2:
        raise ShapeError(f"[prepack_int8] expected matrices, got {x.shape}")
    return TensorType(words_shape(x.shape), UINT32)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return pack_int8(as_signed(inputs[0], attrs.as_bool("signed")))


def _lower(call: Call) -> tuple[Dispatch, ...]:
    (x,) = call.inputs
    *batch, k, n = x.shape
    if not call.output.size:
        return ()
    columns = math.prod(call.output.shape[:-2]) * TILE
    rounds = (1 + PER_WORD) * depth_of(k) + 1
    parts = element_parts("prepack_int8", columns, rounds, call.limits)
    if len(parts) > 1:
        raise UnsupportedOp(f"[prepack_int8] {columns} columns of {k} rows are too many")
    push = (("columns", columns), ("k", k), ("n", n), ("flip", 0 if call.attrs["signed"] else 128))
    return (Dispatch("int8_pack_weights", (0, OUTPUT), parts[0][2], push),)


register(
    Op(
        "prepack_int8",
        _infer,
        _reference,
        Kernel(("int8_pack_weights",), _lower),
        attrs={"signed": Flag()},
        operands=(1, 1),
        any_dtype=True,
    )
)
no_gradient("quantizes to packed words, which have no gradient", "prepack_int8")
no_sharding("packs several rows into each word", "prepack_int8")


def prepack_int8(x: Tensor, *, signed: bool = False, name: str | None = None) -> Tensor:
    """Prepack a weight matrix for int8 matrix products.

    Parameters
    ----------
    x : Tensor
        int32 (..., k, n): -128 .. 127 if `signed`, else 0 .. 255. 128 is subtracted from unsigned
        values; subtract it from their zero points too.
    signed : bool
        Whether the values are signed.

    Returns
    -------
    Tensor
        uint32 (..., tiles, 1 + words of a column, 16).
    """
    return apply("prepack_int8", (x,), {"signed": signed}, name)
