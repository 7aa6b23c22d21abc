"""Tuned variants: the fastest measured kernel variant of each call, as plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_SHAPE = re.compile(r"\[(\d+(?:,\d+)*)\]", re.ASCII)


class TunedVariants(Mapping[str, str]):
    """A frozen, hashable, sorted mapping from call keys (`variants.call_key`) to names of variants.

    A call that is not in it uses the variant of calls whose sizes round to equal powers of two, if
    these agree. The largest smaller call indicates the variant for a larger one.
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
        return isinstance(other, TunedVariants) and self._exact == other._exact

    def __repr__(self) -> str:
        return f"TunedVariants({self._exact!r})"

    def of_like(self, key: str) -> str | None:
        """Return the variant of calls in the size class of `key`, or None."""
        return self._like.get(size_class_key(key))

    def of_smaller(self, key: str) -> str | None:
        """Return the variant of the largest call that differs only in sizes, none of which is
        larger than that of `key`; None if there is none.
        """
        if self._sizes is None:  # rarely needed
            sizes: dict[str, list[tuple[tuple[int, ...], str]]] = {}
            for each, variant in self._exact.items():
                sizes.setdefault(_SHAPE.sub(_mask_sizes, each), []).append((_sizes(each), variant))
            self._sizes = sizes
        own = _sizes(key)
        smaller = [
            (math.prod(shape), variant)
            for shape, variant in self._sizes.get(_SHAPE.sub(_mask_sizes, key), ())
            if all(a <= b for a, b in zip(shape, own, strict=True))
        ]
        return max(smaller)[1] if smaller else None


def size_class_key(key: str) -> str:
    """Return the key of the size class of a call: sizes round to powers of two."""
    return _SHAPE.sub(lambda found: f"[{','.join(map(_rounded, found[1].split(',')))}]", key)


def _sizes(key: str) -> tuple[int, ...]:
    return tuple(int(size) for found in _SHAPE.findall(key) for size in found.split(","))


def _mask_sizes(found: re.Match[str]) -> str:
    return f"[{found[1].count(',')}]"


def _rounded(size: str) -> str:
    number = int(size)
    return str(1 << round(math.log2(number))) if number else "0"
