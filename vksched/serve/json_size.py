r"""Bounds of JSON by its number of values: a parser holds the interpreter's lock for all of them.

    {"prompt": [1, 2, 3], "stop": ["a, b"]}     4 commas, 4 brackets and colons outside of strings
              ^ ^  ^                ^ not counted

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
"""The maximum number of lists, objects and members of objects, which take 1 us each."""
_QUOTE, _BACKSLASH = b'"\\'


def check_json_size(data: bytes | bytearray) -> None:
    """Raise ApiError if JSON has too many values."""
    if len(data) <= SMALL_BYTES or not _exceeds(data.count(b","), _containers(data)):
        return
    bare = _without_strings(data)
    values, containers = bare.count(b","), _containers(bare)
    if _exceeds(values, containers):
        raise ApiError(
            f"[serve] expected a body of at most {MAX_VALUES} values, and {MAX_CONTAINERS} lists, "
            f"objects and members, got {values} values and {containers} of these"
        )


def _exceeds(values: int, containers: int) -> bool:
    return values > MAX_VALUES or containers > MAX_CONTAINERS


def _containers(data: bytes | bytearray) -> int:
    return sum(map(data.count, (b"[", b"{", b":")))


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
