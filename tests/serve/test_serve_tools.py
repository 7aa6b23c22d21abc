"""Tools: calls in answers and streams, forced calls by a grammar, errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import TEMPLATE, Client, Served, chat, error_of, tiny_model
from test_serve_completions import events_of

from vksched.generation.conversation.messages import normalize_tools
from vksched.generation.tool_calls.call_formats import FORMATS
from vksched.importers.gguf.model import LanguageModel
from vksched.serve.api_error import ApiError
from vksched.serve.constraints import GrammarCompiler
from vksched.serve.message_deltas import Delta, MessageParser
from vksched.serve.reasoning_constraint import ReasoningConstraint, ReasoningEnd
from vksched.serve.tool_grammar import JSON_FORMATS, tool_constraint

LENGTH = 1000
PATH = "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


NUMBER = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"],
          "additionalProperties": False, "$defs": {"n": {"enum": [1, 22]}}}  # fmt: skip
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [tool("add", NUMBER), tool("now", NOTHING)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def two_calls(model: LanguageModel) -> Iterator[Client]:
    with Served(model, f"hey {CALL}\n{OTHER}", length=LENGTH) as client:
        yield client


def ask(client: Client, **more: Any) -> dict[str, Any]:
    body = chat(**{"max_tokens": 300, "tools": TOOLS, **more})
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def test_calls_are_parsed(two_calls: Client) -> None:
    choice = ask(two_calls)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"].strip() == "hey"
    calls = [(c["type"], c["function"]["name"], json.loads(c["function"]["arguments"]))
             for c in message["tool_calls"]]  # fmt: skip
    assert calls == [("function", "add", {"a": 1, "b": [2]}), ("function", "now", {})]
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_calls_are_streamed(two_calls: Client) -> None:
    events = events_of(two_calls, PATH, chat(max_tokens=300, tools=TOOLS))
    parts = [event["choices"][0] for event in events]
    calls = [c for part in parts for c in part["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert [call["function"]["name"] for call in calls] == ["add", "now"]
    arguments = [json.loads(call["function"]["arguments"]) for call in calls]
    assert arguments == [{"a": 1, "b": [2]}, {}] and all(call["id"] for call in calls)
    assert "".join(part["delta"].get("content", "") for part in parts).strip() == "hey"
    assert parts[-1]["finish_reason"] == "tool_calls"


def test_one_call_ends_the_answer_without_parallel_calls(two_calls: Client) -> None:
    choice = ask(two_calls, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    assert choice["finish_reason"] == "tool_calls"


def test_without_tools_a_call_is_text(two_calls: Client) -> None:
    for more in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        choice = ask(two_calls, **more)
        assert CALL in choice["message"]["content"] and "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


def test_results_of_tools_are_a_part_of_the_prompt(two_calls: Client) -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hey"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "noon"},
    ]
    text = two_calls.post("/apply-template", json={"messages": messages, "tools": TOOLS}).json()
    assert "noon" in text["prompt"] and '"name": "now"' in text["prompt"]
    assert ask(two_calls, messages=messages)["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_follow_the_schemas(model: LanguageModel, seed: int) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    with Served(model, length=LENGTH) as client:
        for choice in ("required", named):
            answer = ask(client, tool_choice=choice, temperature=1, seed=seed,
                         parallel_tool_calls=False)  # fmt: skip
            assert answer["finish_reason"] == "tool_calls", answer
            (call,) = answer["message"]["tool_calls"]
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            assert name == "add" if choice == named else name in ("add", "now")
            assert arguments in ([{"a": 1}, {"a": 22}] if name == "add" else [{}])


SCHEMA = {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"],
          "additionalProperties": False, "$defs": {"n": {"enum": [5, 66]}}}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
AS_JSON = '{"name": "add", "arguments": {"a": 22}}'


@pytest.mark.parametrize(
    ("answer", "calls", "content"),
    [
        (f"<tool_call>\n{AS_JSON}\n</tool_call>", [("add", {"a": 22})], None),
        ('{"x": 66}', [], {"x": 66}),
        ("hello", [], {"x": 5}),  # the greedy choice of what a schema or a call allows
    ],
)
@pytest.mark.parametrize("field", ["response_format", "json_schema"])
def test_an_answer_calls_tools_or_follows_the_schema(
    model: LanguageModel, answer: str, calls: list[Any], content: Any, field: str
) -> None:
    with Served(model, answer, length=LENGTH) as client:
        more: dict[str, Any] = {field: FORM if field == "response_format" else SCHEMA}
        if answer == "hello":  # "{" is more likely than "<"
            more["logit_bias"] = {str(model.tokenizer.encode("{")[0]): 5}
        choice = ask(client, **more)
        message = choice["message"]
        found = [(c["function"]["name"], json.loads(c["function"]["arguments"]))
                 for c in message.get("tool_calls", ())]  # fmt: skip
        assert found == calls
        assert (json.loads(message["content"]) if message.get("content") else None) == content
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        forced = ask(client, tool_choice="required", **more)
        assert forced["finish_reason"] == "tool_calls" and not forced["message"].get("content")
        without = ask(client, tool_choice="none", **more)["message"]
        assert set(json.loads(without["content"])) == {"x"}


def test_a_schema_is_refused_with_calls_that_no_grammar_describes(tmp_path: Path) -> None:
    template = TEMPLATE.replace("<tool_call>", "<function=f><parameter=p>")
    with Served(tiny_model(tmp_path, template), "hey") as client:
        body = chat(tools=TOOLS, response_format=FORM)
        response = client.post(PATH, json=body)
        assert response.status_code == 400
        assert error_of(response)["param"] == "response_format"
        assert client.post(PATH, json={**body, "tool_choice": "none"}).status_code == 200


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_each_family_has_a_grammar_that_its_parser_reads(model: LanguageModel, name: str) -> None:
    call_format = next(each for each in FORMATS if each.name == name)
    tools: Any = normalize_tools(TOOLS)
    served = Served(model)
    with served:
        if name not in JSON_FORMATS:
            with pytest.raises(ApiError) as refused:
                tool_constraint(tools, call_format, served.service, True)
            assert refused.value.param == "tool_choice"
            return
        constraint = tool_constraint(tools, call_format, served.service, False)
        text = ""
        while not constraint.is_finished and len(text) < 300:
            token = int(constraint.mask().argmax())
            if token in model.tokenizer.ends:
                break
            constraint.accept(token)
            text += model.tokenizer.bytes_of(token).decode()
        begin, end = call_format.markers[0]
        if not call_format.is_bare:
            assert text.startswith(begin) and text.endswith(end)
            text = text.removeprefix(begin).removesuffix(end)
        calls = call_format.parse(text, {})
        assert calls is not None and [call.name for call in calls] == ["add"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": ["add"]}, "tools[0]"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [tool("a", {"not": {}})], "tool_choice": "required"}, "tools"),
        ({"grammar": 'root ::= "a"'}, "tools"),
        ({"json_schema": {"not": {}}}, "json_schema"),
    ],
)
def test_wrong_tools_are_named(two_calls: Client, more: dict[str, Any], param: str) -> None:
    response = two_calls.post(PATH, json=chat(**{"tools": TOOLS, **more}))
    assert response.status_code == 400 and error_of(response)["param"] == param, response.text


def test_a_template_without_tools_refuses_them(tmp_path: Path) -> None:
    plain = TEMPLATE[TEMPLATE.index("{% for m in messages") :].replace("<tool_call>", "")
    with Served(tiny_model(tmp_path, plain), "hi") as client:
        response = client.post(PATH, json=chat(tools=TOOLS))
        assert response.status_code == 400 and error_of(response)["param"] == "tools"


def test_reasoning_is_a_field_of_its_own(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, TEMPLATE + "{# <think></think> #}")
    with Served(model, "<think>hm</think>yes") as c:
        message = ask(c, tools=None)["message"]
        assert (message["content"], message["reasoning_content"]) == ("yes", "hm")
        deltas = [e["choices"][0]["delta"] for e in events_of(c, PATH, chat(max_tokens=60))]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm"
        assert "".join(d.get("content", "") for d in deltas) == "yes"


def test_arguments_are_escaped_where_utf_8_has_no_form(model: LanguageModel) -> None:
    answer = '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d"}}</tool_call>'
    with Served(model, answer, length=LENGTH) as c:
        (call,) = ask(c)["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"a": "\\ud83d"}'
        events = events_of(c, PATH, chat(max_tokens=300, tools=TOOLS))
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_answers_are_parsed_outside_of_the_event_loop(
    two_calls: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    parse = MessageParser.add

    def recorded(self: MessageParser, text: str) -> list[Delta]:
        threads.add(threading.current_thread().name)
        return parse(self, text)

    monkeypatch.setattr(MessageParser, "add", recorded)
    ask(two_calls)
    assert threads == {"vksched-answer"}


OPENED = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}{# </think> #}")


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_begins_after_the_reasoning_of_the_prompt(tmp_path: Path, stream: bool) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2]}}}
    with Served(tiny_model(tmp_path, OPENED), "</th is { hm</think>\n\n2x") as client:
        body = chat(max_tokens=60, response_format=schema)
        if stream:
            deltas = [e["choices"][0]["delta"] for e in events_of(client, PATH, body)]
            message = {key: "".join(d.get(key) or "" for d in deltas)
                       for key in ("content", "reasoning_content")}  # fmt: skip
        else:
            message = client.post(PATH, json=body).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "</th is { hm"
        assert json.loads(message["content"]) in (1, 2)


def test_required_calls_begin_after_the_reasoning_of_the_prompt(tmp_path: Path) -> None:
    with Served(tiny_model(tmp_path, OPENED), "hm</think>hey", length=LENGTH) as client:
        choice = ask(client, tool_choice="required", parallel_tool_calls=False)
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls", choice
        assert message["reasoning_content"] == "hm"
        assert message["tool_calls"][0]["function"]["name"] in ("add", "now")


def test_reasoning_allows_all_tokens_but_those_that_end_the_answer(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, OPENED)
    with closing(GrammarCompiler(model.tokenizer, model.hyper.vocabulary)) as compiler:
        inner = compiler.from_schema({"const": 1}, "json_schema")
    end = ReasoningEnd(model.tokenizer, "</think>", model.hyper.vocabulary)
    constraint = ReasoningConstraint(inner, end)
    assert constraint.copy().param == "json_schema"
    ends = set(model.tokenizer.ends)
    for token in model.tokenizer.encode("<</think"):
        assert set(np.flatnonzero(~constraint.mask())) == ends
        constraint.accept(token)
    assert not constraint.is_finished
    (last,) = model.tokenizer.encode(">")
    other = constraint.copy()
    constraint.accept(last)
    assert [model.tokenizer.decode([t]) for t in np.flatnonzero(constraint.mask())] == ["1"]
    assert set(np.flatnonzero(~other.mask())) == ends


def test_a_token_with_the_end_of_the_marker_has_nothing_after_it() -> None:
    class Pieces:
        names = (b"</think>", b">", b">\n\n", b">{", b"x</think>{", b"</think", b"<eos>")
        size, ends = len(names), frozenset({6})

        def bytes_of(self, token: int, *, special: bool = False) -> bytes:
            return self.names[token]

    end = ReasoningEnd(Pieces(), "</think>", 9)  # type: ignore[arg-type]
    assert end.mask_after(b"").tolist() == [1, 1, 1, 1, 0, 1, 0, 0, 0]
    assert end.mask_after(b"</think").tolist() == [1, 1, 1, 0, 0, 1, 0, 0, 0]
    assert end.begun_by(b"a <</thi") == b"</thi" and end.begun_by(b"<a") == b""
