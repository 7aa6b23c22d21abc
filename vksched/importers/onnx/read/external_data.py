"""Open the external data of a model, restricted to its folder or its repository in a hub's cache;
see `storage/safe_open.py`.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path

from ....common.errors import ModelFormatError
from ....storage.model_file import content_of
from ....storage.safe_open import opened_below, parts_of, root_of

MAX_MAPS = 256
"""A mapping holds a file descriptor, of which a process has about 1,000; further files are read."""


class Folder:
    """The folder of a model, or None, and its external data files opened so far."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._files: dict[str, memoryview] = {}

    @property
    def total_bytes(self) -> int:
        """Size of all files opened so far."""
        return sum(len(data) for data in self._files.values())

    def read(self, location: str, offset: int, length: int, where: str) -> memoryview:
        """Return bytes of a file.

        Raises
        ------
        ModelFormatError
            The folder has no such file, or the file is too short.
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
                f"{location!r}; try the path of the model's file instead of its bytes, or its "
                "folder: load(..., folder=...), for a session the entry "
                "session.model_external_initializers_file_folder_path of SessionOptions"
            )
        parts = parts_of(location)
        if parts is None:
            raise ModelFormatError(
                f"[onnx] {where}: expected external data at a path below the model's folder, got "
                f"{location!r}"
            )
        try:
            with ExitStack() as stack:
                file = opened_below(stack, self._path, parts)
                mapped = len(self._files) < MAX_MAPS
                path = self._path.joinpath(*parts)
                return content_of(file, location, f"[onnx] {where}", mapped, path)
        except OSError as error:
            got, hint = str(error.strerror), ""
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                got = (
                    f"a symbolic link that leads out of {str(root_of(self._path))!r}, or no folder"
                )
                hint = (
                    "; try a copy of the file in place of the link, or the model in its own folder"
                )
            raise ModelFormatError(
                f"[onnx] {where}: expected external data in {location!r}, got {got}{hint}"
            ) from None
