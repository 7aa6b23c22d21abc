"""Opens a model file and the external data beside it: regular files only, mapped, and for external
data never one outside the model's folder, whatever the model says.

Where a path leads is decided by the opening itself: every part of it is opened from the folder
before it and without following links, so nothing can be exchanged between check and use.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import ExitStack
from pathlib import Path

from ....errors import ModelFormatError

MAX_MAPS = 256
"""A map holds a file descriptor, of which a process has some 1,000; files beyond are read."""
LEAST_MAPPED_BYTES = 1 << 16
"""Files up to this size are read, not mapped."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a fifo does not wait then


class Folder:
    """The folder of a model and those external data files of it that were asked for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._files: dict[str, memoryview] = {}

    @property
    def total_bytes(self) -> int:
        """Size of all files opened so far."""
        return sum(len(data) for data in self._files.values())

    def read(self, location: str, offset: int, length: int, where: str) -> memoryview:
        """Returns bytes of a file.

        Raises:
            ModelFormatError: no such file in the folder, or it ends before.
        """
        data = self._files.get(location)
        if data is None:
            data = self._files[location] = self._open(location, where)
        if offset + length > len(data):
            raise ModelFormatError(
                f"[onnx] {where}: expected external data of {length} bytes from byte {offset} of "
                f"{location!r}, got a file of {len(data)} bytes"
            )
        return data[offset : offset + length]

    def _open(self, location: str, where: str) -> memoryview:
        if self._path is None:
            raise ModelFormatError(
                f"[onnx] {where}: expected data within the model, got external data in "
                f"{location!r}; try the path of the model's file instead of its bytes"
            )
        parts = location.split("/")
        if not location or "\0" in location or location[0] == "/" or ".." in parts:
            raise ModelFormatError(
                f"[onnx] {where}: expected external data at a path below the model's folder, got "
                f"{location!r}"
            )
        parts = [p for p in parts if p not in ("", ".")] or ["."]
        try:
            with ExitStack() as stack:
                at = _opened(stack, self._path, _FLAGS | os.O_DIRECTORY, None)
                for part in parts[:-1]:
                    at = _opened(stack, part, _FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, at)
                last = _opened(stack, parts[-1], _FLAGS | os.O_NOFOLLOW, at)
                return _content(last, location, where, len(self._files) < MAX_MAPS)
        except OSError as error:
            link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            raise ModelFormatError(
                f"[onnx] {where}: expected external data in {location!r}, got "
                + ("a symbolic link or no folder on the way" if link else str(error.strerror))
            ) from None


def open_model(path: Path) -> memoryview:
    """Returns the bytes of a model file, mapped.

    Raises:
        ModelFormatError: there is none, or it is not a regular file.
    """
    try:
        with ExitStack() as stack:
            file = _opened(stack, path, _FLAGS, None)
            return _content(file, str(path), "model", True)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ModelFormatError(
            f"[onnx] expected a model file at {str(path)!r}, got {said}"
        ) from None


def _opened(stack: ExitStack, path: Path | str, flags: int, folder: int | None) -> int:
    file = os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, file)
    return file


def _content(file: int, name: str, where: str, mapped: bool) -> memoryview:
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise ModelFormatError(
            f"[onnx] {where}: expected a regular file, got something else at {name!r}"
        )
    if mapped and about.st_size > LEAST_MAPPED_BYTES:
        return memoryview(mmap.mmap(file, about.st_size, access=mmap.ACCESS_READ))
    with open(file, "rb", closefd=False) as stream:
        return memoryview(stream.read(about.st_size))
