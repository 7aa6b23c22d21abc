"""Rules for fused ops of com.microsoft, except attention.

They are defined in onnxruntime (ContribOperators.md); the onnx package has no schemas for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .....common.dtypes import FLOAT32, INT32
from .....common.errors import UnsupportedOp
from .....ir.tensor import Tensor, constant
from .....ops import (
    arange,
    cast,
    clip,
    conv,
    equal,
    full,
    gather,
    gelu,
    greater,
    layer_norm,
    less_equal,
    logical_and,
    matmul,
    maximum,
    mul,
    reduce_max,
    reduce_sum,
    relu,
    rms_norm,
    scatter_elements,
    sigmoid,
    silu,
    squeeze,
    take_along_axis,
    tanh,
    transpose,
    unsqueeze,
    where,
)
from .....ops import slice as slice_
from ...nodes.elements import ANY
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ...nodes.values import Value, known
from ..activation import ACTIVATIONS
from ..attention_heads import number_of
from ..matmul import gemm_of
from ..narrow_types import NUMBERS
from ..nn import convolution
from ..norm import layer_norm_results, normalized, rms_deviation
from ..quantize import parameter, real
from ..registry import rule

T = TensorProto

# -- activations ---------------------------------------------------------------------------------


@rule("Gelu", domain=MICROSOFT)
def gelu_rule(n: NodeContext) -> Tensor:
    return gelu(n.tensor(0))


@rule("BiasGelu", domain=MICROSOFT)
def bias_gelu(n: NodeContext) -> Tensor:
    return gelu(n.tensor(0) + n.tensor(1))


@rule("FastGelu", domain=MICROSOFT)
def fast_gelu(n: NodeContext) -> Tensor:
    x = n.tensor(0) + n.tensor(1) if n.has(1) else n.tensor(0)
    return gelu(x, "tanh")


@rule("QuickGelu", domain=MICROSOFT)
def quick_gelu(n: NodeContext) -> Tensor:
    x = n.tensor(0)
    return x * sigmoid(x * n.attr("alpha", 1.702))


@rule("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(n: NodeContext) -> Tensor:
    """Multiply one half by the GELU of the other."""
    x = n.tensor(0) + n.tensor(1)
    half = x.shape[-1] // 2
    return slice_(x, 0, half, -1) * gelu(slice_(x, half, 2 * half, -1))


@rule("BiasAdd", domain=MICROSOFT)
def bias_add(n: NodeContext) -> Tensor:
    return n.tensor(0) + n.tensor(1) + n.tensor(2)


_FUSED: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    **ACTIVATIONS,
    "Clip": (clip, ("min", "max")),
    "Relu": (relu, ()),
    "Silu": (silu, ()),
    "Tanh": (tanh, ()),
}
"""Activations that matmul and convolution ops are fused with."""


def _activated(n: NodeContext, x: Tensor) -> Tensor:
    """Apply the fused activation of a matmul or convolution.

    A matmul has one attribute per activation parameter, a convolution one list.
    """
    kind = n.attr("activation", "")
    if not kind:
        return x
    if kind not in _FUSED:
        raise UnsupportedOp(f"{n.op_type} with the activation {kind}")
    build, names = _FUSED[kind]
    numbers = n.attr("activation_params", None)
    if numbers is None:
        numbers = [n.attr(f"activation_{name}") for name in names]
    return build(x, *numbers[: len(names)])


# -- norms ---------------------------------------------------------------------------------------


def _skipped(n: NodeContext, bias: int) -> Tensor:
    """Return the sum of x, the skip input and an optional bias."""
    total = n.tensor(0) + n.tensor(1)
    return total + n.tensor(bias) if n.has(bias) else total


@rule("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(n: NodeContext) -> list[Tensor | None]:
    total, eps = _skipped(n, 4), n.attr("epsilon", 1e-12)
    return [*layer_norm_results(n, total, n.tensor(2), n.optional(3), -1, eps), total]


@rule("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(n: NodeContext) -> list[Tensor | None]:
    total, eps = _skipped(n, 3), n.attr("epsilon", 1e-12)
    out = normalized(rms_norm, total, n.tensor(2), None, -1, eps)
    mean = full((*total.shape[:-1], 1), 0.0) if n.wants(1) else None  # unused by RMS norm
    return [out, mean, rms_deviation(n, 2, total, -1, eps), total]


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(n: NodeContext) -> list[Tensor | Value | None]:
    """Operands: ids, segments, the word, position and segment tables, scale, shift, mask, and
    positions.
    """
    return _embedded(n, n.optional, n.optional(8))


@rule("QEmbedLayerNormalization", types=NUMBERS, domain=MICROSOFT)
def quantized_embed_layer_norm(n: NodeContext) -> list[Tensor | Value | None]:
    """Operands of EmbedLayerNormalization with 8-bit tables, scale and shift, then their scales and
    zero points.
    """

    def table(index: int) -> Tensor | None:
        if not n.has(index):
            return None
        at = index + 6  # index of the scale, after the mask
        return real(n, index, at + 5, parameter(n, at, FLOAT32))

    found = _embedded(n, table, None)
    return [v if i else Value(T.FLOAT, tensor=v) if isinstance(v, Tensor) else v
            for i, v in enumerate(found[:2])]  # fmt: skip


def _embedded(
    n: NodeContext, table: Callable[[int], Tensor | None], at: Tensor | None
) -> list[Tensor | Value | None]:
    """Return the norm of summed embeddings, the lengths from the mask, and the sums.

    Parameters
    ----------
    table
        Function that returns operand 2 to 6 as a table.
    at
        Positions, by default 0, 1, ...
    """
    ids = n.tensor(0)
    batch, length = ids.shape
    words, positions, segments, scale, shift = (table(i) for i in range(2, 7))
    if words is None or positions is None or scale is None:
        raise UnsupportedOp(f"{n.op_type} without a table")
    places = slice_(positions, 0, length, 0) if at is None else gather(positions, at, 0)
    total = gather(words, ids, 0) + places
    if n.has(1) and segments is not None:
        total = total + gather(segments, n.tensor(1), 0)
    eps = n.attr("epsilon", 1e-12)
    out = normalized(layer_norm, total, scale, shift, -1, eps)
    valid: Tensor | Value = (
        reduce_sum(n.tensor(7), 1) if n.has(7) else known(np.zeros(batch, np.int32))
    )
    return [out, valid, total]


# -- products ------------------------------------------------------------------------------------


@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(n: NodeContext) -> Tensor:
    a, b = _batched(n, 0, "A"), _batched(n, 1, "B")
    flags = [bool(n.attr(name, 0)) and t.rank > 1 for name, t in (("transA", a), ("transB", b))]
    out = matmul(a, b, transpose_a=flags[0], transpose_b=flags[1])
    alpha = n.attr("alpha", 1.0)
    return out if alpha == 1 else mul(out, alpha)


def _batched(n: NodeContext, index: int, which: str) -> Tensor:
    """Return an operand whose batch axes may be between rows and columns."""
    t = n.tensor(index)
    if not n.attr(f"transBatch{which}", 0) or t.rank < 3:
        return t
    return transpose(t, (*range(1, t.rank - 1), 0, t.rank - 1))


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(n: NodeContext) -> Tensor:
    return _activated(n, gemm_of(n))


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(n: NodeContext) -> Tensor:
    return fused_convolution(n)


def fused_convolution(n: NodeContext, weights: Tensor | None = None) -> Tensor:
    """Return convolution, sum with operand 3, and activation; `weights` as in `convolution`."""
    out = convolution(n, weights)
    if n.has(3):
        out = out + n.tensor(3)
    return _activated(n, out)


# -- tokens ------------------------------------------------------------------------------------


@rule("NGramRepeatBlock", types=ANY, domain=MICROSOFT)
def repeat_block(n: NodeContext) -> Tensor:
    """Operands: tokens (batch, length) and scores (batch, vocabulary). Tokens that would repeat an
    n-gram get a score of -inf.
    """
    ids, scores, size = n.tensor(0), n.tensor(1), n.attr("ngram_size")
    count = ids.shape[1] - size + 1
    if count <= 0:
        return scores
    is_again = constant(np.ones((ids.shape[0], count), bool))
    for at in range(size - 1):
        last = slice_(ids, count + at, count + at + 1, 1)
        is_again = logical_and(is_again, equal(slice_(ids, at, at + count, 1), last))
    words = slice_(ids, size - 1, ids.shape[1], 1)
    found = where(is_again, number_of(-math.inf, scores), take_along_axis(scores, words, 1))
    return scatter_elements(scores, words, found, 1, "min")


@rule("WordConvEmbedding", domain=MICROSOFT)
def word_embedding(n: NodeContext) -> Tensor:
    """Return the maximum over positions of tanh(conv) of the characters of each word.

    Operands: words (words, characters) with zeros as padding, weights (outs, 1, window, size),
    bias, character embeddings.
    """
    words, w = n.tensor(0), n.tensor(1)
    window, count = w.shape[2], words.shape[1]
    n.require(window <= count, f"a window of {window} for words of {count}")
    rows = unsqueeze(gather(n.tensor(3), words, 0), 1)
    out = squeeze(tanh(conv(rows, w, n.tensor(2))), 3)
    lengths = reduce_sum(cast(greater(words, 0), INT32), 1, keepdims=True)
    places = maximum(lengths - window, 0)
    inside = less_equal(arange(count - window + 1), places)
    return reduce_max(where(unsqueeze(inside, 1), out, -1e12), 2)
