"""ConversationRenderer: writes messages and tools by a model's chat template.

    messages, tools --normalize--> --the forms that the template reads--> ChatTemplate.render

    system messages that the template refuses   -> before the next user message
    tool calls that the template does not write -> text in the content

Tools, and results of tools, that the template does not write are errors: the model would not see
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ...common.errors import MessageError
from ...importers.gguf.tokenizer.chat_template import ChatTemplate
from .control_shield import Marker, unused_mark
from .messages import Message, normalize_messages, normalize_tools
from .template_traits import TemplateTraits, calls_of, in_form, in_parts

RESERVED = ("messages", "add_generation_prompt", "tools", "bos_token", "eos_token")
"""The variables of templates that clients may not replace."""


class ConversationRenderer:
    """Renders conversations by one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._traits = TemplateTraits(template)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: object = None,
        tool_choice: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
        marker: Marker | None = None,
    ) -> str:
        """Render a conversation as text, with special tokens by name.

        Parameters
        ----------
        messages
            Messages as in OpenAI's API.
        tools
            The functions that the model may call, as in OpenAI's API; None or an empty list for
            none.
        tool_choice
            Passed to the template unless None.
        add_generation_prompt
            End the text where the model's answer begins.
        continue_final_message
            End the text after the last message, which is the begin of the answer.
        variables
            Further variables of the template, for example `enable_thinking`.
        marker
            Marks the names of control tokens in all texts.

        Raises
        ------
        MessageError
            A message or a tool is invalid, or the template does not write tools.
        ModelFormatError
            The template fails, or refuses the conversation.
        """
        listed = normalize_messages(messages, self._traits.words)
        functions = normalize_tools(tools)
        others = dict(variables or {})
        for name in RESERVED:
            if name in others:
                raise MessageError(name, "expected no template variable of this name")
        if marker is not None:
            listed = [_marked_message(each, marker) for each in listed]
            functions = [_marked_message(each, marker) for each in functions or []]
            others = {name: _marked(value, marker) for name, value in others.items()}
        if functions and not self._traits.reads_tools:
            raise MessageError(
                "tools",
                "expected none, as the model's chat template has no tools; try a model whose "
                "template has them",
            )
        values = {**self._traits.variables(functions), **others}
        if tool_choice is not None:
            values["tool_choice"] = tool_choice
        end = ""
        if continue_final_message:
            used = [listed, functions, others, marker.mark if marker else ""]
            end = unused_mark(used, self._template.source)
            listed[-1] = _ended_message(listed[-1], len(listed) - 1, end)
            add_generation_prompt = False
        text = self._template.render(
            self._adapted(listed), add_generation_prompt=add_generation_prompt, **values
        )
        return _text_before(text, end) if end else text

    def _adapted(self, messages: list[Message]) -> list[Message]:
        """Return normalized messages in the forms that the template reads."""
        traits = self._traits
        if "developer" not in traits.words:
            messages = [
                {**each, "role": "system"} if each["role"] == "developer" else each
                for each in messages
            ]
        if any(each["role"] == "system" for each in messages) and not traits.reads_system:
            messages = _without_system(messages)
        if any("tool_calls" in each for each in messages):
            messages = [form for each in messages for form in self._call_messages(each)]
        for at, each in enumerate(messages):
            if each["role"] == "tool" and not traits.reads_results:
                raise MessageError(
                    f"messages[{at}].role",
                    "expected no results of tools, as the model's chat template does not write "
                    "them; try a user message",
                )
        return [in_parts(each) for each in messages] if traits.reads_parts_only else messages

    def _call_messages(self, message: Message) -> list[Message]:
        """Return a message with its tool calls as the template reads them."""
        form = self._traits.call_form
        if "tool_calls" not in message:
            return [message]
        if form is None:
            return [_calls_as_text(message)]
        if message["content"] and self._traits.drops_calls_after_content:
            text = {key: value for key, value in message.items() if key != "tool_calls"}
            return [text, in_form({**message, "content": ""}, form)]
        return [in_form(message, form)]


def _ended_message(message: Message, at: int, end: str) -> Message:
    """Return the message that the answer continues, with a mark at its end."""
    if message["role"] != "assistant" or "tool_calls" in message:
        raise MessageError(
            f"messages[{at}]",
            "expected a message of the assistant without tool calls, which the answer continues",
        )
    return {**message, "content": f"{message['content']}{end}"}


def _text_before(text: str, end: str) -> str:
    """Return a rendering up to the mark at the end of the last message."""
    found, mark, _ = text.rpartition(end)
    if not mark:
        raise MessageError(
            "continue_final_message",
            "expected a chat template that writes the last message as it is; try "
            "add_generation_prompt",
        )
    return found


def _calls_as_text(message: Message) -> Message:
    """Return a message with its tool calls as text in its content, for a template without them."""
    calls = [
        json.dumps(
            {"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False
        )
        for _, function in calls_of(message)
    ]
    content = [str(message["content"])] if message["content"] else []
    text = "\n".join([*content, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])
    out = {**message, "content": text}
    del out["tool_calls"]
    return out


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the system messages before the text of the next user message."""
    out: list[Message] = []
    pending: list[str] = []
    for each in messages:
        if each["role"] == "system":
            pending.append(str(each["content"]))
            continue
        if each["role"] == "user":
            each = {**each, "content": "\n\n".join([*pending, str(each["content"])])}
            pending.clear()
        out.append(each)
    if pending:
        out.append({"role": "user", "content": "\n\n".join(pending)})
    return out


_SCHEMA_KEYS = ("role", "type")
"""The keys of messages whose values are words of the API, not texts of the client."""


def _marked_message(message: Message, marker: Marker) -> Message:
    return {
        key: value if key in _SCHEMA_KEYS else _marked(value, marker)
        for key, value in message.items()
    }


def _marked(value: object, marker: Marker) -> object:
    if isinstance(value, str):
        return marker.add(value)
    if isinstance(value, Mapping):
        return {
            marker.add_to_key(key) if isinstance(key, str) else key: _marked(each, marker)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_marked(each, marker) for each in value]
    return value
