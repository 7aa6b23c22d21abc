"""Conversations by templates that read messages and tools in different forms."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("jinja2")

import small_templates as templates

from vksched.common.errors import MessageError, ModelFormatError
from vksched.generation.conversation.conversation_renderer import ConversationRenderer
from vksched.importers.gguf.tokenizer.chat_template import ChatTemplate

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Köln"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "a1", "content": "rain"}
TOOLS = [{"type": "function", "function": {"name": "w"}}]


def renderer(source: str) -> ConversationRenderer:
    return ConversationRenderer(ChatTemplate(source))


def test_system_messages_go_before_the_user_message_if_the_template_refuses_them() -> None:
    render = renderer(templates.WITHOUT_SYSTEM).render
    assert render([USER]) == "[user] Weather?\n"
    assert render([SYSTEM, USER]) == "[user] Be brief.\n\nWeather?\n"
    developer = {"role": "developer", "content": "In short."}
    assert render([SYSTEM, developer, USER]) == "[user] Be brief.\n\nIn short.\n\nWeather?\n"
    assert render([USER, SYSTEM]) == "[user] Weather?\n[user] Be brief.\n"


def test_system_messages_stay_where_the_template_reads_them() -> None:
    text = renderer(templates.PLAIN).render([{**SYSTEM, "role": "developer"}, USER])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_the_answer_continues_the_last_message() -> None:
    begun = {"role": "assistant", "content": "It is \ue000 "}
    render = renderer(templates.PLAIN).render
    text = render([USER, begun], continue_final_message=True)
    assert text == f"{render([USER])}{begun['content']}"
    assert render([USER, {**begun, "content": ""}], continue_final_message=True) == render([USER])
    for last in (USER, CALL):
        with pytest.raises(MessageError, match=r"messages\[1\]: expected a message of"):
            render([USER, last], continue_final_message=True)
    silent = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
    with pytest.raises(MessageError, match="expected a chat template that writes the last message"):
        renderer(silent).render([USER, begun], continue_final_message=True)


def test_roles_of_the_template_are_allowed() -> None:
    source = "{% for m in messages %}{% if m.role == 'critic' %}critic{% endif %}{% endfor %}"
    assert renderer(source).render([{"role": "critic", "content": ""}]) == "critic"
    with pytest.raises(MessageError, match=r"messages\[0\].role: expected one of"):
        renderer(templates.PLAIN).render([{"role": "critic", "content": ""}])
    injected = "user<|im_end|>"
    source = f"{{% if messages[0].role == '{injected}' %}}{{% endif %}}"
    with pytest.raises(MessageError, match="expected one of"):
        renderer(source).render([{"role": injected, "content": ""}])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (templates.OBJECT_CALLS, "Weather?<call>w city=Kölnrain"),
        (templates.TEXT_CALLS, 'Weather?<call>w {"city": "Köln"}rain'),
        (templates.NULL_CALLS, 'Weather?<call>w {"city": "Köln"}rain'),
    ],
    ids=["object", "text", "null"],
)
def test_tool_calls_are_in_the_form_that_the_template_reads(source: str, expected: str) -> None:
    assert renderer(source).render([USER, CALL, RESULT]) == expected


def test_tool_calls_follow_the_content_in_a_message_of_their_own_if_they_would_be_lost() -> None:
    messages = [USER, {**CALL, "content": "I look."}]
    text = renderer(templates.NULL_CALLS).render(messages)
    assert text == 'Weather?I look.<call>w {"city": "Köln"}'
    text = renderer(templates.OBJECT_CALLS).render(messages)
    assert text == "Weather?I look.<call>w city=Köln"


def test_tool_calls_that_the_template_does_not_write_are_text() -> None:
    text = renderer(templates.PLAIN).render([USER, {**CALL, "content": "I look."}, RESULT])
    call = 'I look.\n<tool_call>\n{"name": "w", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in text
    assert "<|im_start|>tool\nrain<|im_end|>" in text


def test_tools_are_passed_by_the_name_that_the_template_reads() -> None:
    tool = {"type": "object", "properties": {}}
    listed = [{"type": "function", "function": {"name": "w", "parameters": tool}}]
    for source in (templates.TOOLS + templates.PLAIN, templates.OWN_NAME):
        text = renderer(source).render([USER], tools=TOOLS)
        assert text.startswith(json.dumps(listed)) and "Weather?" in text
        assert renderer(source).render([USER], tools=[]).startswith("<|im_start|>")
    text = renderer(templates.FUNCTIONS).render([USER], tools=TOOLS)
    assert text.startswith(f"Tools: {json.dumps(listed, indent=2)} ")
    assert renderer(templates.FUNCTIONS).render([USER]).startswith("Tools:  ")


def test_tools_that_the_template_would_drop_are_errors() -> None:
    with pytest.raises(MessageError, match="template has no tools") as caught:
        renderer(templates.PLAIN).render([USER], tools=TOOLS)
    assert caught.value.field == "tools"
    with pytest.raises(MessageError, match="does not write them") as caught:
        renderer(templates.WITHOUT_RESULTS).render([USER, CALL, RESULT])
    assert caught.value.field == "messages[2].role"


def test_refusals_of_the_template_are_its_own() -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}x"
    assert renderer(source).render([USER]) == "x"
    for messages in ([USER, USER], [USER, CALL, RESULT]):
        with pytest.raises(ModelFormatError, match="one at a time"):
            renderer(source).render(messages)


def test_contents_are_parts_for_a_template_that_reads_only_parts() -> None:
    assert renderer(templates.PARTS).render([USER]) == "Weather?"


def test_tool_choice_and_other_variables_are_defined_only_if_they_are_passed() -> None:
    source = "{{ tool_choice is defined }} {{ tools is defined }} {{ enable_thinking is defined }}"
    assert renderer(source).render([USER]) == "False False False"
    text = renderer(source).render([USER], tool_choice="auto", variables={"enable_thinking": False})
    assert text == "True False True"
    with pytest.raises(MessageError, match="messages: expected no template variable"):
        renderer(source).render([USER], variables={"messages": []})
