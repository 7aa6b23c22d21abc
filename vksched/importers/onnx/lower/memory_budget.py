"""Budget: memory of all values that are computed on the CPU during lowering.

A few bytes of a file can request far more memory: a chain of Tile doubles its result at each node.
Values that are larger than their description in the file count here while they are alive. If the
budget is spent, nodes stay in the graph and are computed in each run, except for small results, on
which shapes may depend. Views of arrays of the file are free.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable

import numpy as np

from ....common.dtypes import NDArray
from ....common.user_warning import warn
from ..nodes.limits import FOLD_LIMIT, materialized_limit

SMALL_BYTES = 1024
"""Results up to this size are always computed."""


class Budget:
    """Memory budget of one model.

    Parameters
    ----------
    file_bytes
        Size of the model with its external data.
    used_bytes
        Memory used while the file was read.
    """

    def __init__(self, file_bytes: int, used_bytes: int = 0) -> None:
        self._max_bytes = materialized_limit(file_bytes)
        self._file_bytes, self._used_bytes = file_bytes, used_bytes
        self._held: set[int] = set()
        """Arrays that count, or belong to the file, by their identity."""
        self._has_warned = False

    def leave_out(self, arrays: Iterable[NDArray]) -> None:
        """Register arrays of the file, which live as long as the budget and are free."""
        self._held.update(id(_owner(each)) for each in arrays)

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a result of this size may be computed; warn at the first one that may
        not.
        """
        if size_bytes <= SMALL_BYTES or self._used_bytes + size_bytes <= self._max_bytes:
            return True
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"[onnx] folded constants use {self._max_bytes >> 20} MiB, the limit for a file "
                f"of {self._file_bytes} bytes; further ones are computed in each run; try "
                f"{FOLD_LIMIT}={self._max_bytes >> 19}"
            )
        return False

    def hold(self, array: NDArray) -> None:
        """Count the memory of an array until it is freed."""
        owner = _owner(array)
        size_bytes = bytes_of(owner)
        if size_bytes <= SMALL_BYTES or id(owner) in self._held:
            return
        self._held.add(id(owner))
        self._used_bytes += size_bytes
        weakref.finalize(owner, self._free, id(owner), size_bytes).atexit = False

    def _free(self, owner: int, size_bytes: int) -> None:
        self._held.discard(owner)
        self._used_bytes -= size_bytes


def _owner(array: NDArray) -> NDArray:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def bytes_of(array: NDArray) -> int:
    """Return the size of an array in bytes, including its strings."""
    if array.dtype != object:
        return array.nbytes
    return array.nbytes + sum(map(sys.getsizeof, array.flat))
