"""Choices: which variant of a kernel was measured to be the fastest, by call; plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_SHAPE = re.compile(r"\[(\d+(?:,\d+)*)\]", re.ASCII)


class Choices(Mapping[str, str]):
    """Call keys (`variants.call_key`) to names of variants: frozen, hashable, sorted.

    A call that is not among them takes the choice of calls of like sizes, each rounded to a power
    of two, where these agree.
    """

    __slots__ = ("_exact", "_hash", "_like")

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._exact = dict(sorted((items or {}).items()))
        self._hash = hash(tuple(self._exact.items()))
        like: dict[str, set[str]] = {}
        for key, variant in self._exact.items():
            like.setdefault(like_key(key), set()).add(variant)
        self._like = {key: found.pop() for key, found in like.items() if len(found) == 1}

    def __getitem__(self, key: str) -> str:
        return self._exact[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._exact)

    def __len__(self) -> int:
        return len(self._exact)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choices) and self._exact == other._exact

    def __repr__(self) -> str:
        return f"Choices({self._exact!r})"

    def of_like(self, key: str) -> str | None:
        """Returns the choice of calls with like sizes, or None."""
        return self._like.get(like_key(key))


def like_key(key: str) -> str:
    """Returns the key of all calls that differ from one in sizes of the same power of two only."""
    return _SHAPE.sub(lambda found: f"[{','.join(map(_rounded, found[1].split(',')))}]", key)


def _rounded(size: str) -> str:
    number = int(size)
    return str(1 << round(math.log2(number))) if number else "0"
