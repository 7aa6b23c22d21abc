"""Convert TensorProto to numpy, and check all sizes before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ....common.dtypes import NDArray, Shape
from ....common.errors import ModelFormatError
from ..nodes.limits import FOLD_LIMIT, MAX_ELEMENTS, MAX_RANK, materialized_limit
from .external_data import Folder
from .protobuf_wire import FIELDS, RAW_DATA, LargeField, numbers

_Type = onnx.TensorProto
# Types that are newer than the oldest supported onnx package are looked up by name.
_BITS = {
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
}
"""Types with several elements per byte."""
_COMPLEX = (_Type.COMPLEX64, _Type.COMPLEX128)
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_EXTERNAL = ("external_data", "data_location")


def text(value: object, where: str) -> str:
    """Return a string of the file; protobuf returns strings that are not UTF-8 as bytes.

    Raises
    ------
    ModelFormatError
        The string is not UTF-8.
    """
    if not isinstance(value, str):
        raise ModelFormatError(f"[onnx] {where}: expected UTF-8, got {value!r}")
    return value


def checked_shape(dims: Sequence[int], where: str) -> Shape:
    """Return dimensions as a shape.

    Raises
    ------
    ModelFormatError
        A dimension is negative, or there are too many elements or dimensions.
    """
    shape = tuple(dims)
    if len(shape) > MAX_RANK:
        raise ModelFormatError(
            f"[onnx] {where}: expected a rank of at most {MAX_RANK}, got {len(shape)}"
        )
    if any(d < 0 for d in shape):
        raise ModelFormatError(f"[onnx] {where}: expected dimensions of 0 or more, got {shape}")
    if math.prod(d for d in shape if d) > MAX_ELEMENTS:
        raise ModelFormatError(
            f"[onnx] {where}: expected at most 2^{MAX_ELEMENTS.bit_length() - 1} elements, got "
            f"{shape}"
        )
    return shape


def check_element_type(data_type: int, where: str) -> str:
    """Return the name of an element type.

    Raises
    ------
    ModelFormatError
        There is no such type.
    """
    if data_type not in _Type.DataType.values() or data_type == _Type.UNDEFINED:
        raise ModelFormatError(
            f"[onnx] {where}: expected an element type that onnx {onnx.__version__} knows, got "
            f"number {data_type}"
        )
    return str(_Type.DataType.Name(data_type))


class TensorReader:
    """Reads the tensors of one model and counts the memory allocated for them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.materialized_bytes = 0
        self._max_bytes = materialized_limit()

    def array(
        self, tensor: onnx.TensorProto, where: str, large: LargeField | None = None
    ) -> NDArray:
        """Return the value as a read-only array, a view of the file if possible.

        Parameters
        ----------
        large
            The data, if it was extracted from the tensor.

        Raises
        ------
        ModelFormatError
            Data is missing, or its size does not match shape and type.
        """
        shape, kind = self._described(tensor, where)
        raw: memoryview | None = None
        if tensor.data_location == _Type.EXTERNAL:
            raw = self._external(tensor, shape, kind, where)
        elif large is not None:
            raw = self._unpacked_field(tensor.data_type, large, shape, kind, where)
        elif tensor.HasField("raw_data"):
            raw = memoryview(tensor.raw_data)
        if raw is None:
            array = self._from_field(tensor, shape, kind, where)
        else:
            array = _from_raw(raw, tensor.data_type, shape, kind, where)
        array.setflags(write=False)
        return array

    def dense(self, sparse: onnx.SparseTensorProto, where: str) -> NDArray:
        """Return a sparse tensor as a dense array."""
        shape = checked_shape(sparse.dims, where)
        values = self.array(sparse.values, f"{where}, values")
        indices = self.array(sparse.indices, f"{where}, indices")
        size, count = math.prod(shape), values.size
        fits = values.ndim == 1 and indices.shape in ((count,), (count, len(shape)))
        if not fits or indices.dtype != np.int64 or values.dtype == object:
            raise ModelFormatError(
                f"[onnx] {where}: expected numbers of shape (n,) and int64 indices of shape (n,) "
                f"or (n, {len(shape)}), got {values.dtype} {values.shape} and {indices.dtype} "
                f"{indices.shape}"
            )
        self._count(size * values.dtype.itemsize, where)
        limits = np.array(shape if indices.ndim == 2 else size, np.int64)
        if ((indices < 0) | (indices >= limits)).any():
            raise ModelFormatError(
                f"[onnx] {where}: expected indices within {shape}, got one outside"
            )
        array = np.zeros(shape, values.dtype)
        if indices.ndim == 2:
            array[tuple(indices.T)] = values
        else:
            array.reshape(-1)[indices] = values
        array.setflags(write=False)
        return array

    def embed(self, tensor: onnx.TensorProto, where: str) -> None:
        """Check a tensor that stays in the model, and embed its external data: later readers do not
        know the folder of the file.
        """
        shape, kind = self._described(tensor, where)
        if tensor.data_location == _Type.EXTERNAL:
            raw = self._external(tensor, shape, kind, where)
            self._count(len(raw), where)
            for field in _EXTERNAL:
                tensor.ClearField(field)
            tensor.raw_data = bytes(raw)
        self.array(tensor, where)

    def _described(self, tensor: onnx.TensorProto, where: str) -> tuple[Shape, str]:
        kind = check_element_type(tensor.data_type, where)
        if tensor.HasField("segment"):
            raise ModelFormatError(
                f"[onnx] {where}: expected a tensor without segments, got segments"
            )
        return checked_shape(tensor.dims, where), kind

    def _external(
        self, tensor: onnx.TensorProto, shape: Shape, kind: str, where: str
    ) -> memoryview:
        entries = {
            text(e.key, where): text(e.value, f"{where}, external data")
            for e in tensor.external_data
        }
        if kind == "STRING":
            raise ModelFormatError(f"[onnx] {where}: expected strings within the model")
        length = _raw_bytes(tensor.data_type, kind, math.prod(shape))
        numbers = {"offset": 0, "length": length}
        for key in numbers:
            value = entries.get(key, str(numbers[key]))
            if not (value.isascii() and value.isdigit() and len(value) < 19):
                raise ModelFormatError(
                    f"[onnx] {where}: expected a number of bytes as {key} of the external data, "
                    f"got {value[:40]!r}"
                )
            numbers[key] = int(value)
        if numbers["length"] != length:
            raise ModelFormatError(
                f"[onnx] {where}: expected {length} bytes of external data for {kind} {shape}, "
                f"got {numbers['length']}"
            )
        return self._folder.read(entries.get("location", ""), numbers["offset"], length, where)

    def _unpacked_field(
        self, data_type: int, large: LargeField, shape: Shape, kind: str, where: str
    ) -> memoryview:
        """Return data in the layout of raw_data."""
        if large.number == RAW_DATA:
            return large.data
        wanted, field = helper.tensor_dtype_to_field(data_type), FIELDS[large.number]
        if field != wanted:
            raise ModelFormatError(
                f"[onnx] {where}: expected data in {wanted} for {kind}, got some in {field}"
            )
        if field in ("float_data", "double_data"):
            return large.data  # raw data has the same layout
        count = math.prod(shape)
        bits = _BITS.get(kind, 8)
        if bits in (2, 4):
            count = -(-count * bits // 8)
        width = 1 if kind in _BITS else helper.tensor_dtype_to_np_dtype(data_type).itemsize
        if count > len(large.data):
            raise ModelFormatError(
                f"[onnx] {where}: expected {count} numbers in {field} for {kind} {shape}, got fewer"
            )
        self._count(max(0, count * width - 4 * len(large.data)), where)
        try:
            found = numbers(large.data, count, np.dtype(f"<u{width}"))
        except ModelFormatError as error:
            raise ModelFormatError(
                f"[onnx] {where}: expected {count} numbers in {field} for {kind} {shape}, got "
                f"{error}"
            ) from None
        if bits == 6:  # raw data has no gaps between elements
            spread = np.unpackbits(found[:, None], axis=1, bitorder="little")[:, :6]
            found = np.packbits(spread.reshape(-1), bitorder="little")
        return found.view(np.uint8).data

    def _from_field(self, tensor: onnx.TensorProto, shape: Shape, kind: str, where: str) -> NDArray:
        field, size = helper.tensor_dtype_to_field(tensor.data_type), math.prod(shape)
        count = size * 2 if tensor.data_type in _COMPLEX else size
        if _BITS.get(kind, 8) in (2, 4):
            count = -(-size * _BITS[kind] // 8)
        values = getattr(tensor, field)
        if len(values) != count:
            filled = [f"{len(getattr(tensor, f))} in {f}" for f in _FIELDS if getattr(tensor, f)]
            raise ModelFormatError(
                f"[onnx] {where}: expected {count} numbers in {field} for {kind} {shape}, got "
                f"{' and '.join(filled) or 'no data'}"
            )
        if kind != "STRING":
            try:
                return np.array(numpy_helper.to_array(tensor), copy=None)
            except (ValueError, TypeError, OverflowError) as error:
                raise ModelFormatError(f"[onnx] {where}: {error}") from None
        array = np.empty(size, object)
        try:
            array[:] = [s.decode() for s in values]
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"[onnx] {where}: expected UTF-8, {error}") from None
        return array.reshape(shape)

    def _count(self, materialized_bytes: int, where: str) -> None:
        self.materialized_bytes += materialized_bytes
        if self.materialized_bytes > self._max_bytes:
            raise ModelFormatError(
                f"[onnx] {where}: expected constants that take at most {self._max_bytes >> 20} "
                f"MiB more than in the file, got {self.materialized_bytes >> 20} MiB; try plain "
                f"initializers of the main graph, or {FOLD_LIMIT}={self._max_bytes >> 19}"
            )


def _raw_bytes(data_type: int, kind: str, size: int) -> int:
    if kind in _BITS:
        return -(-size * _BITS[kind] // 8)
    return size * int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def _from_raw(raw: memoryview, data_type: int, shape: Shape, kind: str, where: str) -> NDArray:
    size = math.prod(shape)
    if kind == "STRING":
        raise ModelFormatError(f"[onnx] {where}: expected strings in string_data, got raw data")
    expected = _raw_bytes(data_type, kind, size)
    if len(raw) != expected:
        raise ModelFormatError(
            f"[onnx] {where}: expected {expected} bytes of data for {kind} {shape}, got {len(raw)}"
        )
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    if kind in _BITS:
        packed = np.frombuffer(raw, np.uint8)
        return _unpacked(packed, _BITS[kind], size).view(dtype).reshape(shape)
    if kind == "BOOL":
        numbers = np.frombuffer(raw, np.uint8)
        if size and numbers.max() > 1:
            return np.not_equal(numbers, 0).reshape(shape)
    return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)


def _unpacked(packed: NDArray, bits: int, size: int) -> NDArray:
    """Return one byte per element, lowest bits first."""
    period = math.lcm(bits, 8) // 8
    if period == 1:
        each = 8 // bits
        out = np.empty((packed.size, each), np.uint8)
        for place in range(each):
            out[:, place] = packed >> bits * place & (1 << bits) - 1
        return out.reshape(-1)[:size]
    stream = np.unpackbits(packed, bitorder="little")[: size * bits].reshape(size, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(-1)
