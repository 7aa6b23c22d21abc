"""/v1/completions: texts and tokens, echo with log-probabilities, streams, several choices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import NAME, Client, Served, tiny_model

import vksched as vs
from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling
from vksched.importers.gguf.model import LanguageModel
from vksched.serve.answer_stream import AnswerStreams

GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def served(model: LanguageModel) -> Served:
    return Served(model)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    with served as opened:
        yield opened


def complete(client: Client, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 6, **GREEDY, **more}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events_of(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a stream, which ends with [DONE]."""
    response = client.post(path, json={**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_an_answer_has_the_tokens_of_the_engine(client: Client, served: Served) -> None:
    tokenizer = served.service.tokenizer
    prompt = tuple(tokenizer.encode("hello", bos=True))
    request = CompletionRequest(prompt, 6, Sampling(temperature=0))
    tokens = [output.token for output in served.engine.submit(request)]
    answer = complete(client, "hello")
    choice = answer["choices"][0]
    assert choice["text"] == tokenizer.decode(tokens) and choice["finish_reason"] == "length"
    assert (answer["object"], answer["model"]) == ("text_completion", NAME)
    assert answer["system_fingerprint"] == f"build-vksched-{vs.__version__}"
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(prompt) and usage["completion_tokens"] == 6
    assert usage["total_tokens"] == len(prompt) + 6
    assert complete(client, list(prompt))["choices"][0]["text"] == choice["text"]


def test_an_end_token_after_a_repeated_prompt_has_an_entry(model: LanguageModel) -> None:
    """As in vLLM: lm-eval asks for one token, and takes all entries but the last."""
    with Served(model, "") as client:
        choice = complete(client, "hello", max_tokens=1, echo=True, logprobs=1)["choices"][0]
        prompt = model.tokenizer.encode("hello", bos=True)
        assert len(choice["logprobs"]["token_logprobs"]) == len(prompt) + 1
        assert (choice["text"], choice["finish_reason"]) == ("hello", "stop")
        plain = complete(client, "hello", max_tokens=2, echo=True, logprobs=1)["choices"][0]
        assert len(plain["logprobs"]["token_logprobs"]) == len(prompt)


def test_several_prompts_and_choices(client: Client) -> None:
    answer = complete(client, ["hello", "hey"], n=2, temperature=1, seed=5)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for at, (prompt, seed) in enumerate([("hello", 5), ("hello", 6), ("hey", 5), ("hey", 6)]):
        alone = complete(client, prompt, temperature=1, seed=seed)
        assert alone["choices"][0]["text"] == texts[at]
    assert len(set(texts)) > 1


def test_echo_has_the_log_probabilities_of_the_prompt(client: Client, served: Served) -> None:
    prompt = served.service.tokenizer.encode("hello hey", bos=True)
    choice = complete(client, "hello hey", echo=True, logprobs=2, max_tokens=1)["choices"][0]
    logprobs = choice["logprobs"]
    count = len(prompt) + 1
    assert {key: len(values) for key, values in logprobs.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), count
    )
    assert choice["text"].startswith("hello hey")
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    request = CompletionRequest(tuple(prompt), 0, prompt_logprobs=2)
    stream = served.engine.submit(request)
    assert list(stream) == []
    expected = [entry.logprob for entry in stream.prompt_logprobs]
    assert logprobs["token_logprobs"][1:-1] == expected
    for token, value, top in list(
        zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == value and 2 <= len(top) <= 3
        assert max(top.values()) <= 0
    nothing = complete(client, "hello hey", echo=True, logprobs=2, max_tokens=0)["choices"][0]
    assert nothing["text"] == "hello hey"
    assert nothing["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][:-1]
    assert nothing["finish_reason"] == "length"


def test_the_log_probabilities_of_a_prompt_are_computed_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(model)
    asked: list[int | None] = []
    submit = served.engine.submit

    def submit_noted(request: CompletionRequest, *about: Any) -> Any:
        asked.append(request.prompt_logprobs)
        return submit(request, *about)

    monkeypatch.setattr(served.engine, "submit", submit_noted)
    with served as client:
        body = {"prompt": ["hello", "hey you"], "n": 3, "echo": True, "logprobs": 2, "seed": 5}
        whole = client.post("/v1/completions", json=body).json()["choices"]
        assert asked == [2, None, None] * 2
        for first in (0, 3):
            known = whole[first]["logprobs"]
            count = known["text_offset"].index(len(body["prompt"][first // 3]))
            assert all(value is not None for value in known["token_logprobs"][1:count])
            for other in whole[first + 1 : first + 3]:
                for key, values in other["logprobs"].items():
                    assert values[:count] == known[key][:count]
        events = events_of(client, "/v1/completions", body)
    for index, choice in enumerate(whole):
        parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for key, values in choice["logprobs"].items():
            assert [v for part in parts for v in part["logprobs"][key]] == values


def test_a_stream_waits_for_the_log_probabilities_of_the_prompt(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second choice, which does not compute them, may have its first token earlier."""
    pieces = AnswerStreams.pieces

    async def reversed_pieces(self: AnswerStreams[Any]) -> Any:
        found = [each async for each in pieces(self)]
        for each in sorted(found, key=lambda pair: -pair[0]):
            yield each

    monkeypatch.setattr(AnswerStreams, "pieces", reversed_pieces)
    with Served(model, "hello") as client:
        body = {"prompt": ["ab", "cd"], "n": 2, "logprobs": 1, "max_tokens": 3, **GREEDY}
        for echo, order in ((True, [0, 1, 2, 3]), (False, [3, 2, 1, 0])):
            events = events_of(client, "/v1/completions", {**body, "echo": echo})
            indexes = [event["choices"][0]["index"] for event in events]
            firsts = [indexes.index(each) for each in range(4)]
            assert (firsts[0] < firsts[1], firsts[2] < firsts[3]) == (echo, echo), order


def test_a_stream_has_the_same_text_and_usage(client: Client) -> None:
    whole = complete(client, "hello", logprobs=1, echo=True, n=2)
    body = {"prompt": "hello", "max_tokens": 6, "logprobs": 1, "echo": True, "n": 2, **GREEDY}
    events = events_of(
        client, "/v1/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert events[-1]["choices"] == []
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == whole["usage"]["total_tokens"]
    for index, choice in enumerate(whole["choices"]):
        parts = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
        for key, values in choice["logprobs"].items():
            assert [v for part in parts for v in part["logprobs"][key]] == values
    without = events_of(client, "/v1/completions", body)
    assert all("usage" not in event and event["choices"] for event in without)


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("llo", "he", "stop"),
        (["zz", "o w"], "hell", "stop"),
        ("o world!!", "hello world!", "stop"),
        ("hello", "", "stop"),
    ],
)
def test_stop_strings_end_an_answer(
    model: LanguageModel, stop: Any, text: str, reason: str
) -> None:
    with Served(model, "hello world!") as client:
        choice = complete(client, "a", stop=stop, max_tokens=50)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (text, reason)
        body = {"prompt": "a", "stop": stop, "max_tokens": 50, **GREEDY}
        parts = [e["choices"][0] for e in events_of(client, "/v1/completions", body)]
        assert "".join(part["text"] for part in parts) == text
        assert parts[-1]["finish_reason"] == reason


def test_tokens_of_a_stop_string_are_counted(model: LanguageModel) -> None:
    with Served(model, "hello world") as client:
        answer = complete(client, "a", max_tokens=50, stop="lo w", logprobs=0)
        (choice,) = answer["choices"]
        assert choice["text"] == "hel"
        tokens = model.tokenizer.encode("hello world")
        written = next(n for n in range(99) if "lo w" in model.tokenizer.decode(tokens[:n]))
        assert answer["usage"]["completion_tokens"] == written
        assert len(choice["logprobs"]["tokens"]) < written


def test_prompts_have_control_tokens(client: Client, served: Served) -> None:
    messages = [{"role": "user", "content": "hey"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    body = {"messages": messages, "max_tokens": 1}
    chat = client.post("/v1/chat/completions", json=body).json()["usage"]
    assert (
        complete(client, prompt, max_tokens=1)["usage"]["prompt_tokens"] == (chat["prompt_tokens"])
    )
    assert chat["prompt_tokens"] == len(served.service.encoder.encode(messages))
    bos = served.service.tokenizer.role("bos")
    if bos is not None:
        name = served.service.tokenizer.vocabulary.tokens[bos]
        once = complete(client, f"{name}{prompt}", max_tokens=1)["usage"]["prompt_tokens"]
        assert once == chat["prompt_tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_fields_of_llama_server_are_honoured(client: Client, path: str) -> None:
    def ask(**more: Any) -> Any:
        messages = [{"role": "user", "content": "a"}]
        body = {"prompt": "a"} if path == "/v1/completions" else {"messages": messages}
        response = client.post(path, json={**body, "seed": 1, **more})
        assert response.status_code == 200, response.text
        answer = response.json()
        answer["text"] = (answer["choices"][0].get("text") or
                          answer["choices"][0].get("message", {}).get("content"))  # fmt: skip
        return answer

    assert ask(n_predict=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    filled = ask(n_predict=-1, ignore_eos=True)
    assert filled["choices"][0]["finish_reason"] == "length"
    assert filled["usage"]["completion_tokens"] > 100
    assert ask(json_schema={"enum": [12, 34]}, max_tokens=9)["text"] in ("12", "34")


def test_characters_of_several_tokens_arrive_whole(model: LanguageModel) -> None:
    with Served(model, "é🎉x") as client:
        body = {"prompt": "a", "max_tokens": 50, "logprobs": 0, **GREEDY}
        parts = [e["choices"][0] for e in events_of(client, "/v1/completions", body)]
        assert [part["text"] for part in parts] == ["é", "🎉", "x", ""]
        names = [name for part in parts for name in part["logprobs"]["tokens"]]
        assert names[:2] == ["bytes:\\xc3", "bytes:\\xa9"] and len(names) == 7
        limited = complete(client, "a", max_tokens=1)
        assert limited["choices"][0]["text"] == "\ufffd"


def test_bias_penalty_and_seed_reach_the_sampler(model: LanguageModel) -> None:
    with Served(model, "hhhhhh") as client:
        token = str(model.tokenizer.encode("x")[0])
        biased = complete(client, "a", logit_bias={token: 100}, max_tokens=3)
        assert biased["choices"][0]["text"] == "xxx"
        banned = complete(client, "a", logit_bias={str(model.tokenizer.encode("h")[0]): -100})
        assert "h" not in banned["choices"][0]["text"]


def test_ignore_eos_generates_to_the_limit(model: LanguageModel, tmp_path: Path) -> None:
    with Served(model, "hi") as client:
        assert complete(client, "a", max_tokens=9)["usage"]["completion_tokens"] == 2
        more = complete(client, "a", max_tokens=9, ignore_eos=True)
        assert more["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ({"grammar": 'root ::= "yes" | "no"'}, {"yes", "no"}),
        ({"grammar": 'start: "maybe"'}, {"maybe"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 5}}}},
            {"5"},
        ),
        (
            {"response_format": {"type": "json_object", "schema": {"enum": ["a", "b"]}}},
            {'"a"', '"b"'},
        ),
    ],
)
def test_grammars_and_schemas_restrict_answers(
    client: Client, more: dict[str, Any], texts: set[str]
) -> None:
    answer = complete(client, "a", n=4, temperature=1, max_tokens=50, **more)
    assert {choice["text"] for choice in answer["choices"]} <= texts
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}


def test_a_json_object_is_one(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"const": 1}}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(4):
        answer = complete(
            client, "a", seed=seed, temperature=1, max_tokens=300, response_format=form
        )
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["text"])
            assert set(value) == {"a", "b"} and isinstance(value["a"], int)
