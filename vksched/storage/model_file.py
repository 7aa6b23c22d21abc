"""Opens model files: regular files only, mapped, and told when they change.

A file that is written into while a model uses it has other weights from then on, and one that is
cut off ends the process that touches what is gone of the map. So what is used again later is read
through the descriptor (FileBytes), which fails in words. One gap is left: the CPU computes with
floats of 16 and 32 bits where they lie in the map. A file that is replaced as a whole stays as it
was, for those who have it open.
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
"""Files up to this size are read, not mapped."""

FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # opening a fifo does not wait then
FLAGS |= getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines


def identity_of(about: os.stat_result) -> tuple[int, ...]:
    """Returns what tells a file from all others, and from itself when it changes."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class Unchanged:
    """A file that stays open, and is read only as long as nobody changes it. where: what errors
    begin with.
    """

    def __init__(self, file: int, name: str, where: str) -> None:
        self.descriptor, self._name, self._where = os.dup(file), name, where
        self.path = os.path.abspath(name)
        weakref.finalize(self, os.close, self.descriptor)
        self._was = os.fstat(self.descriptor)

    @property
    def identity(self) -> tuple[int, ...]:
        """What tells the file as it was opened from all others, and from itself when it changes."""
        return identity_of(self._was)

    def require(self) -> None:
        """Raise ModelFormatError where it was changed since it was opened."""
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
        """Write bytes from `start` on, as many as `out` has.

        Raises:
            ModelFormatError: it was changed before they were there. OSError: it cannot be read.
        """
        done = 0
        while done < out.size:
            count = os.preadv(self.descriptor, [out[done:].data], start + done)
            if not count:
                break
            done += count
        self.require()  # whoever writes, changes the time first
        if done < out.size:
            raise ModelFormatError(
                f"{self._where}: expected {out.size} bytes of {self._name!r} from byte {start}, "
                f"got {done}"
            )


class FileBytes(FileSlice):
    """A part of a mapped file. content: as it lies in the map."""

    def __init__(self, content: memoryview, file: Unchanged, start: int) -> None:
        self.size = len(content)
        self.content, self._file, self._start = content, file, start
        self.place = file.descriptor, start

    @property
    def extent(self) -> FileExtent:
        return FileExtent(self._file.path, self._file.identity, self._start, self.size)

    def read(self, start: int, out: NDArray) -> None:
        if hasattr(os, "preadv"):
            self._file.read(self._start + start, out)
        else:  # on Windows nobody can cut off a file that is mapped
            out[...] = np.frombuffer(self.content, np.uint8)[start : start + out.size]
            self._file.require()

    def require(self) -> None:
        self._file.require()

    def view(self) -> NDArray | None:
        self.require()
        return np.frombuffer(self.content, np.uint8)


def copied(part: memoryview | FileBytes) -> memoryview:
    """Return bytes that no change of a file reaches: of a mapped one a copy, read as `Unchanged`
    reads.
    """
    if isinstance(part, memoryview):
        return part
    made: NDArray = np.empty(part.size, np.uint8)
    part.read(0, made)
    return made.data


@dataclass(frozen=True)
class ModelFile:
    """content: the bytes of a file. file: None where they are in memory, not mapped."""

    content: memoryview
    file: Unchanged | None

    def part(self, start: int, end: int) -> memoryview | FileBytes:
        """Return some of the bytes, to be read when they are needed."""
        content = self.content[start:end]
        return content if self.file is None else FileBytes(content, self.file, start)


def open_model(path: Path, stage: str) -> ModelFile:
    """Open a model file. stage: what errors begin with.

    Raises:
        ModelFormatError: there is none, or it is not a regular file.
    """
    where = f"[{stage}] model"
    try:
        with ExitStack() as stack:
            file = opened(stack, path, FLAGS, None)
            content = content_of(file, str(path), where, True)
            mapped = isinstance(content.obj, mmap.mmap)
            return ModelFile(content, Unchanged(file, str(path), where) if mapped else None)
    except ModelFormatError:
        raise
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ModelFormatError(
            f"[{stage}] expected a model file at {str(path)!r}, got {said}"
        ) from None


def read_ahead(content: memoryview) -> None:
    """Tells the system that all of a mapped file is wanted soon, and waits for nothing. A file of
    more than half of the machine's memory is read as it is used.
    """
    mapped = content.obj
    if not (isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED")):
        return
    if len(mapped) <= os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2:
        mapped.madvise(mmap.MADV_WILLNEED)


def opened(stack: ExitStack, path: Path | str, flags: int, folder: int | None) -> int:
    """Return a descriptor of a file, below that of a folder if one is given."""
    file = os.open(path, flags) if folder is None else os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, file)
    return file


def content_of(
    file: int, name: str, where: str, mapped: bool, path: Path | None = None
) -> memoryview:
    """Return the bytes of an open file. where: what errors begin with. path: where it is, if name
    does not say so.
    """
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise ModelFormatError(f"{where}: expected a regular file, got something else at {name!r}")
    if mapped and about.st_size > MIN_MAPPED_BYTES:
        made = mmap.mmap(file, about.st_size, access=mmap.ACCESS_READ)
        register_map(made, os.path.abspath(path or name), identity_of(about))
        return memoryview(made)
    with open(file, "rb", closefd=False) as stream:
        return memoryview(stream.read(about.st_size))
