"""Terminal output of commands, with control characters of untrusted text escaped.

    click.echo, print, warnings, tracebacks --> PrintableStream --> stdout, stderr
    tables and bars of console.py -----------------------------------^

A name in a file may contain characters that move the cursor, set the window's title, or change the
text direction. They are written as escapes, `\\u001b`, which are visible and valid in JSON.
Newlines and tabs are unchanged. Examples: tests/cli/test_cli_printable.py.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from .formatting import printable


class PrintableStream:
    """Text stream that escapes control characters.

    Parameters
    ----------
    stream
        The underlying stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> TextIO:
        """Return the underlying stream, also through the wrappers of rich's progress bars."""
        return raw_stream(self._stream)

    def write(self, text: str) -> int:
        """Write a text with its control characters escaped."""
        self._stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):  # would bypass the escapes
            raise AttributeError(name)
        return getattr(self._stream, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the underlying stream without its escaping wrappers."""
    while (behind := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = behind
    return stream


def guard_streams() -> None:
    """Wrap stdout and stderr in streams that escape control characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, PrintableStream):
            continue
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # Pipes on Windows accept one code page only: write other characters as escapes.
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, cast(TextIO, PrintableStream(stream)))


@contextmanager
def printable_streams() -> Iterator[None]:
    """Return a context manager that escapes control characters of stdout and stderr."""
    before = sys.stdout, sys.stderr
    guard_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
