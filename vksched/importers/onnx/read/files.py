"""Opens the external data beside a model file: never a file outside the model's folder, whatever
the model says.

Where a path leads is decided by the opening itself: every part of it is opened from the folder
before it and without following links, so nothing can be exchanged between check and use. Windows
cannot open from a folder: there every part is looked at before and after the opening.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path

from ....errors import ModelFormatError
from ...files import FLAGS, content_of, opened

MAX_MAPS = 256
"""A map holds a file descriptor, of which a process has some 1,000; files beyond are read."""

_FROM_FOLDERS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_JUNCTION = 0xA0000003
"""Windows' mark of a folder that leads elsewhere."""


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
        parts = parts_of(location)
        if parts is None:
            raise ModelFormatError(
                f"[onnx] {where}: expected external data at a path below the model's folder, got "
                f"{location!r}"
            )
        try:
            with ExitStack() as stack:
                file = _opened_below(stack, self._path, parts)
                mapped = len(self._files) < MAX_MAPS
                return content_of(file, location, f"[onnx] {where}", mapped)
        except OSError as error:
            link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            raise ModelFormatError(
                f"[onnx] {where}: expected external data in {location!r}, got "
                + ("a symbolic link or no folder on the way" if link else str(error.strerror))
            ) from None


def parts_of(location: str, windows: bool = os.sep == "\\") -> list[str] | None:
    """Returns the parts of a path below a folder; None of one that may lead elsewhere."""
    if windows:
        location = location.replace("\\", "/")
    parts = location.split("/")
    if not location or "\0" in location or location[0] == "/" or ".." in parts:
        return None
    parts = [p for p in parts if p not in ("", ".")]
    # Windows: drives, streams of a file, and names that lose their end: ".. " is "..".
    if windows and any(":" in p or p[-1] in ". " for p in parts):
        return None
    return parts or ["."]


def _opened_below(stack: ExitStack, folder: Path, parts: list[str]) -> int:
    if not _FROM_FOLDERS:
        return _opened_and_looked_at(stack, folder, parts)
    at = opened(stack, folder, FLAGS | os.O_DIRECTORY, None)
    for part in parts[:-1]:
        at = opened(stack, part, FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, at)
    return opened(stack, parts[-1], FLAGS | os.O_NOFOLLOW, at)


def _opened_and_looked_at(stack: ExitStack, folder: Path, parts: list[str]) -> int:
    ends = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]

    def look() -> os.stat_result:
        for end in ends:
            about = os.lstat(end)
            if stat.S_ISLNK(about.st_mode) or getattr(about, "st_reparse_tag", 0) == _JUNCTION:
                raise OSError(errno.ELOOP, "a link")
        return about

    look()
    file = opened(stack, ends[-1], FLAGS, None)
    if not os.path.samestat(look(), os.fstat(file)):
        raise OSError(errno.ELOOP, "a link")
    return file
