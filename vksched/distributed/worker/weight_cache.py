"""Cache: weights that other computers have sent, by the hash of their bytes, on this one's disk.

    <cache>/weights/<sha256>        the bytes, as they are
    load(hash) --read, hashed again--> bytes; a broken file is removed, and sent anew

So a weight crosses the network once, also when the worker starts again. The folder is bounded: what
was not used for longest goes. Nothing here is needed: where the disk is full or read-only, weights
stay in memory. Examples: tests/distributed/test_cache.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...common.dtypes import NDArray
from ...common.formatting import format_bytes
from ...common.user_warning import warn
from ...storage.disk_cache import make_folder
from ..wire.channel import Payload, flat

MAX_BYTES = 64 << 30
MAPPED_BYTES = 1 << 20
"""Files of so many bytes and more are mapped, which takes an open file for each; smaller ones, of
which models have thousands, are read.
"""
HASH = re.compile(r"[0-9a-f]{64}")


def hash_of(pieces: Payload) -> str:
    """Return the hash of a weight's bytes, all pieces one behind the other."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(flat(piece))
    return digest.hexdigest()


class WeightCache:
    """folder: None keeps nothing on disk. May be used from any number of threads and processes.

    most_bytes: of all files together; one that is larger alone is not kept.
    """

    def __init__(self, folder: Path | None, most_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._has_warned = False

    def load(self, name: str) -> NDArray | None:
        """Return the bytes of a weight, read-only; None where they are not here, whole."""
        path = self._path(name)
        if path is None:
            return None
        try:
            found = _opened(path)
        except (OSError, ValueError):  # it is not there, or empty
            return None
        if hash_of([found]) != name:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # it was used now
        return found

    def keep(self, name: str, data: NDArray) -> NDArray:
        """Write the bytes of a weight, whose hash was checked, and returns them as they lie there;
        data, with a warning, where that cannot be.
        """
        path = self._path(name)
        if path is None or not 0 < data.nbytes <= self.most_bytes:
            return data
        new = path.with_name(f"{name}.{secrets.token_hex(6)}.new")
        try:
            with self._lock:
                make_folder(path.parent)
                self._make_room(data.nbytes)
                with open(new, "xb") as file:
                    file.write(flat(data))
                os.replace(new, path)
                return _opened(path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"[cluster] weights are not kept: {error}; try VKSCHED_CACHE=<folder>, or free "
                    f"{format_bytes(data.nbytes)} there"
                )
            return data

    def _path(self, name: str) -> Path | None:
        """Return where a weight lies; names that are no hashes lie nowhere."""
        return self.folder / name if self.folder is not None and HASH.fullmatch(name) else None

    def _make_room(self, size: int) -> None:
        """Remove what was not used for longest, and what killed writers left."""
        assert self.folder is not None
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        total = size + sum(each for _, each, _ in found)
        for _, each, path in sorted(found):
            if total <= self.most_bytes:
                return
            with suppress(OSError):  # another process removed it, or Windows has it open
                path.unlink()
                total -= each


def _opened(path: Path) -> NDArray:
    """Return the bytes of a file, read-only."""
    if path.stat().st_size >= MAPPED_BYTES:
        return np.memmap(path, np.uint8, "r")
    found: NDArray = np.fromfile(path, np.uint8)
    found.flags.writeable = False
    return found
