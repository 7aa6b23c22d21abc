"""Deltas: the changes of an assistant's message while it is generated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..generation.tool_calls.answer_parser import Parser
from ..generation.tool_calls.answer_parts import (
    AnswerPart,
    ReasoningDelta,
    ToolCall,
    new_call_id,
)

REASONING = "reasoning_content"


@dataclass(frozen=True, slots=True)
class Delta:
    """A change of a message: more of a text, or a tool call.

    Parameters
    ----------
    field
        "content", "reasoning_content" or "tool_calls".
    text
        More text, or the arguments of the call.
    index, id, name
        The index, the identifier and the function of a call.
    """

    field: str
    text: str
    index: int = 0
    id: str = ""
    name: str = ""

    def body(self) -> dict[str, Any]:
        """Return the delta as in a chunk of a stream."""
        if self.field != "tool_calls":
            return {self.field: self.text}
        return {"tool_calls": [{"index": self.index, **self.call()}]}

    def call(self) -> dict[str, Any]:
        """Return the tool call."""
        function = {"name": self.name, "arguments": self.text}
        return {"id": self.id, "type": "function", "function": function}


class MessageParser:
    """Divides the text of an answer into content, reasoning and tool calls.

    Parameters
    ----------
    parser
        The parser of the model's format.
    max_calls
        The number of calls after which the message is complete; None for any number.
    """

    def __init__(self, parser: Parser, max_calls: int | None = None) -> None:
        self._parser = parser
        self._max_calls = max_calls
        self.calls = 0
        """The number of calls until now."""

    @property
    def is_complete(self) -> bool:
        """True if the message has all calls that it may have; further text is dropped."""
        return self.calls == self._max_calls

    def add(self, text: str) -> list[Delta]:
        """Append a piece of the answer; return what is decided now."""
        return self._deltas(self._parser.add(text))

    def end(self) -> list[Delta]:
        """Return the rest."""
        return self._deltas(self._parser.end())

    def _deltas(self, parts: Iterable[AnswerPart]) -> list[Delta]:
        out = []
        for part in parts:
            if self.is_complete:
                break
            if isinstance(part, ToolCall):
                out.append(
                    Delta("tool_calls", part.arguments, self.calls, new_call_id(), part.name)
                )
                self.calls += 1
            else:
                field = REASONING if isinstance(part, ReasoningDelta) else "content"
                out.append(Delta(field, part.text))
        return out


def joined(deltas: Iterable[Delta]) -> dict[str, Any]:
    """Return the whole message."""
    texts = {"content": "", REASONING: ""}
    calls = []
    for delta in deltas:
        if delta.field == "tool_calls":
            calls.append(delta.call())
        else:
            texts[delta.field] += delta.text
    content = None if calls and not texts["content"] else texts["content"]
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if texts[REASONING]:
        message[REASONING] = texts[REASONING]
    if calls:
        message["tool_calls"] = calls
    return message
