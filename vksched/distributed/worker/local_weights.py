"""Local weights: read weights from model files in folders of this host's owner.

    driver: home/me/models/llama.gguf, 4 GB, bytes 4096 to 8192 of it, blocks of Q4_K
    worker: DIR/home/me/models/llama.gguf? DIR/me/models/llama.gguf? .. DIR/llama.gguf? -> a weight

Problem: model files are large, and often both hosts have them. Method: the driver sends the path
and size of its file. The worker searches for suffixes of the path below its folders only: path
components must be plain names, and links must not leave the folder. A match is only a candidate;
the hash of the weight decides. Examples: tests/distributed/test_local_weights.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ...common.dtypes import DTYPES, MAX_RANK, NARROW, NDArray, numpy_dtype
from ...common.errors import VkschedError
from ...ops.quantized.gguf_formats import pack_u32
from ...storage.lazy_array import ArrayLike, Origin, lazy_bytes
from ...storage.model_file import FileBytes, ModelFile, UnchangedFile, content_of
from ...storage.safe_open import opened_below, parts_of

MAX_PARTS = 8
"""Maximum number of components of a driver's path."""
WHERE = "[worker] model"


def file_document(origin: Origin) -> dict[str, Any]:
    """Return the description of a weight's bytes in a file; see `messages.WeightDocument`."""
    extent = origin.extent
    path = PurePath(extent.path)
    return {
        "path": "/".join(path.relative_to(path.anchor).parts[-MAX_PARTS:]),
        "bytes": extent.identity[2],
        "start": extent.start,
        "size": extent.size,
        "shape": list(origin.shape),
        "dtype": origin.dtype,
        "blocks": origin.blocks,
    }


class ModelFolders:
    """Folders whose files drivers may read. Raise VkschedError if one is no folder."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = [Path(each).resolve() for each in folders]
        for each in self._folders:
            if not each.is_dir():
                raise VkschedError(f"[worker] expected a folder of models, got {str(each)!r}")

    def open(self, path: str, size: int) -> ModelFile | None:
        """Return the first file that has this size and matches a suffix of the path, or None."""
        for folder, parts in self._places(path):
            try:
                with ExitStack() as stack:
                    file = opened_below(stack, folder, parts)
                    name = str(folder.joinpath(*parts))
                    content = content_of(file, name, WHERE, True)
                    if len(content) == size:
                        return ModelFile(content, UnchangedFile(file, name, WHERE))
            except (OSError, ValueError, VkschedError):  # not in this folder
                continue
        return None

    def _places(self, path: str) -> Iterator[tuple[Path, list[str]]]:
        parts = parts_of(path) or []
        for begin in range(max(0, len(parts) - MAX_PARTS), len(parts)):
            for folder in self._folders:
                yield folder, parts[begin:]


class _Read(FileBytes):
    """A byte range of a file that is read, never mapped: truncation of a mapped file would kill
    this process.
    """

    def view(self) -> NDArray | None:
        return None


def weight_of(file: ModelFile, info: Mapping[str, Any]) -> ArrayLike | None:
    """Return a weight from the bytes of a file, as described by `file_document`, or None if it
    cannot be read.
    """
    start, size, shape = info["start"], info["size"], tuple(info["shape"])
    fits = 0 <= start <= start + size <= len(file.content) and size > 0
    if not fits or file.file is None or not 0 < len(shape) <= MAX_RANK or min(shape) < 1:
        return None
    part = _Read(file.content[start : start + size], file.file, start)
    try:
        if info["blocks"]:
            return pack_u32(info["blocks"], part, shape)
        known = info["dtype"] in (*DTYPES, *NARROW)
        if not known or math.prod(shape) * numpy_dtype(info["dtype"]).itemsize != size:
            return None
        if len(shape) > 1:
            return lazy_bytes(part, shape, numpy_dtype(info["dtype"]))
        data: NDArray = np.empty(size, np.uint8)
        part.read(0, data)
        return data.view(numpy_dtype(info["dtype"]))
    except (OSError, VkschedError):
        return None
