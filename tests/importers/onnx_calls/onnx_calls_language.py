"""How calls are drawn of the com.microsoft ops of language models: experts, attention, gates."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx_calls import Drawn, Source
from onnx_calls import calls as register
from onnx_calls_math import scale_of, zero_of

calls = partial(register, domain="com.microsoft", since=17)


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
    if bits == 8 and block is not None:  # of known weights it rounds rows to 8 bits, too
        s.fixed = frozenset()
    return [
        s.values((rows, width)), s.values((rows, count)), *layers,
        None, None, None, *zeros, None,
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
    inputs = [s.values(part, kind) for part in (shape, shape, (*shape[:-1], 1))]
    return inputs, {}


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
    kind = _halves(s)
    return [s.values(shape, kind), places, *(c.astype(kind) for c in caches)], {
        "mrope_section": sections, "mrope_layout": layout, "interleaved": s.pick(0, 1, None),
    }  # fmt: skip


@calls("LinearAttention")
def linear_attention(s: Source) -> Drawn:
    batch, length, depth, width = s.int(1, 2), s.int(1, 3), s.pick(2, 4), s.pick(2, 3)
    heads, shared = s.pick((2, 2), (4, 2), (2, 4), (1, 1))
    kind = s.pick("linear", "gated", "delta", "gated_delta", None)
    asked = kind or "gated_delta"
    inputs = [
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
    return [*inputs, state, decay, rate], {**attrs, "scale": s.pick(0.5, None)}, 2


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


@calls("NGramHashMapping")
def ngram_hashes(s: Source) -> Drawn:
    kind, batch, length = s.pick(np.int32, np.int64), s.int(1, 2), s.int(1, 6)
    most, heads = s.int(2, 4), s.int(1, 3)
    count = (most - 1) * heads
    ids = s.rng.integers(0, 4, (batch, length)).astype(kind)
    past = s.rng.integers(0, 4, (batch, most - 1)).astype(kind) if s.chance(0.5) else None
    offsets = s.rng.integers(0, 50, count).astype(kind) if s.chance(0.4) else None
    end = np.array(2, kind) if s.chance(0.6) else None
    segments = None
    if s.chance(0.4):
        segments = np.cumsum(s.rng.random((batch, length)) < 0.4, 1).astype(np.int32)
    return [
        ids, s.values((most,), kind, full=s.chance(0.5)), s.rng.integers(2, 40, count).astype(kind),
        past, offsets, end, segments,
    ], {
        "pad_id": s.int(0, 3), "max_ngram_size": most, "n_head_per_ngram": heads,
        "reset_on_eos": s.pick(0, 1, None),
    }, 2  # fmt: skip


@calls("VarlenNGramHashMapping")
def ngram_hashes_of_sequences(s: Source) -> Drawn:
    kind, lengths = s.pick(np.int32, np.int64), s.ints(s.int(1, 3), 1, 4)
    most, heads = s.int(2, 4), s.int(1, 3)
    count, rows = (most - 1) * heads, sum(lengths)
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    history = (len(lengths), most - 1)
    past = s.rng.integers(0, 4, history).astype(kind) if s.chance(0.5) else None
    end = np.array(2, kind) if s.chance(0.6) else None
    segments = before = None
    if s.chance(0.5):
        segments = np.sort(s.rng.integers(0, 3, rows)).astype(np.int32)
        if past is not None and s.chance(0.6):
            before = s.rng.integers(0, 2, history).astype(np.int32)
    capacity = s.pick(None, 2)
    captured = s.rng.integers(0, 4, len(lengths)).astype(np.int32) if capacity else None
    results = 4 if capacity else 3 if segments is not None else 2
    return [
        s.rng.integers(0, 4, rows).astype(kind), s.rng.integers(1, 99, most).astype(kind),
        s.rng.integers(2, 40, count).astype(kind), ends, past, None, end, segments, before,
        captured,
    ], {
        "pad_id": s.int(0, 3), "max_ngram_size": most, "n_head_per_ngram": heads,
        "reset_on_eos": s.pick(0, 1, None), "state_update_capacity": capacity,
    }, results  # fmt: skip
