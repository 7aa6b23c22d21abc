"""Environment variables: flags, choices, numbers and lists of names."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .errors import VkschedError

_MEANINGS = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}


def is_on(name: str, default: bool = False) -> bool:
    """Return True if a variable is switched on; return the default if it is unset or empty.

    Raises
    ------
    VkschedError
        The value is neither on nor off.
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
    """Return the value of a variable with a fixed set of values; "" if it is unset or empty.

    Raises
    ------
    VkschedError
        The value is not in `known`.
    """
    value = os.environ.get(name, "").strip()
    if value and value not in known:
        raise VkschedError(
            f"[environment] expected {name} to be {' or '.join(known)}, got {value!r}; try "
            f"{name}={known[0]}, or leave it out"
        )
    return value


def number_of(name: str) -> int | None:
    """Return the integer value of a variable; None if it is unset or empty.

    Raises
    ------
    VkschedError
        The value is not an integer of 0 or more.
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
    """Return the names in a comma-separated variable; an empty tuple if it is unset."""
    return tuple(filter(None, (each.strip() for each in os.environ.get(name, "").split(","))))
