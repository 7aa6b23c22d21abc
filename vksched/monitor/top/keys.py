r"""Keys: names of the keys typed in a terminal.

    b"s" -> "sort"        b"\x1b[A" -> "up"        anything else -> "other"

Examples: tests/viz/test_top_state.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

KEYS = {
    b"q": "quit",
    b"Q": "quit",
    b"s": "sort",
    b"p": "pause",
    b" ": "pause",
    b"h": "help",
    b"?": "help",
    b"j": "further",
    b"k": "back",
    b"\r": "solo",
    b"\n": "solo",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
}


def parse(typed: bytes) -> list[str]:
    """Return the names of typed keys; unknown ones are "other"."""
    out: list[str] = []
    while typed:
        size = next((n for n in (3, 1) if typed[:n] in KEYS), 0)
        out.append(KEYS[typed[:size]] if size else "other")
        typed = typed[size or _unknown(typed) :]
    return out


def _unknown(typed: bytes) -> int:
    """Return the length of an unknown key: an escape sequence ends with a letter."""
    if typed[:2] not in (b"\x1b[", b"\x1bO"):
        return 1
    end = next((i for i, c in enumerate(typed[2:], 2) if 0x40 <= c <= 0x7E), len(typed) - 1)
    return end + 1


@contextlib.contextmanager
def single_keys() -> Iterator[int]:
    """Disable line buffering and echo of the terminal; yield its file number."""
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield number
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def typed(number: int) -> bytes | None:
    """Return typed bytes, or None if the terminal is closed."""
    try:
        return os.read(number, 1024) or None
    except OSError:
        return None
