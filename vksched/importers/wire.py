"""Takes the large tensors out of a serialized model before protobuf parses the rest.

A model is a tree of length-delimited fields; weights are the `raw_data` of the main graph's
initializers:

    ModelProto [7: GraphProto [5: TensorProto [9: raw_data] ...] ...]

protobuf would copy them, and parses 2 GiB at most. So the fields on that path are walked here, a
few per initializer; raw data becomes a view of the file, and the skeleton without it is what
protobuf sees. Time is linear in the number of nodes and initializers, not in bytes.
Encoding: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ModelFormatError

LARGE_BYTES = 4096
"""Smaller raw data stays in the skeleton: shape inference wants to see it."""

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire: int
    start: int
    """Of the tag."""
    value: int
    """Of the value; for a delimited field behind its length."""
    end: int


def split(data: memoryview) -> tuple[bytes, list[memoryview | None]]:
    """Returns the model without large raw data, and for each initializer its data or None.

    Raises:
        ModelFormatError: the bytes end too early or are no fields.
    """
    raw: list[memoryview | None] = []
    pieces: list[bytes | memoryview] = []
    for field in _fields(data, 0, len(data)):
        if (field.number, field.wire) == (_GRAPH, _DELIMITED):
            _put(pieces, _GRAPH, _graph(data, field, raw))
        else:
            pieces.append(data[field.start : field.end])
    return b"".join(pieces), raw


def _graph(
    data: memoryview, graph: _Field, raw: list[memoryview | None]
) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    kept = graph.value
    for field in _fields(data, graph.value, graph.end):
        if (field.number, field.wire) != (_INITIALIZER, _DELIMITED):
            continue
        large = None
        rest: list[bytes | memoryview] = []
        for part in _fields(data, field.value, field.end):
            is_raw = (part.number, part.wire) == (_RAW_DATA, _DELIMITED)
            if is_raw and part.end - part.value > LARGE_BYTES:
                large = data[part.value : part.end]
                continue
            if is_raw:
                large = None  # of a field that is given twice the last counts
            rest.append(data[part.start : part.end])
        raw.append(large)
        if large is not None:
            pieces.append(data[kept : field.start])
            _put(pieces, _INITIALIZER, rest)
            kept = field.end
    pieces.append(data[kept : graph.end])
    return pieces


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
            raise _damaged(start, f"a field that ends {at - end} bytes behind what holds it")
        yield _Field(number, wire, start, value, at)


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Returns a number and where it ends."""
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
