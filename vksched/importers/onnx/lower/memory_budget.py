"""Budget: what all values take that are made on the host while a model is lowered.

A few bytes of a file may ask for far more: a chain of Tile doubles its result at each node. What a
file describes by less counts here, as long as it is held. Where the budget is spent, nodes stay in
the graph and are computed in each run, but for those whose results are small: shapes depend on
these. Views of what the file holds cost nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable

import numpy as np

from ....common.dtypes import NDArray
from ....common.user_warning import warn
from ..nodes.limits import MADE, made_limit

SMALL_BYTES = 1024
"""Results up to this size are made whatever is left."""


class Budget:
    """file_bytes: of the model with its external data. used_bytes: what reading it has made."""

    def __init__(self, file_bytes: int, used_bytes: int = 0) -> None:
        self._most_bytes = made_limit(file_bytes)
        self._file_bytes, self._used_bytes = file_bytes, used_bytes
        self._held: set[int] = set()
        """Arrays that count, or are the file's, by their identity."""
        self._has_warned = False

    def leave_out(self, arrays: Iterable[NDArray]) -> None:
        """Notes arrays of the file, which live as long as this and cost nothing."""
        self._held.update(id(_owner(each)) for each in arrays)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a result of so many bytes may be made; the first that may not is told."""
        if size_bytes <= SMALL_BYTES or self._used_bytes + size_bytes <= self._most_bytes:
            return True
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"[onnx] values that are the same in every run take {self._most_bytes >> 20} MiB, "
                f"all that is made before of a file of {self._file_bytes} bytes; the others are "
                f"computed in each run; try {MADE}={self._most_bytes >> 19}"
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
    """Return the array whose memory one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def bytes_of(array: NDArray) -> int:
    """Returns what an array takes, and the texts in it."""
    if array.dtype != object:
        return array.nbytes
    return array.nbytes + sum(map(sys.getsizeof, array.flat))
