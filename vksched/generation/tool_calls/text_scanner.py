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


class QuoteScanner:
    """Decides whether a text that grows ends inside of a quoted text, where markers are text.

    Parameters
    ----------
    begin, end
        The texts around a quoted text. A backslash escapes a quote of one character, as in JSON.
    """

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._at = 0
        self._is_open = False

    def ends_inside(self, text: str) -> bool:
        """Return True if the text ends inside. It continues the text of the call before."""
        while True:
            marker = self._end if self._is_open else self._begin
            found = text.find(marker, self._at)
            if found < 0:
                return self._is_open
            is_escaped = self._is_open and len(self._end) == 1 and self._is_escaped(text, found)
            self._at = found + len(marker)
            if not is_escaped:
                self._is_open = not self._is_open

    def _is_escaped(self, text: str, place: int) -> bool:
        first = place
        while first > self._at and text[first - 1] == "\\":
            first -= 1
        return (place - first) % 2 == 1
