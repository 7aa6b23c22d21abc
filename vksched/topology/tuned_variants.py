"""Choices: which variant of a kernel was measured to be the fastest, by call; plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_SHAPE = re.compile(r"\[(\d+(?:,\d+)*)\]", re.ASCII)


class Choices(Mapping[str, str]):
    """Call keys (`variants.call_key`) to names of variants: frozen, hashable, sorted.

    A call that is not among them takes the choice of calls of like sizes, each rounded to a power
    of two, where these agree. The largest of the smaller calls tells what pays for a larger one.
    """

    __slots__ = ("_exact", "_hash", "_like", "_sizes")

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._exact = dict(sorted((items or {}).items()))
        self._hash = hash(tuple(self._exact.items()))
        like: dict[str, set[str]] = {}
        for key, variant in self._exact.items():
            like.setdefault(size_class_key(key), set()).add(variant)
        self._like = {key: found.pop() for key, found in like.items() if len(found) == 1}
        self._sizes: dict[str, list[tuple[tuple[int, ...], str]]] | None = None

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
        """Return the choice of calls with like sizes, or None."""
        return self._like.get(size_class_key(key))

    def of_smaller(self, key: str) -> str | None:
        """Return the choice of the largest call that differs in sizes only, none of which is
        larger; or None.
        """
        if self._sizes is None:  # few ask
            sizes: dict[str, list[tuple[tuple[int, ...], str]]] = {}
            for each, variant in self._exact.items():
                sizes.setdefault(_SHAPE.sub(_rank, each), []).append((_sizes(each), variant))
            self._sizes = sizes
        own = _sizes(key)
        smaller = [
            (math.prod(given), variant)
            for given, variant in self._sizes.get(_SHAPE.sub(_rank, key), ())
            if all(a <= b for a, b in zip(given, own, strict=True))
        ]
        return max(smaller)[1] if smaller else None


def size_class_key(key: str) -> str:
    """Return the key of all calls that differ from one in sizes of the same power of two only."""
    return _SHAPE.sub(lambda found: f"[{','.join(map(_rounded, found[1].split(',')))}]", key)


def _sizes(key: str) -> tuple[int, ...]:
    return tuple(int(size) for found in _SHAPE.findall(key) for size in found.split(","))


def _rank(found: re.Match[str]) -> str:
    return f"[{found[1].count(',')}]"


def _rounded(size: str) -> str:
    number = int(size)
    return str(1 << round(math.log2(number))) if number else "0"
