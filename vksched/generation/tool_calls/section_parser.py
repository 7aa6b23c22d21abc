"""SectionParser: parses answers of sections, each with a name, as Functionary 3.2 writes them.

all                          -> content
text for the user
>>>get_weather               -> ToolCall
{"city": "Paris"}
"""

from __future__ import annotations

from ..stop_matcher import StopMatcher
from .answer_parts import AnswerPart, ContentDelta
from .call_bodies import parse_named_sections

MARKER = ">>>"


class SectionParser:
    """Parses answers of sections; a section is emitted when it is complete.

    in_section: the prompt ends with the marker of the first section.
    """

    def __init__(self, *, in_section: bool) -> None:
        self._in_section = in_section
        self._text = ""
        self._matcher = StopMatcher(MARKER)

    def add(self, piece: str) -> list[AnswerPart]:
        """Return the sections that are complete after a piece of text."""
        found: list[AnswerPart] = []
        while piece:
            self._text += self._matcher.add(piece)
            piece = self._matcher.rest
            if self._matcher.found is not None:
                found += self._section(is_last=False)
                self._in_section, self._matcher = True, StopMatcher(MARKER)
        return found

    def end(self) -> list[AnswerPart]:
        """Return the last section."""
        self._text += self._matcher.end()
        return self._section(is_last=True)

    def _section(self, *, is_last: bool) -> list[AnswerPart]:
        text, self._text = self._text, ""
        name, newline, rest = text.partition("\n")
        if self._in_section and name.strip() == "all" and newline:
            text = rest if is_last else rest.rstrip("\n")
        elif self._in_section and (calls := parse_named_sections(text, {})):
            return list(calls)
        elif self._in_section and text:
            text = MARKER + text
        return [ContentDelta(text)] if text else []
