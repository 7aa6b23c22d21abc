"""Large requests: the bounds of texts, bodies and embeddings, and work outside the event loop."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

import numpy as np
from served import Client, Served, chat, error_of, tiny_model, wait_until

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation import stop_matcher
from vksched.generation.completion import CompletionRequest, CompletionStream
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.tokenizer import byte_pair
from vksched.serve.endpoints.text_completions import _TextAnswer
from vksched.serve.limits import ServerLimits
from vksched.serve.schemas.sampling_fields import MAX_BIASES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def client(model: LanguageModel) -> Iterator[Client]:
    with Served(model, "hello hello") as client:
        yield client


LONG = "x" * 100_000
TOOL = {"type": "function", "function": {"name": "f", "description": LONG}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt"),
        ("/v1/chat/completions", chat(LONG), "messages[0].content"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
            "messages",
        ),
        ("/v1/chat/completions", chat(tools=[TOOL]), "messages"),
        ("/tokenize", {"content": LONG}, "content"),
    ],
)
def test_no_tokenizer_gets_a_text_that_cannot_fit(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    lengths = []
    encode = byte_pair.BytePair.encode

    def encode_counted(self: byte_pair.BytePair, text: str) -> list[int]:
        lengths.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(byte_pair.BytePair, "encode", encode_counted)
    response = client.post(path, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert max(lengths, default=0) < len(LONG)


def test_long_texts_are_encoded_without_the_interpreter_lock(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = model.tokenizer._algorithm
    assert isinstance(algorithm, byte_pair.BytePair)
    text = "Hello  wörld\n\n 123 don't 🙂\t" * 20
    expected = algorithm.encode(text)
    library = algorithm._library

    class BatchOnly:
        """A library without `encode`, which holds the lock."""

        encode_batch_fast = library.encode_batch_fast

    monkeypatch.setattr(byte_pair, "LONG", len(text))
    monkeypatch.setattr(algorithm, "_library", BatchOnly())
    assert algorithm.encode(text) == expected
    assert bytes(b for t in expected for b in algorithm.bytes_of(t)).decode() == text


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("logit_bias", {str(n): "x" for n in range(MAX_BIASES + 1)}, "logit_bias"),
        ("logit_bias", {"5": 101, "123": "x"}, "logit_bias.5"),
        ("logit_bias", {"5": 1, "6": True}, "logit_bias.6"),
        ("logit_bias", [[1, 2.0]], "logit_bias"),
        ("stop", [*["a"] * 9, 3, *["" for _ in range(1000)]], "stop[9]"),
    ],
)
def test_the_first_of_many_wrong_values_is_the_error(
    client: Client, field: str, value: Any, param: str
) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", field: value})
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def send_head(port: int, path: str, body: bytes, sent: int) -> socket.socket:
    """Send a request with the first bytes of its body."""
    opened = socket.create_connection(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    opened.sendall(head.encode() + body[:sent])
    return opened


def test_all_bodies_together_are_bounded(model: LanguageModel) -> None:
    limits = ServerLimits(body_bytes=1000, all_bodies_bytes=1000)
    served = Served(model, "hello", limits=limits)
    with served as client:
        bodies = served.app.state.server.bodies
        body = json.dumps({"content": "x" * 800}).encode()
        with send_head(client.port, "/tokenize", body, 800):
            wait_until(lambda: bodies.used_bytes == 800)
            response = client.post("/tokenize", json={"content": "x" * 300})
            assert response.status_code == 503 and response.headers["retry-after"] == "1"
            assert error_of(response)["code"] == "overloaded"
            assert client.post("/tokenize", json={"content": "x"}).status_code == 200
        wait_until(lambda: bodies.used_bytes == 0)
        assert client.post("/tokenize", json={"content": "x" * 300}).status_code == 200
        assert client.post("/tokenize", content=b"x" * 1001).status_code == 413
        assert bodies.used_bytes == 0


class GatedEmbedder(vs.Embedder):
    """An embedder whose batches wait; `done` has the number of texts of each."""

    gate: threading.Semaphore
    done: list[int]

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> NDArray:
        self.done.append(len(texts))
        self.gate.acquire(timeout=20)
        return np.full((len(texts), self.width), len(texts), np.float32)


@pytest.fixture
def embedded(model: LanguageModel) -> Iterator[tuple[Served, GatedEmbedder]]:
    served = Served(model, limits=ServerLimits(embedding_tokens=200))
    with vs.Scheduler(["cpu"]) as sched:
        embedder = GatedEmbedder(sched, model, "mean", 64)
        embedder.gate, embedder.done = threading.Semaphore(0), []
        served.service.embedder = embedder
        yield served, embedder
        embedder.close()


def test_requests_for_embeddings_take_turns(embedded: tuple[Served, GatedEmbedder]) -> None:
    served, embedder = embedded
    with served as client:
        answers: dict[int, Any] = {}

        def send(count: int) -> None:
            answers[count] = client.post("/v1/embeddings", json={"input": ["a"] * count})

        threads = [threading.Thread(target=send, args=(count,)) for count in (40, 1)]
        threads[0].start()
        wait_until(lambda: embedder.done == [8])
        threads[1].start()
        calls = served.app.state.server.embedding_worker
        wait_until(lambda: calls._waiting == 2)
        embedder.gate.release(100)
        for thread in threads:
            thread.join()
        assert embedder.done == [8, 1, 8, 8, 8, 8]
        assert [len(answers[count].json()["data"]) for count in (40, 1)] == [40, 1]


def test_a_client_that_leaves_ends_its_embeddings(
    embedded: tuple[Served, GatedEmbedder],
) -> None:
    served, embedder = embedded
    with served as client:
        body = json.dumps({"input": ["a"] * 40}).encode()
        with send_head(client.port, "/v1/embeddings", body, len(body)):
            wait_until(lambda: embedder.done == [8])
        calls = served.app.state.server.embedding_worker
        other = threading.Thread(
            target=client.post, args=("/v1/embeddings",), kwargs={"json": {"input": "a"}}
        )
        other.start()
        wait_until(lambda: calls._waiting == 2)
        wait_until(lambda: not calls._calls.empty())
        embedder.gate.release(100)
        other.join()
        assert embedder.done in ([8, 1], [8, 8, 1])


def test_embeddings_have_bounds(embedded: tuple[Served, GatedEmbedder]) -> None:
    served, embedder = embedded
    embedder.gate.release(100)
    with served as client:
        response = client.post("/v1/embeddings", json={"input": ["a" * 60] * 4})
        assert response.status_code == 400
        assert "at most 200 tokens together" in error_of(response)["message"]
        response = client.post("/v1/embeddings", json={"input": LONG})
        assert response.status_code == 400 and "characters" in error_of(response)["message"]
        assert embedder.done == []
        assert client.post("/v1/embeddings", json={"input": ["a" * 60] * 3}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_built_outside_the_event_loop(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    served = Served(model, "hello hello")
    requests: list[CompletionRequest] = []
    threads: set[str] = set()
    echoes: list[str] = []
    automata: list[Sequence[str]] = []
    submit, part = served.engine.submit, _TextAnswer._part
    automaton = stop_matcher._automaton

    def submit_noted(request: CompletionRequest, *about: Any) -> CompletionStream:
        requests.append(request)
        threads.add(threading.current_thread().name)
        return submit(request, *about)

    def part_noted(self: Any, index: int, piece: Any) -> Any:
        if not self._choices[index].is_echoed:
            echoes.append(threading.current_thread().name)
        return part(self, index, piece)

    def automaton_noted(stops: Sequence[str]) -> Any:
        automata.append(stops)
        return automaton(stops)

    monkeypatch.setattr(served.engine, "submit", submit_noted)
    monkeypatch.setattr(_TextAnswer, "_part", part_noted)
    monkeypatch.setattr(stop_matcher, "_automaton", automaton_noted)
    with served as client:
        body = {"prompt": "abc", "max_tokens": 6, "n": 3, "echo": True, "logprobs": 2}
        more = {"stop": ["zzz"], "logit_bias": {"5": 1, "4": -2}, "seed": 7, "stream": stream}
        response = client.post("/v1/completions", json={**body, **more})
        assert response.status_code == 200
        if not stream:
            choices = response.json()["choices"]
            assert [each["text"].startswith("abc") for each in choices] == [True] * 3
    assert threads == {"vksched-serve"} and echoes == ["vksched-serve"] * 3
    assert [each for each in automata if each] == [("zzz",)]
    assert {id(each.sampling.logit_bias) for each in requests} == {
        id(requests[0].sampling.logit_bias)
    }
    assert requests[0].sampling.logit_bias == ((4, -2.0), (5, 1.0))
    assert [each.sampling.seed for each in requests] == [7, 8, 9]
