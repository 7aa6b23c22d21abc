"""Attrs: the attributes of a node, frozen and hashable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Union, cast

import numpy as np

from ...errors import ShapeError

AttrValue = Union[None, bool, int, float, str, tuple["AttrValue", ...]]  # noqa: UP007
_INTS = {int}
_PLAIN = {type(None), bool, int, float, str}


class Attrs(Mapping[str, AttrValue]):
    """The attributes of a node: a frozen, hashable, sorted mapping.

    Equal are those that are written alike: 0.0 and -0.0, or 1 and True, are not.
    """

    __slots__ = ("_hash", "_items", "_text")

    def __init__(self, items: Mapping[str, AttrValue] | None = None) -> None:
        plain = {name: _plain(value) for name, value in (items or {}).items()}
        self._items: tuple[tuple[str, AttrValue], ...] = tuple(sorted(plain.items()))
        self._text = ""
        self._hash: int | None = None

    def __getitem__(self, key: str) -> AttrValue:
        for name, value in self._items:
            if name == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(repr(self))
        return self._hash

    def __reduce__(self) -> tuple[type[Attrs], tuple[dict[str, AttrValue]]]:
        return Attrs, (dict(self._items),)  # text has another hash in another process

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Attrs) and (self._text or repr(self)) == (
            other._text or repr(other)
        )

    def __repr__(self) -> str:
        if not self._text:
            self._text = ", ".join(f"{name}={value!r}" for name, value in self._items)
        return self._text

    def as_int(self, key: str) -> int:
        value = self[key]
        assert isinstance(value, int), key
        return int(value)

    def as_float(self, key: str) -> float:
        value = self[key]
        assert isinstance(value, (int, float)), key
        return float(value)

    def as_bool(self, key: str) -> bool:
        return bool(self[key])

    def as_str(self, key: str) -> str:
        value = self[key]
        assert isinstance(value, str), key
        return value

    def as_ints(self, key: str) -> tuple[int, ...]:
        value = self[key]
        if isinstance(value, tuple) and set(map(type, value)) <= _INTS:
            return cast(tuple[int, ...], value)  # as it is: this is asked in each run
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise ShapeError(f"expected integers as {key}, got {value!r}")
        return tuple(int(v) for v in value if isinstance(v, int))


def _plain(value: object) -> AttrValue:
    """Returns a value with numpy's scalars as Python's."""
    if type(value) in _PLAIN:
        return cast(AttrValue, value)
    if isinstance(value, tuple):
        if type(value) is tuple and set(map(type, value)) <= _PLAIN:
            return value
        return tuple(_plain(v) for v in value)
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    raise ShapeError(f"expected a number, a name or a tuple of them, got {value!r}")
