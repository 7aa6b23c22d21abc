"""Array codec: arrays in messages, concatenated and aligned for numpy.

    fields: dtype and shape of each     payload: elements, padded to ALIGN_BYTES

If all elements of an array are equal, as in a state of zeros, one element is sent.

Examples: tests/distributed/test_stats_codec.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.dtypes import (
    DTYPES,
    MAX_RANK,
    NARROW,
    NDArray,
    TensorType,
    is_uniform,
    numpy_dtype,
)
from ...common.errors import ShapeError
from ...common.schema import SchemaError

ALIGN_BYTES = 64
_GAP = bytes(ALIGN_BYTES)


def pack(arrays: Iterable[NDArray]) -> tuple[list[dict[str, Any]], list[NDArray | bytes]]:
    """Return arrays as the fields and payload of a message."""
    fields: list[dict[str, Any]] = []
    payload: list[NDArray | bytes] = []
    for array in arrays:
        uniform = is_uniform(array)
        fields.append({"dtype": array.dtype.name, "shape": list(array.shape), "uniform": uniform})
        sent = array.reshape(-1)[:1] if uniform else array
        payload += [sent, _GAP[: -sent.nbytes % ALIGN_BYTES]]
    return fields, payload


def packed_bytes(fields: Iterable[Mapping[str, Any]]) -> int:
    """Return the payload size of arrays. Raise SchemaError if one is no array."""
    return sum(_padded(_sent_bytes(each)) for each in fields)


def unpack(fields: Sequence[Mapping[str, Any]], payload: memoryview | None) -> list[NDArray]:
    """Return the arrays of a message as views of its payload."""
    data, out, start = payload or memoryview(b""), [], 0
    for each in fields:
        size = _sent_bytes(each)
        flat = np.frombuffer(data[start : start + size], np.dtype(each["dtype"]))
        shape = tuple(each["shape"])
        out.append(
            np.broadcast_to(flat.reshape(()), shape) if each["uniform"] else flat.reshape(shape)
        )
        start += _padded(size)
    return out


def _sent_bytes(field: Mapping[str, Any]) -> int:
    dtype, shape = field["dtype"], field["shape"]
    if dtype not in (*DTYPES, *NARROW) or len(shape) > MAX_RANK or min(shape, default=0) < 0:
        raise SchemaError(f"expected an array, got {dtype} of shape {shape}")
    count = math.prod(shape)
    if field["uniform"] and not count:
        raise SchemaError("an array without elements is not uniform")
    return (1 if field["uniform"] else count) * numpy_dtype(dtype).itemsize


def _padded(size: int) -> int:
    return size + -size % ALIGN_BYTES


# -- values of types that both ends know -----------------------------------------------------------


def typed_bytes(types: Iterable[TensorType]) -> int:
    """Return the payload size of values of these types."""
    return sum(_padded(each.size * numpy_dtype(each.dtype).itemsize) for each in types)


def typed_payload(pairs: Iterable[tuple[NDArray, TensorType]]) -> Iterator[NDArray | bytes]:
    """Yield values of these types as a payload."""
    for array, type_ in pairs:
        sent = np.asarray(array, numpy_dtype(type_.dtype))
        if sent.shape != type_.shape:
            raise ShapeError(f"[run] expected an array of shape {type_.shape}, got {sent.shape}")
        yield sent
        yield _GAP[: -sent.nbytes % ALIGN_BYTES]


def typed_arrays(types: Iterable[TensorType], payload: NDArray) -> Iterator[NDArray]:
    """Yield the values of a payload as views of its bytes."""
    start = 0
    for each in types:
        dtype = numpy_dtype(each.dtype)
        size = each.size * dtype.itemsize
        yield payload[start : start + size].view(dtype).reshape(each.shape)
        start += _padded(size)


def memory(size: int) -> memoryview:
    """Return uninitialized bytes, aligned for numpy arrays."""
    whole = np.empty(size + ALIGN_BYTES, np.uint8)
    start = -whole.ctypes.data % ALIGN_BYTES
    return memoryview(whole[start : start + size])  # type: ignore[arg-type]
