"""Numbers with their units, as people read them."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Returns a number of bytes in the unit that suits it."""
    if count < 1024:
        return f"{count} B"
    for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if count < size * 1024 or unit == "GiB":
            return f"{count / size:.1f} {unit}"
    raise AssertionError(count)


def format_share(need: int, room: int) -> str:
    """Returns bytes that are needed of those there are, in a unit in which they differ."""
    texts = format_bytes(need), format_bytes(room)
    if texts[0] == texts[1] and need != room:
        texts = f"{need}", f"{room} bytes"
    return " of ".join(texts)


def format_seconds(seconds: float) -> str:
    """Returns a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError(seconds)


def format_moment(seconds: float) -> str:
    """Returns a point of time, 0 or more, in the unit that suits it: nanoseconds too."""
    if 0 < seconds < 1e-6:
        return f"{seconds / 1e-9:.3g} ns"
    return format_seconds(seconds) if seconds else "0 s"


def format_joules(joules: float) -> str:
    """Returns an energy in the unit that suits it."""
    for unit, size in (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6)):
        if joules >= size or unit == "uJ":
            return f"{joules / size:.3g} {unit}"
    raise AssertionError(joules)


def count_of(count: int, thing: str) -> str:
    """Returns a number with its noun, in the plural where it is not one."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
