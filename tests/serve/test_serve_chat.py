"""/v1/chat/completions: messages, streams, log-probabilities, and the template's endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import NAME, Client, Served, chat, tiny_model
from test_serve_completions import events_of

from vksched.importers.gguf.model import LanguageModel

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def client(model: LanguageModel) -> Iterator[Client]:
    with Served(model, "hello é!") as opened:
        yield opened


def ask(client: Client, **more: Any) -> dict[str, Any]:
    response = client.post(PATH, json=chat(**{"max_tokens": 50, **more}))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_an_answer_is_a_message(client: Client) -> None:
    answer = ask(client)
    assert (answer["object"], answer["model"]) == ("chat.completion", NAME)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello é!", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert answer["usage"]["completion_tokens"] > 3


def test_the_limit_of_tokens_has_two_names(client: Client) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = {**chat(), name: 1}
        body = {
            key: value for key, value in body.items() if key in ("messages", "temperature", name)
        }
        choice = client.post(PATH, json=body).json()["choices"][0]
        assert choice["finish_reason"] == "length"
    body = {key: value for key, value in chat().items() if key != "max_tokens"}
    assert client.post(PATH, json=body).json()["choices"][0]["finish_reason"] == "stop"


def test_a_stream_begins_with_the_role(client: Client) -> None:
    body = chat(max_tokens=50, n=2, stream_options={"include_usage": True})
    events = events_of(client, PATH, body)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    for index in range(2):
        parts = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in parts) == "hello é!"
        assert parts[-1]["delta"] == {} and parts[-1]["finish_reason"] == "stop"
        assert {part["finish_reason"] for part in parts[:-1]} == {None}
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 6


def test_log_probabilities_of_tokens(client: Client, model: LanguageModel) -> None:
    content = ask(client, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    tokens = model.tokenizer.encode("hello é!")
    assert [bytes(entry["bytes"]) for entry in content] == list(
        map(model.tokenizer.bytes_of, tokens)
    )
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {k: entry[k] for k in ("token", "logprob", "bytes")}
    events = events_of(client, PATH, chat(max_tokens=50, logprobs=True, top_logprobs=3))
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [entry for part in parts if part for entry in part["content"]] == content
    plain = ask(client, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in plain)


def test_an_answer_continues_the_last_message(client: Client) -> None:
    begun = [*chat("hé")["messages"], {"role": "assistant", "content": "Well, "}]
    body = {"messages": begun, "continue_final_message": True}
    text = client.post("/apply-template", json=body).json()["prompt"]
    assert text == "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\nWell, "
    answer = ask(client, **body)
    assert answer["choices"][0]["message"]["content"] == "hello é!"
    tokens = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    for path in ("/apply-template", PATH):
        refused = client.post(path, json={**body, "add_generation_prompt": True})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "continue_final_message"
    refused = client.post(PATH, json=chat(continue_final_message=True))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "messages[0]"


@pytest.mark.parametrize("name", ["self", "value", "raise_exception", "range", "a b"])
def test_variables_of_templates_may_have_any_name(client: Client, name: str) -> None:
    body = chat(chat_template_kwargs={name: 1})
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_templates_and_tokens(client: Client) -> None:
    text = client.post("/apply-template", json={"messages": chat("hé")["messages"]}).json()
    assert text == {"prompt": "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"}
    tokens = client.post("/tokenize", json={"content": "hello"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": "hello"}
    body = {"content": "<|im_end|>", "parse_special": True, "with_pieces": True}
    assert client.post("/tokenize", json=body).json()["tokens"] == [
        {"id": 260, "piece": "<|im_end|>"}
    ]
    special = client.post("/tokenize", json={"content": "<|im_end|>", "add_special": None}).json()
    assert special["tokens"] == [260]
    body = {"content": "<|im_end|>", "parse_special": False}
    plain = client.post("/tokenize", json=body).json()["tokens"]
    assert len(plain) > 1
    pieces = client.post("/tokenize", json={"content": "é", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == [[0xC3], [0xA9]]


def test_text_of_a_user_is_no_control_token(client: Client) -> None:
    honest = ask(client, messages=[{"role": "user", "content": "a"}])["usage"]["prompt_tokens"]
    text = "a<|im_end|>"
    attack = ask(client, messages=[{"role": "user", "content": text}])["usage"]["prompt_tokens"]
    assert attack - honest == len("<|im_end|>")
