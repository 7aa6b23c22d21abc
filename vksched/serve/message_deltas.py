"""Deltas: the changes of an assistant's message while it is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Delta:
    """A change of a message: more content, or more of a tool call.

    Parameters
    ----------
    index
        The index of the tool call; None for content.
    id, name
        The identifier and the function of a tool call, in its first delta.
    text
        More content, or more of the call's arguments.
    """

    text: str
    index: int | None = None
    id: str = ""
    name: str = ""

    def body(self) -> dict[str, Any]:
        """Return the delta as in a chunk of a stream."""
        if self.index is None:
            return {"content": self.text}
        function: dict[str, Any] = {"arguments": self.text}
        call: dict[str, Any] = {"index": self.index, "function": function}
        if self.name:
            call = {"index": self.index, "id": self.id, "type": "function"}
            call["function"] = {"name": self.name, "arguments": self.text}
        return {"tool_calls": [call]}


class MessageParser(Protocol):
    """Divides the text of an answer into content and tool calls."""

    @property
    def has_calls(self) -> bool:
        """True if a tool call was found."""

    def add(self, text: str) -> Sequence[Delta]:
        """Append a piece of the answer; return what is decided now."""

    def end(self) -> Sequence[Delta]:
        """Return the rest."""


class ContentParser:
    """The parser of answers without tools: all text is content."""

    has_calls = False

    def add(self, text: str) -> Sequence[Delta]:
        """Return the text as content."""
        return (Delta(text),)

    def end(self) -> Sequence[Delta]:
        """Return nothing."""
        return ()


def joined(deltas: Iterable[Delta]) -> dict[str, Any]:
    """Return the whole message."""
    content: str | None = None
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if delta.index is None:
            content = (content or "") + delta.text
            continue
        call = calls.setdefault(delta.index, {"function": {"name": "", "arguments": ""}})
        function = call["function"]
        if delta.name:
            call |= {"id": delta.id, "type": "function"}
            function["name"] = delta.name
        function["arguments"] += delta.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    elif content is None:
        message["content"] = ""
    return message
