"""Weak maps: what is known of an object, as long as it lives, by what it is and not by what it
holds.

Arrays have no hash, and nobody may write to one of a graph, so a note about its bytes stays true.
Examples: tests/storage/test_lazy_array.py.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class WeakIdMap(Generic[Value]):
    """One note for each object. May be used from any number of threads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def set(self, of: object, about: Value) -> None:
        """Notes something of an object, in place of what was noted before."""
        key = id(of)

        def gone(ref: weakref.ref[Any]) -> None:
            found = self._known.get(key)
            if found is not None and found[0] is ref:
                self._known.pop(key, None)

        self._known[key] = weakref.ref(of, gone), about

    def get(self, of: object) -> Value | None:
        """Returns what was noted of an object."""
        found = self._known.get(id(of))
        return found[1] if found is not None and found[0]() is of else None
