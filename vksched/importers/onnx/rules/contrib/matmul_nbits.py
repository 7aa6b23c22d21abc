"""Rules for block-quantized weights of com.microsoft: dequantized once per model on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .....common.dtypes import NDArray
from .....ir.tensor import Tensor
from .....ops import dequantize as dequantize_words
from .....ops import gather, matmul, where
from .....ops.quantized.gguf_formats import numbered, repack
from ...nodes.elements import ANY, NARROW_FLOATS, storage
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ...nodes.values import Value, known
from ..narrow_types import cast, fit
from ..registry import rule


def unpack(array: NDArray, bits: int) -> NDArray:
    """Unpack integers of `bits` bits from bytes along the last axis, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (array[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*array.shape[:-1], -1))


def once(n: NodeContext, operands: tuple[int, ...], make: Callable[..., NDArray]) -> Tensor:
    """Return a weight computed from known operands, cached by the operands."""
    known_arrays = [n.value(i) if n.has(i) else None for i in operands]
    arrays = [n.known(i) if n.has(i) else None for i in operands]
    node = n.node.SerializeToString(deterministic=True)
    result = n.lowering.context.fold(node, known_arrays, lambda: [known(make(*arrays))])
    assert result is not None and result[0] is not None
    return n.lowering.tensor(result[0])


@rule("MatMulNBits", types=ANY, domain=MICROSOFT)
def matmul_nbits(n: NodeContext) -> Tensor:
    """Operands: a, blocks of b (n, blocks, bytes), scales, zero points, groups, bias."""
    bits, block = n.attr("bits", 4), n.attr("block_size")
    depth, columns = n.attr("K"), n.attr("N")
    n.require(bits in (2, 4, 8), f"{bits} bits")
    n.require(not n.attr("weight_prepacked", 0), "weights packed for another device")

    def make(
        packed: NDArray, scales: NDArray, zeros: NDArray | None, groups: NDArray | None
    ) -> NDArray:
        count = -(-depth // block)
        values = unpack(packed.reshape(columns, -1), bits)[:, :depth].astype(scales.dtype)
        group = np.arange(depth) // block if groups is None else groups[:depth]
        middle: NDArray = np.full((columns, count), 1 << (bits - 1))
        if zeros is not None and zeros.dtype == np.uint8:
            middle = unpack(zeros.reshape(columns, -1), bits)[:, :count]
        elif zeros is not None:
            middle = zeros.reshape(columns, count)
        shift = middle.astype(scales.dtype)[:, group]
        return np.ascontiguousarray((values - shift) * scales.reshape(columns, count)[:, group])

    w = once(n, (1, 2, 3, 4), make)
    return matmul(n.tensor(0), w, n.optional(5), transpose_b=True)


_CODES = (
    np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32),
    np.array(
        [
            *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
            *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
            *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
            *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
        ],
        np.float32,
    ),
)
"""Values of the codes of bitsandbytes: the first half of FP4's, and NF4's."""


@rule("MatMulBnb4", types=ANY, domain=MICROSOFT)
def matmul_bnb4(n: NodeContext) -> Tensor:
    """Operands: a, the codes of b as a flat array, high nibble first, and one scale per block."""
    block, depth, columns = n.attr("block_size"), n.attr("K"), n.attr("N")
    kind = n.attr("quant_type")
    n.require(kind in (0, 1), f"quant_type {kind}")
    codes = _CODES[1] if kind else np.concatenate([_CODES[0], -_CODES[0]])

    def make(packed: NDArray, scales: NDArray) -> NDArray:
        numbers = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: columns * depth]
        values = codes[numbers].astype(scales.dtype)
        wide = values * scales[np.arange(values.size) // block]
        return np.ascontiguousarray(wide.reshape(columns, depth))

    return matmul(n.tensor(0), once(n, (1, 2), make), transpose_b=bool(n.attr("transB", 1)))


@rule("MatMulFpQ4", types=ANY, domain=MICROSOFT)
def matmul_fp_q4(n: NodeContext) -> Tensor:
    """Operands: a, b in blocks of 32 along its columns, column by column, and the shape of b.

    A block has a float32 scale, an optional zero point, and low nibbles before high ones.
    """
    kind, (depth, columns) = n.attr("blk_quant_type", 1), n.ints(2)
    n.require(kind in (0, 1), f"blk_quant_type {kind}")
    begin = 4 + kind

    def make(blob: NDArray) -> NDArray:
        blocks = blob.reshape(columns, -(-depth // 32), begin + 16)
        scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
        zeros = blocks[..., 4:5] if kind else np.uint8(8)
        codes = np.concatenate([blocks[..., begin:] & 15, blocks[..., begin:] >> 4], -1)
        wide = (codes.astype(np.float32) - np.asarray(zeros, np.float32)) * scales
        return np.ascontiguousarray(wide.reshape(columns, -1)[:, :depth])

    return matmul(n.tensor(0), once(n, (1,), make), transpose_b=True)


@rule("GatherPacked", types=ANY, domain=MICROSOFT)
def gather_packed(n: NodeContext) -> Value:
    """Operands: a table (rows, bytes) in a ggml format, by its ggml type number, and indices;
    indices out of range select row 0.
    """
    columns, number = n.attr("K"), n.attr("packed_type")
    kind, count = numbered(number), n.shape(0)[0]
    if kind is None:
        n.require(number == TensorProto.UNDEFINED, f"packed_type {number}")
        words = once(n, (0,), lambda table: table.view(np.float32))
    else:
        name = kind.name
        words = once(n, (0,), lambda table: repack(name, table, (count, columns)))
    at = n.tensor(1)
    rows = gather(words, where((at >= 0) & (at < count), at, at * 0), 0)
    result = rows if kind is None else dequantize_words(rows, kind.name, columns)
    target = n.attr("output_dtype", TensorProto.BFLOAT16)
    return Value(target, tensor=fit(cast(result, storage(target)), target))


@rule("GatherBlockQuantized", types=ANY, domain=MICROSOFT)
def gather_blocks(n: NodeContext) -> Tensor:
    """Operands: the table, indices, scales, zero points."""
    bits, block = n.attr("bits", 4), n.attr("block_size", 128)
    axis, along = n.attr("gather_axis", 0), n.attr("quantize_axis", 1)
    whole = TensorProto.UINT8
    n.require_type(0, whole, TensorProto.INT4, TensorProto.UINT4, *NARROW_FLOATS)
    packed = n.elem_type(0) == whole

    def make(table: NDArray, scales: NDArray, zeros: NDArray | None) -> NDArray:
        middle = np.array((1 << (bits - 1)) if packed else 0, scales.dtype)
        if packed and bits < 8:
            table = unpack(table, bits)
            zeros = None if zeros is None else unpack(zeros, bits)
        if zeros is not None:
            middle = zeros[tuple(map(slice, scales.shape))].astype(scales.dtype)
            middle = _spread(middle, block, along, table.shape)
        wide = table.astype(scales.dtype) - middle
        return np.ascontiguousarray(wide * _spread(scales, block, along, table.shape))

    return gather(once(n, (0, 2, 3), make), n.tensor(1), axis)


def _spread(values: NDArray, block: int, axis: int, shape: tuple[int, ...]) -> NDArray:
    """Repeat one value per block for each element of the block."""
    return np.repeat(values, min(block, shape[axis]), axis)[tuple(map(slice, shape))]
