"""How calls of the com.microsoft ops are drawn."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from onnx_calls import Drawn, Source
from onnx_calls import calls as register
from onnx_calls_math import BYTES, scale_of, zero_of
from onnx_calls_nn import conv, room, window

calls = partial(register, domain="com.microsoft", since=17)


@calls("Gelu", "BiasGelu", "FastGelu", "QuickGelu")
def gelu(s: Source) -> Drawn:
    shape = s.shape(1, 3, empty=False)
    bias = s.op == "BiasGelu" or (s.op == "FastGelu" and s.chance(0.5))
    attrs = {"alpha": s.pick(1.0, None)} if s.op == "QuickGelu" else {}
    return [s.values(shape), s.values(shape[-1:]) if bias else None], attrs


@calls("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_norm(s: Source) -> Drawn:
    shape, full = (s.int(1, 3), s.int(1, 3), s.int(2, 6)), s.op == "SkipLayerNormalization"
    skip = shape if s.chance(0.6) else s.pick((1, *shape[1:]), shape[1:])
    row, kind = shape[-1:], s.pick("float32", "float32", "float16", "float64")
    shift = [s.values(row, kind) if s.chance(0.5) else None] if full else []
    bias = s.values(row, kind) if s.chance(0.5) else None
    return [s.values(shape, kind), s.values(skip, kind), s.values(row, kind), *shift, bias], {
        "epsilon": s.pick(1e-5, 1e-3, None)
    }


@calls("EmbedLayerNormalization")
def embed(s: Source) -> Drawn:
    batch, length, width = s.int(1, 3), s.int(1, 4), s.int(4, 7)
    ids = s.rng.integers(0, 5, (batch, length)).astype(np.int32)
    segments = s.rng.integers(0, 2, (batch, length)).astype(np.int32) if s.chance(0.5) else None
    mask = (s.rng.random((batch, length)) < 0.7).astype(np.int32) if s.chance(0.5) else None
    tables: list[Any] = [s.values((5, width)), s.values((6, width)), s.values((2, width))]
    if segments is None:
        tables[2] = None
    places = None
    if s.chance(0.3):
        places = s.rng.integers(0, 6, (s.pick(1, batch), length)).astype(np.int32)
    return [ids, segments, *tables, s.values((width,)), s.values((width,)), mask, places], {
        "epsilon": s.pick(1e-5, None)
    }, 2  # fmt: skip


@calls("FusedMatMul")
def fused_matmul(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    left, right = s.int(0, 1), s.int(0, 1)
    before, kind = s.broadcasts(2, 2), s.pick("float32", "float64")
    a = (*before[0], *((k, m) if left else (m, k)))
    b = (*before[1], *((n, k) if right else (k, n)))
    attrs = {"transA": left or None, "transB": right or None, "alpha": s.pick(0.5, None)}
    return [s.values(a, kind), s.values(b, kind)], attrs


ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": (0.3,), "Clip": (-1.0, 1.5),
    "HardSigmoid": (0.3, 0.4), "HardSwish": (),
}  # fmt: skip


GEMM_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "LeakyRelu": ("alpha",),
    "Celu": ("alpha",), "Elu": ("alpha",), "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"), "ParametricSoftplus": ("alpha", "beta"),
    "ScaledTanh": ("alpha", "beta"), "Selu": ("alpha", "gamma"),
}  # fmt: skip


@calls("FusedGemm")
def fused_gemm(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    kind = s.pick(*GEMM_ACTIVATIONS)
    names = GEMM_ACTIVATIONS[kind]
    feeds = {f"activation_{name}": 0.3 + 0.1 * i for i, name in enumerate(names)}
    bias = s.values(s.pick((m, n), (n,))) if s.chance(0.6) else None
    return [s.values((m, k)), s.values((k, n)), bias], {"activation": kind, **feeds}


@calls("FusedConv")
def fused_conv(s: Source) -> Drawn:
    kind = s.pick(*ACTIVATIONS)
    attrs = window(s, 2, auto=False)
    kernel = s.ints(2, 1, 3)
    shape = (s.int(1, 2), 2, *room(s, attrs, kernel))
    bias = s.values((3,)) if s.chance(0.6) else None
    numbers = list(ACTIVATIONS[kind]) or None
    return [s.values(shape), s.values((3, 2, *kernel)), bias], {
        **attrs, "activation": kind, "activation_params": numbers,
    }  # fmt: skip


# -- quantised -------------------------------------------------------------------------------------


def quantised(s: Source, shape: Any, kind: Any) -> list[Any]:
    zero = zero_of(s, kind) if s.chance(0.8) else None
    return [s.values(shape, kind, full=True), scale_of(s), zero]


def target(s: Source, kind: Any, times: float = 1.0) -> list[Any]:
    return [scale_of(s) * np.float32(times), zero_of(s, kind) if s.chance(0.8) else None]


@calls("QLinearAdd", "QLinearMul")
def of_two(s: Source) -> Drawn:
    kind, (a, b) = s.pick(*BYTES), s.broadcasts(2, 3)
    times = s.pick(1, 4, 100) if s.op == "QLinearMul" else s.pick(1, 2)
    operands = [*quantised(s, a, kind), *quantised(s, b, kind), *target(s, kind, times)]
    for i in (2, 5):  # onnxruntime asks for all or none
        operands[i] = zero_of(s, kind)
    return operands, {}


@calls("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def of_one(s: Source) -> Drawn:
    kind, shape = s.pick(*BYTES), s.shape(1, 3, empty=False)
    attrs: dict[str, Any] = {}
    if s.op == "QLinearLeakyRelu":
        attrs["alpha"] = s.pick(0.2, None)
    if s.op == "QLinearSoftmax":
        shape = tuple(d + 1 for d in shape)  # of one value onnxruntime gives 0
        attrs = {"opset": s.pick(12, 13), "axis": s.axis(len(shape))}
        return [s.values(shape, kind, full=True), scale_of(s), zero_of(s, kind),
                np.array(1 / 256, np.float32),
                np.array(0 if kind == np.uint8 else -128, kind)], attrs  # fmt: skip
    # without the last zero point onnxruntime ends the process
    scale = scale_of(s) * np.float32(0.02)
    return [*quantised(s, shape, kind), scale, zero_of(s, kind)], attrs


@calls("QLinearGlobalAveragePool", "QLinearAveragePool")
def pools(s: Source) -> Drawn:
    kind = s.pick(*BYTES)
    attrs: dict[str, Any] = {}
    sizes = s.ints(2, 1, 5)
    if s.op == "QLinearAveragePool":
        attrs = window(s, 2, dilated=False)
        kernel = s.ints(2, 1, 3)
        attrs.update(kernel_shape=kernel, count_include_pad=s.pick(0, 1, None))
        if "pads" in attrs:
            attrs["pads"] = [s.int(0, k // 2) for k in kernel * 2]
            attrs["ceil_mode"] = s.pick(0, 1, None) if not attrs["count_include_pad"] else None
        sizes = room(s, attrs, kernel)
    x = s.values((s.int(1, 2), s.int(1, 2), *sizes), kind, full=True)
    return [x, scale_of(s), zero_of(s, kind), scale_of(s), zero_of(s, kind)], attrs


@calls("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConv")
def with_channels_last(s: Source) -> Drawn:
    drawn = conv(s) if s.op == "QLinearConv" else pools(s)
    operands, attrs = drawn[:2]
    assert operands[0] is not None
    operands[0] = np.ascontiguousarray(np.moveaxis(operands[0], 1, -1))
    return operands, {**attrs, "channels_last": 1}


@calls("QLinearConcat")
def concat(s: Source) -> Drawn:
    kind, shape = s.pick(*BYTES), list(s.shape(1, 3, empty=False))
    axis = s.int(0, len(shape) - 1)
    operands: list[Any] = [scale_of(s), zero_of(s, kind)]
    for _ in range(s.int(1, 3)):
        shape[axis] = s.size(False)
        operands += [s.values(shape, kind, full=True), scale_of(s), zero_of(s, kind)]
    return operands, {"axis": axis}


@calls("QGemm")
def qgemm(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    left, right = s.int(0, 1), s.int(0, 1)
    a = s.pick(*BYTES)
    b = np.int8 if a == np.int8 else s.pick(*BYTES)
    columns = s.pick((), (n,))
    bias = s.values(s.pick((n,), (m, n)), np.int32, full=False) if s.chance(0.6) else None
    last = target(s, a, s.pick(1, 20)) if s.chance(0.6) else []
    if len(last) == 2 and last[1] is None:
        last[1] = np.zeros((), a)
    return [
        s.values((k, m) if left else (m, k), a, full=True), scale_of(s), zero_of(s, a),
        s.values((n, k) if right else (k, n), b, full=True), scale_of(s, columns),
        zero_of(s, b, columns), bias, *last,
    ], {"transA": left, "transB": right, "alpha": s.pick(0.5, None)}  # fmt: skip


@calls("MatMulIntegerToFloat", "DynamicQuantizeMatMul")
def to_float(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    a, b = s.pick(*BYTES), s.pick(*BYTES)
    columns, before = s.pick((), (n,)), s.shape(0, 1, empty=False)
    zero = zero_of(s, b, columns) if s.chance(0.6) else None
    bias = s.values((n,)) if s.chance(0.5) else None
    w = s.values((k, n), b, full=True)
    if s.op == "DynamicQuantizeMatMul":
        return [s.values((*before, m, k)), w, scale_of(s, columns), zero, bias], {}
    x = s.values((*before, m, k), a, full=True)
    left = zero_of(s, a) if s.chance(0.6) else None
    return [x, w, scale_of(s), scale_of(s, columns), left, zero, bias], {}


@calls("MatMulNBits")
def nbits(s: Source) -> Drawn:
    bits, block = s.pick(4, 4, 8), s.pick(16, 32)
    k, n = s.pick(16, 20, 32, 48), s.int(1, 4)
    count = -(-k // block)
    packed = s.values((n, count, block * bits // 8), np.uint8, full=True)
    scales = scale_of(s, (n, count))
    zeros = s.pick(None, 0, 1)
    if zeros == 0:
        zeros = s.values((n, -(-count * bits // 8)), np.uint8, full=True)
    elif zeros == 1:
        zeros = s.values((n, count), scale=4.0)
    x = s.values((*s.shape(1, 2, empty=False), k))
    groups = None
    # with groups onnxruntime takes zero points of 4 bits to be 8, whatever they are
    if (zeros is None or zeros.dtype == np.float32) and k % block == 0 and s.chance(0.4):
        groups = s.rng.permutation(np.repeat(np.arange(count), block)).astype(np.int32)
        s.fixed = frozenset((1, 2, 4) if zeros is None else (1, 2, 3, 4))
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
    if s.chance(0.2) and groups is None:
        x, scales = x.astype(np.float16), scales.astype(np.float16)
        zeros = zeros if zeros is None or zeros.dtype == np.uint8 else zeros.astype(np.float16)
    return [x, packed, scales, zeros, groups], attrs


# -- attention -------------------------------------------------------------------------------------


@calls("Attention")
def attention(s: Source) -> Drawn:
    batch, heads, size, length = s.int(1, 2), s.pick(1, 2), s.pick(2, 4), s.int(1, 4)
    width, depth = heads * size, s.pick(3, heads * size)
    past = s.int(1, 3) if s.chance(0.4) else 0
    keys = length + past
    causal = s.pick(0, 1, None)
    mask: Any = None
    if s.chance(0.5):
        form = s.pick("rows", "full", "lengths")
        if form == "rows":
            mask = (s.rng.random((batch, keys)) < 0.7).astype(np.int32)
        elif form == "full":
            mask = (s.rng.random((batch, length, keys)) < 0.7).astype(np.int32)
        else:
            mask = s.rng.integers(1, keys + 1, batch).astype(np.int32)
    before = s.values((2, batch, heads, past, size)) if past else None
    added = s.values((s.pick(1, batch), s.pick(1, heads), length, keys)) if s.chance(0.3) else None
    return [
        s.values((batch, length, depth)), s.values((depth, 3 * width)), s.values((3 * width,)),
        mask, before, added,
    ], {
        "num_heads": heads, "unidirectional": causal, "scale": s.pick(0.3, None),
        "mask_filter_value": s.pick(-1000.0, None),
    }, 2 if past or s.chance(0.5) else 1  # fmt: skip


@calls("MultiHeadAttention")
def multi_head(s: Source) -> Drawn:
    batch, heads, size = s.int(1, 2), s.pick(1, 2), s.pick(2, 4)
    length, keys = s.int(1, 4), s.int(1, 4)
    causal = s.pick(0, 0, 1, None)
    if causal:
        keys = length
    width = heads * size
    bias = s.values((3 * width,)) if s.chance(0.4) else None
    past = s.int(1, 3) if s.chance(0.3) else 0
    mask = None
    if s.chance(0.4):
        mask = (s.rng.random((batch, keys + past)) < 0.7).astype(np.int32)
    shape = (s.pick(1, batch), s.pick(1, heads), length, keys + past)
    added = s.values(shape) if s.chance(0.3) else None
    before = [s.values((batch, heads, past, size)) for _ in range(2)] if past else [None, None]
    return [
        s.values((batch, length, width)), s.values((batch, keys, width)),
        s.values((batch, keys, width)), bias, mask, added, *before,
    ], {"num_heads": heads, "unidirectional": causal, "scale": s.pick(0.3, None)}, (
        3 if past else 1
    )  # fmt: skip


@calls("GroupQueryAttention")
def grouped(s: Source) -> Drawn:
    batch, shared, size = s.int(1, 2), s.pick(1, 2), s.pick(16, 16, 32)
    heads = shared * s.pick(1, 2)
    length = s.pick(1, 3)
    past = s.int(1, 4) if length == 1 or s.chance(0.3) else 0
    total = length + past
    rotary = s.chance(0.4)
    operands: list[Any] = [
        s.values((batch, length, heads * size), scale=1.0),
        *(s.values((batch, length, shared * size), scale=1.0) for _ in range(2)),
        *(s.values((batch, shared, past, size), scale=1.0) for _ in range(2)),
        np.full(batch, total - 1, np.int32),
        np.array(total, np.int32),
    ]
    scores = s.pick(1, 2, None, None)
    if rotary:
        angles = s.rng.random((8, size // 2)).astype(np.float32) * math.pi
        operands += [np.cos(angles), np.sin(angles)]
    return operands, {
        "num_heads": heads, "kv_num_heads": shared, "scale": s.pick(0.3, None),
        "do_rotary": 1 if rotary else None, "softcap": s.pick(2.0, None, None),
        "local_window_size": s.pick(2, -1, None),
        "rotary_interleaved": s.pick(0, 1) if rotary else None,
        "qk_output": scores, **quantised_cache(s, operands, past),
    }, 4 if scores else 3  # fmt: skip


def quantised_cache(s: Source, operands: list[Any], past: int) -> dict[str, Any]:
    """Make codes of the past, with their scales, of some calls; returns the attributes."""
    if not past or s.chance(0.6):
        return {}
    kind = s.pick("PER_TENSOR", "PER_CHANNEL")
    operands += [None] * (12 - len(operands))
    for i in (3, 4):
        _, shared, _, size = operands[i].shape
        operands[i] = s.values(operands[i].shape, np.int8, full=True)
        shape = (1,) if kind == "PER_TENSOR" else (1, shared, 1, size)
        operands.append(scale_of(s, shape) * np.float32(0.05))
    return {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8}


@calls("RotaryEmbedding")
def rotary_embedding(s: Source) -> Drawn:
    batch, heads, length, size = s.int(1, 2), s.int(1, 3), s.int(1, 4), s.pick(2, 4, 8)
    shape = (batch, length, heads * size) if s.chance(0.5) else (batch, heads, length, size)
    caches = [s.values((8, size // 2)) for _ in range(2)]
    if s.chance(0.5):
        places = np.array([s.int(0, 8 - length)], np.int64)
    else:
        places = s.rng.integers(0, 8, (batch, length)).astype(np.int64)
    return [s.values(shape), places, *caches], {"interleaved": s.pick(0, 1, None)}
