"""Content hashes: the SHA-256 of weights, computed once per weight.

    digest_of(weight): cached for this array? -> cached for these bytes of a file? -> read and hash

Problem: to hash its weights, each process that distributes a model reads the whole model file.
Method: the hash of a weight in a file is cached in the user's folder under the identity of the
file: device, inode, size, mtime and ctime. A file that was written a moment ago may be written
again within one tick of these times, therefore its hashes are not cached.

    <cache>/hashes/<hash of the file's identity>.txt    a line for each weight: where, and its hash

Only this user can write to the folder, see cache_folder.py. Another writer could make a worker use
a wrong weight: a worker hashes weights that it receives, but not weights that it has already.

Complexity: O(bytes) once. Examples: tests/storage/test_content_hash.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..common.dtypes import NDArray
from .cache_folder import folder_of, make_folder, optional_write
from .disk_cache import read_whole, remove_old
from .lazy_array import ArrayLike, FileExtent, LazyArray, Origin, origin_of
from .weak_map import WeakIdMap

PIECE_BYTES = 1 << 24
SETTLED_NS = 2 * 10**9
"""A file must be unchanged for this long before results of its content are cached: then its times
show the next change.
"""
MAX_FILES = 64
"""Files whose hashes are cached."""
MAX_TEXT = 1 << 24
"""Maximum size of the cached hashes of one file, in bytes."""

DIGEST = re.compile(r"[0-9a-f]{64}")

_digests: WeakIdMap[str] = WeakIdMap()


def hash_of(array: ArrayLike) -> str:
    """Return the first digits of `digest_of`, enough to identify the weights of a trace."""
    return digest_of(array)[:16]


def digest_of(array: ArrayLike) -> str:
    """Return the SHA-256 of the bytes of an array. An array is hashed once; bytes of a file are
    hashed once for all processes while the file does not change.
    """
    found = _digests.get(array)
    if found is None:
        found = _cached_hash(array) or _computed(array)
        _digests.set(array, found)
    return found


def _computed(array: ArrayLike) -> str:
    hasher = hashlib.sha256()
    for piece in pieces_of(array):
        hasher.update(piece.data)
    found = hasher.hexdigest()
    origin = origin_of(array)
    if origin is not None:
        _store_hash(origin, found)
    return found


def pieces_of(array: ArrayLike, size_bytes: int = PIECE_BYTES) -> Iterator[NDArray]:
    """Yield the bytes of an array in order, in pieces of `size_bytes`. Broadcast arrays and lazy
    arrays are materialized piece by piece.
    """
    count = max(1, size_bytes // array.dtype.itemsize)
    if isinstance(array, LazyArray):
        for start in range(0, array.size, count):
            piece = np.empty(min(count, array.size - start), array.dtype)
            array.write_to(piece, start)
            yield piece.view(np.uint8)
        return
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, count):
        yield np.ascontiguousarray(flat[start : start + count]).view(np.uint8)


# -- on disk ---------------------------------------------------------------------------------------


def _cached_hash(array: ArrayLike) -> str | None:
    """Return the cached hash of the bytes of a file."""
    origin = origin_of(array)
    path = None if origin is None else _path_of(origin.extent)
    if origin is None or path is None:
        return None
    try:
        return _read_hashes(path, path.stat().st_size).get(_location(origin))
    except OSError:
        return None


@lru_cache(8)
def _read_hashes(path: Path, size: int) -> dict[str, str]:
    """Return the cached hashes of a file's weights. size: number of bytes to read of the cache
    file, which only grows.
    """
    found: dict[str, str] = {}
    for line in read_whole(path)[:MAX_TEXT].decode(errors="replace").splitlines():
        where, _, digest = line.rpartition(" ")
        if DIGEST.fullmatch(digest):  # skip a truncated line
            found[where] = digest
    return found


def is_settled(identity: Sequence[int]) -> bool:
    """Return True if the identity of a file shows the next change of its content: the file has not
    changed for SETTLED_NS.
    """
    *_, written_ns, changed_ns = identity
    return time.time_ns() - max(written_ns, changed_ns) >= SETTLED_NS


def _store_hash(origin: Origin, digest: str) -> None:
    """Cache the hash of bytes of a file that has not changed recently."""
    path = _path_of(origin.extent)
    if path is None or not is_settled(origin.extent.identity):
        return
    with optional_write(path.parent):  # the cache is optional
        make_folder(path.parent)
        if not path.exists():
            remove_old(path.parent, MAX_FILES - 1, "*.txt")
        elif path.stat().st_size >= MAX_TEXT:
            return
        line = f"{_location(origin)} {digest}\n".encode()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)  # one write, atomic with other writers
        finally:
            os.close(file)


def _path_of(extent: FileExtent) -> Path | None:
    folder = folder_of("hashes")
    name = hashlib.sha256(repr(extent.identity).encode()).hexdigest()[:32]
    return None if folder is None else folder / f"{name}.txt"


def _location(origin: Origin) -> str:
    about = origin.extent.start, origin.extent.size, origin.shape, origin.dtype, origin.blocks
    return " ".join(map(str, about))
