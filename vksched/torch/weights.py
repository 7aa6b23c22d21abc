"""Weight table: parameters and buffers of PyTorch on the devices of one scheduler.

    parameter --first use--> weight, uploaded once --its version changes--> state, written again

A parameter is found by its storage, so all graphs of a model share its memory on devices. A weight
is constant, which allows kernels that repack it. After the first change it is a state. Each graph
call compares the version counters of its parameters. Changes through `Parameter.data` and numpy
views bypass them, so it compares a sample of the values, too.
Examples: tests/torch_backend/test_torch_models.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..common.dtypes import NDArray
from ..ir.tensor import Tensor, weight
from ..ops.creation.state import state
from ..scheduler.scheduler import Scheduler
from .convert import storage_of, to_array

SAMPLED = 128
"""The number of values of a parameter that each call compares, at equal distances."""
Key = tuple[int, int, tuple[int, ...], tuple[int, ...], Any]
Unused = Callable[[list[Tensor]], None]


def key_of(tensor: Any) -> Key | None:
    """Return the identity of a tensor's memory; None if it has no version counter or no type of
    devices.
    """
    if tensor.is_inference() or storage_of(tensor) is None:
        return None
    storage = tensor.untyped_storage()
    return storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def sample_of(tensor: Any) -> bytes:
    """Return values of a tensor: all of a small one, and SAMPLED or more of a large one."""
    plain = tensor.detach()
    array = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    flat: NDArray = array.ravel(order="K")
    return flat[:: sampling_step(flat.size)].tobytes()


def sampling_step(size: int) -> int:
    """Return the distance between compared values of a parameter with so many."""
    return max(size // SAMPLED, 1)


class ManagedWeight:
    """A parameter on devices.

    Attributes
    ----------
    leaf
        The weight or state that graphs read; it changes once, at the first new version.
    version, sample
        The version of the values on devices, and a sample of them.
    """

    def __init__(self, tensor: Any, name: str, trained: bool, unused: Unused) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.name = name
        self._note(tensor)
        self._unused = unused
        self.leaf = self._state(tensor) if trained else _leaf(weight, tensor, name)

    @property
    def is_state(self) -> bool:
        return self.leaf.op == "state"

    def _state(self, tensor: Any) -> Tensor:
        """Return a state, which is unused after this entry; graphs free weights themselves."""
        leaf = _leaf(state, tensor, self.name)
        weakref.finalize(self, self._unused, [leaf]).atexit = False
        return leaf

    def _note(self, tensor: Any) -> None:
        self.version: int = tensor._version
        self.sample = sample_of(tensor)

    def is_current(self, tensor: Any) -> bool:
        """Return True if the values on devices are those of a tensor, as far as the version and the
        sample show.
        """
        return bool(tensor._version == self.version) and sample_of(tensor) == self.sample

    def become_state(self, tensor: Any) -> None:
        """Replace the weight by a state; graphs that read the weight are compiled again."""
        self._note(tensor)
        self.leaf = self._state(tensor)

    def refresh(self, tensor: Any, scheduler: Scheduler) -> None:
        """Bring the values of a tensor to devices if they have changed."""
        if self.is_current(tensor):
            return
        if not self.is_state:
            self.become_state(tensor)
            return
        self._note(tensor)
        scheduler.write(self.leaf, to_array(tensor))


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
    """The parameters of one scheduler.

    Parameters
    ----------
    unused
        Receives the states of parameters that nothing refers to.
    """

    def __init__(self, scheduler: Scheduler, unused: Unused) -> None:
        self._unused = unused
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
                found = self._held[key] = ManagedWeight(tensor, name, trained, self._unused)
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

    def forget_freed(self) -> None:
        """Forget parameters that no longer exist, unless another thread uses the table."""
        if self._lock.acquire(blocking=False):
            try:
                self._forget_freed()
            finally:
                self._lock.release()

    def _forget_freed(self) -> None:
        freed = [key for key, entry in self._held.items() if entry.storage.expired()]
        for key in freed:
            del self._held[key]
