"""How calls are drawn of the com.microsoft ops that no optimizer makes: exporters write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx_calls import Drawn, Source
from onnx_calls import calls as register
from onnx_calls_math import BYTES, scale_of, zero_of
from onnx_calls_nn import room, window

calls = partial(register, domain="com.microsoft", since=17)
KINDS = ("float32", "float64", "int64", "int32", "int8", "uint8", "bool")


# -- twins of ops of the default domain ------------------------------------------------------------


@calls("Trilu")
def trilu(s: Source) -> Drawn:
    kind = s.pick("float32", "float64", "int64")
    at = np.array(s.int(-2, 2), np.int64) if s.chance(0.6) else None
    shape = (*s.shape(0, 2, empty=False), s.int(1, 5), s.int(1, 5))
    return [s.values(shape, kind), at], {"upper": s.pick(0, 1, None)}


@calls("GatherND")
def gather_nd(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    depth = s.int(1, len(shape))
    before = s.shape(0, 2, empty=False)
    index = np.stack([s.rng.integers(-d, d, before) for d in shape[:depth]], -1)
    return [s.values(shape, s.pick(*KINDS)), index.astype(s.pick(np.int32, np.int64))], {}


@calls("Pad")
def pad(s: Source) -> Drawn:
    mode = s.pick("constant", "constant", "reflect", "edge")
    shape = tuple(d + 3 for d in s.shape(1, 3, empty=False))
    low = -1 if mode == "constant" else 0
    pads = s.vector(s.ints(2 * len(shape), low, 2))
    value = s.values(s.pick((), (1,))) if mode == "constant" and s.chance(0.5) else None
    if s.chance(0.2):
        pads = pads.reshape(1, -1)
    return [s.values(shape), pads, value], {"mode": mode}


@calls("ExpandDims")
def expand_dims(s: Source) -> Drawn:
    shape = s.shape(0, 3)
    at = s.int(-len(shape) - 1, len(shape))
    return [s.values(shape, s.pick(*KINDS)), np.array(at, np.int32)], {}


@calls("Range")
def range_of(s: Source) -> Drawn:
    kind = s.pick("int32", "int64", "int16", "float32", "float64")
    step = s.pick(1, 2, -1, None)
    start, span = s.int(-4, 4), s.int(0, 9)
    ends = [start, start + span * (-1 if step == -1 else 1)]
    given = [np.array(v, kind).reshape(s.pick((), (1,))) for v in ends]
    return [*given, None if step is None else np.array(step, kind)], {}


@calls("GridSample")
def grid_sample(s: Source) -> Drawn:
    x = s.values((s.int(1, 2), s.int(1, 2), s.int(2, 5), s.int(2, 5)))
    grid = s.rng.uniform(-1.2, 1.2, (x.shape[0], s.int(1, 3), s.int(1, 3), 2))
    return [x, grid.astype(np.float32)], {
        "mode": s.pick("bilinear", "bicubic", None), "align_corners": s.pick(0, 1, None),
        "padding_mode": s.pick("zeros", "border", "reflection", None),
    }  # fmt: skip


@calls("UnfoldTensor")
def unfold(s: Source) -> Drawn:
    shape = tuple(d + 2 for d in s.shape(1, 3, empty=False))
    axis = s.axis(len(shape))
    attrs = {"dim": s.pick(axis, None), "size": s.int(1, 3), "step": s.pick(1, 2, None)}
    return [s.values(shape, s.pick(*KINDS))], attrs


@calls("SampleOp")
def sample_op(s: Source) -> Drawn:
    return [s.values(s.shape(0, 3))], {}


@calls("ConvTransposeWithDynamicPads")
def conv_transpose(s: Source) -> Drawn:
    kernel = s.ints(2, 1, 3)
    groups = s.pick(1, 2)
    x = s.values((s.int(1, 2), 2 * groups, s.int(2, 4), s.int(2, 4)))
    w = s.values((2 * groups, 2, *kernel))
    pads = s.vector([s.int(0, k - 1) for k in kernel * 2])
    bias = s.values((2 * groups,)) if s.chance(0.5) else None
    attrs = {"strides": s.ints(2, 1, 3), "group": groups, "kernel_shape": kernel}
    return [x, w, pads, bias], attrs


@calls("MatMulInteger16")
def matmul_integer16(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    before = s.shape(0, 1, empty=False)
    return [s.values((*before, m, k), np.int16), s.values((k, n), np.int16)], {}


@calls("CDist")
def distances(s: Source) -> Drawn:
    depth, kind = s.int(1, 6), s.pick("float32", "float64")
    metric = s.pick("euclidean", "sqeuclidean", None)
    return [s.values((s.int(1, 5), depth), kind), s.values((s.int(1, 5), depth), kind)], {
        "metric": metric
    }


@calls("Inverse")
def inverse(s: Source) -> Drawn:
    size, kind = s.int(1, 4), s.pick("float32", "float64")
    x = s.values((*s.shape(0, 2, empty=False), size, size), kind)
    return [x + np.eye(size, dtype=kind) * 6], {}


# -- images ----------------------------------------------------------------------------------------


@calls("CropAndResize")
def crop_and_resize(s: Source) -> Drawn:
    x = s.values((s.int(1, 2), s.int(1, 3), s.int(2, 6), s.int(2, 6)))
    count = s.int(1, 3)
    regions = s.rng.uniform(-0.2, 1.2, (count, 4)).astype(np.float32)
    if s.chance(0.4):
        regions = np.tile(np.array([[0, 0, 1, 1]], np.float32), (count, 1))
    images = s.rng.integers(0, x.shape[0], count).astype(np.int32)
    return [x, regions, images, s.vector(s.ints(2, 1, 4), np.int32)], {
        "mode": s.pick("bilinear", "nearest", None), "extrapolation_value": s.pick(1.5, None),
    }  # fmt: skip


@calls("MaxpoolWithMask")
def pool_with_mask(s: Source) -> Drawn:
    axes = s.int(1, 3)
    kernel = s.ints(axes, 1, 3)
    sizes = [k + s.int(0, 3) for k in kernel]
    shape = (s.int(1, 2), s.int(1, 2), *sizes)
    # of more masks onnxruntime reads them from places in between
    mask = (s.rng.random((1, 1, *sizes)) < 0.8).astype(np.int32)
    pads = [s.int(0, k // 2) for k in kernel * 2] if s.chance(0.5) else None
    strides = s.ints(axes, 1, 2) if s.chance(0.5) else None
    return [s.values(shape), mask], {"kernel_shape": kernel, "strides": strides, "pads": pads}


@calls("NhwcMaxPool")
def nhwc_pool(s: Source) -> Drawn:
    attrs = window(s, 2)
    kernel = s.ints(2, 1, 3)
    if "pads" in attrs:
        attrs["pads"] = [s.int(0, k // 2) for k in kernel * 2]
    x = s.values((s.int(1, 2), *room(s, attrs, kernel), s.int(1, 3)), s.pick(*BYTES), full=True)
    return [x], {**attrs, "kernel_shape": kernel}


# -- quantised -------------------------------------------------------------------------------------


@calls("QLinearWhere")
def quantized_where(s: Source) -> Drawn:
    kind, (a, b, c) = s.pick(*BYTES), s.broadcasts(3, 3)
    operands: list[Any] = [s.values(a, np.bool_)]
    for shape in (b, c):
        operands += [s.values(shape, kind, full=True), scale_of(s), zero_of(s, kind)]
    # of scales that are initializers beside zero points that are none onnxruntime ends the process
    s.fixed = frozenset((2, 3, 5, 6, 7, 8) if s.chance(0.7) else ())
    return [*operands, scale_of(s), zero_of(s, kind)], {}


@calls("QAttention")
def quantized_attention(s: Source) -> Drawn:
    batch, heads, size, length = s.int(1, 2), s.pick(1, 2), s.pick(2, 4), s.int(1, 4)
    width, depth = heads * size, s.pick(3, 8)
    kind = s.pick(np.uint8, np.int8)
    past = s.int(1, 3) if s.chance(0.4) else 0
    columns = s.pick((), (3 * width,))
    mask: Any = None
    if s.chance(0.5):
        mask = (s.rng.random((batch, length + past)) < 0.7).astype(np.int32)
        if s.chance(0.3):
            mask = s.rng.integers(1, length + past + 1, batch).astype(np.int32)
    zeros = [zero_of(s, np.uint8), zero_of(s, kind, columns)] if s.chance(0.7) else [None, None]
    return [
        s.values((batch, length, depth), np.uint8, full=True),
        s.values((depth, 3 * width), kind, full=True), s.values((3 * width,)),
        scale_of(s) * np.float32(0.1), scale_of(s, columns) * np.float32(0.1), mask, *zeros,
        s.values((2, batch, heads, past, size)) if past else None,
    ], {"num_heads": heads, "unidirectional": s.pick(0, 1, None), "scale": s.pick(0.3, None)}, (
        2 if past else 1
    )  # fmt: skip


@calls("MatMulBnb4")
def bnb4(s: Source) -> Drawn:
    k, n, block = s.pick(16, 20, 64), s.int(1, 4), s.pick(16, 32, 64)
    packed = s.values(((n * k + 1) // 2,), np.uint8, full=True)
    scales = scale_of(s, (-(-n * k // block),))
    return [s.values((*s.shape(1, 2, empty=False), k)), packed, scales], {
        "K": k, "N": n, "block_size": block, "quant_type": s.pick(0, 1),
    }  # fmt: skip


@calls("MatMulFpQ4")
def fp_q4(s: Source) -> Drawn:
    k, n, kind = s.pick(32, 40, 64), s.int(1, 4), s.pick(0, 1, None)
    begin = 4 if kind == 0 else 5
    blocks = s.values((n, -(-k // 32), begin + 16), np.uint8, full=True)
    blocks[..., :4] = scale_of(s, (*blocks.shape[:2], 1)).view(np.uint8)
    if kind != 0:
        blocks[..., 4] &= 15
    x, shape = s.values((*s.shape(1, 2, empty=False), k)), s.vector([k, n])
    s.fixed = frozenset((1, 2))
    return [x, blocks.reshape(-1), shape], {"blk_quant_type": kind}


@calls("GatherPacked")
def gather_packed(s: Source) -> Drawn:
    number, row = s.pick((0, 128), (1, 64), (2, 18), (6, 22), (8, 34), (20, 18))
    table = s.values((s.int(1, 5), row * 2), np.uint8, full=True)
    halves = {0: np.float32, 1: np.float16}.get(number)
    if halves is not None:
        table = s.values((len(table), 64), halves).view(np.uint8)
    else:
        table.reshape(-1, row)[:, 1] &= 0x3B  # scales that are numbers
    at = s.rng.integers(-1, len(table) + 1, s.shape(0, 2)).astype(s.pick(np.int32, np.int64))
    return [table, at], {"K": 64, "packed_type": number, "output_dtype": s.pick(1, 10)}


# -- experts ---------------------------------------------------------------------------------------


def _activation(s: Source) -> dict[str, Any]:
    kind = s.pick("relu", "gelu", "silu", "identity", "swiglu", "swiglu", None)
    if kind != "swiglu":
        return {"activation_type": kind}
    return {
        "activation_type": kind, "swiglu_fusion": 1, "activation_alpha": s.pick(1.702, None),
        "activation_beta": s.pick(1.0, None), "swiglu_limit": s.pick(0.7, None),
    }  # fmt: skip


@calls("MoE")
def experts(s: Source) -> Drawn:
    count, width, inner, rows = s.int(2, 5), s.pick(4, 8), s.pick(3, 8), s.int(1, 5)
    attrs = _activation(s)
    wide = inner * (2 if attrs["activation_type"] == "swiglu" else 1)
    shape = (rows, width) if s.chance(0.6) else (1, rows, width)
    biases = [s.values((count, n)) if s.chance(0.6) else None for n in (wide, width)]
    return [
        s.values(shape), s.values((rows, count)), s.values((count, wide, width), scale=0.5),
        biases[0], s.values((count, width, inner), scale=0.5), biases[1],
    ], {
        **attrs, "k": s.pick(1, 2, None), "normalize_routing_weights": s.pick(0, 1, None),
    }  # fmt: skip


@calls("QMoE")
def quantized_experts(s: Source) -> Drawn:
    count, width, inner, rows = s.int(2, 4), 32, 32, s.int(1, 3)
    bits, block = s.pick(2, 4, 4, 8), s.pick(None, 16, 32)
    attrs = _activation(s)
    wide = inner * (2 if attrs["activation_type"] == "swiglu" else 1)
    has_zeros = s.chance(0.5)
    layers, zeros = [], []
    for n, k in ((wide, width), (width, inner)):
        scales = scale_of(s, (count, n) if block is None else (count, n, k // block))
        bias = s.values((count, n)) if s.chance(0.5) else None
        packed = s.values((count, n, k * bits // 8), np.uint8, full=True)
        layers += [packed, scales * np.float32(0.1), bias]
        shape = (count, n * bits // 8) if block is None else (count, n, -(-k // block * bits // 8))
        zeros.append(s.values(shape, np.uint8, full=True) if has_zeros else None)
    weights = np.abs(s.values((rows, count))) + np.float32(0.1) if s.chance(0.3) else None
    return [
        s.values((rows, width)), s.values((rows, count)), *layers, None, None, None, *zeros, None,
        weights,
    ], {
        **attrs, "k": s.pick(1, 2), "expert_weight_bits": bits, "block_size": block,
        "weights_prepacked": 0, "normalize_routing_weights": s.pick(0, 1, None),
    }  # fmt: skip


@calls("MoEGroupRouter")
def group_router(s: Source) -> Drawn:
    groups, each, rows = s.pick(1, 2, 4), s.pick(2, 3), s.int(1, 4)
    used = s.int(1, groups)
    return [s.values((rows, groups * each)), s.values((groups * each,), scale=0.1)], {
        "n_group": groups, "topk_group": used, "top_k": s.int(1, used * each),
        "group_topk": s.pick(1, 2, None), "router_sentinel": s.pick(-5.0, None),
    }  # fmt: skip


# -- attention -------------------------------------------------------------------------------------


@calls("DecoderMaskedMultiHeadAttention")
def decoder_attention(s: Source) -> Drawn:
    batch, heads, size = s.int(1, 2), s.pick(1, 2), s.pick(2, 4)
    width, attrs = heads * size, {"num_heads": heads, "scale": s.pick(0.3, None)}
    query, bias = s.values((batch, 1, width)), s.values((3 * width,)) if s.chance(0.4) else None
    if s.chance(0.4):  # of what was encoded
        keys = s.int(1, 4)
        cache = [s.values((batch, heads, keys, size)) for _ in range(2)]
        mask = (s.rng.random((batch, keys)) < 0.7).astype(np.int32) if s.chance(0.5) else None
        return [query, *cache, mask, *[None] * 6, bias], attrs
    past, room_ = s.int(1, 3), s.int(4, 6)
    cache = [s.values((batch, heads, room_, size)) for _ in range(2)]
    mask = (s.rng.random((batch, past + 1)) < 0.7).astype(np.int32) if s.chance(0.4) else None
    shape = (s.pick(1, batch), s.pick(1, heads), 1, past + 1)
    added = s.values(shape) if s.chance(0.3) else None
    new = [s.values((batch, 1, width)) for _ in range(2)]
    at = np.array([past], np.int32)
    return [query, *new, mask, added, *cache, at, None, None, bias], {
        **attrs, "past_present_share_buffer": 1
    }, 3  # fmt: skip


@calls("NGramRepeatBlock")
def repeat_block(s: Source) -> Drawn:
    batch, words = s.int(1, 2), s.int(2, 4)
    ids = s.rng.integers(0, words, (batch, s.int(1, 7)))
    return [ids, s.values((batch, words))], {"ngram_size": s.int(1, 3)}


# -- on the host -----------------------------------------------------------------------------------


@calls("MurmurHash3")
def murmur(s: Source) -> Drawn:
    kind = s.pick("int32", "uint32", "int64", "uint64", "float32", "float64")
    return [s.values(s.shape(0, 3), kind, full=True)], {
        "positive": s.pick(0, 1, None), "seed": s.pick(7, 123456789, None)
    }  # fmt: skip


@calls("Unique")
def unique(s: Source) -> Drawn:
    return [np.round(s.values((s.int(1, 8),)))], {}, 3


@calls("DynamicTimeWarping")
def time_warping(s: Source) -> Drawn:
    shape = (s.int(1, 7), s.int(1, 7))
    return [np.abs(s.values(shape if s.chance(0.5) else (1, *shape)))], {}


@calls("BifurcationDetector")
def bifurcation(s: Source) -> Drawn:
    source, current = (s.rng.integers(0, 3, s.int(1, 6)) for _ in range(2))
    at = s.int(0, len(source))
    predicted = np.append(source[at:], 1)
    predicted[s.rng.random(len(predicted)) < 0.2] = 2
    sizes = s.int(1, 2)
    return [source, current, np.array([at]), predicted if s.chance(0.7) else None], {
        "min_ngram_size": sizes, "max_ngram_size": sizes + s.int(0, 2),
    }, 2  # fmt: skip


# -- gates of recent language models ---------------------------------------------------------------


def _halves(s: Source) -> str:
    return str(s.pick("float32", "float32", "float16"))


@calls("ScaledSiLU")
def scaled_silu(s: Source) -> Drawn:
    kind = _halves(s)
    scale = s.values((), s.pick("float32", "float16")) if s.chance(0.4) else None
    return [s.values(s.shape(1, 3, empty=False), kind), scale], {"alpha": s.pick(0.5, None)}


@calls("GatedAdd")
def gated_add(s: Source) -> Drawn:
    shape, kind = s.shape(2, 3, empty=False), _halves(s)
    given = [s.values(part, kind) for part in (shape, shape, (*shape[:-1], 1))]
    return given, {}


@calls("LinearAttentionGate")
def linear_gate(s: Source) -> Drawn:
    shape, kind = (s.int(1, 2), s.int(1, 3), s.int(1, 4)), _halves(s)
    both = s.chance(0.5)
    rows = [s.values(shape[-1:]) for _ in range(2)]
    return [s.values(shape, kind), *rows, s.values(shape, kind) if both else None], {}, 1 + both


@calls("GatedRMSNorm")
def gated_norm(s: Source) -> Drawn:
    size, kind = s.int(1, 4), _halves(s)
    shape = (s.int(1, 2), s.int(1, 3), size * s.int(1, 3))
    return [s.values(shape, kind), s.values((size,), kind), s.values(shape, kind)], {
        "activation": s.pick("silu", "swish", "sigmoid", None), "epsilon": s.pick(1e-3, None),
    }  # fmt: skip


def _streams(s: Source) -> tuple[tuple[int, ...], int, int, tuple[int, ...], dict[str, Any]]:
    before, count, size = (s.int(1, 2), s.int(1, 3)), s.int(2, 3), s.int(2, 4)
    if s.chance(0.5):
        return before, count, size, (*before, count, size), {}
    return before, count, size, (*before, count * size), {"num_branches": count}


@calls("BranchwiseRMSNorm")
def branchwise(s: Source) -> Drawn:
    _, count, size, shape, attrs = _streams(s)
    row = s.pick((count * size,), (count, size), (size,))
    scale = s.values(row, s.pick("float32", "float16")) if s.chance(0.7) else None
    return [s.values(shape, _halves(s)), scale], {**attrs, "epsilon": s.pick(1e-3, None)}


@calls("EngramGate")
def engram(s: Source) -> Drawn:
    batch, length, count, size, kind = s.int(1, 2), s.int(1, 3), s.int(1, 3), s.int(2, 4), "float32"
    shape, both = (batch, length, count, size), s.chance(0.5)
    scales = [s.values((count, size), kind) for _ in range(2 + both)]
    return [
        s.values(shape, kind), s.values(shape, kind), s.values((batch, length, size), kind),
        *scales,
    ], {"epsilon": s.pick(1e-3, None)}, 1 + both  # fmt: skip


@calls("HyperConnectionPreMix")
def pre_mix(s: Source) -> Drawn:
    before, count, size, shape, attrs = _streams(s)
    forms = [(*before, count), (*before, count, 1), (*before, count, size)]
    gates = s.values(s.pick(*forms), s.pick("float32", "float16"))
    return [s.values(shape, _halves(s)), gates], {**attrs, "reduction_scale": s.pick(0.5, None)}


@calls("HyperConnectionPostMix")
def post_mix(s: Source) -> Drawn:
    before, count, size, shape, attrs = _streams(s)
    kind = _halves(s)
    forms = [(*before, count), (*before, count, 1), (*before, count, size)]
    mixing = s.values((*before, count, count)) if s.chance(0.5) else None
    return [
        s.values(shape, kind), s.values((*before, size), kind), s.values(s.pick(*forms)), mixing
    ], attrs  # fmt: skip


@calls("MRotaryEmbedding")
def rotary_of_streams(s: Source) -> Drawn:
    batch, heads, length, half = s.int(1, 2), s.int(1, 2), s.int(1, 3), s.pick(3, 6)
    first = s.int(0, half)
    second = s.int(0, half - first)
    sections = [first, second, half - first - second]
    layout = s.pick(0, 1, None)
    if layout:
        sections = [half // 3] * 3
    shape = (batch, length, 2 * half * heads) if s.chance(0.5) else (batch, heads, length, 2 * half)
    caches = [s.values((8, half)) for _ in range(2)]
    places = s.rng.integers(0, 8, (3, batch, length)).astype(np.int64)
    return [s.values(shape), places, *caches], {
        "mrope_section": sections, "mrope_layout": layout, "interleaved": s.pick(0, 1, None),
    }  # fmt: skip


@calls("LinearAttention")
def linear_attention(s: Source) -> Drawn:
    batch, length, depth, width = s.int(1, 2), s.int(1, 3), s.pick(2, 4), s.pick(2, 3)
    heads, shared = s.pick((2, 2), (4, 2), (2, 4), (1, 1))
    kind = s.pick("linear", "gated", "delta", "gated_delta", None)
    asked = kind or "gated_delta"
    given = [
        s.values((batch, length, count), scale=0.5)
        for count in (heads * depth, shared * depth, shared * width)
    ]
    state = s.values((batch, shared, depth, width)) if s.chance(0.5) else None
    decay = rate = None
    if "gated" in asked:
        decay = -np.abs(s.values((batch, length, shared * s.pick(1, depth))))
    if "delta" in asked:
        rate = np.abs(s.values((batch, length, s.pick(1, shared)), scale=0.5))
    attrs = {"q_num_heads": heads, "kv_num_heads": shared, "update_rule": kind}
    return [*given, state, decay, rate], {**attrs, "scale": s.pick(0.5, None)}, 2


@calls("GatedDeltaNet")
def gated_delta_net(s: Source) -> Drawn:
    lengths, depth, width = s.ints(s.int(1, 2), 1, 3), s.pick(2, 4), s.pick(2, 3)
    shared, heads = s.pick((1, 1), (2, 2), (2, 4))
    kind, per_place = s.pick("linear", "gated", "delta", "gated_delta", None), s.chance(0.4)
    asked, form = kind or "gated_delta", s.pick("cut", "cut", "even", "packed")
    if form != "cut":
        lengths = [lengths[0]] * len(lengths)
    rows = sum(lengths)
    lead = (len(lengths), lengths[0]) if form == "even" else (rows,)
    queries, keys = (s.values((*lead, shared, depth), scale=0.5) for _ in range(2))
    operands: list[Any] = [queries, keys, s.values((*lead, heads, width))]
    if form == "packed":
        flat = [t.reshape(rows, -1) for t in operands]
        operands = [np.concatenate(flat, 1), None, None]
    ends = np.cumsum([0, *lengths]).astype(np.int32) if form == "cut" else None
    gate = s.pick("softplus", "sigmoid", None) if "gated" in asked else None
    shape = (*lead, heads, depth) if per_place else (*lead, heads)
    decay = -np.abs(s.values(shape)) if "gated" in asked else None
    rate = np.abs(s.values((*lead, heads), scale=0.3)) if "delta" in asked else None
    logits = [s.values((heads,)), s.values((heads,))] if gate else []
    state = s.values((len(lengths), heads, width, depth))
    attrs = {"update_rule": kind, "gate_activation": gate, "qk_l2_norm": s.pick(0, 1, None)}
    return [*operands, ends, decay, rate, state, *logits], {
        **attrs, "scale": s.pick(0.5, None),
        "beta_activation": s.pick("sigmoid", None) if "delta" in asked else None,
    }, 2  # fmt: skip


@calls("CausalConvWithState")
def causal_conv(s: Source) -> Drawn:
    batch, channels, length, taps = s.int(1, 2), s.pick(2, 4), s.int(1, 5), s.int(2, 3)
    dilation, last = s.pick(1, 2, None), s.chance(0.4)
    reach = (taps - 1) * (dilation or 1)
    shape, state = (batch, channels, length), (batch, channels, reach)
    if last:
        axes = (channels,) if s.chance(0.5) else (2, channels // 2)
        shape, state = (batch, length, *axes), (batch, reach, *axes)
    return [
        s.values(shape), s.values((channels, 1, taps)),
        s.values((channels,)) if s.chance(0.5) else None,
        s.values(state) if s.chance(0.5) else None,
    ], {
        "dilation": dilation, "channels_last": 1 if last else None,
        "activation": s.pick("silu", "swish", "none", None),
    }, 2  # fmt: skip


@calls("VarlenCausalConvWithState")
def causal_conv_of_sequences(s: Source) -> Drawn:
    lengths, channels, taps = s.ints(s.int(1, 3), 1, 4), s.int(1, 3), s.int(2, 3)
    dilation = s.pick(1, 2, None)
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    reach = (taps - 1) * (dilation or 1)
    return [
        s.values((int(ends[-1]), channels)), s.values((channels, 1, taps)), ends,
        s.values((channels,)) if s.chance(0.5) else None,
        s.values((len(lengths), channels, reach)),
    ], {"dilation": dilation, "activation": s.pick("silu", "none", None)}, 2  # fmt: skip


# -- embeddings ------------------------------------------------------------------------------------


@calls("QEmbedLayerNormalization")
def quantized_embed(s: Source) -> Drawn:
    batch, length, width, kind = s.int(1, 2), s.int(1, 4), s.int(4, 7), s.pick(np.uint8, np.int8)
    ids = s.rng.integers(0, 5, (batch, length)).astype(np.int32)
    has_segments = s.chance(0.5)
    segments = s.rng.integers(0, 2, (batch, length)).astype(np.int32) if has_segments else None
    mask = (s.rng.random((batch, length)) < 0.7).astype(np.int32) if s.chance(0.5) else None
    shapes = [(5, width), (6, width), (2, width), (width,), (width,)]
    tables: list[Any] = [s.values(shape, kind, full=True) for shape in shapes]
    scales: list[Any] = [scale_of(s) for _ in shapes]
    zeros: list[Any] = [zero_of(s, kind) for _ in shapes]
    if not has_segments:
        tables[2] = scales[2] = zeros[2] = None
    return [ids, segments, *tables, mask, *scales, *zeros], {"epsilon": s.pick(1e-5, None)}, 2


@calls("WordConvEmbedding")
def word_embedding(s: Source) -> Drawn:
    words, count, window, size = s.int(1, 4), s.int(3, 6), s.int(1, 3), s.int(2, 4)
    ids = s.rng.integers(1, 5, (words, count)).astype(np.int32)
    for row in ids:
        row[s.int(1, count) :] = 0
    filters = s.int(1, 3)
    return [
        ids, s.values((filters, 1, window, size)), s.values((filters,)), s.values((5, size))
    ], {}  # fmt: skip
