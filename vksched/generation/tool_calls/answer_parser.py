"""AnswerParser: splits the text of an answer, which arrives in pieces, into its parts.

    "<think>", text, "</think>", text, "<tool_call>", JSON, "</tool_call>"
        -> ReasoningDelta...      ContentDelta...    ToolCall

The text must include the names of control tokens: markers are often control tokens. Content and
reasoning are emitted as they arrive, but for a suffix that may begin a marker, and for spaces that
a marker would follow. A call is emitted when it is complete. A call that cannot be parsed is
content, because nothing of an answer may be lost. The parts do not depend on how the text is cut
into pieces.

Examples: tests/generation/tool_calls/test_answer_parser.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

from ..stop_matcher import StopMatcher
from .answer_parts import AnswerPart, ContentDelta, ReasoningDelta
from .call_bodies import Calls, Schemas
from .call_formats import HARMONY, SECTIONS, CallFormat, call_format_of, reasoning_of
from .harmony_parser import HarmonyParser
from .section_parser import SectionParser
from .text_scanner import QuoteScanner


class Parser(Protocol):
    """The interface of all parsers of answers."""

    def add(self, piece: str) -> list[AnswerPart]:
        """Return the parts that are complete after a piece of text."""

    def end(self) -> list[AnswerPart]:
        """Return the remaining parts at the end of the answer."""


def answer_parser(
    template: str,
    tools: Sequence[Mapping[str, object]] | None = None,
    *,
    prompt_end: str = "",
) -> Parser:
    """Return the parser for the answer of a model.

    Parameters
    ----------
    template
        The source of the model's chat template.
    tools
        The normalized tools of the request; without tools, calls are content.
    prompt_end
        The end of the rendered prompt: it may begin the reasoning, or a section of the answer.
    """
    calls, reasoning = call_format_of(template), reasoning_of(template)
    if calls is not None and calls.name == HARMONY:
        return HarmonyParser(has_tools=bool(tools))
    if calls is not None and calls.name == SECTIONS and tools:
        return SectionParser(in_section=prompt_end.rstrip().endswith(">>>"))
    is_open = open_reasoning(template, prompt_end) is not None
    return AnswerParser(calls if tools else None, reasoning, _schemas(tools), in_reasoning=is_open)


def open_reasoning(template: str, prompt_end: str) -> str | None:
    """Return the marker that ends the reasoning which a prompt has begun; None if it has not."""
    calls, reasoning = call_format_of(template), reasoning_of(template)
    if reasoning is None or calls is not None and calls.name == HARMONY:
        return None
    return reasoning[1] if prompt_end.rstrip().endswith(reasoning[0]) else None


def _schemas(tools: Sequence[Mapping[str, object]] | None) -> Schemas:
    functions = [cast(Mapping[str, object], each["function"]) for each in tools or []]
    return {
        str(each["name"]): cast(Mapping[str, object], each.get("parameters") or {})
        for each in functions
    }


class _Text:
    """Text of one kind, without spaces at its beginning and before markers."""

    def __init__(self, part: Callable[[str], AnswerPart], strips: bool) -> None:
        self._part = part
        self._strips = strips
        self._spaces = ""

    def add(self, text: str) -> Iterator[AnswerPart]:
        """Yield a part with the text, but for spaces at its end."""
        if self._strips:
            text = text.lstrip()
        core = text.rstrip()
        if core:
            yield self._part(self._spaces + core)
            self._strips, self._spaces = False, ""
        self._spaces += text[len(core) :]

    def end(self, keeps_spaces: bool) -> Iterator[AnswerPart]:
        """Yield the spaces at the end, unless a marker follows; the next text begins anew."""
        if keeps_spaces and self._spaces:
            yield self._part(self._spaces)
        self._strips, self._spaces = True, ""


class AnswerParser:
    """Parses answers with markers around reasoning and calls.

    Parameters
    ----------
    calls
        The format of calls; None if calls are content.
    reasoning
        The markers around reasoning; None if there is none.
    schemas
        The schemas of tools, by name.
    in_reasoning
        The prompt has begun the reasoning.
    """

    def __init__(
        self,
        calls: CallFormat | None,
        reasoning: tuple[str, str] | None,
        schemas: Schemas,
        *,
        in_reasoning: bool = False,
    ) -> None:
        self._calls, self._reasoning, self._schemas = calls, reasoning, schemas
        self._ends = dict(calls.markers) if calls else {}
        self._content = _Text(ContentDelta, strips=in_reasoning)
        self._thought = _Text(ReasoningDelta, strips=True)
        self._opener = ""  # of a call; "{" for an answer that may be JSON
        self._body = ""
        self._quotes: QuoteScanner | None = None  # of a call
        self._begun = False
        self._add = self._add_reasoning if in_reasoning else self._add_content
        self._matcher = self._matcher_of_content()
        if in_reasoning and reasoning:
            self._matcher = StopMatcher(reasoning[1])

    def add(self, piece: str) -> list[AnswerPart]:
        """Return the parts that are complete after a piece of text."""
        found: list[AnswerPart] = []
        while piece:
            text = self._matcher.add(piece)
            marker, piece = self._matcher.found, self._matcher.rest
            found += self._add(text, marker)
        return found

    def end(self) -> list[AnswerPart]:
        """Return the remaining parts at the end of the answer."""
        found = list(self._add(self._matcher.end(), None))
        if self._opener:
            found += self._finished_call("", is_last=True)
        elif self._body:
            found += self._content.add(self._body)  # spaces before the first text
        if self._add == self._add_reasoning:
            return found + list(self._thought.end(keeps_spaces=False))
        return found + list(self._content.end(keeps_spaces=True))

    def _matcher_of_content(self) -> StopMatcher:
        """Return the matcher of the markers in content. Before any content, that is also the end of
        reasoning: models write it instead of reasoning.
        """
        return StopMatcher([*self._ends, *(self._reasoning or ())[: 1 if self._begun else 2]])

    def _add_content(self, text: str, marker: str | None) -> Iterator[AnswerPart]:
        is_bare = self._calls is not None and self._calls.is_bare
        if is_bare and not self._begun and (self._body + text).strip():
            if (self._body + text).lstrip().startswith("{"):
                held = self._matcher.end() if marker is None else marker
                self._begin_call("{", self._body + text + held)
                return
            text, self._body = self._body + text, ""
        self._begun = self._begun or bool(text.strip())
        if is_bare and not self._begun:
            self._body += text
            text = ""
        yield from self._content.add(text)
        if marker is None:
            return
        if self._reasoning is not None and marker == self._reasoning[1]:
            if self._begun:
                yield from self._content.add(marker)
            else:
                yield from self._content.end(keeps_spaces=False)
            self._matcher, self._begun = self._matcher_of_content(), True
            return
        yield from self._content.end(keeps_spaces=False)
        self._body = ""
        if marker in self._ends:
            keeps = self._calls is not None and self._calls.keeps_markers
            self._begin_call(marker, marker if keeps else "")
        elif self._reasoning:
            self._add, self._matcher = self._add_reasoning, StopMatcher(self._reasoning[1])

    def _add_reasoning(self, text: str, marker: str | None) -> Iterator[AnswerPart]:
        yield from self._thought.add(text)
        if marker is not None:
            yield from self._thought.end(keeps_spaces=False)
            yield from self._content.end(keeps_spaces=False)
            self._add, self._matcher = self._add_content, self._matcher_of_content()

    def _begin_call(self, opener: str, body: str) -> None:
        assert self._calls is not None
        self._opener, self._body, self._add = opener, body, self._add_call
        self._quotes = QuoteScanner(self._calls.quotes) if self._calls.quotes else None
        self._matcher = self._matcher_of_call()

    def _matcher_of_call(self) -> StopMatcher:
        end = self._ends.get(self._opener, "")
        return StopMatcher([end] if end else ())

    def _add_call(self, text: str, marker: str | None) -> Iterator[AnswerPart]:
        self._body += text
        if marker is not None:
            yield from self._finished_call(marker, is_last=False)

    def _finished_call(self, marker: str, *, is_last: bool) -> Iterator[AnswerPart]:
        """Yield the calls of a body, which is content if it has none. A marker inside of a quoted
        text is a part of the body.
        """
        assert self._calls is not None
        if not is_last and self._quotes is not None and self._quotes.ends_inside(self._body):
            self._body += marker
            self._matcher = self._matcher_of_call()
            return
        keeps = self._calls.keeps_markers
        calls = self._parsed(self._body + (marker if keeps else ""))
        if calls is None:
            opener = "" if keeps or self._opener == "{" else self._opener
            yield from self._content.add(opener + self._body + marker)
        else:
            yield from calls
            yield from self._content.end(keeps_spaces=False)
        self._opener, self._body, self._begun = "", "", True
        self._add, self._matcher = self._add_content, self._matcher_of_content()

    def _parsed(self, body: str) -> Calls:
        assert self._calls is not None
        text = body
        if self._calls.keeps_markers:  # a pair of outer markers, and one of each call
            for opener, end in self._ends.items():
                if self._opener == opener == "<tool_call>":
                    text = text.removeprefix(opener).removesuffix(end)
        calls = self._calls.parse(text, self._schemas)
        if self._opener == "{" and calls and any(c.name not in self._schemas for c in calls):
            return None  # an answer in JSON
        return calls
