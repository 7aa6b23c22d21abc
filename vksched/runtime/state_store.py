"""State stores: values that stay on a device from run to run, in their own memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from ..common.dtypes import NDArray, is_uniform
from ..common.errors import DeviceLost

Item = tuple[object, NDArray]
"""A state's key (one of `Graph.keys`) and its value."""
_GONE = "[state] expected a state, got none: its device failed meanwhile"


class StateStore(Protocol):
    """The states of one device. No method may be called during a run that uses the states."""

    def holds(self, key: object) -> bool:
        """Return True if the device holds a state."""

    def add(self, items: Iterable[Item]) -> None:
        """Create states with initial values.

        Raises
        ------
        OutOfMemory
            There is not enough memory; no state has been added.
        """

    def read(self, key: object) -> NDArray:
        """Return a copy of a state's value."""

    def write(self, key: object, array: NDArray) -> None:
        """Set a state's value."""

    def remove(self, key: object) -> None:
        """Free a state; an unknown one is ignored."""

    def keys(self) -> tuple[object, ...]:
        """Return the keys of all states."""


class CpuStateAccess(Protocol):
    """The access to states that numpy needs during a split."""

    def view(self, key: object) -> NDArray: ...

    def write(self, key: object, array: NDArray) -> None: ...

    def change(self, keys: Sequence[object], write: Callable[[list[NDArray]], None]) -> None: ...


def _own(array: NDArray) -> NDArray:
    """Return a copy; for zeros, a read-only array without memory of its own."""
    if is_uniform(array) and not any(array.flat[0].tobytes()):
        return np.broadcast_to(np.zeros((), array.dtype), array.shape)
    return np.array(array, order="C")


class CpuStates:
    """States as numpy arrays, for the CPU and simulated devices. Zeros use memory only after the
    first access of a run, page by page.
    """

    def __init__(self) -> None:
        self._arrays: dict[object, NDArray] = {}
        self._lock = threading.Lock()
        """Orders a write of a run and the removal after a fault of another graph: a removed state
        stays removed.
        """

    def holds(self, key: object) -> bool:
        return key in self._arrays

    def add(self, items: Iterable[Item]) -> None:
        self._arrays.update({key: _own(array) for key, array in items})

    def read(self, key: object) -> NDArray:
        return np.array(self._arrays[key], copy=True)

    def view(self, key: object) -> NDArray:
        """Return a state's value without a copy. The next `write` does not change the array: views
        of it in results, and transfers that other devices still need, stay valid.
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
        """Set the next values of existing states, all or none.

        Raises
        ------
        DeviceLost
            A state does not exist.
        """
        values = {key: np.array(array, order="C") for key, array in items}
        with self._lock:
            if not values.keys() <= self._arrays.keys():
                raise DeviceLost(_GONE)
            self._arrays.update(values)

    def change(self, keys: Sequence[object], write: Callable[[list[NDArray]], None]) -> None:
        """Update arrays of states in place; the plan ensures that no live value is a view of them.

        Parameters
        ----------
        write
            Updates the arrays; it must not fail.
        """
        write([self.view(key) for key in keys])

    def remove(self, key: object) -> None:
        with self._lock:
            self._arrays.pop(key, None)

    def keys(self) -> tuple[object, ...]:
        return tuple(self._arrays)
