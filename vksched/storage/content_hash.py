"""Digests: the SHA-256 of what weights hold, computed once for each weight.

    digest_of(weight): noted of this very array? -> known of these bytes of a file? -> read and hash

Problem: all of a model file is read to hash its weights, in each process that spreads the model.
Method: the hash of a weight that a file holds is kept in the user's cache with what tells the file
from all others: device, inode, size, and both times of change. A file that was written a moment ago
may be written again within the same tick of these times: its hashes are not kept.

    <cache>/hashes/<hash of the file's identity>.txt    a line for each weight: where, and its hash

Only this user writes there, see caches.py. Whoever could would decide which weight of a node counts
as one of a file: what is sent is hashed by who gets it, what is there already is not.

Complexity: O(bytes) once. Examples: tests/storage/test_content_hash.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..common.dtypes import NDArray
from .disk_cache import folder_of, kept_if_room, make_folder, read_whole, remove_old
from .lazy_array import ArrayLike, FileExtent, LazyArray, Origin, origin_of
from .weak_map import WeakIdMap

PIECE_BYTES = 1 << 24
SETTLED_NS = 2 * 10**9
"""How long a file must not have changed, so that its times tell the next change."""
MAX_FILES = 64
"""Whose hashes are kept."""
MAX_TEXT = 1 << 24
"""Bytes of hashes that are kept of one file."""

DIGEST = re.compile(r"[0-9a-f]{64}")

_digests: WeakIdMap[str] = WeakIdMap()


def hash_of(array: ArrayLike) -> str:
    """Return the beginning of `digest_of`, enough to tell the weights of a tape apart."""
    return digest_of(array)[:16]


def digest_of(array: ArrayLike) -> str:
    """Return the SHA-256 of the bytes of an array; the same array is read once, and what a file
    holds once for all processes, as long as the file stays as it is.
    """
    found = _digests.get(array)
    if found is None:
        found = _of_file(array) or _computed(array)
        _digests.set(array, found)
    return found


def _computed(array: ArrayLike) -> str:
    made = hashlib.sha256()
    for piece in pieces_of(array):
        made.update(piece.data)
    found = made.hexdigest()
    origin = origin_of(array)
    if origin is not None:
        _keep(origin, found)
    return found


def pieces_of(array: ArrayLike, size_bytes: int = PIECE_BYTES) -> Iterator[NDArray]:
    """Return the bytes of an array in order, a piece at a time: also of one that takes less memory
    than it shows, or that is made when it is needed, of which no more is made than a piece.
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


def _of_file(array: ArrayLike) -> str | None:
    """Return the hash that is known of the bytes of a file."""
    origin = origin_of(array)
    path = None if origin is None else _path_of(origin.extent)
    if origin is None or path is None:
        return None
    try:
        return _known(path, path.stat().st_size).get(_where(origin))
    except OSError:
        return None


@lru_cache(8)
def _known(path: Path, size: int) -> dict[str, str]:
    """Return the hashes of a file's weights. size: of the lines about them, which only grow."""
    found: dict[str, str] = {}
    for line in read_whole(path)[:MAX_TEXT].decode(errors="replace").splitlines():
        where, _, digest = line.rpartition(" ")
        if DIGEST.fullmatch(digest):  # not one that was cut off
            found[where] = digest
    return found


def _keep(origin: Origin, digest: str) -> None:
    """Notes the hash of bytes of a file that has not changed for a while."""
    path, (*_, written_ns, changed_ns) = _path_of(origin.extent), origin.extent.identity
    if path is None or time.time_ns() - max(written_ns, changed_ns) < SETTLED_NS:
        return
    with kept_if_room(path.parent):  # nothing needs it
        make_folder(path.parent)
        if not path.exists():
            remove_old(path.parent, MAX_FILES - 1, "*.txt")
        elif path.stat().st_size >= MAX_TEXT:
            return
        line = f"{_where(origin)} {digest}\n".encode()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)  # in one piece, whoever else writes
        finally:
            os.close(file)


def _path_of(extent: FileExtent) -> Path | None:
    folder = folder_of("hashes")
    name = hashlib.sha256(repr(extent.identity).encode()).hexdigest()[:32]
    return None if folder is None else folder / f"{name}.txt"


def _where(origin: Origin) -> str:
    about = origin.extent.start, origin.extent.size, origin.shape, origin.dtype, origin.blocks
    return " ".join(map(str, about))
