"""Late: an array that is made when it is needed, of what takes no memory of its own.

    blocks of a mapped file --into--> memory of a device
                            '-take--> an array, as long as somebody has it

Weights are such arrays where a device holds them in another form than their file: the host keeps
none that is not in use. Examples: tests/ops/test_late.py.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ...types import NDArray, Shape

Make = Callable[[int, NDArray], None]
"""(first row, (rows, words)) -> None, which writes so many rows."""


class Late:
    """An array of uint32 with two axes or more. make: writes rows of it; to any memory, by any
    threads, and the same ones each time.
    """

    dtype = np.dtype(np.uint32)

    def __init__(self, shape: Shape, make: Make) -> None:
        self.shape = shape
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize
        self._make = make
        self._made: Callable[[], NDArray | None] = lambda: None
        self._making = threading.Lock()

    def take(self) -> NDArray:
        """Returns all of it, read-only: the array that is there, as long as somebody has it."""
        with self._making:
            made = self._made()
            if made is None:
                made = np.empty(self.shape, self.dtype)
                self.into(made.reshape(-1))
                made.flags.writeable = False
                self._made = weakref.ref(made)
            return made

    def into(self, out: NDArray, start: int = 0) -> None:
        """Writes elements from `start` on, as many as `out` has, which is flat and has no gaps."""
        row = self.shape[-1]
        while out.size:
            first, skipped = divmod(start, row)
            if skipped or out.size < row:
                whole = np.empty((1, row), self.dtype)
                self._make(first, whole)
                count = min(row - skipped, out.size)
                out[:count] = whole[0, skipped : skipped + count]
            else:
                rows = out.size // row
                count = rows * row
                self._make(first, out[:count].reshape(rows, row))
            out, start = out[count:], start + count

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray:
        made = self.take()
        if dtype is not None and np.dtype(dtype) != self.dtype:  # type: ignore[call-overload]
            return made.astype(dtype)  # type: ignore[call-overload, no-any-return]
        return made.copy() if copy else made


Held: TypeAlias = NDArray | Late
"""What a leaf of a graph holds."""


def as_array(held: Held) -> NDArray:
    """Returns what a leaf holds as an array."""
    return held.take() if isinstance(held, Late) else held
