"""Terminal: the way out of commands, on which no text of a file or a node gives orders.

    click.echo, print, warnings, tracebacks --> PrintableStream --> stdout, stderr
    tables and bars of console.py -----------------------------------^

A name in a file may hold what moves the cursor, sets the window's title, or turns letters around.
Such characters are written as escapes, `\\u001b`, so that a person sees them, and JSON stays JSON.
Newlines and tabs pass. Examples: tests/cli/test_cli_printable.py.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from .formatting import printable


class PrintableStream:
    """A stream of text that writes control characters as escapes.

    Parameters
    ----------
    stream
        Where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream behind this one, and behind those in which bars of rich wrap it."""
        return raw_stream(self._stream)

    def write(self, text: str) -> int:
        """Write a text with its control characters as escapes."""
        self._stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):  # ways past this stream
            raise AttributeError(name)
        return getattr(self._stream, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream behind all that make it printable."""
    while (behind := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = behind
    return stream


def guard_streams() -> None:
    """Make stdout and stderr printable, if they are not."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, PrintableStream):
            continue
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # Pipes on Windows take the characters of one code page: others are written as escapes.
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, cast(TextIO, PrintableStream(stream)))


@contextmanager
def printable_streams() -> Iterator[None]:
    """Make stdout and stderr printable while a command runs."""
    before = sys.stdout, sys.stderr
    guard_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
