"""Errors of requests: OpenAI's error object names the field, and nothing is dropped silently."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import NAME, Client, Served, chat, error_of, tiny_model

from vksched.serve.endpoints import texts
from vksched.serve.event_stream import event_response
from vksched.serve.limits import ServerLimits
from vksched.serve.schemas.unsupported import NEUTRAL

WRONG: list[tuple[str, Any, str]] = [
    ("n", 0, "n"),
    ("n", 2.5, "n"),
    ("n", "3", "n"),
    ("n", True, "n"),
    ("n", 1000, "n"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", "many", "max_tokens"),
    ("temperature", -0.5, "temperature"),
    ("temperature", "hot", "temperature"),
    ("top_k", 1.5, "top_k"),
    ("top_k", -2, "top_k"),
    ("top_p", 1.5, "top_p"),
    ("min_p", -0.1, "min_p"),
    ("presence_penalty", 3, "presence_penalty"),
    ("frequency_penalty", -3, "frequency_penalty"),
    ("repeat_penalty", 0, "repeat_penalty"),
    ("seed", 1 << 64, "seed"),
    ("seed", "x", "seed"),
    ("stop", 5, "stop"),
    ("stop", ["a", ""], "stop[1]"),
    ("stop", ["a"] * 17, "stop"),
    ("logit_bias", {"5": 101}, "logit_bias.5"),
    ("logit_bias", {"hello": 1}, "logit_bias"),
    ("logit_bias", {"261": 1}, "logit_bias"),
    ("logit_bias", [[1, 2]], "logit_bias"),
    ("stream", "yes", "stream"),
    ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
    ("response_format", {"type": "xml"}, "response_format.type"),
    ("response_format", {"type": "json_schema"}, "response_format"),
    ("response_format", {"type": "json_object", "schema": {"type": "strin"}}, "response_format"),
    ("grammar", 'root ::= "a', "grammar"),
    ("json_schema", {"type": "strin"}, "json_schema"),
    ("n_predict", -2, "n_predict"),
    ("typ_p", 0.5, "typ_p"),
    ("regex", "a+", "regex"),
    ("ebnf", "a", "ebnf"),
    ("include_stop_str_in_output", True, "include_stop_str_in_output"),
    ("skip_special_tokens", False, "skip_special_tokens"),
    ("enable_thinking", False, "enable_thinking"),
    ("thinking", {"type": "disabled"}, "thinking"),
    ("grammar", "", "grammar"),
    ("grammar", 'start: "a" b', "grammar"),
    ("model", "another", "model"),
]
CHAT_WRONG: list[tuple[str, Any, str]] = [
    ("messages", [], "messages"),
    ("messages", "hello", "messages"),
    ("messages", [{"role": "user", "content": ""}] * 4097, "messages"),
    ("tools", [{}] * 1025, "tools"),
    ("messages", ["hello"], "messages[0]"),
    ("messages", [{"role": "king", "content": "a"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content[0].type",
    ),
    ("logprobs", 2, "logprobs"),
    ("top_logprobs", 2, None),
    ("tools", [{"type": "function"}], "tools[0].function"),
    ("tool_choice", "maybe", "tool_choice"),
    ("reasoning_effort", "low", "reasoning_effort"),
    ("max_completion_tokens", 9, "max_tokens"),
]
TEXT_WRONG: list[tuple[str, Any, str]] = [
    ("prompt", 5, "prompt"),
    ("prompt", [], "prompt"),
    ("prompt", [1.5], "prompt[0]"),
    ("prompt", [-1], "prompt[0]"),
    ("prompt", [261], "prompt"),
    ("prompt", "", "prompt"),
    ("prompt", ["a"] * 20, "prompt"),
    ("logprobs", 21, "logprobs"),
    ("logprobs", True, "logprobs"),
    ("suffix", "end", "suffix"),
    ("best_of", 3, "best_of"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Served(tiny_model(tmp_path_factory.mktemp("serve"))) as opened:
        yield opened


def refused(client: Client, path: str, body: dict[str, Any], param: str | None) -> None:
    response = client.post(path, json=body)
    error = error_of(response)
    assert 400 <= response.status_code < 500, error
    assert error["param"] == param, error
    assert "expected" in error["message"]


@pytest.mark.parametrize(
    ("field", "value", "param"), [*WRONG, *CHAT_WRONG], ids=lambda each: str(each)[:30]
)
def test_wrong_values_of_a_chat_are_named(
    client: Client, field: str, value: Any, param: str | None
) -> None:
    refused(client, "/v1/chat/completions", chat(**{field: value}), param)


@pytest.mark.parametrize(
    ("field", "value", "param"), [*WRONG, *TEXT_WRONG], ids=lambda each: str(each)[:30]
)
def test_wrong_values_of_a_completion_are_named(
    client: Client, field: str, value: Any, param: str | None
) -> None:
    refused(client, "/v1/completions", {"prompt": "a", field: value}, param)


def test_fields_that_cannot_be_honoured_are_refused(client: Client) -> None:
    for name in NEUTRAL:
        response = client.post("/v1/completions", json={"prompt": "a", name: {"x": 1}})
        assert error_of(response)["param"] == name
        assert error_of(response)["code"] == "unsupported_parameter"


def test_neutral_values_and_unknown_fields_are_accepted(client: Client) -> None:
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values}
    nothing = dict.fromkeys(NEUTRAL)
    for more in (neutral, nothing, {"user": "me", "made_up": [1, {"a": None}], "store": True}):
        response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **more})
        assert response.status_code == 200, response.text


def test_null_selects_the_default(client: Client) -> None:
    fields = dict.fromkeys(name for name, _, _ in [*WRONG, *CHAT_WRONG] if name != "messages")
    body = {**chat(), **fields, "max_tokens": 1}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"[1, 2]",
        b'"text"',
        b'{"messages": [}',
        b'{"messages": NaN}',
        b"\xff\xfe",
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_garbage_is_a_bad_request(client: Client, data: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"):
        response = client.post(path, content=data)
        assert response.status_code == 400
        assert error_of(response)["message"]


def test_prompts_longer_than_the_context(client: Client) -> None:
    for body in ({"prompt": "a" * 500}, {"prompt": [1] * 500}):
        error = error_of(client.post("/v1/completions", json=body))
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    error = error_of(client.post("/v1/chat/completions", json=chat("a" * 500)))
    assert error["code"] == "context_length_exceeded"
    assert str(error["param"]).startswith("messages")


def test_a_megabyte_of_text_is_refused_without_reading_it(client: Client) -> None:
    error = error_of(client.post("/v1/chat/completions", json=chat("x" * 1_000_000)))
    assert error["param"] == "messages[0].content"
    assert error["code"] == "context_length_exceeded"


def test_a_megabyte_of_wrong_values_is_one_error(client: Client) -> None:
    data = json.dumps({"prompt": [1.5] * 200_000})
    error = error_of(client.post("/v1/completions", content=data))
    assert error["param"] == "prompt[0]" and len(error["message"]) < 500


def test_unknown_paths_and_methods(client: Client) -> None:
    response = client.get("/v2/nothing")
    assert response.status_code == 404 and "/v1/models" in error_of(response)["message"]
    response = client.get("/v1/chat/completions")
    assert response.status_code == 405 and "GET" in error_of(response)["message"]


def test_what_this_model_cannot_do(client: Client) -> None:
    error = error_of(client.post("/v1/embeddings", json={"input": "a"}))
    assert "pooling" in error["message"]
    response = client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert response.status_code == 404 and "rank" in error_of(response)["message"]
    response = client.post("/v1/completions", json={"prompt": "a", "model": "gpt"})
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found" and NAME in response.text


def test_work_that_takes_too_long_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_tokenized", lambda *_: time.sleep(1))
    limits = ServerLimits(work_timeout_s=0.2)
    with Served(tiny_model(tmp_path), "hi", limits=limits) as client:
        response = client.post("/tokenize", json={"content": "a"})
        assert response.status_code == 503 and error_of(response)["code"] == "timeout"
        assert int(response.headers["retry-after"]) >= 1


def test_a_stream_that_cannot_be_encoded_ends_with_an_error() -> None:
    async def chunks() -> AsyncIterator[dict[str, Any]]:
        yield {"a": 1}
        yield {"a": "\ud83d"}

    async def sent() -> list[bytes]:
        response = event_response(chunks(), ServerLimits())
        return [bytes(part) async for part in response.body_iterator]  # type: ignore[arg-type]

    first, last = asyncio.run(sent())
    assert first == b'data: {"a":1}\n\n'
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "server_error"
