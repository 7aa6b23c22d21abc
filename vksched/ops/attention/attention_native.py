"""Attention as a loop of native programs, split by heads.

Source of the loop: native/cpu_kernels/program/attention.cpp. Examples:
tests/ops/native/test_native_programs.py.
"""

from __future__ import annotations

from itertools import chain

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import SHARES
from ...ir.native_program import Loop, NativeProgram
from ..lowering import native_kernels
from ..lowering.strides import broadcast_strides
from .attention_kernels import visible_range
from .attention_sizes import by_heads

MAX_KV_ELEMENTS, MAX_SCORES = 1 << 15, 1 << 16
"""Maximum elements of keys and values, and of scores, of a head, which stay in a cache; numpy's
products are as fast for more.
"""
PIECE = 1 << 19
"""Minimum multiply-adds of a piece, about 20 us."""


def attention_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the loop of a call with few queries and keys, or None if numpy computes it."""
    q, k, v = by_heads(inputs, attrs)
    batches, heads, queries, depth = q.shape
    shared, keys, columns = k.shape[1], k.shape[2], v.shape[3]
    if any(t.dtype != FLOAT32 for t in inputs) or attrs.as_float("softcap") or not output.size:
        return None
    if not native_kernels.has_vectors():
        return None
    if not keys or keys * (depth + columns) > MAX_KV_ELEMENTS or queries * keys > MAX_SCORES:
        return None
    bshd = attrs.as_ints("is_bshd")
    *operand_steps, result = (
        head_steps(t.shape, is_bshd) for t, is_bshd in zip((*inputs[:3], output), bshd, strict=True)
    )
    mask: tuple[int, ...] = (0, 0, 0, 0)
    for t in inputs[3:]:
        mask = broadcast_strides(t.shape, (*q.shape[:3], keys))
    numbers = (
        *(batches, heads, shared, queries, keys, depth, columns, *visible_range(attrs)),
        *(int(attrs.as_bool("fully_masked_is_nan")), len(inputs) - 3),
        *(*chain.from_iterable((*operand_steps, result)), *mask),
    )
    work = batches * heads * queries * keys * (depth + columns)
    pieces = max(1, min(work // PIECE, batches * heads, 2 * SHARES))
    operands = tuple(range(len(inputs)))
    float_params = (attrs.as_float("scale"),)
    return NativeProgram(
        (Loop("attention", operands, output.size, numbers, float_params, pieces, work),)
    )


def head_steps(shape: tuple[int, ...], is_bshd: int) -> tuple[int, int, int]:
    """Return the strides of batches, heads and rows."""
    inner = shape[2] * shape[3]
    ways = (shape[3], inner) if is_bshd else (inner, shape[3])
    return shape[1] * inner, *ways
