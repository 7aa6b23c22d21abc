"""States: values that live on a device from run to run, in memory of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from ..common.dtypes import NDArray, is_uniform
from ..common.errors import DeviceLost

Item = tuple[object, NDArray]
"""A state's key (one of `Graph.keys`) and a value."""
_GONE = "[state] expected a state, got none: its device failed meanwhile"


class StateStore(Protocol):
    """The states of one device. Nothing of it may be called while a run that uses them goes on."""

    def holds(self, key: object) -> bool:
        """Return whether a state is there."""

    def add(self, items: Iterable[Item]) -> None:
        """Make states resident with the values given.

        Raises:
            OutOfMemory: there is no room; nothing has been added then.
        """

    def read(self, key: object) -> NDArray:
        """Return a copy of a state's value."""

    def write(self, key: object, array: NDArray) -> None:
        """Give a state a value."""

    def remove(self, key: object) -> None:
        """Free a state; one that is not there is ignored."""

    def keys(self) -> tuple[object, ...]:
        """Return the keys of the states that are there."""


class CpuValues(Protocol):
    """What numpy asks of states while it computes."""

    def view(self, key: object) -> NDArray: ...

    def write(self, key: object, array: NDArray) -> None: ...

    def change(self, keys: Sequence[object], write: Callable[[list[NDArray]], None]) -> None: ...


def _own(array: NDArray) -> NDArray:
    """Return a copy; of zeros one that takes no memory and cannot be written."""
    if is_uniform(array) and not any(array.flat[0].tobytes()):
        return np.broadcast_to(np.zeros((), array.dtype), array.shape)
    return np.array(array, order="C")


class CpuStates:
    """States as numpy arrays, for the cpu and null devices. Zeros take memory once a run uses them,
    and then as they are written.
    """

    def __init__(self) -> None:
        self._arrays: dict[object, NDArray] = {}
        self._lock = threading.Lock()
        """Between a write of a run and the removal by another graph's fault: removed stays so."""

    def holds(self, key: object) -> bool:
        return key in self._arrays

    def add(self, items: Iterable[Item]) -> None:
        self._arrays.update({key: _own(array) for key, array in items})

    def read(self, key: object) -> NDArray:
        return np.array(self._arrays[key], copy=True)

    def view(self, key: object) -> NDArray:
        """Return a state's value without a copy; the next `write` leaves it as it is: results that
        numpy makes as views of it, and what another device is still to get, stay right.
        """
        array = self._arrays.get(key)
        if array is None:
            raise DeviceLost(_GONE)
        return array if array.flags.writeable else self._zeros(key)

    def _zeros(self, key: object) -> NDArray:
        with self._lock:
            array = self._arrays.get(key)
            if array is None:
                raise DeviceLost(_GONE)
            if not array.flags.writeable:
                array = self._arrays[key] = np.zeros(array.shape, array.dtype)
            return array

    def write(self, key: object, array: NDArray) -> None:
        self.replace([(key, array)])

    def replace(self, items: Iterable[Item]) -> None:
        """Give states that are there their next values, all or none.

        Raises:
            DeviceLost: one is not there.
        """
        values = {key: np.array(array, order="C") for key, array in items}
        with self._lock:
            if not values.keys() <= self._arrays.keys():
                raise DeviceLost(_GONE)
            self._arrays.update(values)

    def change(self, keys: Sequence[object], write: Callable[[list[NDArray]], None]) -> None:
        """Changes arrays of states where they lie; the plan knows that nothing left is a view of
        them. write: what cannot fail.
        """
        write([self.view(key) for key in keys])

    def remove(self, key: object) -> None:
        with self._lock:
            self._arrays.pop(key, None)

    def keys(self) -> tuple[object, ...]:
        return tuple(self._arrays)
