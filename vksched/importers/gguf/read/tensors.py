"""Tensors: reads the tensor infos of a GGUF file, and maps each tensor to its part of the file.

    for each:  name | rank | sizes, the innermost first | type | offset        then, aligned: data

An element type has blocks, each a number of elements of a row in a number of bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ....common.dtypes import NDArray, Shape
from ....common.errors import ModelFormatError
from ....storage.lazy_array import FileSlice
from ....storage.model_file import FileBytes, ModelFile, copied
from .cursor import Cursor
from .dequantize import dequantize
from .limits import MAX_NAME_BYTES, MAX_RANK

MIN_INFO_BYTES = 8 + 1 + 4 + 4 + 8
"""The minimum bytes of a tensor info."""


@dataclass(frozen=True, eq=False, slots=True)
class GgufTensor:
    """A tensor of a file, in the file's format.

    shape: in numpy's order, the innermost axis last. type: ggml's name of the element type, for
    example "Q4_K". blocks: a lazy reference to the bytes; `data` if the file is in memory.
    """

    name: str
    shape: Shape
    type: str
    blocks: memoryview | FileSlice

    @property
    def data(self) -> memoryview:
        """The bytes, a read-only view of the file, or a copy if they are parts of it."""
        blocks = self.blocks
        return blocks.content if isinstance(blocks, FileBytes) else copied(blocks)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes in the file."""
        return self.data.nbytes

    def __repr__(self) -> str:
        return f"<GgufTensor {self.name}: {self.type} {self.shape}, {self.nbytes} bytes>"

    def to_numpy(self) -> NDArray:
        """Return the elements as float32: a view of the file if they are float32 already, else a
        new array.

        Raises
        ------
        ModelFormatError
            The type is not a type of weights.
        """
        return dequantize(self.name, self.type, self.shape, self.data)


class _Info(NamedTuple):
    name: str
    shape: Shape
    type: GGMLQuantizationType
    start: int
    """Byte offsets from the start of the data."""
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


def read_tensors(
    cursor: Cursor, count: int, alignment: int, file: ModelFile
) -> dict[str, GgufTensor]:
    """Return the tensors of a file by name. cursor: positioned at the tensor infos.

    Raises
    ------
    ModelFormatError
        A name occurs twice, a type is unknown, a size is not a multiple of its block, or data is
        outside of the file, misaligned, or overlapping.
    """
    infos: dict[str, _Info] = {}
    for number in range(count):
        info = _read_info(cursor, f"tensor {number}", alignment)
        if info.name in infos:
            raise ModelFormatError(
                f"[gguf] tensor {number}: expected each name once, got {info.name!r} again"
            )
        infos[info.name] = info
    begin = -(-cursor.at // alignment) * alignment
    _check_places(list(infos.values()), len(cursor.data) - begin)
    return {
        info.name: GgufTensor(
            *(info.name, info.shape, info.type.name),
            file.part(begin + info.start, begin + info.end),
        )
        for info in infos.values()
    }


def _read_info(cursor: Cursor, what: str, alignment: int) -> _Info:
    name = cursor.name(MAX_NAME_BYTES, what)
    what = f"tensor {name!r}"
    rank = cursor.number("I", f"{what}, rank")
    if not 1 <= rank <= MAX_RANK:
        raise ModelFormatError(f"[gguf] {what}: expected a rank of 1 to {MAX_RANK}, got {rank}")
    *sizes, number, start = cursor.fields(f"{rank}QIQ", f"{what}, sizes, type and offset")
    shape = tuple(sizes[::-1])
    if 0 in shape:
        raise ModelFormatError(f"[gguf] {what}: expected sizes of 1 or more, got {shape}")
    kind = _type(number, what)
    elements, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % elements:
        raise ModelFormatError(
            f"[gguf] {what}: expected rows of whole blocks of {elements} elements of {kind.name}, "
            f"got shape {shape}"
        )
    if start % alignment:
        raise ModelFormatError(
            f"[gguf] {what}: expected an offset that is a multiple of {alignment}, got {start}"
        )
    return _Info(name, shape, kind, start, math.prod(shape) // elements * block_bytes)


def _type(number: int, what: str) -> GGMLQuantizationType:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise ModelFormatError(
            f"[gguf] {what}: expected an element type that the gguf package knows, got number "
            f"{number}; try a newer gguf package, or another file of this model"
        ) from None
    return kind


def _check_places(infos: list[_Info], data_bytes: int) -> None:
    """Raise ModelFormatError if tensors are outside of the file or overlap."""
    before: _Info | None = None
    for info in sorted(infos, key=lambda info: info.start):
        if info.end > data_bytes:
            raise ModelFormatError(
                f"[gguf] tensor {info.name!r}: expected {info.size_bytes} bytes of "
                f"{info.type.name} {info.shape} from byte {info.start} of the data, got a file "
                f"with {max(0, data_bytes)} bytes of data; try to get it again, as it is cut off "
                "or damaged"
            )
        if before is not None and info.start < before.end:
            raise ModelFormatError(
                f"[gguf] tensor {info.name!r}: expected data of its own, got some that is also of "
                f"{before.name!r}"
            )
        before = info
