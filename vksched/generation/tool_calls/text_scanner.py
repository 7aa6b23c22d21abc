"""TextScanner and QuoteScanner: read the texts of tool calls in linear time."""

from __future__ import annotations

import re

_SPACES = re.compile(r"\s*")
_SEPARATORS = re.compile(r"[ \t\r\n,;]*")


class TextScanner:
    """A place in a text that only moves forward.

    Parameters
    ----------
    text
        The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        """The index of the next character."""

    @property
    def is_at_end(self) -> bool:
        """True if no character is left."""
        return self.at == len(self.text)

    def skip_spaces(self) -> None:
        """Move past spaces and newlines."""
        self._skip(_SPACES)

    def skip_separators(self) -> None:
        """Move past spaces, newlines, commas and semicolons."""
        self._skip(_SEPARATORS)

    def take(self, marker: str) -> bool:
        """Return True, and move past a marker, if it is next."""
        is_next = self.text.startswith(marker, self.at)
        self.at += len(marker) if is_next else 0
        return is_next

    def take_until(self, marker: str) -> str | None:
        """Return the text before the next marker, and move past the marker. None: there is no
        further marker, and the place stays.
        """
        end = self.text.find(marker, self.at)
        if end < 0:
            return None
        start, self.at = self.at, end + len(marker)
        return self.text[start:end]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        assert match is not None
        self.at = match.end()


Quotes = tuple[tuple[str, str], ...]
"""Pairs of the text before and after a quoted text; a longer one precedes its beginnings."""
JSON_QUOTES: Quotes = (('"', '"'),)
PYTHON_QUOTES: Quotes = tuple((quote, quote) for quote in ('"""', "'''", '"', "'"))


class QuoteScanner:
    """Decides whether a text that grows ends inside of a quoted text, where markers are text.

    Parameters
    ----------
    quotes
        The texts around a quoted text. Other quotes inside of it are text, and a backslash escapes
        a quote, as in JSON and in Python.
    """

    def __init__(self, quotes: Quotes) -> None:
        self._ends = {begin: _end_pattern(end) for begin, end in quotes}
        self._begins = re.compile("|".join(map(re.escape, self._ends)))
        self._longest = max(len(each) for pair in quotes for each in pair)
        self._open = ""  # the text before the quoted text that is open
        self._at = 0

    def ends_inside(self, text: str) -> bool:
        """Return True if the text ends inside. It continues the text of the call before."""
        while found := self._pattern.search(text, self._at):
            self._at = found.end()
            if not found[0].startswith("\\"):
                self._open = "" if self._open else found[0]
        self._at = max(self._at, len(text) - self._longest)  # the end may begin a quote
        return bool(self._open)

    @property
    def _pattern(self) -> re.Pattern[str]:
        return self._ends[self._open] if self._open else self._begins


def _end_pattern(end: str) -> re.Pattern[str]:
    """Return the pattern of an end, or of an escaped character, which may be a quote."""
    escapes = r"\\.|" if end[0] in "\"'" else ""
    return re.compile(escapes + re.escape(end), re.DOTALL)
