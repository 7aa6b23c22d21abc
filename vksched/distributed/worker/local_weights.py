"""Folders: weights that lie in files below folders of this computer's owner.

    driver: home/me/models/llama.gguf, 4 GB, bytes 4096 to 8192 of it, blocks of Q4_K
    node:   DIR/home/me/models/llama.gguf? DIR/me/models/llama.gguf? .. DIR/llama.gguf? -> a weight

Problem: model files are large, and both computers have them. Method: the driver tells the path and
the size of its file. The worker looks for the end of that path below its folders, and never
elsewhere: nothing but names goes down from a folder, and no link leads out of it. What it finds is
a guess; the hash of the weight tells. Examples: tests/distributed/test_local_weights.py.
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
from ...storage.model_file import FileBytes, ModelFile, Unchanged, content_of
from ...storage.safe_open import opened_below, parts_of

MAX_PARTS = 8
"""Of a path that a driver tells."""
WHERE = "[worker] model"


def file_document(origin: Origin) -> dict[str, Any]:
    """Returns what a driver tells of the bytes that a weight is made of; see `messages.WEIGHT`."""
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
    """Folders whose files drivers may have read.

    Raises:
        VkschedError: one is no folder.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = [Path(each).resolve() for each in folders]
        for each in self._folders:
            if not each.is_dir():
                raise VkschedError(f"[worker] expected a folder of models, got {str(each)!r}")

    def open(self, path: str, size: int) -> ModelFile | None:
        """Return the file of so many bytes that is found first at the end of a path; None where
        there is none.
        """
        for folder, parts in self._places(path):
            try:
                with ExitStack() as stack:
                    file = opened_below(stack, folder, parts)
                    name = str(folder.joinpath(*parts))
                    content = content_of(file, name, WHERE, True)
                    if len(content) == size:
                        return ModelFile(content, Unchanged(file, name, WHERE))
            except (OSError, ValueError, VkschedError):  # not here
                continue
        return None

    def _places(self, path: str) -> Iterator[tuple[Path, list[str]]]:
        parts = parts_of(path) or []
        for begin in range(max(0, len(parts) - MAX_PARTS), len(parts)):
            for folder in self._folders:
                yield folder, parts[begin:]


class _Read(FileBytes):
    """A part of a file that is never used where it lies: whoever cuts the file off would end this
    process, with what others have here.
    """

    def view(self) -> NDArray | None:
        return None


def weight_of(file: ModelFile, info: Mapping[str, Any]) -> ArrayLike | None:
    """Return a weight that is made of bytes of a file, as `file_document` tells; None where it
    cannot be.
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
