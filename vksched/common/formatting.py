"""Formatting of numbers with units, and escaping of untrusted text."""

from __future__ import annotations

import re

ROUNDED = 0.9995
"""Fraction of a unit from which three digits round up to 1 of it, not to 1e+03 of the next."""


def format_bytes(count: int) -> str:
    """Format a number of bytes with a suitable unit."""
    if count < 1024:
        return f"{count} B"
    for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if round(count / size, 1) < 1024 or unit == "GiB":
            return f"{count / size:.1f} {unit}"
    raise AssertionError(count)


def format_share(need: int, room: int) -> str:
    """Format required and available bytes in a unit in which they differ."""
    texts = format_bytes(need), format_bytes(room)
    if texts[0] == texts[1] and need != room:
        texts = f"{need}", f"{room} bytes"
    return " of ".join(texts)


def format_seconds(seconds: float) -> str:
    """Format a duration with a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= ROUNDED * size or unit == "us":
            return f"{format_number(seconds / size)} {unit}"
    raise AssertionError(seconds)


def format_moment(seconds: float) -> str:
    """Format a point in time of 0 or more with a suitable unit, down to nanoseconds."""
    if 0 < seconds < ROUNDED * 1e-6:
        return f"{seconds / 1e-9:.3g} ns"
    return format_seconds(seconds) if seconds else "0 s"


def format_joules(joules: float) -> str:
    """Format an energy with a suitable unit."""
    for unit, size in (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6)):
        if joules >= ROUNDED * size or unit == "uJ":
            return f"{format_number(joules / size)} {unit}"
    raise AssertionError(joules)


def format_number(number: float) -> str:
    """Format a number with three digits; larger integers keep all their digits."""
    return f"{number:.0f}" if 999.5 <= number < 1e9 else f"{number:.3g}"


def count_of(count: int, thing: str) -> str:
    """Format a count with its noun, in the plural unless the count is 1."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff\ufff9-\ufffb]"
)
"""Control characters except newline and tab, and characters that change text direction."""
_SPACES = str.maketrans({"\n": "\\u000a", "\t": "\\u0009"})


def printable(text: str, *, one_line: bool = False) -> str:
    """Escape the control characters of an untrusted text.

    Parameters
    ----------
    text
        Any text, e.g. `"a\\x1b[2J"`; the result is `"a\\\\u001b[2J"`.
    one_line
        Escape newlines and tabs too, e.g. in a name.
    """
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.translate(_SPACES) if one_line else text
