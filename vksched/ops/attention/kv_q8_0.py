"""Rows in q8_0, 8.5 bits a value, as keys and values are kept: made on the device, read in place.

    row     tile | tile | last tile, shorter     a tile holds 64 values
    tile   a word of two scales | 16 words of four quantized values, the first in the lowest bits

A value is code * scale: scales are float16, of 32 neighbours, quantized values are in -127 .. 127.
Both are rounded as ggml does it. Weights of a file lie otherwise (quant_layout.py): they are read
run by run, these four by four, and a row of 64 values takes 17 words here, 20 there.

Sources: ggml's ggml-quants.c; `gguf.quants`, the oracle.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import FLOAT32, UINT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Whole
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import no_gradient
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, spread

TILE, RUN = 64, 32
"""Values of a tile, and of a scale."""
TILE_WORDS = 1 + TILE // 4
LARGEST = 127
"""Of quantized values."""
_TILE_ROUNDS = 3 * TILE
"""How often an invocation that makes a tile goes round its loops, at most."""


def row_words(columns: int) -> int:
    """Return the words of a row of so many values."""
    return -(-columns // TILE) + -(-columns // 4)


def pack_q8_0(x: NDArray) -> NDArray:
    """Return rows as words: float (..., n) -> uint32 (..., words)."""
    columns, lead = x.shape[-1], x.shape[:-1]
    rows, tiles = math.prod(lead), -(-columns // TILE)
    runs: NDArray = np.zeros((rows, tiles * TILE), np.float32)
    runs[:, :columns] = x.reshape(rows, columns)
    runs = runs.reshape(rows, tiles, TILE // RUN, RUN)
    with np.errstate(all="ignore"):
        scales = np.abs(runs).max(axis=-1) / np.float32(LARGEST)
        by = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
        scaled = runs * by[..., None]
        # half away from zero; what is not finite has a scale that says so
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
    """Return the values of rows: uint32 (..., words) -> float32 (..., columns)."""
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
    """Raise DTypeError or ShapeError unless these are rows of so many values."""
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
no_gradient("rounds to words, which are no numbers", "quantize_q8_0")


def quantize_q8_0(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Rows in 8.5 bits a value, as uint32 words: what a cache of keys and values keeps.

    x: floats (..., n) -> uint32 (..., ceil(n / 64) + ceil(n / 4)). `vs.dequantize_q8_0` gives the
    values back, rounded. Where one of 32 neighbours is not finite, all of these become NaN or
    infinite.
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
        attrs={"columns": Whole(0)},
        operands=(1, 1),
        is_dequantize=True,
    )
)
no_gradient("reads words, which are no numbers", "dequantize_q8_0")


def dequantize_q8_0(words: TensorLike, columns: int, *, name: str | None = None) -> Tensor:
    """The values of rows that `vs.quantize_q8_0` made.

    words: uint32 (..., row words) -> float32 (..., columns). `vs.attention(..., kv_len=)` reads
    keys and values from the words themselves; other ops get all values, made in each run.
    """
    return apply("dequantize_q8_0", (as_tensor(words),), {"columns": columns}, name)
