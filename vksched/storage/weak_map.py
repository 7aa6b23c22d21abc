"""Weak maps: values for objects as long as these live, keyed by identity.

Arrays are not hashable, and arrays of a graph are immutable, so a value that depends on their
content stays valid. Examples: tests/storage/test_lazy_array.py.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class WeakIdMap(Generic[Value]):
    """A thread-safe map from objects, by identity, to values. An entry ends with its object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def set(self, of: object, about: Value) -> None:
        """Set the value of an object."""
        key = id(of)

        def gone(ref: weakref.ref[Any]) -> None:
            found = self._known.get(key)
            if found is not None and found[0] is ref:
                self._known.pop(key, None)

        self._known[key] = weakref.ref(of, gone), about

    def get(self, of: object) -> Value | None:
        """Return the value of an object, or None."""
        found = self._known.get(id(of))
        return found[1] if found is not None and found[0]() is of else None
