"""Weight table: parameters and buffers of PyTorch on the devices of one scheduler.

    parameter --first use--> weight, uploaded once --its version changes--> state, written again

A parameter is found by its storage, so all graphs of a model share its memory on devices. A weight
is constant, which allows kernels that repack it. After the first change it is a state. Each graph
call compares the version counters of its parameters; `Parameter.data` and numpy views bypass them.
Examples: tests/torch_backend/test_torch_models.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.multiprocessing.reductions import StorageWeakRef

from ..ir.tensor import Tensor, weight
from ..ops.creation.state import state
from ..scheduler.scheduler import Scheduler
from .convert import storage_of, to_array

Key = tuple[int, int, tuple[int, ...], tuple[int, ...], Any]


def key_of(tensor: Any) -> Key | None:
    """Return the identity of a tensor's memory; None if it has no version counter or no type of
    devices.
    """
    if tensor.is_inference() or storage_of(tensor) is None:
        return None
    storage = tensor.untyped_storage()
    return storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


class ManagedWeight:
    """A parameter on devices.

    Attributes
    ----------
    leaf
        The weight or state that graphs read; it changes once, at the first new version.
    version
        The version of the values on devices.
    """

    def __init__(self, tensor: Any, name: str, trained: bool) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.name = name
        self.version: int = tensor._version
        self.leaf = _leaf(state if trained else weight, tensor, name)

    @property
    def is_state(self) -> bool:
        return self.leaf.op == "state"

    def become_state(self, tensor: Any) -> None:
        """Replace the weight by a state; graphs that read the weight are compiled again."""
        self.version = tensor._version
        self.leaf = _leaf(state, tensor, self.name)

    def refresh(self, tensor: Any, scheduler: Scheduler) -> None:
        """Bring the values of a tensor to devices if its version has changed."""
        if tensor._version == self.version:
            return
        if not self.is_state:
            self.become_state(tensor)
            return
        version = tensor._version
        scheduler.write(self.leaf, to_array(tensor))
        self.version = version


def _leaf(create: Callable[..., Tensor], tensor: Any, name: str) -> Tensor:
    """Return a leaf with a copy of a tensor. Its name need not be unique in a graph: a parameter
    has the name of the first graph that uses it.
    """
    array = np.array(to_array(tensor), order="C", copy=True)
    array.flags.writeable = False
    leaf = create(array)
    leaf.name = name
    return leaf


class WeightTable:
    """The parameters of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = weakref.ref(scheduler)
        self._lock = threading.RLock()
        self._held: dict[Key, ManagedWeight] = {}

    def acquire(self, key: Key, tensor: Any, name: str, trained: bool) -> ManagedWeight:
        """Return the entry of a parameter with its current values.

        Parameters
        ----------
        trained
            The graph has gradients: the parameter will change.
        """
        with self._lock:
            found = self._held.get(key)
            if found is None:
                self._forget_freed()
                found = self._held[key] = ManagedWeight(tensor, name, trained)
            elif trained and not found.is_state:
                found.become_state(tensor)
            self.refresh(found, tensor)
            return found

    def refresh(self, entry: ManagedWeight, tensor: Any) -> None:
        """Bring new values of a parameter to devices."""
        scheduler = self._scheduler()
        assert scheduler is not None, "the caller's runtime refers to it"
        with self._lock:
            entry.refresh(tensor, scheduler)

    def _forget_freed(self) -> None:
        freed = [key for key, entry in self._held.items() if entry.storage.expired()]
        for key in freed:
            del self._held[key]
