"""Extract large tensors from a serialized model before protobuf parses it.

A model is a tree of length-delimited fields. Weights are the `raw_data` of the main graph's
initializers, or packed numbers in another field:

    ModelProto [7: GraphProto [5: TensorProto [9: raw_data] ...] ...]

protobuf would copy them several times, and parses at most 2 GiB. So this module walks the fields on
that path, a few per initializer. Data becomes a view of the file, and protobuf parses the skeleton
without it. The time is linear in the number of nodes and initializers, not in bytes. Encoding:
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError

DType = np.dtype[Any]

LARGE_BYTES = 4096
"""Smaller data stays in the skeleton, where shape inference can read it."""

_GRAPH, _INITIALIZER = 7, 5
RAW_DATA = 9
FIELDS = {4: "float_data", 5: "int32_data", 7: "int64_data", 10: "double_data", 11: "uint64_data"}
"""Fields of a tensor with numbers."""
_DATA = (RAW_DATA, *FIELDS)
_FIRST = frozenset(
    number << 3 | wire
    for wire, numbers in ((0, (1, 5)), (2, (2, 3, 4, 6, 7, 8, 14)))
    for number in numbers
)
"""First bytes of the fields that a ModelProto may start with: numbers, then strings and
messages.
"""
_PIECE_BYTES = 1 << 20
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class LargeField:
    """The data of a tensor in one field, and the field's number."""

    number: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire: int
    start: int
    """Offset of the tag."""
    value: int
    """Offset of the value; for a delimited field, after its length."""
    end: int


def split(data: memoryview) -> tuple[bytes, list[LargeField | None]]:
    """Return the model without large data, and for each initializer its data or None.

    Raises
    ------
    ModelFormatError
        The bytes are truncated or are not fields.
    """
    taken: list[LargeField | None] = []
    pieces: list[bytes | memoryview] = []
    for field in _fields(data, 0, len(data)):
        if (field.number, field.wire) == (_GRAPH, _DELIMITED):
            _put(pieces, _GRAPH, _graph(data, field, taken))
        else:
            pieces.append(data[field.start : field.end])
    return b"".join(pieces), taken


def begins_as_model(data: memoryview) -> bool:
    """Return True if the first byte is that of a field of an ONNX model; other files may match,
    too.
    """
    return not len(data) or data[0] in _FIRST


def _graph(
    data: memoryview, graph: _Field, taken: list[LargeField | None]
) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    copied = graph.value
    for field in _fields(data, graph.value, graph.end):
        if (field.number, field.wire) != (_INITIALIZER, _DELIMITED):
            continue
        large = _large(data, field)
        taken.append(
            None if large is None else LargeField(large.number, data[large.value : large.end])
        )
        if large is not None:
            pieces.append(data[copied : field.start])
            rest: list[bytes | memoryview] = [
                data[field.value : large.start],
                data[large.end : field.end],
            ]
            _put(pieces, _INITIALIZER, rest)
            copied = field.end
    pieces.append(data[copied : graph.end])
    return pieces


def _large(data: memoryview, tensor: _Field) -> _Field | None:
    """Return the field of a tensor's data if it is large and the only one."""
    found: _Field | None = None
    for part in _fields(data, tensor.value, tensor.end):
        if part.number in _DATA:
            if found is not None or part.wire != _DELIMITED:
                return None  # several fields, or one entry per number: protobuf joins them
            found = part
    return found if found is not None and found.end - found.value > LARGE_BYTES else None


def numbers(packed: memoryview, count: int, dtype: DType) -> NDArray:
    """Return the low bits of packed varints, decoded in chunks.

    Raises
    ------
    ModelFormatError
        Their number is not `count`.
    """
    data = np.frombuffer(packed, np.uint8)
    out, filled, at = np.empty(count, dtype), 0, 0
    while at < len(data):
        piece = data[at : at + _PIECE_BYTES]
        ends = np.flatnonzero(piece < 0x80)
        starts = np.concatenate(([0], ends[:-1] + 1))
        if not len(ends) or (ends - starts).max() > 9:
            raise ModelFormatError("a number of more than 10 bytes, or that does not end")
        piece = piece[: ends[-1] + 1]
        place = (np.arange(len(piece)) - np.repeat(starts, ends - starts + 1)).astype(np.uint64)
        bits = (piece & 0x7F).astype(np.uint64) << place * np.uint64(7)
        if filled + len(ends) > count:
            raise ModelFormatError(f"more than {count} numbers")
        out[filled : filled + len(ends)] = np.bitwise_or.reduceat(bits, starts).astype(dtype)
        filled += len(ends)
        at += len(piece)
    if filled < count:
        raise ModelFormatError(f"{filled} numbers")
    return out


def _put(pieces: list[bytes | memoryview], number: int, inside: list[bytes | memoryview]) -> None:
    pieces.append(_varint_bytes(number << 3 | _DELIMITED))
    pieces.append(_varint_bytes(sum(len(p) for p in inside)))
    pieces += inside


def _fields(data: memoryview, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, (_, at) = at, _varint(data, at, end)
        elif wire == _DELIMITED:
            length, value = _varint(data, at, end)
            at = value + length
        elif wire in (_EIGHT, _FOUR):
            value, at = at, at + (8 if wire == _EIGHT else 4)
        else:
            raise _damaged(start, f"a field of wire type {wire}")
        if not number:
            raise _damaged(start, "a field with the number 0")
        if at > end:
            raise _damaged(start, f"a field that ends {at - end} bytes after its parent")
        yield _Field(number, wire, start, value, at)


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a varint and its end."""
    value = 0
    for place in range(10):
        if at + place >= end:
            raise _damaged(at, "a number that does not end")
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise _damaged(at, "a number of more than 10 bytes")


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _damaged(at: int, what: str) -> ModelFormatError:
    return ModelFormatError(
        f"[onnx] expected an ONNX model, got {what} at byte {at}; the file is truncated, damaged "
        "or something else"
    )
