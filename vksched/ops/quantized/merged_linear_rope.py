"""Fused QKV projection with rotary embedding: merged linear layers whose first heads are rotated.

    x --RMS norm--> rows --Wq, Wk, Wv--> [ rotated q | rotated k | v ]
    many rows -------------Wq, Wk, Wv--> rotated heads of q, of k, heads of v {stacked}

The kernel rotates its results before it stores them (shaders/include/rotary.glsl), so a decode step
has no dispatch and no barrier for the rotary embedding. Each workgroup computes both halves of the
pairs of its columns. With `stacked`, for devices with cooperative matrices (quant_gemm.py), the
result is the matrices (rows, head_size) of all heads, one after another, as attention reads them: a
prompt then has no transposes either. The passes vksched/passes/fuse_linears.py and fuse_rope.py
create this op; it is not part of the public API. Examples: tests/passes/test_fuse_linears.py.
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
from .gguf_formats import FORMAT
from .merged_linear import (
    MAX_WEIGHTS,
    MERGED_BUFFERS,
    is_stacked,
    lower_merged,
    merged_shaders,
)
from .merged_linear import NAME as MERGED
from .quant_gemm import QUANT_GEMM_SHADERS, Rope, quant_gemm, quant_gemm_tile, with_quant_gemm

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


@lru_cache(maxsize=4096)
def _parted(attrs: Attrs) -> tuple[Attrs, Attrs]:
    """Return the attributes of the merged products, and of the rotary embedding."""
    names = ("format", "normed", "eps", "stacked", PRECISION)
    own = {name: attrs[name] for name in names if name in attrs}
    rope = {name: attrs[name] for name in ("interleaved", "rotary_dim")}
    return Attrs({**own, "gate": ""}), Attrs(rope)


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    size, rotary_dim = attrs.as_int("head_size"), attrs.as_int("rotary_dim")
    rotated = attrs.as_int("heads") * size
    *own, cos, sin = inputs
    result = get_op(MERGED).infer(tuple(own), _parted(attrs)[0])
    if any(t.dtype != FLOAT32 for t in (cos, sin)):
        raise DTypeError(f"[{NAME}] expected cos and sin of float32, got {cos} and {sin}")
    rows = math.prod(inputs[0].shape[:-1])
    if rows != 1 and not is_stacked(attrs):
        raise ShapeError(f"[{NAME}] expected one row, got {inputs[0].shape}; try stacked")
    if any(t.shape != (rows, rotary_dim // 2) for t in (cos, sin)):
        raise ShapeError(
            f"[{NAME}] expected cos and sin of shape {(rows, rotary_dim // 2)}, got {cos.shape} "
            f"and {sin.shape}"
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
    if any(end % size for end in ends if is_stacked(attrs) or end < rotated):
        raise ShapeError(
            f"[{NAME}] expected rotated heads of {size} values within one weight each, got weights "
            f"of {' and '.join(map(str, sizes))} rows; try separate products"
        )
    return result


def _rotate(result: NDArray, cos: NDArray, sin: NDArray, attrs: Attrs) -> None:
    """Rotate the first heads of a result in place."""
    heads, size, rows = attrs.as_int("heads"), attrs.as_int("head_size"), len(cos)
    flat = result.reshape(-1)[: heads * rows * size]
    x = np.array(flat).reshape(1, heads, rows, size)
    flat[:] = get_op(ROTARY).reference((x, cos, sin), _parted(attrs)[1]).reshape(-1)


def _by_heads(inputs: tuple[NDArray, ...], attrs: Attrs, result: NDArray) -> NDArray:
    """Return the matrices of all heads of stacked products."""
    rows, size = math.prod(inputs[0].shape[:-1]), attrs.as_int("head_size")
    weights = inputs[1 + attrs.as_bool("normed") : -2]
    ends = [*accumulate(rows * len(words) for words in weights)][:-1]
    parts = (part.reshape(rows, -1, size).swapaxes(0, 1) for part in np.split(result, ends))
    return np.concatenate([part.reshape(-1) for part in parts])


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    *own, cos, sin = inputs
    result = np.array(get_op(MERGED).reference(tuple(own), _parted(attrs)[0]))
    if is_stacked(attrs):
        result = _by_heads(inputs, attrs, result)
    _rotate(result, cos, sin, attrs)
    return result


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    *own, cos, sin = inputs
    merged = get_op(MERGED).cpu
    assert merged is not None
    result = np.empty(out.shape, np.float32)
    merged.compute(tuple(own), _parted(attrs)[0], result)
    if is_stacked(attrs):
        result = _by_heads(inputs, attrs, result)
    _rotate(result, cos, sin, attrs)
    out[...] = result


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return get_op(MERGED).work(inputs[:-2], output, _parted(attrs)[0])


def _weights(call: Call) -> tuple[int, ...]:
    return tuple(range(1 + call.attrs.as_bool("normed"), len(call.inputs) - 2))


def _variants(call: Call) -> tuple[str, ...]:
    if not is_stacked(call.attrs) or not call.output.size:
        return ()
    sizes = tuple(call.inputs[i].shape[0] for i in _weights(call))
    return with_quant_gemm(call, (), sizes, splits=False)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    size, pairs = call.attrs.as_int("head_size"), call.attrs.as_int("rotary_dim") // 2
    rotated = call.attrs.as_int("heads") * size
    if not call.output.size:
        return ()
    if is_stacked(call.attrs):
        if not quant_gemm_tile(call):
            raise UnsupportedOp("stacked products need cooperative matrices of float16")
        cos = len(call.inputs) - 2
        own = Rope(cos, cos + 1, rotated, size, pairs, call.attrs.as_bool("interleaved"))
        return quant_gemm(call, _weights(call), stacked=True, rope=own)
    rope = ("rotated", rotated), ("head_size", size), ("rotary_pairs", pairs)
    constants = (("INTERLEAVED", int(call.attrs.as_bool("interleaved"))),)
    return lower_merged(call, 0, rope, constants)


register(
    Op(
        NAME,
        _infer,
        _reference,
        Kernel(
            (*merged_shaders("quant_gemv_merged_rope"), *QUANT_GEMM_SHADERS),
            _lower,
            variants=_variants,
        ),
        attrs={
            "format": FORMAT,
            "normed": Flag(),
            "eps": Float(0.0),
            "heads": Int(1),
            "head_size": Int(1),
            "rotary_dim": Int(2),
            "interleaved": Flag(),
            PRECISION: Optional(OneOf(PRECISIONS)),
            "stacked": Optional(Flag()),
        },
        operands=(4, 4 + MAX_WEIGHTS),
        work=_work,
        cpu=CpuKernel(_cpu),
    )
)
no_gradient("is created by a pass from ops with gradients", NAME)
