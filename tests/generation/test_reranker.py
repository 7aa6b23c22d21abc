"""Rerankers: scores equal those of the published classification heads in numpy, in Python, on the
command line and over HTTP.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import language
import numpy as np
import pytest
from conftest import Scheds
from gguf_files import Draft, Type, ValueType
from language.convert import draft
from test_cli import call
from test_embedder import INNER, KINDS
from test_gguf_embeddings import CLOSE
from test_gguf_encoders import gelu
from tiny_vocabularies import byte_pair, word_piece

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import DTypeError, ModelFormatError, ShapeError, VkschedError
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.one_set

RANK = 4
HEADS: dict[str, dict[str, tuple[int, ...]]] = {
    "bert": {
        "cls.weight": (32, 32),
        "cls.bias": (32,),
        "cls.output.weight": (1, 32),
        "cls.output.bias": (1,),
    },
    "modern-bert": {
        "cls.weight": (32, 32),
        "cls.norm.weight": (32,),
        "cls.output.weight": (1, 32),
        "cls.output.bias": (1,),
    },
    "eurobert": {"cls.output.weight": (1, 32)},
    "jina-bert-v3": {"cls.weight": (1, 32), "cls.bias": (1,)},
}
"""Heads of kinds that files have: two layers, with a norm between, or one of the two."""


def with_vocabulary(data: Draft, values: dict[str, object], size: int) -> Draft:
    """Return a file with a tokenizer, filled up to `size` tokens."""
    for key, value in values.items():
        name = key.removeprefix("tokenizer.ggml.")
        if name == "merges":
            data = data.with_key(key, ValueType.ARRAY, value, ValueType.STRING)
        elif isinstance(value, list):
            kind = INNER[name]
            filler: list[object] = [
                f"\u2581w{at}" if name == "tokens" else 1 if name == "token_type" else 0.0
                for at in range(len(value), size)
            ]
            data = data.with_key(key, ValueType.ARRAY, [*value, *filler], kind)
        else:
            assert isinstance(value, (str, int))
            data = data.with_key(key, KINDS[type(value)], value)
    return data


def ranking(name: str, pooling: int = RANK) -> tuple[Draft, dict[str, NDArray]]:
    """Return a file of a reranker, and the weights of its head in float64."""
    data = draft(language.load(name))
    key = f"{name}.pooling_type"
    data = replace(data, keys=tuple(each for each in data.keys if each.name != key))
    data = data.with_key(key, ValueType.UINT32, pooling)
    head = {each: language.values(each, shape) for each, shape in HEADS[name].items()}
    for each, array in head.items():
        data = data.with_tensor(each, array.shape, Type.F32, array.tobytes())
    return data, {each: array.astype(np.float64) for each, array in head.items()}


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def scores(sched: vs.Scheduler, model: LanguageModel, texts: list[NDArray]) -> NDArray:
    """Return the scores of texts in one batch, filled up with any tokens."""
    ids = np.full((len(texts), max(map(len, texts)) + 2), 3, np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    inputs = vs.input("ids", ids.shape, "int32"), vs.input("counts", (len(texts),), "int32")
    run = sched.compile(model.scores(*inputs))
    return np.asarray(run(ids=ids, counts=np.array([len(text) for text in texts], np.int32)))


def by_numpy(name: str, head: dict[str, NDArray], hidden: NDArray) -> NDArray:
    x = hidden.astype(np.float64)
    x = x.mean(0) if name == "modern-bert" else x[0]
    for part in ("cls", "cls.output"):
        if f"{part}.weight" not in head:
            continue
        x = head[f"{part}.weight"] @ x + head.get(f"{part}.bias", 0)
        if part == "cls":
            x = gelu(x) if name == "modern-bert" else np.tanh(x)
            if "cls.norm.weight" in head:
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * head["cls.norm.weight"]
    return x


def compare(name: str, sched: vs.Scheduler) -> None:
    golden = language.load(name)
    data, head = ranking(name)
    got = scores(sched, loaded(data), [golden.ids[:5], golden.ids])
    assert got.shape == (2, 1)
    np.testing.assert_allclose(got[1], by_numpy(name, head, golden.wanted), **CLOSE)


@pytest.mark.parametrize("name", HEADS)
def test_scores_equal_those_of_numpy(name: str) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare(name, sched)


def test_so_they_do_on_devices(scheds: Scheds) -> None:
    compare("bert", scheds[0])


YES, NO = 5, 9


def qwen() -> Draft:
    """Return a file of Qwen 3 with the rows of two words as its head."""
    golden = language.load("qwen3")
    table = next(array for name, array in golden.weights().items() if "embed_tokens" in name)
    data = draft(golden).with_key("qwen3.pooling_type", ValueType.UINT32, RANK)
    labels = "qwen3.classifier.output_labels"
    data = data.with_key(labels, ValueType.ARRAY, ["yes", "no"], ValueType.STRING)
    head = np.ascontiguousarray(table[[YES, NO]])
    return data.with_tensor("cls.output.weight", head.shape, Type.F32, head.tobytes())


def test_scores_of_a_decoder_are_probabilities_of_words() -> None:
    golden, model = language.load("qwen3"), loaded(qwen())
    with vs.Scheduler(["cpu"]) as sched:
        got = scores(sched, model, [golden.ids, golden.ids[:9]])
    assert model.hyper.labels == ("yes", "no")
    for row, last in zip(got, (-1, 8), strict=True):
        weights = np.exp(golden.wanted[last][[YES, NO]].astype(np.float64))
        np.testing.assert_allclose(row, weights / weights.sum(), **CLOSE)


def test_one_score_of_a_decoder_is_a_logit() -> None:
    golden = language.load("qwen3")
    data = draft(golden).with_key("qwen3.pooling_type", ValueType.UINT32, RANK)
    head = language.values("cls.output.weight", (1, golden.config["hidden_size"]))
    data = data.with_tensor("cls.output.weight", head.shape, Type.F32, head.tobytes())
    table = next(array for name, array in golden.weights().items() if "embed_tokens" in name)
    # the logits of all tokens, of as many as the width or more, determine the hidden states
    wide = table.astype(np.float64)
    assert np.linalg.matrix_rank(wide) == wide.shape[1]
    hidden = np.linalg.lstsq(wide, golden.wanted.T.astype(np.float64), rcond=None)[0]
    with vs.Scheduler(["cpu"]) as sched:
        got = scores(sched, loaded(data), [golden.ids, golden.ids[:9]])
    np.testing.assert_allclose(got[:, 0], (head @ hidden)[0, [-1, 8]], rtol=1e-3, atol=1e-3)


# -- Reranker --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    size = language.load("bert").config["vocab_size"]
    path = tmp_path_factory.mktemp("rank") / "tiny.gguf"
    path.write_bytes(with_vocabulary(ranking("bert")[0], word_piece(), size).packed())
    loaded = vs.load(path)
    assert isinstance(loaded, LanguageModel)
    return loaded


DOCUMENTS = ["the cafe", "unaffable", "a cafe , the cafe , a cafe", "the"]


def test_a_query_and_a_document_are_one_text(model: LanguageModel) -> None:
    tokens = model.tokenizer.vocabulary.ids
    first, end = tokens["[CLS]"], tokens["[SEP]"]
    the, cafe = tokens["\u2581the"], tokens["\u2581cafe"]
    assert model.tokenizer.encode_pair("the", "cafe the") == [first, the, end, cafe, the, end]
    golden = language.load("bert")
    with vs.Scheduler(["cpu"]) as sched:
        reranker = vs.Reranker(sched, model)
        got = reranker.score("the cafe", DOCUMENTS)
        pairs = [reranker.encode("the cafe", each) for each in DOCUMENTS]
        for row, pair in zip(got, pairs, strict=True):
            alone = scores(sched, model, [np.array(pair, np.int32)])
            np.testing.assert_allclose(row, alone[0, 0], **CLOSE)
        assert got.shape == (4,) and got.dtype == np.float32 and got.std() > 0.01
        assert (reranker.ctx, reranker.labels) == (golden.config["max_position_embeddings"], ())
        assert reranker.score("the", []).shape == (0,)
        reranker.close()


def test_two_separators_lie_between_texts_of_roberta() -> None:
    from tiny_vocabularies import unigram

    roles = {"bos_token_id": 0, "eos_token_id": 1, "seperator_token_id": 1}
    flags = {f"add_{role}_token": True for role in ("bos", "eos", "sep")}
    tokenizer = Tokenizer(unigram(**roles, **flags))
    a, b = (tokenizer.encode(text) for text in ("ab", "a"))
    assert tokenizer.encode_pair("ab", "a") == [0, *a, 1, 1, *b, 1]


def test_a_template_holds_the_query_and_the_document(tmp_path: Path) -> None:
    source = "<|im_start|>q: {query} d: {document}<|im_end|>"
    data = with_vocabulary(qwen(), byte_pair(), 0)
    key = "tokenizer.chat_template.rerank"
    path = tmp_path / "m.gguf"

    def encode(template: str, *texts: str) -> list[int]:
        path.write_bytes(data.with_key(key, ValueType.STRING, template).packed())
        held = vs.load(path)
        assert isinstance(held, LanguageModel)
        with vs.Scheduler(["cpu"]) as sched:
            return vs.Reranker(sched, held).encode(texts[0], texts[1])

    tokenizer = Tokenizer(byte_pair())
    text = "<|im_start|>q: hello {document} d: he {query}<|im_end|>"
    wanted = tokenizer.encode(text, special=True)
    assert encode(source, "hello {document}", "he {query}") == wanted
    shielded = encode(source, "<|im_end|>", "he")
    assert shielded.count(tokenizer.vocabulary.ids["<|im_end|>"]) == 1
    with pytest.raises(ModelFormatError, match=r"a text with \{query\} and \{document\}, got"):
        encode("{query}", "a", "b")


def test_pairs_fit(model: LanguageModel) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        reranker = vs.Reranker(sched, model, 16)
        long = "the " * 20
        with pytest.raises(ShapeError, match=r"of 1 to 16 tokens together, got 24; try .*truncate"):
            reranker.score("the", [long])
        got = reranker.score("the", [long, "the " * 12], truncate=True)
        np.testing.assert_allclose(got[0], got[1], rtol=1e-5)
        with pytest.raises(ShapeError, match="a query of at most 16 .*, got 2[23]; .* shorter q"):
            reranker.score(long, ["the"], truncate=True)
        for wrong in ("the", ["the", 5], None, 5):
            with pytest.raises(DTypeError, match="a query and a list of documents, got 'the' and"):
                reranker.score("the", wrong)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="a ctx of 1 to 64 tokens, got 65"):
            vs.Reranker(sched, model, 65)


def test_equal_documents_have_equal_scores(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [DOCUMENTS[1], *["the cafe"] * 9, DOCUMENTS[3]]
    with vs.Scheduler(["cpu"]) as sched:
        reranker = vs.Reranker(sched, model)
        compute, sizes = reranker._batches.compute, []

        def counted(texts: Any, width: int) -> NDArray:
            sizes.append(len(texts))
            return compute(texts, width)

        monkeypatch.setattr(reranker._batches, "compute", counted)
        got = reranker.score("the cafe", texts)
        assert sizes == [3] and len(set(got[1:10].tolist())) == 1
        few = reranker.score("the cafe", DOCUMENTS)
        np.testing.assert_allclose(got[[0, 1, 10]], few[[1, 0, 3]], rtol=1e-5)


def test_scores_that_are_not_finite_are_an_error(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        reranker = vs.Reranker(sched, model)
        wrong = np.array([[1.0], [np.nan]], np.float32)
        monkeypatch.setattr(reranker._batches, "compute", lambda texts, width: wrong)
        with pytest.raises(VkschedError, match="expected finite scores, got nan; try --precision"):
            reranker.score("the", ["the", "cafe"])


def test_the_command(capsys: pytest.CaptureFixture[str], model: LanguageModel) -> None:
    texts = [each for text in DOCUMENTS for each in ("--text", text)]
    args = ("rerank", str(model.file.path), "--query", "the cafe", *texts, "--devices", "cpu")
    with vs.Scheduler(["cpu"]) as sched:
        wanted = vs.Reranker(sched, model).score("the cafe", DOCUMENTS)
    order = list(np.argsort(-wanted))
    code, out, _ = call(capsys, *args)
    assert code == 0
    assert [line.split("  ", 1)[1] for line in out.splitlines()] == [DOCUMENTS[at] for at in order]
    code, out, _ = call(capsys, *args, "--json")
    rows = json.loads(out)["texts"]
    assert [row["index"] for row in rows] == order
    np.testing.assert_allclose([row["score"] for row in rows], wanted[order])


# -- over HTTP -------------------------------------------------------------------------------------


def test_the_server_ranks_documents(model: LanguageModel) -> None:
    pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
    pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")
    from served import Client, error_of, running

    request: dict[str, Any] = {"query": "the cafe", "documents": DOCUMENTS}
    with vs.Scheduler(["cpu"]) as sched:
        reranker = vs.Reranker(sched, model)
        wanted = reranker.score("the cafe", DOCUMENTS)
        pairs = [reranker.encode("the cafe", each) for each in DOCUMENTS]
        with running(vs.serve.app(model, sched, names=["ranker"])) as port:
            client = Client(port)
            answer = client.post("/v1/rerank", json=request).json()
            assert (answer["object"], answer["model"]) == ("list", "ranker")
            assert answer["usage"]["total_tokens"] == sum(map(len, pairs))
            results = answer["results"]
            assert [each["index"] for each in results] == list(np.argsort(-wanted))
            for each in results:
                assert each["relevance_score"] == pytest.approx(wanted[each["index"]], abs=1e-6)
                assert "document" not in each
            best = client.post(
                "/rerank", json={**request, "top_n": 1, "return_documents": True}
            ).json()["results"]
            text = {"text": DOCUMENTS[results[0]["index"]]}
            assert best == [{**results[0], "document": text}]
            same = {**request, "documents": ["the cafe"] * 9, "truncation": False}
            results = client.post("/rerank", json=same).json()["results"]
            assert [each["index"] for each in results] == list(range(9))
            assert len({each["relevance_score"] for each in results}) == 1
            long = client.post("/rerank", json={**request, "documents": ["the", "the " * 80]})
            assert error_of(long)["param"] == "documents[1]"
            for path, body, parts in (
                *(
                    ("/v1/rerank", {**request, name: value}, (f"[{name}] expected a request",))
                    for name, value in (
                        ("truncation", True),
                        ("max_tokens_per_doc", 4096),
                        ("max_chunks_per_doc", 10),
                        ("rank_fields", ["text"]),
                    )
                ),
                ("/v1/rerank", {**request, "top_n": 0}, ("top_n",)),
                ("/v1/rerank", {**request, "documents": []}, ("documents",)),
                ("/v1/rerank", {**request, "documents": ["the " * 80]}, ("64 tokens", "got 85")),
                ("/v1/rerank", {"documents": ["a"]}, ("query",)),
                ("/v1/rerank", {**request, "documents": ["a"] * 2049}, ("at most 2048 texts",)),
                ("/v1/completions", {"prompt": "a"}, ("scores of texts; try /v1/rerank",)),
                ("/v1/embeddings", {"input": "a"}, ("a model with a pooling",)),
            ):
                response = client.post(path, json=body)
                assert 400 <= response.status_code < 500
                for part in parts:
                    assert part in error_of(response)["message"]


# -- what is refused -------------------------------------------------------------------------------

IDS, COUNTS = vs.input("ids", (2, 9), "int32"), vs.input("counts", (2,), "int32")


def test_a_reranker_makes_nothing_else() -> None:
    model = loaded(qwen())
    with pytest.raises(ModelFormatError, match="got a reranker, 'qwen3'; try vs.Reranker"):
        model.logits(IDS)
    with pytest.raises(ShapeError, match="got rank, which makes scores; try vs.Reranker"):
        model.embeddings(IDS, COUNTS, "last")
    with vs.Scheduler(["cpu"]) as sched:
        with pytest.raises(ModelFormatError, match=r"pooling_type 4 \(rank\), got mean; try"):
            vs.Reranker(sched, loaded(draft(language.load("bert"))))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (
            lambda: ranking("modern-bert")[0].with_key(
                "modern-bert.classifier.pooling_type", ValueType.UINT32, 3
            ),
            "'modern-bert.classifier.pooling_type': expected a whole number of 1 to 2, got 3",
        ),
        (
            lambda: ranking("bert")[0].with_key(
                "bert.classifier.output_labels", ValueType.ARRAY, ["a", "b"], ValueType.STRING
            ),
            r"'cls.output.weight' of shape \(2, 32\), got \(1, 32\)",
        ),
        (
            lambda: ranking("bert")[0].with_key(
                "bert.classifier.output_labels", ValueType.STRING, "a"
            ),
            "classifier.output_labels': expected a list of strings, got 'a'",
        ),
        (
            lambda: draft(language.load("qwen3")).with_key(
                "qwen3.pooling_type", ValueType.UINT32, RANK
            ),
            "a tensor 'cls.weight' or 'cls.output.weight'",
        ),
    ],
)
def test_wrong_heads_are_named(data: Any, match: str) -> None:
    with pytest.raises(ModelFormatError, match=match):
        loaded(data()).scores(IDS, COUNTS)
