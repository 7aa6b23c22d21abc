"""States: values that live on a device from run to run, in memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from ..errors import DeviceLost
from ..types import NDArray, is_uniform

Item = tuple[object, NDArray]
"""A state's key (one of `Graph.keys`) and a value."""


class StateStore(Protocol):
    """The states of one device. Nothing of it may be called while a run that uses them goes on."""

    def holds(self, key: object) -> bool:
        """Returns whether a state is there."""

    def add(self, items: Iterable[Item]) -> None:
        """Makes states resident with the values given.

        Raises:
            OutOfMemory: there is no room; nothing has been added then.
        """

    def read(self, key: object) -> NDArray:
        """Returns a copy of a state's value."""

    def write(self, key: object, array: NDArray) -> None:
        """Gives a state a value."""

    def remove(self, key: object) -> None:
        """Frees a state; one that is not there is ignored."""

    def keys(self) -> tuple[object, ...]:
        """Returns the keys of the states that are there."""


class HostValues(Protocol):
    """What numpy asks of states while it computes."""

    def view(self, key: object) -> NDArray: ...

    def write(self, key: object, array: NDArray) -> None: ...

    def change(self, key: object, write: Callable[[NDArray], None]) -> None: ...


def _own(array: NDArray) -> NDArray:
    """Returns a copy; of zeros one that takes memory as it is written."""
    if is_uniform(array) and not any(array.flat[0].tobytes()):
        return np.zeros(array.shape, array.dtype)
    return np.array(array, order="C")


class HostStates:
    """States as numpy arrays, for the cpu and null devices."""

    def __init__(self) -> None:
        self._arrays: dict[object, NDArray] = {}

    def holds(self, key: object) -> bool:
        return key in self._arrays

    def add(self, items: Iterable[Item]) -> None:
        self._arrays.update({key: _own(array) for key, array in items})

    def read(self, key: object) -> NDArray:
        return np.array(self._arrays[key], copy=True)

    def view(self, key: object) -> NDArray:
        """Returns a state's value without a copy; the next `write` leaves it as it is: results that
        numpy makes as views of it, and what another device is still to get, stay right.
        """
        if key not in self._arrays:
            raise DeviceLost("[state] expected a state, got none: its device failed meanwhile")
        return self._arrays[key]

    def write(self, key: object, array: NDArray) -> None:
        self._arrays[key] = np.array(array, order="C")

    def change(self, key: object, write: Callable[[NDArray], None]) -> None:
        """Changes a state's array where it lies; the plan knows that nothing left is a view of it.
        write: what cannot fail.
        """
        write(self._arrays[key])

    def remove(self, key: object) -> None:
        self._arrays.pop(key, None)

    def keys(self) -> tuple[object, ...]:
        return tuple(self._arrays)
