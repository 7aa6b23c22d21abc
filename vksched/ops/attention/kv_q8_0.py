"""Quantize rows to q8_0, 8.5 bits a value, for a KV cache; kernels read the rows in place.

    row     tile | tile | last tile, shorter     a tile holds 64 values
    tile    a word of two scales | 16 words of four quantized values, the first in the lowest bits

A value is quantized value * scale. Scales are float16, one for 32 consecutive values; quantized
values are in -127 .. 127. Both are rounded as in ggml. Weights have another layout
(quant_layout.py), which is read run by run; this one is read four values at a time. A row of 64
values takes 17 words here and 20 there.

Sources: ggml's ggml-quants.c; `gguf.quants` as the oracle.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import FLOAT32, UINT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Int
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import no_gradient
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, spread

TILE, RUN = 64, 32
"""Values of a tile, and values that share a scale."""
TILE_WORDS = 1 + TILE // 4
LARGEST = 127
"""Largest quantized value."""
_TILE_ROUNDS = 3 * TILE
"""Maximum loop iterations of an invocation that quantizes a tile."""


def row_words(columns: int) -> int:
    """Return the number of words of a row of `columns` values."""
    return -(-columns // TILE) + -(-columns // 4)


def pack_q8_0(x: NDArray) -> NDArray:
    """Return rows as q8_0 words: float (..., n) -> uint32 (..., words)."""
    columns, lead = x.shape[-1], x.shape[:-1]
    rows, tiles = math.prod(lead), -(-columns // TILE)
    runs: NDArray = np.zeros((rows, tiles * TILE), np.float32)
    runs[:, :columns] = x.reshape(rows, columns)
    runs = runs.reshape(rows, tiles, TILE // RUN, RUN)
    with np.errstate(all="ignore"):
        scales = np.abs(runs).max(axis=-1) / np.float32(LARGEST)
        by = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
        scaled = runs * by[..., None]
        # round half away from zero; rows that are not finite have a scale that is not finite
        size = np.abs(scaled)
        whole = np.floor(size)
        quants = np.sign(scaled) * (whole + np.floor(2 * (size - whole)))
        quants[~np.isfinite(quants)] = 0
        fp16_scales = scales.astype(np.float16)
    words: NDArray = np.empty((rows, tiles, TILE_WORDS), np.uint32)
    words[..., :1] = fp16_scales.view(np.uint32)
    words[..., 1:] = quants.astype(np.int8).reshape(rows, tiles, TILE).view(np.uint32)
    cropped = words.reshape(rows, tiles * TILE_WORDS)[:, : row_words(columns)]
    return np.ascontiguousarray(cropped).reshape(*lead, row_words(columns))


def unpack_q8_0(words: NDArray, columns: int) -> NDArray:
    """Return the values of q8_0 rows: uint32 (..., words) -> float32 (..., columns)."""
    lead, tiles = words.shape[:-1], -(-columns // TILE)
    missing = tiles * TILE_WORDS - words.shape[-1]
    if missing:
        words = np.concatenate([words, np.zeros((*lead, missing), np.uint32)], axis=-1)
    by_tile = words.reshape(*lead, tiles, TILE_WORDS)
    scales = np.ascontiguousarray(by_tile[..., :1]).view(np.float16).astype(np.float32)
    quants = np.ascontiguousarray(by_tile[..., 1:]).view(np.int8)
    out: NDArray = np.empty((*lead, tiles, TILE // RUN, RUN), np.float32)
    np.multiply(quants.reshape(out.shape), scales[..., None], out=out)
    return out.reshape(*lead, tiles * TILE)[..., :columns]


def check_words(op: str, words: TensorType, columns: int) -> None:
    """Check the type and shape of q8_0 rows of `columns` values.

    Raises
    ------
    DTypeError, ShapeError
        If they are wrong.
    """
    if words.dtype != UINT32:
        raise DTypeError(
            f"[{op}] expected words of uint32, got {words.dtype}; try vs.quantize_q8_0"
        )
    if words.rank == 0 or words.shape[-1] != row_words(columns):
        raise ShapeError(
            f"[{op}] expected rows of {row_words(columns)} words for {columns} values, got "
            f"{words.shape}"
        )


# -- quantize_q8_0
# -------------------------------------------------------------------------------------


def _to_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (x,) = inputs
    if x.dtype != FLOAT32:
        raise DTypeError(f"[quantize_q8_0] expected float32, got {x.dtype}; try vs.cast")
    if x.rank == 0:
        raise ShapeError("[quantize_q8_0] expected rows, got a scalar")
    return TensorType((*x.shape[:-1], row_words(x.shape[-1])), UINT32)


def _to_lower(call: Call) -> tuple[Dispatch, ...]:
    (x,), columns = call.inputs, call.inputs[0].shape[-1]
    if not call.output.size:
        return ()
    rows, tiles = math.prod(x.shape[:-1]), -(-columns // TILE)
    most = call.limits.max_groups[0]
    groups = min(-(-rows * tiles // LOCAL_SIZE), most)
    if rows * tiles > groups * LOCAL_SIZE * (LOOP_STEPS // _TILE_ROUNDS):
        raise UnsupportedOp(f"{rows} rows of {columns} values are too many for {most} groups")
    push = (("rows", rows), ("columns", columns), ("row_words", row_words(columns)))
    return (Dispatch("quantize_q8_0", (0, OUTPUT), (groups, 1, 1), push),)


register(
    Op(
        "quantize_q8_0",
        _to_infer,
        lambda inputs, attrs: pack_q8_0(inputs[0]),
        Kernel(("quantize_q8_0",), _to_lower),
        attrs={},
        operands=(1, 1),
    )
)
no_gradient("quantizes to packed words, which have no gradient", "quantize_q8_0")


def quantize_q8_0(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Quantize rows to q8_0, 8.5 bits a value, the type of a quantized KV cache.

    Parameters
    ----------
    x : Tensor
        Floats (..., n).

    Returns
    -------
    Tensor
        uint32 (..., ceil(n / 64) + ceil(n / 4)) words. `vs.dequantize_q8_0` returns the rounded
        values. If one of 32 consecutive values is not finite, all of them become NaN or infinite.
    """
    return apply("quantize_q8_0", (as_tensor(x),), {}, name)


# -- dequantize_q8_0
# -----------------------------------------------------------------------------------


def _from_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (words,), columns = inputs, attrs.as_int("columns")
    check_words("dequantize_q8_0", words, columns)
    return TensorType((*words.shape[:-1], columns), FLOAT32)


def _from_lower(call: Call) -> tuple[Dispatch, ...]:
    (words,) = call.inputs
    if not call.output.size:
        return ()
    count, columns = call.output.size, call.output.shape[-1]
    push = (("count", count), ("columns", columns), ("row_words", words.shape[-1]))
    return (Dispatch("dequantize_q8_0", (0, OUTPUT), spread(count, call.limits), push),)


register(
    Op(
        "dequantize_q8_0",
        _from_infer,
        lambda inputs, attrs: np.ascontiguousarray(unpack_q8_0(inputs[0], attrs.as_int("columns"))),
        Kernel(("dequantize_q8_0",), _from_lower),
        attrs={"columns": Int(0)},
        operands=(1, 1),
        is_dequantize=True,
    )
)
no_gradient("reads packed words, which have no gradient", "dequantize_q8_0")


def dequantize_q8_0(words: TensorLike, columns: int, *, name: str | None = None) -> Tensor:
    """Dequantize q8_0 rows of `vs.quantize_q8_0`.

    `vs.attention(..., kv_len=)` reads keys and values from the words directly. For other ops, each
    run dequantizes all values.

    Parameters
    ----------
    words : Tensor
        uint32 (..., row words).
    columns : int
        Number of values of a row.

    Returns
    -------
    Tensor
        float32 (..., columns).
    """
    return apply("dequantize_q8_0", (as_tensor(words),), {"columns": columns}, name)
