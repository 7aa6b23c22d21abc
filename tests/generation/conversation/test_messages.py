"""Messages of OpenAI's clients: contents, tool calls and tools become those of chat templates."""

from __future__ import annotations

import pytest

from vksched.common.errors import MessageError
from vksched.generation.conversation.messages import normalize_messages, normalize_tools

TEXT = {"type": "text", "text": "a"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}


def call_with(arguments: object) -> dict[str, object]:
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        ([], ""),
        ([TEXT, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "refusal", "refusal": "no"}, "b"], "no\nb"),
        ([{"type": "input_text", "text": "c"}], "c"),
    ],
)
def test_contents_become_texts(content: object, text: str) -> None:
    message = {"role": "user", "content": content, "name": "Ann"}
    assert normalize_messages([message]) == [{"role": "user", "content": text, "name": "Ann"}]
    assert message["content"] == content


def test_a_message_without_content_has_an_empty_one() -> None:
    messages = [{"role": "assistant", "reasoning_content": None, "tool_calls": None}]
    assert normalize_messages(messages) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [('{"x": [1]}', {"x": [1]}), ({"x": 1}, {"x": 1}), ("", {}), (None, {}), ("{}", {})],
)
def test_arguments_become_dicts(arguments: object, value: object) -> None:
    (message,) = normalize_messages([call_with(arguments)])
    function = {"name": "f", "arguments": value}
    assert message["tool_calls"] == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("message", "field", "text"),
    [
        (
            {"role": "usr", "content": ""},
            "role",
            "expected one of system, .*got 'usr'; close: user",
        ),
        ({"content": ""}, "role", "got None"),
        ({"role": ["user"]}, "role", "expected one of"),
        (
            {"role": "user", "content": 5},
            "content",
            "expected a text, a list of text parts, or null",
        ),
        ({"role": "user", "content": [5]}, "content[0]", "expected a part such as"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].type", "text only"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text", "expected a text"),
        ({"role": "user", "tool_calls": [CALL]}, "tool_calls", "of the assistant"),
        ({"role": "assistant", "tool_calls": "f"}, "tool_calls", "expected a list"),
        ({"role": "assistant", "tool_calls": [1]}, "tool_calls[0]", "expected an object"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function", "with 'name'"),
        ({"role": "assistant", "tool_calls": [{"type": "x"}]}, "tool_calls[0].type", "'function'"),
        (call_with('{"x": NaN}'), "tool_calls[0].function.arguments", "a finite number, got NaN"),
        (call_with('{"x": 1e999}'), "tool_calls[0].function.arguments", "a finite number, got 1e9"),
        (call_with("{"), "tool_calls[0].function.arguments", "expected a JSON object as text"),
        (call_with("[1]"), "tool_calls[0].function.arguments", "expected a JSON object"),
        (call_with("[" * 100_000), "tool_calls[0].function.arguments", "expected a JSON object"),
        (
            call_with('{"a":' * 150 + "1" + "}" * 150),
            "tool_calls[0].function.arguments",
            "at most 100 levels",
        ),
    ],
)
def test_errors_have_the_field(message: dict[str, object], field: str, text: str) -> None:
    with pytest.raises(MessageError, match=text) as caught:
        normalize_messages([{"role": "user", "content": "a"}, message])
    assert caught.value.field == f"messages[1].{field}"
    assert caught.value.field in str(caught.value)


def test_a_conversation_has_a_message() -> None:
    with pytest.raises(MessageError, match="at least one message"):
        normalize_messages([])


def test_tools_have_parameters() -> None:
    assert normalize_tools(None) is None
    assert normalize_tools([]) is None
    (tool,) = normalize_tools([{"type": "function", "function": {"name": "f"}}]) or []
    assert tool["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ("f", "tools"),
        ([{"type": "retrieval"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"function": {"name": ""}}], "tools[0].function.name"),
        ([{"function": {"name": "f", "parameters": 5}}], "tools[0].function.parameters"),
    ],
)
def test_errors_of_tools_have_the_field(tools: object, field: str) -> None:
    with pytest.raises(MessageError) as caught:
        normalize_tools(tools)
    assert caught.value.field == field
