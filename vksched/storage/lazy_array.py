"""Lazy arrays: an array that is made when it is needed, of what takes no memory of its own.

    blocks of a file --write_to--> memory of a device
                     '-materialize--> an array, as long as somebody has it

Weights are such arrays where a device holds them in another form than their file, or the file may
change: the host keeps none that is not in use. Examples: tests/storage/test_lazy_array.py.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..common.dtypes import NDArray, Shape
from ..common.fork_guard import in_child
from .weak_map import WeakIdMap

Make = Callable[[int, NDArray], None]
"""(first row, (rows, words)) -> None, which writes so many rows."""


def _nothing() -> NDArray | None:
    return None


def _unknown() -> Origin | None:
    return None


class LazyArray:
    """An array of a 32-bit type with two axes or more. make: writes rows of it; to any memory, by
    any threads, and the same ones each time. resident: returns all of it where it lies already,
    None where it does not. origin: returns of which bytes of a file it is made.
    """

    def __init__(
        self,
        shape: Shape,
        make: Make,
        dtype: Any = np.uint32,
        resident: Callable[[], NDArray | None] = _nothing,
        origin: Callable[[], Origin | None] = _unknown,
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize
        self._make = make
        self._resident = resident
        self.origin = origin
        self._buffer = self._made = _nothing
        self._help: Callable[[], object] = _nothing
        self._making = threading.Lock()
        _LAZY_ARRAYS.add(self)

    def materialize(self) -> NDArray:
        """Return all of it, read-only: the array that is there, as long as somebody has it."""
        self._help()
        with self._making:
            resident = self._resident()
            if resident is not None:
                return resident
            made = self._made()
            if made is None:
                made = self.buffer()
                self.write_to(made.reshape(-1))
                self._fill(made)
            return made

    def buffer(self, offered: NDArray | None = None) -> NDArray:
        """Return the array that `materialize` returns to those who have this one, with any content
        until then. offered: it, where there is none yet.
        """
        resident = self._resident()
        if resident is not None:
            return resident
        with _PLACING:
            buffer = self._buffer()
            if buffer is None:
                buffer = np.empty(self.shape, self.dtype) if offered is None else offered
                self._buffer = weakref.ref(buffer)
            return buffer

    def begin(self, help: Callable[[], object]) -> bool:
        """Whether the caller is to fill the buffer, and to call `end`: nobody does, or did. help:
        has the work done sooner, by who waits for it.
        """
        if not self._making.acquire(blocking=False):
            return False
        if self._made() is None:
            self._help = help
            return True
        self._making.release()
        return False

    def end(self, filled: bool) -> None:
        """End what was begun. filled: whether all of it is there."""
        buffer = self._buffer()
        if filled and buffer is not None:
            self._fill(buffer)
        self._help = _nothing
        self._making.release()

    def _fill(self, buffer: NDArray) -> None:
        buffer.flags.writeable = False
        self._made = self._buffer

    def write_to(self, out: NDArray, start: int = 0) -> None:
        """Write elements from `start` on, as many as `out` has, which is flat, has no gaps, and
        takes them as words or as what they are.
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

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray:
        made = self.materialize()
        if dtype is not None and np.dtype(dtype) != self.dtype:  # type: ignore[call-overload]
            return made.astype(dtype)  # type: ignore[call-overload, no-any-return]
        return made.copy() if copy else made


_LAZY_ARRAYS: weakref.WeakSet[LazyArray] = weakref.WeakSet()
_PLACING = threading.Lock()
"""ArrayLike while an array without content is made."""


@in_child
def _renew_locks() -> None:
    """A child of a process that forked makes what another thread was making there."""
    global _PLACING
    _PLACING = threading.Lock()
    for lazy in _LAZY_ARRAYS:
        lazy._making, lazy._help = threading.Lock(), _nothing


@dataclass(frozen=True, slots=True)
class FileExtent:
    """Some bytes of a file. path: absolute, as it was opened. identity: what tells the file from
    others, and from itself when it changes; its third number is the size of the file. start, size:
    of these bytes.
    """

    path: str
    identity: tuple[int, ...]
    start: int
    size: int


class FileSlice(ABC):
    """Bytes that lie elsewhere, as in a file, and are read when they are needed. size: how many.
    place: the descriptor of a file and the first byte there; None where they are in no file.
    extent: the same for other processes.
    """

    size: int
    place: tuple[int, int] | None = None

    @property
    def extent(self) -> FileExtent | None:
        return None

    def origin(self, shape: Shape, dtype: str = "uint32", blocks: str = "") -> Origin | None:
        """Return the origin of an array that is made of them; see `Origin`."""
        extent = self.extent
        return None if extent is None else Origin(extent, shape, dtype, blocks)

    @abstractmethod
    def read(self, start: int, out: NDArray) -> None:
        """Write bytes from `start` on, as many as `out` has, which is flat."""

    def view(self) -> NDArray | None:
        """Return all of them where they lie, read-only, None where that is not in one place."""
        return None

    def require(self) -> None:
        """Raise VkschedError where they are not those of the beginning any more."""
        return None


class ConcatBytes(FileSlice):
    """Bytes of several places, one behind the other; each place has as many."""

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
    """Of which bytes of a file an array is made. shape, dtype: of the array, whose elements lie in
    the file as they are; where these are blocks, blocks: their format, and shape that of values.
    """

    extent: FileExtent
    shape: Shape
    dtype: str = "uint32"
    blocks: str = ""


ORIGINS: WeakIdMap[Origin] = WeakIdMap()
"""Of arrays in memory that are made of files; see `origin_of`."""
_maps: dict[int, tuple[weakref.ref[mmap.mmap], FileExtent]] = {}
"""Of files, by the address where they lie."""


def register_map(mapped: mmap.mmap, path: str, identity: tuple[int, ...]) -> None:
    """Notes where a mapped file lies, so that arrays in it are found. path, identity: as in
    `FileExtent`.
    """
    address: int = np.frombuffer(mapped, np.uint8).ctypes.data
    for gone in [at for at, (ref, _) in list(_maps.items()) if ref() is None]:
        _maps.pop(gone, None)
    _maps[address] = weakref.ref(mapped), FileExtent(path, identity, 0, len(mapped))


def drop_mapped_pages() -> None:
    """Let go of the pages of mapped files, which are read again when they are needed: the system
    cannot forget a file of which a process has pages.
    """
    for mapped in [ref() for ref, _ in list(_maps.values())]:
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def origin_of(held: ArrayLike) -> Origin | None:
    """Return of which bytes of a file an array is made; None where it is of none, or in another
    order than they.
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
    """Return an array whose elements are bytes as they lie."""
    row_bytes = shape[-1] * np.dtype(dtype).itemsize

    def make(start: int, out: NDArray) -> None:
        blocks.read(start * row_bytes, out.reshape(-1).view(np.uint8))

    def resident() -> NDArray | None:
        found = blocks.view()
        return None if found is None else found.view(dtype).reshape(shape)

    name = np.dtype(dtype).name
    return LazyArray(shape, make, dtype, resident, lambda: blocks.origin(shape, name))


ArrayLike: TypeAlias = NDArray | LazyArray
"""What a leaf of a graph holds."""


def as_array(held: ArrayLike) -> NDArray:
    """Returns what a leaf holds as an array."""
    return held.materialize() if isinstance(held, LazyArray) else held


def buffer_of(held: ArrayLike) -> NDArray:
    """Return the array that `as_array` returns to those who have this one, which may not be filled
    before.
    """
    return held.buffer() if isinstance(held, LazyArray) else held
