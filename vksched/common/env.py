"""Switches of the environment: what is on and what is off, words, and lists of names."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .errors import VkschedError

_MEANINGS = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}


def is_on(name: str, default: bool = False) -> bool:
    """Return whether a variable is on; the default where it is not set, or empty.

    Raises:
        VkschedError: its value means neither.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if value.lower() not in _MEANINGS:
        raise VkschedError(
            f"[environment] expected {name} to be 1 or 0, got {value!r}; try one of "
            f"{', '.join(_words(True))} to switch it on, one of {', '.join(_words(False))} to "
            "switch it off, or leave it out"
        )
    return _MEANINGS[value.lower()]


def _words(meaning: bool) -> list[str]:
    return [word for word, means in _MEANINGS.items() if means is meaning]


def word_of(name: str, known: Sequence[str]) -> str:
    """Return the word that a variable is set to; "" where it is not set, or empty.

    Raises:
        VkschedError: it is none of the known words.
    """
    value = os.environ.get(name, "").strip()
    if value and value not in known:
        raise VkschedError(
            f"[environment] expected {name} to be {' or '.join(known)}, got {value!r}; try "
            f"{name}={known[0]}, or leave it out"
        )
    return value


def number_of(name: str) -> int | None:
    """Return the whole number that a variable is set to; None where it is not set, or empty.

    Raises:
        VkschedError: it is no whole number of 0 or more.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise VkschedError(
            f"[environment] expected {name} to be a whole number, got {value[:40]!r}; try "
            f"{name}=1024, or leave it out"
        )
    return int(value)


def names_in(name: str) -> tuple[str, ...]:
    """Return the names that a variable lists, with commas between; none where it is not set."""
    return tuple(filter(None, (each.strip() for each in os.environ.get(name, "").split(","))))
