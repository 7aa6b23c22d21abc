"""Template traits: the forms of messages and tools that a chat template reads, found by probes.

    a small conversation with known words --render in several forms--> the first form whose
                                                                       rendering has the words

Templates differ: some read arguments of tool calls only as an object, some only as text, some drop
the calls of a message whose content is not None. A template that has no form at all, for example
for tools, is known as well.

Examples: tests/generation/conversation/test_conversation_renderer.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import product
from typing import cast

from ...common.errors import ModelFormatError
from ...importers.gguf.tokenizer.chat_template import ChatTemplate
from .messages import Message

TOOL_VARIABLES = ("tools", "xml_tools", "functions")
"""The variables by which templates read tools; "functions" is JSON text."""

_BLOCK = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")

_USER: Message = {"role": "user", "content": "probe user"}
_SYSTEM: Message = {"role": "system", "content": "probe system"}
_RESULT = "probe result"
_CALL = "probe_call"
_ARGUMENTS = {"probe_key": "probe value"}
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": _CALL,
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe"}},
            "required": ["probe_key"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of a message with tool calls.

    is_text: the arguments are JSON text. is_null: empty content is None.
    """

    is_text: bool
    is_null: bool


def in_form(message: Message, form: CallForm) -> Message:
    """Return a normalized message with tool calls in the form that a template reads."""
    out = dict(message)
    if form.is_null and out["content"] == "":
        out["content"] = None
    if form.is_text:
        out["tool_calls"] = [
            {
                **call,
                "function": {
                    **function,
                    "arguments": json.dumps(function["arguments"], ensure_ascii=False),
                },
            }
            for call, function in calls_of(message)
        ]
    return out


def in_parts(message: Message) -> Message:
    """Return a normalized message with its content as a list of parts."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def calls_of(message: Message) -> list[tuple[Message, Message]]:
    """Return the tool calls of a normalized message, each with its function."""
    calls = cast(list[Message], message.get("tool_calls", []))
    return [(call, cast(Message, call["function"])) for call in calls]


class TemplateTraits:
    """The forms that one template reads. Each is probed at its first use."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        code = " ".join(_BLOCK.findall(template.source))
        self._names = frozenset(_NAME.findall(_QUOTED.sub(" ", code)))
        self.words = frozenset(each[1:-1] for each in _QUOTED.findall(code) if each[1:-1].isalpha())
        """The quoted words of the template: the roles that it knows are among them."""

    def variables(self, tools: Sequence[Message] | None) -> dict[str, object]:
        """Return the variables that pass tools to the template, and those that it always reads."""
        values: dict[str, object] = {}
        if "datetime" in self._names:
            values["datetime"] = datetime.now().strftime("%b %d %Y")
        if tools and self._tool_variable:
            values[self._tool_variable] = _tools_value(self._tool_variable, tools)
        elif "functions" in self._names and "tools" not in self._names:
            values["functions"] = ""  # the template always reads it
        return values

    @cached_property
    def _tool_variable(self) -> str:
        """The variable by which the template reads tools; "" if there is none."""
        fixed = self.variables(None)
        for name in TOOL_VARIABLES:
            if name in self._names:
                values = {**fixed, name: _tools_value(name, [_TOOL])}
                if _CALL in self._rendered([_USER], values):
                    return name
        return ""

    @property
    def reads_tools(self) -> bool:
        """True if the template writes the tools."""
        return bool(self._tool_variable)

    @cached_property
    def reads_system(self) -> bool:
        """True if the template writes system messages."""
        return "probe system" in self._rendered([_SYSTEM, _USER]) or not self._rendered([_USER])

    @cached_property
    def reads_parts_only(self) -> bool:
        """True if the template writes contents only if they are lists of parts."""
        if "probe user" in self._rendered([_USER]):
            return False
        return "probe user" in self._rendered([in_parts(_USER)])

    @cached_property
    def call_form(self) -> CallForm | None:
        """The form in which the template writes tool calls; None if it writes none."""
        forms = (CallForm(*each) for each in product((False, True), (False, True)))
        return next((form for form in forms if self._writes_calls(form)), None)

    @cached_property
    def drops_calls_after_content(self) -> bool:
        """True if the template writes the tool calls of a message only if it has no content."""
        return self.call_form is not None and not self._writes_calls(self.call_form, "probe")

    @cached_property
    def reads_results(self) -> bool:
        """True if the template writes the results of tools, or refuses them with its own error."""
        form = self.call_form or CallForm(is_text=False, is_null=False)
        try:
            return _RESULT in self._render(self._conversation(form), self.variables([_TOOL]))
        except ModelFormatError:
            return True

    def _writes_calls(self, form: CallForm, content: str = "") -> bool:
        """Return True if the template writes the arguments of a tool call, encoded once."""
        text = self._rendered(self._conversation(form, content), self.variables([_TOOL]))
        return "probe value" in text and '\\"probe_key' not in text

    def _conversation(self, form: CallForm, content: str = "") -> list[Message]:
        call: Message = {"name": _CALL, "arguments": _ARGUMENTS}
        message: Message = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "probe1234", "type": "function", "function": call}],
        }
        result: Message = {
            "role": "tool",
            "tool_call_id": "probe1234",
            "name": _CALL,
            "content": _RESULT,
        }
        return [_USER, in_form(message, form), result]

    def _rendered(
        self, messages: Sequence[Message], values: Mapping[str, object] | None = None
    ) -> str:
        """Return a rendering, or "" if the template refuses."""
        try:
            return self._render(messages, self.variables(None) if values is None else values)
        except ModelFormatError:
            return ""

    def _render(self, messages: Sequence[Message], values: Mapping[str, object]) -> str:
        return self._template.render(messages, add_generation_prompt=True, **values)


def _tools_value(variable: str, tools: Sequence[Message]) -> object:
    if variable == "functions":
        return json.dumps(tools, indent=2, ensure_ascii=False)
    return tools
