"""Vectors of texts equal those that `transformers`, or numpy, makes of the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import language
import numpy as np
import pytest
from gguf_files import Draft, Type, ValueType
from language.convert import draft
from selection import spread
from test_gguf_golden import CLOSE, SETS, Placement, build_golden, split_over

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError, ShapeError
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

WAYS = ("mean", "cls", "last")


def by_numpy(hidden: NDArray, way: str) -> NDArray:
    """Return the vector of a text. hidden: (n, width) of its tokens."""
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[way]
    return np.asarray(vector / np.linalg.norm(vector))


def vectors(
    sched: vs.Scheduler,
    model: LanguageModel,
    texts: list[NDArray],
    way: str | None = None,
    placement: Placement = None,
) -> NDArray:
    """Return the vectors of texts in one batch, filled up with any tokens."""
    longest = max(map(len, texts)) + 2
    ids = np.full((len(texts), longest), 3, np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    inputs = vs.input("ids", ids.shape, "int32"), vs.input("counts", (len(texts),), "int32")
    run = sched.compile(model.embeddings(*inputs, way), placement=placement)
    return np.asarray(run(ids=ids, counts=np.array([len(text) for text in texts], np.int32)))


def compare(name: str, sched: vs.Scheduler, folder: Path, placement: Placement = None) -> None:
    golden = language.load(name)
    model = build_golden(golden, folder)
    for way in WAYS:
        wanted = by_numpy(golden.wanted, way)
        got = vectors(sched, model, [golden.ids[:7], golden.ids], way, placement)
        np.testing.assert_allclose(got[1], wanted, **CLOSE)
        alone = vectors(sched, model, [golden.ids[:7]], way, placement)
        np.testing.assert_allclose(got[0], alone[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-5)
    assert abs(by_numpy(golden.wanted, "mean") - by_numpy(golden.wanted, "cls")).max() > 0.05
    if name not in ("gemma-embedding", "llama-embed"):
        by_file = vectors(sched, model, [golden.ids], placement=placement)
        np.testing.assert_allclose(by_file[0], by_numpy(golden.wanted, "mean"), **CLOSE)


@pytest.mark.parametrize("name", language.ENCODERS)
def test_vectors_of_an_encoder_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare(name, sched, tmp_path)


@pytest.mark.parametrize("devices", SETS, indirect=True)
@pytest.mark.parametrize("name", spread(language.ENCODERS, 3))
def test_so_they_do_on_devices_and_split_over_two(
    name: str, devices: list[str], tmp_path: Path
) -> None:
    with vs.Scheduler(devices) as sched:
        compare(name, sched, tmp_path, split_over(devices))


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_decoder_makes_vectors_too(name: str, tmp_path: Path) -> None:
    golden = language.load(name)
    model = build_golden(golden, tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        vector = vectors(sched, model, [golden.ids, golden.ids[:4]], "last")[0]
    head = next(golden.weights()[key] for key in golden.tensors if "embed_tokens" in key)
    for at, same in ((-1, True), (-2, False)):  # logits are the head times the hidden state
        logits, wanted = head @ vector, golden.wanted[at]
        found = logits @ wanted / np.linalg.norm(logits) / np.linalg.norm(wanted)
        assert (found > 1 - 1e-6) == same


# -- nomic-bert: rotary positions, joined products, a gate -----------------------------------------

NOMIC = {
    "block_count": 2,
    "context_length": 32,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "vocab_size": 37,
    "pooling_type": 1,
}


def nomic() -> tuple[Draft, dict[str, NDArray]]:
    """Return a file, and its weights in float64."""
    built = Draft().with_key("general.architecture", ValueType.STRING, "nomic-bert")
    for key, value in NOMIC.items():
        built = built.with_key(f"nomic-bert.{key}", ValueType.UINT32, value)
    built = built.with_key("nomic-bert.attention.layer_norm_epsilon", ValueType.FLOAT32, 1e-5)
    built = built.with_key("nomic-bert.attention.causal", ValueType.BOOL, False)
    built = built.with_key("nomic-bert.rope.freq_base", ValueType.FLOAT32, 1000.0)
    built = built.with_key("tokenizer.ggml.token_type_count", ValueType.UINT32, 2)
    shapes = {"token_embd.weight": (37, 32), "token_types.weight": (2, 32)}
    norms = ["token_embd_norm"]
    for layer in range(2):
        for name, shape in (
            *(("attn_qkv", (96, 32)), ("attn_output", (32, 32))),
            *(("ffn_gate", (48, 32)), ("ffn_up", (48, 32)), ("ffn_down", (32, 48))),
        ):
            shapes[f"blk.{layer}.{name}.weight"] = shape
        norms += [f"blk.{layer}.{name}_norm" for name in ("attn_output", "layer_output")]
    for name in norms:
        shapes |= {f"{name}.weight": (32,), f"{name}.bias": (32,)}
    weights = {name: language.values(name, shape) for name, shape in shapes.items()}
    for name, array in weights.items():
        built = built.with_tensor(name, array.shape, Type.F32, array.tobytes())
    return built, {name: array.astype(np.float64) for name, array in weights.items()}


def nomic_hidden(w: dict[str, NDArray], ids: NDArray) -> NDArray:
    """The network written out by numpy for one text."""

    def normed(x: NDArray, name: str) -> NDArray:
        spread = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x - x.mean(-1, keepdims=True)) / spread * w[f"{name}.weight"] + w[f"{name}.bias"]

    spin = np.exp(1j * np.arange(len(ids))[:, None] * 1000.0 ** (-np.arange(4) / 4))
    x = normed(w["token_embd.weight"][ids] + w["token_types.weight"][0], "token_embd_norm")
    for start in ("blk.0.", "blk.1."):
        heads = []
        q, k, v = np.split(x @ w[f"{start}attn_qkv.weight"].T, 3, -1)
        for head in np.split(np.arange(32), 4):
            rotated = ((each[:, head[:4]] + 1j * each[:, head[4:]]) * spin for each in (q, k))
            a, b = rotated
            scores = np.exp((a @ b.conj().T).real / np.sqrt(8))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, head])
        seen = np.concatenate(heads, -1) @ w[f"{start}attn_output.weight"].T
        x = normed(x + seen, f"{start}attn_output_norm")
        gate = x @ w[f"{start}ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (x @ w[f"{start}ffn_up.weight"].T)
        x = normed(x + inner @ w[f"{start}ffn_down.weight"].T, f"{start}layer_output_norm")
    return x


def test_nomic_bert_equals_numpy() -> None:
    built, weights = nomic()
    reported: list[tuple[str, int, int]] = []
    model = vs.load(built.packed(), lambda *step: reported.append(step))
    assert isinstance(model, LanguageModel)
    assert reported == [("load", model.file.file_bytes, model.file.file_bytes)]
    texts = [np.arange(3, 14, dtype=np.int32), np.arange(30, 12, -2, dtype=np.int32)]
    wanted = [by_numpy(nomic_hidden(weights, text), "mean") for text in texts]
    with vs.Scheduler(["cpu"]) as sched:
        got = vectors(sched, model, texts)
    np.testing.assert_allclose(got, wanted, **CLOSE)


# -- what is refused -------------------------------------------------------------------------------


def bert(*more: tuple[str, ValueType, object]) -> LanguageModel:
    """Return an encoder with other values of keys."""
    file = draft(language.load("bert"))
    names = {name for name, _, _ in more}
    file = replace(file, keys=tuple(key for key in file.keys if key.name not in names))
    for name, kind, value in more:
        file = file.with_key(name, kind, value)
    model = vs.load(file.packed())
    assert isinstance(model, LanguageModel)
    return model


IDS, COUNTS = vs.input("ids", (2, 9), "int32"), vs.input("counts", (2,), "int32")


def test_an_encoder_does_not_go_on_with_texts() -> None:
    model = bert()
    with pytest.raises(ModelFormatError, match="goes on with texts, got an encoder, 'bert'; try"):
        model.logits(IDS)
    with pytest.raises(ModelFormatError, match="goes on with texts, got an encoder"):
        model.step(model.cache(8), 1)


@pytest.mark.parametrize(
    ("name", "kind", "value", "match"),
    [
        ("bert.pooling_type", ValueType.UINT32, 9, "'bert.pooling_type': expected .* 0 to 4"),
        ("bert.attention.causal", ValueType.UINT8, 0, "'bert.attention.causal': expected true or"),
        ("bert.attention.sliding_window", ValueType.UINT32, 4, "expected 0 in an encoder, got 4"),
        ("tokenizer.ggml.token_type_count", ValueType.UINT32, 3, "'token_types.weight' of shape"),
    ],
)
def test_wrong_keys_are_named(name: str, kind: ValueType, value: object, match: str) -> None:
    with pytest.raises(ModelFormatError, match=match):
        bert((name, kind, value)).embeddings(IDS, COUNTS)


def test_texts_are_a_batch_with_a_known_pooling() -> None:
    for number, named in ((0, "none in the file"), (4, "rank")):
        model = bert(("bert.pooling_type", ValueType.UINT32, number))
        with pytest.raises(ShapeError, match=f"a pooling of mean, cls, last, got {named}"):
            model.embeddings(IDS, COUNTS)
    for counts in (vs.input("counts", (3,), "int32"), vs.input("counts", (2,), "float32")):
        with pytest.raises(ShapeError, match=r"expected counts \(b,\) of int32"):
            bert().embeddings(IDS, counts)
