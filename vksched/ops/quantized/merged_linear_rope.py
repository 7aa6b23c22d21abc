"""Fused QKV projection with rotary embedding: merged linear layers whose first heads are rotated.

    x --RMS norm--> rows --Wq, Wk, Wv--> [ rotated q | rotated k | v ]
    many rows -------------Wq, Wk, Wv--> rotated heads of q, of k, heads of v {by_heads}

The kernel rotates its results before it stores them (shaders/include/rotary.glsl), so a decode step
has no dispatch and no barrier for the rotary embedding. Each workgroup computes both halves of the
pairs of its columns. The pass vksched/passes/fuse_linears.py creates this op for few rows, of one
token each.

With `by_heads`, for products of many rows (quant_gemm_dispatches.py), the result is the matrices
(rows, head_size) of all heads, one after another, as attention reads them: a prompt then has no
transposes either. The pass vksched/passes/fuse_rope.py creates it for many rows. These matrices can
be float16, for attention to a KV cache of float16 (passes/fp16_heads.py). This op is not part of
the public API. Examples: tests/passes/test_fuse_linears.py, tests/passes/test_fuse_rope.py,
tests/passes/test_fp16_heads.py.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Flag, Float, Int, OneOf, Optional
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel
from ...ir.op import Call, Dispatch, Kernel, Op, Work, get_op, register
from ...ir.precision import PRECISION, PRECISIONS
from ...ir.vjp import no_gradient
from ..linalg.matmul_kernels import MAX_GEMV_ROWS
from ..lowering.fp16_result import as_fp16, stores_fp16, with_fp16_result
from . import gemv_mixed
from . import quant_gemm_tiled as tiled
from .gguf_formats import FORMAT
from .merged_linear import (
    MAX_WEIGHTS,
    MERGED_BUFFERS,
    cpu_products,
    few_rows_variants,
    is_stacked,
    lower_merged,
    merge,
    merged_shaders,
    product_of,
    products,
)
from .merged_linear import NAME as MERGED
from .quant_gemm import (
    QUANT_GEMM_SHADERS,
    quant_gemm_takes_fp16,
    with_quant_gemm,
)
from .quant_gemm_dispatches import quant_gemm, tile_of
from .rotated_columns import Rope

NAME, ROTARY = "merged_linear_rope", "rotary_embedding"
ROPE_BUFFERS = MERGED_BUFFERS + 2
"""Buffers that the kernel binds: those of merged products, and the tables of cosines and sines."""
HEAD_STEP, PAIR_STEP = 8, 4
"""Heads are multiples of HEAD_STEP values, and pairs that are not interleaved of PAIR_STEP."""


def has_rope_kernel(head_size: int, rotary_dim: int, interleaved: bool) -> bool:
    """Return True if the kernel supports heads of this size."""
    pairs = rotary_dim // 2
    fits = 0 < rotary_dim <= head_size and rotary_dim % 2 == 0 and head_size % HEAD_STEP == 0
    return fits and (interleaved or pairs % PAIR_STEP == 0)


def _is_by_heads(attrs: Attrs) -> bool:
    """Return True if the result is the matrices of all heads."""
    return bool(attrs.get("by_heads"))


@lru_cache(maxsize=4096)
def _parted(attrs: Attrs) -> tuple[Attrs, Attrs]:
    """Return the attributes of the merged products, and of the rotary embedding."""
    shared = "format", "normed", "eps", "stacked", PRECISION
    own = {name: attrs[name] for name in shared if name in attrs}
    rope = {name: attrs[name] for name in ("interleaved", "rotary_dim")}
    return Attrs({**own, "gate": ""}), Attrs(rope)


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    size, rotary_dim = attrs.as_int("head_size"), attrs.as_int("rotary_dim")
    rotated = attrs.as_int("heads") * size
    *own, cos, sin = inputs
    result = get_op(MERGED).infer(tuple(own), _parted(attrs)[0])
    if any(t.dtype != FLOAT32 for t in (cos, sin)):
        raise DTypeError(f"[{NAME}] expected cos and sin of float32, got {cos} and {sin}")
    rows, pairs = math.prod(own[0].shape[:-1]), rotary_dim // 2
    if _is_by_heads(attrs) and not is_stacked(attrs):
        raise ShapeError(f"[{NAME}] expected stacked with by_heads, got {attrs}")
    if stores_fp16(attrs) and not _is_by_heads(attrs):
        raise ShapeError(f"[{NAME}] expected by_heads with a result of float16, got {attrs}")
    if not (_is_by_heads(attrs) or 0 < rows <= MAX_GEMV_ROWS):
        raise ShapeError(
            f"[{NAME}] expected 1 to {MAX_GEMV_ROWS} rows, got {inputs[0].shape}; try by_heads"
        )
    if any(t.shape not in ((rows, pairs), (rows, 1, pairs)) for t in (cos, sin)):
        raise ShapeError(
            f"[{NAME}] expected cos and sin of shape {(rows, pairs)}, got {cos.shape} and "
            f"{sin.shape}"
        )
    if not has_rope_kernel(size, rotary_dim, attrs.as_bool("interleaved")):
        raise ShapeError(
            f"[{NAME}] expected heads of a multiple of {HEAD_STEP} values and up to as many "
            f"rotated ones, in whole vec4s unless interleaved, got {size} and {rotary_dim}"
        )
    sizes = [words.shape[0] for words in own[1 + attrs.as_bool("normed") :]]
    if rotated > sum(sizes):
        raise ShapeError(f"[{NAME}] expected at most {sum(sizes)} rotated columns, got {rotated}")
    ends = accumulate(sizes)
    if any(end % size for end in ends if _is_by_heads(attrs) or end < rotated):
        raise ShapeError(
            f"[{NAME}] expected rotated heads of {size} values within one weight each, got weights "
            f"of {' and '.join(map(str, sizes))} rows; try separate products"
        )
    return result


def _rotated(parts: list[NDArray], cos: NDArray, sin: NDArray, attrs: Attrs) -> list[NDArray]:
    """Return products by each weight with their first heads rotated."""
    size, rest, out = attrs.as_int("head_size"), attrs.as_int("heads"), []
    rope = _parted(attrs)[1]
    tables = [table.reshape(-1, 1, table.shape[-1]) for table in (cos, sin)]
    for part in parts:
        part = np.array(part)
        heads = min(rest, part.shape[-1] // size)
        own = part.reshape(len(tables[0]), part.shape[-1])[:, : heads * size]
        x = own.reshape(len(own), heads, 1, size)
        own[...] = get_op(ROTARY).reference((x, *tables), rope).reshape(own.shape)
        rest -= heads
        out.append(part)
    return out


def _result(parts: list[NDArray], cos: NDArray, sin: NDArray, attrs: Attrs) -> NDArray:
    """Return the result of products by each weight."""
    parts = _rotated(parts, cos, sin, attrs)
    if _is_by_heads(attrs):
        size = attrs.as_int("head_size")
        heads = (part.reshape(len(cos), part.shape[-1] // size, size) for part in parts)
        parts = [each.swapaxes(0, 1) for each in heads]
    return merge(parts, _parted(attrs)[0])


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    *own, cos, sin = inputs
    return _result(products(tuple(own), _parted(attrs)[0]), cos, sin, attrs)


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    *own, cos, sin = inputs
    parts = cpu_products(tuple(own), _parted(attrs)[0])
    out[...] = as_fp16(_result(parts, cos, sin, attrs), attrs).reshape(out.shape)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return get_op(MERGED).work(inputs[:-2], output, _parted(attrs)[0])


def _product(call: Call) -> gemv_mixed.Product:
    """Return the product of a call."""
    size, count = call.attrs.as_int("head_size"), len(call.inputs)
    rope = Rope(
        tables=(count - 2, count - 1),
        columns=call.attrs.as_int("heads") * size,
        head_size=size,
        pairs=call.attrs.as_int("rotary_dim") // 2,
        interleaved=call.attrs.as_bool("interleaved"),
    )
    return product_of(call, rope=rope)


def _variants(call: Call) -> tuple[str, ...]:
    if not call.output.size:
        return ()
    product = _product(call)
    if not _is_by_heads(call.attrs):
        return few_rows_variants(NAME, call, product, _variants)
    sizes = tuple(call.inputs[i].shape[0] for i in product.weights)
    return with_quant_gemm(call, tiled.variants(call, sizes), sizes, splits=False)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    product = _product(call)
    if not call.output.size:
        return ()
    if _is_by_heads(call.attrs):
        if not tile_of(call):
            raise UnsupportedOp("heads as matrices need float16")
        return quant_gemm(call, product.weights, stacked=True, rope=product.rope)
    if call.variant in gemv_mixed.VARIANTS:
        return (gemv_mixed.dispatch(call, product),)
    return lower_merged(call, product)


register(
    with_fp16_result(
        Op(
            NAME,
            _infer,
            _reference,
            Kernel(
                (
                    *merged_shaders("quant_gemv_merged_rope"),
                    *gemv_mixed.ROPE_SHADERS,
                    *QUANT_GEMM_SHADERS,
                    *tiled.TILED_SHADERS,
                ),
                _lower,
                variants=_variants,
                takes_fp16=quant_gemm_takes_fp16,
            ),
            attrs={
                "format": FORMAT,
                "normed": Flag(),
                "eps": Float(0.0),
                "heads": Int(1),
                "head_size": Int(1),
                "rotary_dim": Int(2),
                "interleaved": Flag(),
                "stacked": Optional(Flag()),
                "by_heads": Optional(Flag()),
                PRECISION: Optional(OneOf(PRECISIONS)),
            },
            operands=(4, 4 + MAX_WEIGHTS),
            work=_work,
            float32_result=True,
            cpu=CpuKernel(_cpu),
        ),
        overflow_nan=True,
    )
)
no_gradient("is created by a pass from ops with gradients", NAME)
