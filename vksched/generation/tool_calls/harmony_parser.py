"""HarmonyParser: parses answers of channels, as gpt-oss writes them.

<|channel|>analysis<|message|>...<|end|>                                   -> ReasoningDelta
<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}
    <|call|>                                                               -> ToolCall
<|start|>assistant<|channel|>final<|message|>...                           -> ContentDelta
"""

from __future__ import annotations

import re

from ..stop_matcher import StopMatcher
from .answer_parts import AnswerPart, ContentDelta, ReasoningDelta
from .call_bodies import parse_named_sections

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")


class HarmonyParser:
    """Parses answers of channels. has_tools: calls are emitted as calls, else as content."""

    def __init__(self, *, has_tools: bool) -> None:
        self._has_tools = has_tools
        self._header: str | None = ""  # None in a message
        self._name = ""
        self._body = ""
        self._is_reasoning = False
        self._matcher = StopMatcher("<|message|>")

    def add(self, piece: str) -> list[AnswerPart]:
        """Return the parts that are complete after a piece of text."""
        found: list[AnswerPart] = []
        while piece:
            text = self._matcher.add(piece)
            piece = self._matcher.rest
            found += self._added(text)
            if self._matcher.found is not None:
                found += self._marked(self._matcher.found)
        return found

    def end(self) -> list[AnswerPart]:
        """Return the remaining parts at the end of the answer."""
        found = self._added(self._matcher.end())
        if self._header is None:
            return found + self._call()
        header = self._header
        return found + ([ContentDelta(header)] if header and "<|" not in header else [])

    def _added(self, text: str) -> list[AnswerPart]:
        if self._header is not None:
            self._header += text
        elif self._name:
            self._body += text
        elif text:
            return [ReasoningDelta(text) if self._is_reasoning else ContentDelta(text)]
        return []

    def _marked(self, marker: str) -> list[AnswerPart]:
        """Begin a message or a header after a marker."""
        if self._header is None:
            found = self._call()
            self._header = marker if marker in ("<|start|>", "<|channel|>") else ""
            self._matcher = StopMatcher("<|message|>")
            return found
        header, self._header = self._header, None
        match = _RECIPIENT.search(header)
        self._name = match[1] if match and self._has_tools else ""
        self._is_reasoning = "analysis" in header
        self._matcher = StopMatcher(_ENDS)
        return []

    def _call(self) -> list[AnswerPart]:
        """Return the call of a message that is complete."""
        name, body, self._name, self._body = self._name, self._body, "", ""
        if not name:
            return []
        calls = parse_named_sections(f"{name}\n{body}", {})
        return [ContentDelta(body)] if calls is None else list(calls)
