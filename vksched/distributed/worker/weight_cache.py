"""Weight cache: weights received from other hosts, on disk by the hash of their bytes.

    <cache>/weights/<sha256>        the bytes, unchanged
    load(hash) --read, hashed again--> bytes; a corrupt file is removed, and sent again

A weight crosses the network once, even if the worker restarts. The size of the folder is bounded:
least recently used files are evicted. The cache is optional: if the disk is full or read-only,
weights stay in memory. Examples: tests/distributed/test_cache.py.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...common.dtypes import NDArray
from ...common.formatting import format_bytes
from ...common.user_warning import warn
from ...storage.disk_cache import DiskCache
from ..wire.channel import Payload, flat

MAX_BYTES = 64 << 30
MAPPED_BYTES = 1 << 20
"""Files of at least this size are mapped, which needs an open file each; smaller ones, of which
models have thousands, are read.
"""
HASH = re.compile(r"[0-9a-f]{64}")


def hash_of(pieces: Payload) -> str:
    """Return the hash of a weight's bytes, the concatenation of all pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(flat(piece))
    return digest.hexdigest()


class WeightCache:
    """folder: None disables the disk cache. Safe for threads and processes. most_bytes: maximum
    size of all files; a larger single weight is not cached.
    """

    def __init__(self, folder: Path | None, most_bytes: int = MAX_BYTES) -> None:
        self.most_bytes = most_bytes
        self._files = DiskCache(folder, "cluster", max_bytes=most_bytes)
        self._has_warned = False

    def load(self, name: str) -> NDArray | None:
        """Return the bytes of a weight, read-only, or None if they are missing or incomplete."""
        path = self._path(name)
        if path is None:
            return None
        try:
            found = _read_file(path)
        except (OSError, ValueError):  # missing or empty
            return None
        if hash_of([found]) != name:
            self._files.clear(name)
            return None
        with suppress(OSError):
            os.utime(path)  # marks it as recently used
        return found

    def keep(self, name: str, data: NDArray) -> NDArray:
        """Store the bytes of a weight whose hash was checked, and return them as mapped; on failure
        warn and return `data`.
        """
        path = self._path(name)
        if path is None or not 0 < data.nbytes <= self.most_bytes:
            return data
        try:
            self._files.put(name, flat(data))
            return _read_file(path)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"[cluster] weights are not cached: {error}; try VKSCHED_CACHE=<folder>, or"
                    f" free {format_bytes(data.nbytes)} there"
                )
            return data

    def _path(self, name: str) -> Path | None:
        """Return the path of a weight, or None for a name that is no hash."""
        return self._files.path(name) if HASH.fullmatch(name) else None


def _read_file(path: Path) -> NDArray:
    """Return the bytes of a file, read-only."""
    if path.stat().st_size >= MAPPED_BYTES:
        return np.memmap(path, np.uint8, "r")
    found: NDArray = np.fromfile(path, np.uint8)
    found.flags.writeable = False
    return found
