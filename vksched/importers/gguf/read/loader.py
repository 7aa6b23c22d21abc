"""Loader: reads a GGUF file, or all parts of a split model, as a GgufFile.

    "GGUF" | version | count of tensors | count of keys | metadata | tensor infos | data

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Files are untrusted: invalid
content raises a ModelFormatError that names the key or tensor, before any object is built from it.
Weights stay in the file, which must not be changed while its tensors are alive; see
`storage/model_file.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from types import MappingProxyType
from typing import TypeGuard

from gguf.constants import GGUF_DEFAULT_ALIGNMENT, Keys

from ....common.errors import ModelFormatError
from ....storage.model_file import ModelFile, open_model, read_ahead
from .cursor import Cursor
from .limits import MAX_ALIGNMENT, MAX_KEYS, MAX_PARTS, MAX_TENSORS
from .metadata import MIN_KEY_BYTES, Value, read_metadata
from .tensors import MIN_INFO_BYTES, GgufTensor, read_tensors

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

Source = str | os.PathLike[str] | bytes


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A validated file, or all parts of a model.

    metadata: the metadata of the first part. tensors: the tensors of all parts by name, in file
    order. parts: the paths; empty for a file in memory. file_bytes: the size of all parts.
    identity: identifies the opened files; None if they are in memory.
    """

    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    parts: tuple[Path, ...]
    file_bytes: int
    identity: tuple[tuple[int, ...], ...] | None = None

    def read_ahead(self) -> None:
        """Ask the operating system to read the weights ahead in the background."""
        parts = {id(tensor.data.obj): tensor.data for tensor in self.tensors.values()}
        for data in parts.values():
            read_ahead(data)

    @property
    def path(self) -> Path | None:
        """The path of the first part."""
        return self.parts[0] if self.parts else None

    @property
    def name(self) -> str:
        """The name of the model in the metadata, else that of the file."""
        named = self.metadata.get("general.name")
        own = named if isinstance(named, str) else ""
        return own or (self.path.stem if self.path else "model")


@dataclass(frozen=True)
class _Part:
    version: int
    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]
    file_bytes: int
    identity: tuple[int, ...] | None


def read_gguf(source: Source) -> GgufFile:
    """Read and validate a model.

    source: the bytes of a file, or its path; for a split model the path of any part.

    Raises
    ------
    ModelFormatError
        A file cannot be read, or is invalid.
    """
    try:
        return _read(source)
    except ModelFormatError as error:
        failure = str(error)
    # A new error, because the frames of the old one would keep the file mapped.
    raise ModelFormatError(failure)


def _read(source: Source) -> GgufFile:
    if isinstance(source, (bytes, bytearray, memoryview)):
        found = _read_part(ModelFile(memoryview(source).cast("B").toreadonly(), None))
        if _split_number(found, Keys.Split.LLM_KV_SPLIT_COUNT, 1) > 1:
            raise ModelFormatError(
                "[gguf] expected a whole model, got the bytes of a part of one; try its path"
            )
        return _joined([found], ())
    path = Path(source).absolute()
    found = _read_part(open_model(path, "gguf"))
    count = _split_number(found, Keys.Split.LLM_KV_SPLIT_COUNT, 1)
    if count <= 1:
        return _joined([found], (path,))
    paths = _paths_of_parts(path, count)
    parts = [found if p == path else _read_part(open_model(p, "gguf")) for p in paths]
    for number, (part, place) in enumerate(zip(parts, paths, strict=True)):
        _check_part(part, place.name, number, count)
    return _joined(parts, tuple(paths))


def _read_part(file: ModelFile) -> _Part:
    cursor = Cursor(file.content)
    version = _read_version(cursor)
    tensors = cursor.count(MIN_INFO_BYTES, MAX_TENSORS, "count of tensors")
    keys = cursor.count(MIN_KEY_BYTES, MAX_KEYS, "count of keys")
    metadata = read_metadata(cursor, keys, file)
    alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    if not _is_whole(alignment, MAX_ALIGNMENT) or alignment & (alignment - 1) or not alignment:
        raise ModelFormatError(
            f"[gguf] key {Keys.General.ALIGNMENT!r}: expected a power of two up to "
            f"{MAX_ALIGNMENT}, got {shortened(alignment)}"
        )
    found = read_tensors(cursor, tensors, alignment, file)
    identity = None if file.file is None else file.file.identity
    return _Part(version, metadata, found, len(file.content), identity)


def _read_version(cursor: Cursor) -> int:
    begin = bytes(cursor.data[: len(MAGIC)])
    if begin != MAGIC:
        raise ModelFormatError(f"[gguf] expected a file that begins with {MAGIC!r}, got {begin!r}")
    cursor.take(len(MAGIC), "header")
    version = int(cursor.number("I", "version"))
    if version and not version & 0xFFFF:
        raise ModelFormatError(
            "[gguf] expected a little-endian file, got a big-endian one; try to convert the model "
            "again, without --bigendian"
        )
    if version not in VERSIONS:
        raise ModelFormatError(
            f"[gguf] expected version 2 or 3 of the format, got {version}; try to convert the "
            "model again"
        )
    return version


# -- parts ---------------------------------------------------------------------------------------


def _split_number(part: _Part, key: str, default: int) -> int:
    """Return a number of a split model; `default` for other models."""
    value = part.metadata.get(key, default)
    if not _is_whole(value, MAX_TENSORS):
        raise ModelFormatError(
            f"[gguf] key {key!r}: expected a number of 0 to {MAX_TENSORS}, got {shortened(value)}"
        )
    return value


def _paths_of_parts(path: Path, count: int) -> list[Path]:
    named = _PART.fullmatch(path.name)
    if named is None or int(named[3]) != count or not 1 <= int(named[2]) <= count:
        raise ModelFormatError(
            f"[gguf] expected a part of {count} with a name such as model-00001-of-{count:05}.gguf"
            f", got {path.name!r}; try the original names of all parts"
        )
    if count > MAX_PARTS:
        raise ModelFormatError(f"[gguf] expected a model of at most {MAX_PARTS} parts, got {count}")
    return [path.with_name(f"{named[1]}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]


def _check_part(part: _Part, name: str, number: int, count: int) -> None:
    """Raise ModelFormatError if a file is not the part that its name says."""
    for key, expected in (
        (Keys.Split.LLM_KV_SPLIT_NO, number),
        (Keys.Split.LLM_KV_SPLIT_COUNT, count),
    ):
        found = part.metadata.get(key)
        if not _is_whole(found, MAX_PARTS) or found != expected:
            raise ModelFormatError(
                f"[gguf] {name}: expected {expected} as {key!r}, got {shortened(found)}; try to "
                "get this part again"
            )


def _joined(parts: list[_Part], paths: tuple[Path, ...]) -> GgufFile:
    first, tensors = parts[0], dict[str, GgufTensor]()
    for number, part in enumerate(parts):
        if part.version != first.version:
            raise ModelFormatError(
                f"[gguf] {paths[number].name}: expected version {first.version} of the format as "
                f"in the first part, got {part.version}"
            )
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelFormatError(
                    f"[gguf] {paths[number].name}: expected each tensor in one part, got {name!r} "
                    "in two"
                )
            tensors[name] = tensor
    expected = _split_number(first, Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, len(tensors))
    if expected != len(tensors):
        raise ModelFormatError(
            f"[gguf] expected {expected} tensors in all parts, as the first one says, got "
            f"{len(tensors)}; the parts are not of one model"
        )
    known = [part.identity for part in parts if part.identity is not None]
    return GgufFile(
        first.version,
        MappingProxyType(first.metadata),
        MappingProxyType(tensors),
        paths,
        sum(part.file_bytes for part in parts),
        tuple(known) if len(known) == len(parts) else None,
    )


def _is_whole(value: object, maximum: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum
