"""Model files: opened as regular files only, mapped, and checked for changes.

A file that is modified while a model uses it has other weights from then on, and access to a
truncated part of a mapping kills the process. Therefore bytes that are used again later are read
through the descriptor (FileBytes), which raises an error. One gap is left: the CPU computes
directly on mapped float16 and float32 values. A file that is replaced atomically stays valid for
processes that have it open.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import ModelFormatError
from .lazy_array import FileExtent, FileSlice, register_map

MIN_MAPPED_BYTES = 1 << 16
"""Files below this size are read, not mapped."""

FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # do not block on a fifo
FLAGS |= getattr(os, "O_BINARY", 0)  # Windows would convert line ends


def identity_of(about: os.stat_result) -> tuple[int, ...]:
    """Return the identity of a file and its version; it changes when the file changes."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class UnchangedFile:
    """A file that stays open and is read only while it is unchanged.

    Parameters
    ----------
    where
        Prefix of error messages.
    """

    def __init__(self, file: int, name: str, where: str) -> None:
        self.descriptor, self._name, self._where = os.dup(file), name, where
        self.path = os.path.abspath(name)
        weakref.finalize(self, os.close, self.descriptor)
        self._was = os.fstat(self.descriptor)

    @property
    def identity(self) -> tuple[int, ...]:
        """The identity of the file and its version at the time of opening."""
        return identity_of(self._was)

    def require(self) -> None:
        """Raise ModelFormatError if the file was changed after it was opened."""
        was, now = self._was, os.fstat(self.descriptor)
        if was.st_size != now.st_size:
            how = f"{was.st_size} bytes, got {now.st_size}"
        elif was.st_mtime_ns != now.st_mtime_ns:
            how = "as when it was opened, got one that was written to since"
        else:
            return
        raise ModelFormatError(
            f"{self._where}: expected {self._name!r} {how}; try to load the model again, and to "
            "put new files in the place of old ones as a whole"
        )

    def read(self, start: int, out: NDArray) -> None:
        """Read `out.size` bytes from byte `start` on.

        Raises
        ------
        ModelFormatError
            The file was changed before the bytes were read.
        OSError
            The file cannot be read.
        """
        done = 0
        while done < out.size:
            count = os.preadv(self.descriptor, [out[done:].data], start + done)
            if not count:
                break
            done += count
        self.require()  # a writer changes the mtime first
        if done < out.size:
            raise ModelFormatError(
                f"{self._where}: expected {out.size} bytes of {self._name!r} from byte {start}, "
                f"got {done}"
            )


class FileBytes(FileSlice):
    """A range of bytes of a mapped file.

    Parameters
    ----------
    content
        The range in the mapping.
    """

    def __init__(self, content: memoryview, file: UnchangedFile, start: int) -> None:
        self.size = len(content)
        self.content, self._file, self._start = content, file, start
        self.place = file.descriptor, start

    @property
    def extent(self) -> FileExtent:
        return FileExtent(self._file.path, self._file.identity, self._start, self.size)

    def read(self, start: int, out: NDArray) -> None:
        if hasattr(os, "preadv"):
            self._file.read(self._start + start, out)
        else:  # Windows cannot truncate a mapped file
            out[...] = np.frombuffer(self.content, np.uint8)[start : start + out.size]
            self._file.require()

    def require(self) -> None:
        self._file.require()

    def view(self) -> NDArray | None:
        self.require()
        return np.frombuffer(self.content, np.uint8)


def copied(part: memoryview | FileSlice) -> memoryview:
    """Return bytes that no change of a file affects: a copy if the file is mapped, read by
    `UnchangedFile.read`.
    """
    if isinstance(part, memoryview):
        return part
    buffer: NDArray = np.empty(part.size, np.uint8)
    part.read(0, buffer)
    return buffer.data


@dataclass(frozen=True)
class ModelFile:
    """A model file.

    Parameters
    ----------
    content
        The bytes of the file.
    file
        The open file, or None if the bytes are in memory.
    """

    content: memoryview
    file: UnchangedFile | None

    def part(self, start: int, end: int) -> memoryview | FileBytes:
        """Return a range of the bytes, to be read on demand."""
        content = self.content[start:end]
        return content if self.file is None else FileBytes(content, self.file, start)


def open_model(path: Path, stage: str) -> ModelFile:
    """Open a model file.

    Parameters
    ----------
    stage
        Prefix of error messages.

    Raises
    ------
    ModelFormatError
        The file does not exist or is not a regular file.
    """
    where = f"[{stage}] model"
    try:
        with ExitStack() as stack:
            file = opened(stack, path, FLAGS, None)
            content = content_of(file, str(path), where, True)
            mapped = isinstance(content.obj, mmap.mmap)
            return ModelFile(content, UnchangedFile(file, str(path), where) if mapped else None)
    except ModelFormatError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFormatError(
            f"[{stage}] expected a model file at {str(path)!r}, got {reason}"
        ) from None


def read_ahead(content: memoryview) -> None:
    """Ask the system to read a mapped file ahead, without waiting. A file that is larger than half
    of the memory is read on demand only.
    """
    mapped = content.obj
    if not (isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED")):
        return
    if len(mapped) <= os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2:
        mapped.madvise(mmap.MADV_WILLNEED)


def opened(stack: ExitStack, path: Path | str, flags: int, folder: int | None) -> int:
    """Return a descriptor of a file, relative to a folder descriptor if there is one."""
    file = os.open(path, flags) if folder is None else os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, file)
    return file


def content_of(
    file: int, name: str, where: str, mapped: bool, path: Path | None = None
) -> memoryview:
    """Return the bytes of an open file.

    Parameters
    ----------
    where
        Prefix of error messages.
    path
        The path of the file, if `name` is not one.
    """
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise ModelFormatError(f"{where}: expected a regular file, got something else at {name!r}")
    if mapped and about.st_size > MIN_MAPPED_BYTES:
        mapped_file = mmap.mmap(file, about.st_size, access=mmap.ACCESS_READ)
        register_map(mapped_file, os.path.abspath(path or name), identity_of(about))
        return memoryview(mapped_file)
    with open(file, "rb", closefd=False) as stream:
        return memoryview(stream.read(about.st_size))
