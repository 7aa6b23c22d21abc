"""Encoders whose networks `transformers` does not have: their vectors equal those of the published
networks in numpy, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import language
import numpy as np
import pytest
from conftest import Scheds
from gguf_files import Draft, Type, ValueType
from language.convert import draft
from selection import spread
from test_gguf_embeddings import CLOSE, by_numpy, vectors

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.architectures.alibi import slopes
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

WIDTH, INNER, HEADS, WORDS = 24, 36, 3, 37
COMMON: dict[str, object] = {
    "block_count": 2,
    "context_length": 32,
    "embedding_length": WIDTH,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "vocab_size": WORDS,
    "pooling_type": 1,
}
KINDS = {int: ValueType.UINT32, float: ValueType.FLOAT32, bool: ValueType.BOOL}
Weights = Mapping[str, NDArray]


def build_encoder(
    architecture: str, keys: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Draft, Weights]:
    """Return a file, and its weights in float64."""
    built = Draft().with_key("general.architecture", ValueType.STRING, architecture)
    for key, value in {**COMMON, **keys}.items():
        built = built.with_key(f"{architecture}.{key}", KINDS[type(value)], value)
    built = built.with_key("tokenizer.ggml.token_type_count", ValueType.UINT32, 2)
    weights = {name: language.values(name, shape) for name, shape in shapes.items()}
    for name, array in weights.items():
        built = built.with_tensor(name, array.shape, Type.F32, array.tobytes())
    return built, {name: array.astype(np.float64) for name, array in weights.items()}


# -- parts of networks -----------------------------------------------------------------------------


def layer_norm(w: Weights, x: NDArray, name: str) -> NDArray:
    spread = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    normed = (x - x.mean(-1, keepdims=True)) / spread
    return np.asarray(normed * w[f"{name}.weight"] + w[f"{name}.bias"])


def rms_norm(w: Weights, x: NDArray, name: str) -> NDArray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"])


def linear(w: Weights, x: NDArray, name: str) -> NDArray:
    return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0))


def gelu(x: NDArray) -> NDArray:
    """Return x times the normal distribution up to x, whose integral numpy lacks: a series."""
    total, term = np.zeros_like(x), x.copy()
    for n in range(1, 200):
        total, term = total + term, term * x * x / (2 * n + 1)
    return np.asarray(x * (0.5 + total * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)))


def silu(x: NDArray) -> NDArray:
    return np.asarray(x / (1 + np.exp(-x)))


def softmax(x: NDArray) -> NDArray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def attention(q: NDArray, k: NDArray, v: NDArray, bias: Callable[[int], NDArray]) -> NDArray:
    """Return the attention of queries, keys and values, each (n, heads, size)."""
    heads = []
    for head in range(HEADS):
        scores = q[:, head] @ k[:, head].T / np.sqrt(q.shape[2]) + bias(head)
        heads.append(softmax(scores) @ v[:, head])
    return np.concatenate(heads, -1)


def no_bias(head: int) -> NDArray:
    return np.zeros(())


def rotated(x: NDArray, interleaved: bool, base: float = 10000.0) -> NDArray:
    """Return queries or keys (n, heads, size) with rotary embedding."""
    size = x.shape[2]
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(0, size, 2) / size)
    spin = np.exp(1j * angles)[:, None]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    pairs = (first + 1j * second) * spin
    out = np.empty_like(x)
    if interleaved:
        out[..., ::2], out[..., 1::2] = pairs.real, pairs.imag
    else:
        out = np.concatenate([pairs.real, pairs.imag], -1)
    return out


def by_head(x: NDArray) -> NDArray:
    return x.reshape(len(x), HEADS, -1)


def norm_shapes(*names: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{kind}": (WIDTH,) for name in names for kind in ("weight", "bias")}


def linear_shapes(name: str, rows: int, columns: int, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return {**shapes, f"{name}.bias": (rows,)} if bias else shapes


BERT_SHAPES = {
    "token_embd.weight": (WORDS, WIDTH),
    "token_types.weight": (2, WIDTH),
    **norm_shapes("token_embd_norm"),
}


def embedded(w: Weights, ids: NDArray) -> NDArray:
    return layer_norm(
        w, w["token_embd.weight"][ids] + w["token_types.weight"][0], "token_embd_norm"
    )


# -- jina-bert-v2: ALiBi; the gate is merged, apart or absent; some models have more norms ---------


def jina(gate: str, more_norms: bool) -> tuple[Draft, Weights]:
    shapes = dict(BERT_SHAPES)
    for layer in range(2):
        start = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes |= linear_shapes(f"{start}{name}", WIDTH, WIDTH, True)
        rows = 2 * INNER if gate == "merged" else INNER
        shapes |= linear_shapes(f"{start}ffn_up", rows, WIDTH, gate == "")
        if gate == "apart":
            shapes |= linear_shapes(f"{start}ffn_gate", INNER, WIDTH, False)
        shapes |= linear_shapes(f"{start}ffn_down", WIDTH, INNER, True)
        more = ("attn_q_norm", "attn_k_norm", "attn_norm_2") if more_norms else ()
        shapes |= norm_shapes(
            *(f"{start}{name}" for name in ("attn_output_norm", "layer_output_norm", *more))
        )
    keys = {"attention.layer_norm_epsilon": 1e-5, "attention.causal": False}
    return build_encoder("jina-bert-v2", keys, shapes)


def jina_hidden(w: Weights, ids: NDArray) -> NDArray:
    x, at = embedded(w, ids), np.arange(len(ids))

    def bias(head: int) -> NDArray:  # 3 heads: 2 ** -4 and 2 ** -8, then 2 ** -2
        return np.asarray(-(2.0 ** -(4, 8, 2)[head]) * np.abs(at[:, None] - at))

    for start in ("blk.0.", "blk.1."):
        q, k, v = (linear(w, x, f"{start}attn_{which}") for which in "qkv")
        if f"{start}attn_q_norm.weight" in w:
            q, k = layer_norm(w, q, f"{start}attn_q_norm"), layer_norm(w, k, f"{start}attn_k_norm")
        seen = linear(w, attention(by_head(q), by_head(k), by_head(v), bias), f"{start}attn_output")
        y = layer_norm(w, x + seen, f"{start}attn_output_norm")
        if f"{start}attn_norm_2.weight" in w:
            y = layer_norm(w, x + y, f"{start}attn_norm_2")
        up = linear(w, y, f"{start}ffn_up")
        if f"{start}ffn_gate.weight" in w:
            inner = gelu(linear(w, y, f"{start}ffn_gate")) * up
        elif up.shape[1] == 2 * INNER:
            inner = gelu(up[:, :INNER]) * up[:, INNER:]
        else:
            inner = gelu(up)
        x = layer_norm(w, y + linear(w, inner, f"{start}ffn_down"), f"{start}layer_output_norm")
    return x


# -- nomic-bert-moe: experts without a gate in the second layer ------------------------------------


def nomic_moe() -> tuple[Draft, Weights]:
    shapes = dict(BERT_SHAPES)
    for layer in range(2):
        start = f"blk.{layer}."
        shapes |= linear_shapes(f"{start}attn_qkv", 3 * WIDTH, WIDTH, True)
        shapes |= linear_shapes(f"{start}attn_output", WIDTH, WIDTH, True)
        shapes |= norm_shapes(f"{start}attn_output_norm", f"{start}layer_output_norm")
    shapes |= linear_shapes("blk.0.ffn_up", INNER, WIDTH, True)
    shapes |= linear_shapes("blk.0.ffn_down", WIDTH, INNER, True)
    shapes |= linear_shapes("blk.1.ffn_gate_inp", 5, WIDTH, False)
    shapes["blk.1.ffn_up_exps.weight"] = (5, INNER, WIDTH)
    shapes["blk.1.ffn_down_exps.weight"] = (5, WIDTH, INNER)
    keys = {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.causal": False,
        "expert_count": 5,
        "expert_used_count": 2,
        "moe_every_n_layers": 2,
    }
    return build_encoder("nomic-bert-moe", keys, shapes)


def nomic_moe_hidden(w: Weights, ids: NDArray) -> NDArray:
    x = embedded(w, ids)
    for start in ("blk.0.", "blk.1."):
        q, k, v = map(by_head, np.split(linear(w, x, f"{start}attn_qkv"), 3, -1))
        q, k = rotated(q, False), rotated(k, False)
        seen = linear(w, attention(q, k, v, no_bias), f"{start}attn_output")
        x = layer_norm(w, x + seen, f"{start}attn_output_norm")
        if start == "blk.0.":
            y = linear(w, gelu(linear(w, x, "blk.0.ffn_up")), "blk.0.ffn_down")
        else:
            y = experts(w, x)
        x = layer_norm(w, x + y, f"{start}layer_output_norm")
    return x


def experts(w: Weights, x: NDArray) -> NDArray:
    """Return the outputs of the two best experts of each token, times their probabilities."""
    shares, out = softmax(linear(w, x, "blk.1.ffn_gate_inp")), np.zeros_like(x)
    for token, row in enumerate(shares):
        for expert in np.argsort(row)[-2:]:
            inner = gelu(w["blk.1.ffn_up_exps.weight"][expert] @ x[token])
            out[token] += row[expert] * (w["blk.1.ffn_down_exps.weight"][expert] @ inner)
    return out


# -- neo-bert: queries, keys and values side by side for each head ---------------------------------


def neo() -> tuple[Draft, Weights]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (WORDS, WIDTH)}
    for layer in range(2):
        start = f"blk.{layer}."
        shapes |= linear_shapes(f"{start}attn_qkv", 3 * WIDTH, WIDTH, False)
        shapes |= linear_shapes(f"{start}attn_output", WIDTH, WIDTH, False)
        shapes |= linear_shapes(f"{start}ffn_up", 2 * INNER, WIDTH, False)
        shapes |= linear_shapes(f"{start}ffn_down", WIDTH, INNER, False)
        shapes |= {f"{start}{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    shapes["enc.output_norm.weight"] = (WIDTH,)
    keys = {
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.causal": False,
        "rope.freq_base": 10000.0,
    }
    return build_encoder("neo-bert", keys, shapes)


def neo_hidden(w: Weights, ids: NDArray) -> NDArray:
    x = w["token_embd.weight"][ids]
    for start in ("blk.0.", "blk.1."):
        merged = by_head(linear(w, rms_norm(w, x, f"{start}attn_norm"), f"{start}attn_qkv"))
        q, k, v = np.split(merged, 3, -1)
        seen = attention(rotated(q, True), rotated(k, True), v, no_bias)
        x = x + linear(w, seen, f"{start}attn_output")
        gate, up = np.split(linear(w, rms_norm(w, x, f"{start}ffn_norm"), f"{start}ffn_up"), 2, -1)
        x = x + linear(w, silu(gate) * up, f"{start}ffn_down")
    return rms_norm(w, x, "enc.output_norm")


# -- comparisons -----------------------------------------------------------------------------------

CASES: dict[str, tuple[Callable[[], tuple[Draft, Weights]], Callable[..., NDArray]]] = {
    "jina-bert-v2": (lambda: jina("merged", False), jina_hidden),
    "jina-bert-v2 code": (lambda: jina("apart", True), jina_hidden),
    "jina-bert-v2 ungated": (lambda: jina("", False), jina_hidden),
    "nomic-bert-moe": (nomic_moe, nomic_moe_hidden),
    "neo-bert": (neo, neo_hidden),
}


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def compare(name: str, sched: vs.Scheduler) -> None:
    build, hidden = CASES[name]
    data, weights = build()
    texts = [np.arange(3, 14, dtype=np.int32), np.arange(30, 12, -2, dtype=np.int32)]
    wanted = [by_numpy(hidden(weights, text), "mean") for text in texts]
    assert abs(wanted[0] - wanted[1]).max() > 0.05
    np.testing.assert_allclose(vectors(sched, loaded(data), texts), wanted, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_vectors_equal_those_of_numpy(name: str) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare(name, sched)


@pytest.mark.parametrize("name", spread(list(CASES), 2))
def test_so_they_do_on_devices(name: str, scheds: Scheds) -> None:
    compare(name, scheds[0])


def test_slopes_fall_from_head_to_head() -> None:
    assert slopes(4, 8.0) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert slopes(6, 8.0) == [*slopes(4, 8.0), 2.0**-1, 2.0**-3]
    assert len(slopes(12, 8.0)) == 12


def test_dense_layers_follow_pooling() -> None:
    golden = language.load("gemma-embedding")
    data, shapes = draft(golden), {"dense_2.weight": (48, 32), "dense_3.weight": (32, 48)}
    for name, (rows, columns) in shapes.items():
        array = language.values(name, (rows, columns))
        data = data.with_tensor(name, array.shape, Type.F32, array.tobytes())
        key = f"gemma-embedding.{name.removesuffix('.weight')}_feat"
        data = data.with_key(f"{key}_in", ValueType.UINT32, columns)
        data = data.with_key(f"{key}_out", ValueType.UINT32, rows)
    wanted = golden.wanted.astype(np.float64).mean(0)
    for name, shape in shapes.items():
        wanted = language.values(name, shape).astype(np.float64) @ wanted
    wanted /= np.linalg.norm(wanted)
    with vs.Scheduler(["cpu"]) as sched:
        np.testing.assert_allclose(
            vectors(sched, loaded(data), [golden.ids], "mean")[0], wanted, **CLOSE
        )
    for key, value, match in (
        ("dense_2_feat_in", 31, "'gemma-embedding.dense_2_feat_in': expected 32, .* got 31"),
        ("dense_2_feat_out", 47, r"'dense_2.weight' of shape \(47, 32\)"),
        ("dense_3_feat_in", 32, "dense_3_feat_in': expected 48, .* got 32"),
        ("dense_3_feat_out", 0, r"'dense_3.weight' of shape \(0, 48\)"),
    ):
        check_refused(with_key(data, f"gemma-embedding.{key}", ValueType.UINT32, value), match)


# -- what is refused -------------------------------------------------------------------------------

IDS, COUNTS = vs.input("ids", (2, 9), "int32"), vs.input("counts", (2,), "int32")


def with_key(data: Draft, name: str, kind: ValueType | None, value: object = None) -> Draft:
    """Return a file with another value of a key, or without it."""
    data = replace(data, keys=tuple(key for key in data.keys if key.name != name))
    return data if kind is None else data.with_key(name, kind, value)


def check_refused(data: Draft, match: str) -> None:
    with pytest.raises(ModelFormatError, match=match):
        loaded(data).embeddings(IDS, COUNTS, "mean")


@pytest.mark.parametrize(
    ("key", "kind", "value", "match"),
    [
        ("moe_every_n_layers", ValueType.UINT32, 3, None),
        ("moe_every_n_layers", ValueType.UINT32, 1, "second of 1 layers, got layer 1 with"),
        (
            "moe_every_n_layers",
            ValueType.INT32,
            -1,
            "'nomic-bert-moe.moe_every_n_layers': expected",
        ),
        ("expert_count", ValueType.UINT32, 4, r"of shape \(4, 24\), got \(5, 24\)"),
        ("expert_used_count", None, None, "'nomic-bert-moe.expert_used_count'"),
    ],
)
def test_wrong_keys_of_experts_are_named(
    key: str, kind: ValueType | None, value: object, match: str | None
) -> None:
    data = with_key(nomic_moe()[0], f"nomic-bert-moe.{key}", kind, value)
    if match is None:  # the second of three layers has experts, too
        loaded(data).embeddings(IDS, COUNTS)
    else:
        check_refused(data, match)


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "match"),
    [
        ("modern-bert", "hidden_activation", ValueType.STRING, "relu6", "gelu, silu, got 'relu6'"),
        ("modern-bert", "hidden_activation", ValueType.UINT32, 1, "expected a string, got 1"),
        ("modern-bert", "attention.sliding_window_pattern", ValueType.INT32, -3, "whole number"),
        ("modern-bert", "rope.freq_base_swa", ValueType.FLOAT32, -1.0, "'modern-bert.rope.freq_ba"),
        ("gemma-embedding", "attention.sliding_window", None, None, "attention.sliding_window'"),
    ],
)
def test_wrong_keys_of_encoders_are_named(
    name: str, key: str, kind: ValueType | None, value: object, match: str
) -> None:
    check_refused(with_key(draft(language.load(name)), f"{name}.{key}", kind, value), match)


@pytest.mark.parametrize(
    ("name", "missing", "match"),
    [
        ("modern-bert", "blk.1.attn_norm.weight", "'blk.1.attn_norm.weight' of shape"),
        ("jina-bert-v3", "blk.0.attn_qkv.bias", r"'blk.0.attn_qkv.bias' of shape \(96,\)"),
        ("gemma-embedding", "blk.0.post_ffw_norm.weight", "'blk.0.post_ffw_norm.weight' of shape"),
    ],
)
def test_missing_tensors_are_named(name: str, missing: str, match: str) -> None:
    data = draft(language.load(name))
    check_refused(replace(data, infos=tuple(i for i in data.infos if i.name != missing)), match)
