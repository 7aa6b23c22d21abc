"""Lazy arrays: arrays that are computed from file contents when they are needed.

    blocks of a file --write_to--> memory of a device
                     '-materialize--> an array, as long as it is referenced

Weights are lazy arrays if a device needs another layout than their file has, or if the file may
change. The host holds only the arrays that are in use. Examples: tests/storage/test_lazy_array.py.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..common.dtypes import NDArray, Shape
from ..common.fork_guard import in_child
from .weak_map import WeakIdMap

Make = Callable[[int, NDArray], None]
"""(first row, out of shape (rows, words)) -> None: write rows of the array from the first
row on.
"""


def _no_array() -> NDArray | None:
    return None


def _no_origin() -> Origin | None:
    return None


L = TypeVar("L", bound="LazyArray")


class LazyArray:
    """An array of a 32-bit type with at least two axes, computed on demand.

    Parameters
    ----------
    make
        Writes rows into any buffer; it is thread-safe and deterministic.
    resident
        Returns the whole array if it is in memory already, else None.
    origin
        Returns the bytes of a file that the array is computed from.
    """

    def __init__(
        self,
        shape: Shape,
        make: Make,
        dtype: Any = np.uint32,
        resident: Callable[[], NDArray | None] = _no_array,
        origin: Callable[[], Origin | None] = _no_origin,
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize
        self._make = make
        self._resident = resident
        self.origin = origin
        self._buffer = self._materialized = _no_array
        self._help: Callable[[], object] = _no_array
        self._making = threading.Lock()
        _LAZY_ARRAYS.add(self)

    def materialize(self) -> NDArray:
        """Return the whole array, read-only. It is computed once as long as a reference to it
        exists.
        """
        self._help()
        with self._making:
            resident = self._resident()
            if resident is not None:
                return resident
            array = self._materialized()
            if array is None:
                array = self.buffer()
                self.write_to(array.reshape(-1))
                self._fill(array)
            return array

    def buffer(self, offered: NDArray | None = None) -> NDArray:
        """Return the array that `materialize` returns; it may not be filled yet.

        Parameters
        ----------
        offered
            The array to use if none exists.
        """
        resident = self._resident()
        if resident is not None:
            return resident
        with _ALLOCATING:
            buffer = self._buffer()
            if buffer is None:
                buffer = np.empty(self.shape, self.dtype) if offered is None else offered
                self._buffer = weakref.ref(buffer)
            return buffer

    def begin(self, help: Callable[[], object]) -> bool:
        """Return True if the caller is to fill the buffer and to call `end`: no other thread fills
        it or has filled it.

        Parameters
        ----------
        help
            A function that a thread calls to speed up the fill while it waits.
        """
        if not self._making.acquire(blocking=False):
            return False
        if self._materialized() is None:
            self._help = help
            return True
        self._making.release()
        return False

    def end(self, filled: bool) -> None:
        """Finish the fill that `begin` started.

        Parameters
        ----------
        filled
            True if the fill is complete.
        """
        buffer = self._buffer()
        if filled and buffer is not None:
            self._fill(buffer)
        self._help = _no_array
        self._making.release()

    def _fill(self, buffer: NDArray) -> None:
        buffer.flags.writeable = False
        self._materialized = self._buffer

    def write_to(self, out: NDArray, start: int = 0) -> None:
        """Write `out.size` elements from element `start` on to `out`, which is flat, contiguous,
        and of a 32-bit type or this array's type.
        """
        row, out = self.shape[-1], out.view(self.dtype)
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

    @classmethod
    def write_rows(cls: type[L], parts: Sequence[tuple[L, int, NDArray]]) -> None:
        """Write rows of several arrays of this class.

        Parameters
        ----------
        parts
            (array, first row, target): the target is flat, as in `write_to`, and holds whole rows.
        """
        for array, first, out in parts:
            array.write_to(out, first * array.shape[-1])

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray:
        array = self.materialize()
        if dtype is not None and np.dtype(dtype) != self.dtype:  # type: ignore[call-overload]
            return array.astype(dtype)  # type: ignore[call-overload, no-any-return]
        return array.copy() if copy else array


_LAZY_ARRAYS: weakref.WeakSet[LazyArray] = weakref.WeakSet()
_ALLOCATING = threading.Lock()
"""Held while a buffer without content is allocated."""


@in_child
def _renew_locks() -> None:
    """Replace the lock in a forked child, because another thread of the parent may hold it."""
    global _ALLOCATING
    _ALLOCATING = threading.Lock()
    for lazy in _LAZY_ARRAYS:
        lazy._making, lazy._help = threading.Lock(), _no_array


@dataclass(frozen=True, slots=True)
class FileExtent:
    """A range of bytes of a file.

    Parameters
    ----------
    path
        Absolute path at the time of opening.
    identity
        Identifies the file and its version; its third number is the size of the file.
    start, size
        The range.
    """

    path: str
    identity: tuple[int, ...]
    start: int
    size: int


class FileSlice(ABC):
    """Bytes that are read on demand, usually of a file.

    Parameters
    ----------
    size
        The number of bytes.
    place
        The file descriptor and the offset; None if they are in no file.
    extent
        The range for other processes.
    """

    size: int
    place: tuple[int, int] | None = None

    @property
    def extent(self) -> FileExtent | None:
        return None

    def origin(self, shape: Shape, dtype: str = "uint32", blocks: str = "") -> Origin | None:
        """Return the origin of an array of these bytes; see `Origin`."""
        extent = self.extent
        return None if extent is None else Origin(extent, shape, dtype, blocks)

    @abstractmethod
    def read(self, start: int, out: NDArray) -> None:
        """Read `out.size` bytes from byte `start` on into `out`, which is flat."""

    def view(self) -> NDArray | None:
        """Return all bytes as a read-only view, or None if they are not contiguous in memory."""
        return None

    def require(self) -> None:
        """Raise VkschedError if the bytes have changed since they were opened."""
        return None


class ConcatBytes(FileSlice):
    """Concatenation of several byte ranges of equal size."""

    def __init__(self, parts: Sequence[FileSlice]) -> None:
        self._parts, self._each = parts, parts[0].size
        self.size = len(parts) * self._each

    def read(self, start: int, out: NDArray) -> None:
        while out.size:
            number, skipped = divmod(start, self._each)
            count = min(self._each - skipped, out.size)
            self._parts[number].read(skipped, out[:count])
            out, start = out[count:], start + count


@dataclass(frozen=True, slots=True)
class Origin:
    """The bytes of a file that an array is computed from.

    Parameters
    ----------
    shape, dtype
        Shape and type of the array, if its elements are in the file unchanged.
    blocks
        The format of quantized blocks; shape is that of the dequantized values then.
    """

    extent: FileExtent
    shape: Shape
    dtype: str = "uint32"
    blocks: str = ""


ORIGINS: WeakIdMap[Origin] = WeakIdMap()
"""The origins of arrays in memory; see `origin_of`."""
_maps: dict[int, tuple[weakref.ref[mmap.mmap], FileExtent]] = {}
"""Mapped files by base address."""


def register_map(mapped: mmap.mmap, path: str, identity: tuple[int, ...]) -> None:
    """Register a mapped file so that `origin_of` finds arrays in it.

    Parameters
    ----------
    path, identity
        As in `FileExtent`.
    """
    address: int = np.frombuffer(mapped, np.uint8).ctypes.data
    for gone in [at for at, (ref, _) in list(_maps.items()) if ref() is None]:
        _maps.pop(gone, None)
    _maps[address] = weakref.ref(mapped), FileExtent(path, identity, 0, len(mapped))


def drop_mapped_pages() -> None:
    """Drop the resident pages of mapped files, which are read again on demand. The system cannot
    evict pages of its cache while a process has them mapped.
    """
    for mapped in [ref() for ref, _ in list(_maps.values())]:
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def origin_of(held: ArrayLike) -> Origin | None:
    """Return the bytes of a file that an array consists of. Return None if the array is not from a
    file or is not in file order.
    """
    if isinstance(held, LazyArray):
        return held.origin()
    noted = ORIGINS.get(held)
    if noted is not None or not held.flags.c_contiguous:
        return noted
    begin, size = held.ctypes.data, held.nbytes
    for address, (ref, whole) in list(_maps.items()):
        if address <= begin < begin + size <= address + whole.size and ref() is not None:
            extent = FileExtent(whole.path, whole.identity, begin - address, size)
            return Origin(extent, held.shape, held.dtype.name)
    return None


def lazy_bytes(blocks: FileSlice, shape: Shape, dtype: Any) -> LazyArray:
    """Return a lazy array whose elements are the bytes unchanged."""
    row_bytes = shape[-1] * np.dtype(dtype).itemsize

    def make(start: int, out: NDArray) -> None:
        blocks.read(start * row_bytes, out.reshape(-1).view(np.uint8))

    def resident() -> NDArray | None:
        found = blocks.view()
        return None if found is None else found.view(dtype).reshape(shape)

    name = np.dtype(dtype).name
    return LazyArray(shape, make, dtype, resident, lambda: blocks.origin(shape, name))


ArrayLike: TypeAlias = NDArray | LazyArray
"""The value of a leaf of a graph."""


def as_array(held: ArrayLike) -> NDArray:
    """Return the value of a leaf as an array."""
    return held.materialize() if isinstance(held, LazyArray) else held


def buffer_of(held: ArrayLike) -> NDArray:
    """Return the array that `as_array` returns; it may not be filled yet."""
    return held.buffer() if isinstance(held, LazyArray) else held
