r"""Bounds of JSON by its number of values: a parser holds the interpreter's lock for all of them.

    {"prompt": [1, 2, 3], "stop": ["a, b"]}     3 commas, 3 brackets and 2 colons outside of strings
                                     ^ not counted

Eight mebibytes of text are parsed in 20 ms, but of empty lists or of short keys in a second. The
values of a large body are counted first, by numpy, mostly without the lock.
"""

from __future__ import annotations

import numpy as np

from .api_error import ApiError

SMALL_BYTES = 64 << 10
"""The size of bodies that are not counted."""
MAX_VALUES = 500_000
"""The maximum number of values: token ids take 0.1 us each."""
MAX_CONTAINERS = 100_000
"""The maximum number of lists and objects, which take 1 us each."""
MAX_MEMBERS = 300_000
"""The maximum number of members of objects, which take 0.7 us each: the largest vocabularies have
262,144 tokens, each of which may be in `logit_bias`.
"""
_LIMITS = (
    (MAX_VALUES, "values, as token ids of a prompt", (b",",)),
    (MAX_CONTAINERS, "lists and objects, as messages", (b"[", b"{")),
    (MAX_MEMBERS, "members of objects, as tokens of logit_bias", (b":",)),
)
"""Maximum count, the counted values with an example, and the characters of one."""
_QUOTE, _BACKSLASH = b'"\\'


def check_json_size(data: bytes | bytearray) -> None:
    """Raise ApiError if JSON has too many values."""
    if len(data) <= SMALL_BYTES or not _excess(data):
        return
    excess = _excess(_without_strings(data))
    if excess:
        raise ApiError(f"[serve] expected a body of {excess}")


def _excess(data: bytes | bytearray) -> str:
    """Return the first limit that JSON exceeds, and its number; "" if there is none."""
    for most, of, marks in _LIMITS:
        count = sum(map(data.count, marks))
        if count > most:
            return f"at most {most} {of}, got {count}"
    return ""


def _without_strings(data: bytes | bytearray) -> bytes:
    """Return JSON without the contents of its strings."""
    found = np.frombuffer(data, np.uint8)
    quotes = found == _QUOTE
    slashes = np.flatnonzero(found == _BACKSLASH)
    if slashes.size:
        is_first = np.diff(slashes, prepend=-2) > 1  # of a run of backslashes
        firsts = slashes[is_first]
        counts = np.diff(np.flatnonzero(is_first), append=slashes.size)
        behind = (firsts + counts)[counts % 2 == 1]  # an odd number of them escapes a quote
        quotes[behind[behind < found.size]] = False
    return found[~np.logical_xor.accumulate(quotes)].tobytes()
