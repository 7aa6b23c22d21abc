"""Frozen, hashable attributes of nodes.

Large graphs have few distinct attribute sets, which are often compared and hashed. Equal attributes
are interned as one object: comparison and hashing are O(1). Examples: tests/ir/test_attrs.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Union, cast

import numpy as np

from ..common.errors import ShapeError
from ..common.fork_guard import in_child

AttrValue = Union[None, bool, int, float, str, tuple["AttrValue", ...]]  # noqa: UP007
_INTS = {int}
_PLAIN = {type(None), bool, int, float, str}


class Attrs(Mapping[str, AttrValue]):
    """Frozen, hashable mapping of attributes, sorted by name.

    Two mappings are equal if their text is equal, and are then one object. Thus 0.0 and -0.0, or 1
    and True, differ.

    Raises
    ------
    ShapeError
        A name is not an identifier, or a value is not a number, a name or a tuple of them.
    """

    __slots__ = ("__weakref__", "_items", "_text")
    _items: tuple[tuple[str, AttrValue], ...]
    _text: str

    def __new__(cls, items: Mapping[str, AttrValue] | None = None) -> Attrs:
        plain = [(name, _plain(value)) for name, value in items.items()] if items else []
        plain.sort()
        if not all(name.isidentifier() for name, _ in plain):
            # reject `a=1, b`, which reads like two attributes
            names = str([name[:80] for name, _ in plain if not name.isidentifier()])
            raise ShapeError(f"[attrs] expected names of attributes, got {names[:200]}")
        text = ", ".join([f"{name}={value!r}" for name, value in plain])
        with _making:
            known = _known.get(text)
            if known is not None:
                return known
            attrs = super().__new__(cls)
            attrs._items, attrs._text = tuple(plain), text
            return _known.setdefault(text, attrs)

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __getitem__(self, key: str) -> AttrValue:
        for name, value in self._items:
            if name == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> tuple[type[Attrs], tuple[dict[str, AttrValue]]]:
        return Attrs, (dict(self._items),)

    def __repr__(self) -> str:
        return self._text

    def as_int(self, key: str) -> int:
        value = self[key]
        if not isinstance(value, int):
            raise _refused(key, "an integer", value)
        return int(value)

    def as_float(self, key: str) -> float:
        value = self[key]
        if not isinstance(value, (int, float)):
            raise _refused(key, "a number", value)
        return float(value)

    def as_bool(self, key: str) -> bool:
        return bool(self[key])

    def as_str(self, key: str) -> str:
        value = self[key]
        if not isinstance(value, str):
            raise _refused(key, "a name", value)
        return value

    def as_tuple(self, key: str) -> tuple[AttrValue, ...]:
        value = self[key]
        if not isinstance(value, tuple):
            raise _refused(key, "a tuple", value)
        return value

    def as_ints(self, key: str) -> tuple[int, ...]:
        value = self[key]
        if isinstance(value, tuple) and set(map(type, value)) <= _INTS:
            return cast(tuple[int, ...], value)  # no copy: called in each run
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise _refused(key, "integers", value)
        return tuple(int(v) for v in value if isinstance(v, int))


def _refused(key: str, expected: str, value: AttrValue) -> ShapeError:
    return ShapeError(f"[attrs] expected {expected} as {key}, got {value!r}")


_known: weakref.WeakValueDictionary[str, Attrs] = weakref.WeakValueDictionary()
"""Interned attributes by their text."""
_making = threading.RLock()


@in_child
def _after_fork() -> None:
    global _making
    _making = threading.RLock()


def _plain(value: object) -> AttrValue:
    """Convert numpy scalars in a value to Python scalars."""
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
