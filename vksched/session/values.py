"""OrtValue: a value in host memory, as onnxruntime's users hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..types import NDArray


class OrtValue:
    """A tensor or a sequence of tensors in host memory."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: NDArray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Returns an array as a value, without a copy; the devices' memory is vksched's own."""
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Returns a value to be written to."""
        return OrtValue(np.zeros(tuple(shape), dtype_of(element_type)))

    def numpy(self) -> Any:
        return self._value

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def has_value(self) -> bool:
        return self._value is not None

    def shape(self) -> list[int]:
        return list(self._value.shape)

    def data_type(self) -> str:
        """Returns the type as onnxruntime writes it: "tensor(float)"."""
        from ..importers.onnx.nodes.elements import element_name, element_of

        if self.is_tensor_sequence():
            inner = OrtValue(self._value[0]).data_type() if self._value else "tensor(float)"
            return f"seq({inner})"
        return f"tensor({element_name(element_of(self._value))})"

    def element_type(self) -> int:
        """Returns ONNX's number of the element type."""
        from ..importers.onnx.nodes.elements import element_of

        return element_of(self._value)

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self._value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._value.nbytes)

    def update_inplace(self, np_arr: NDArray) -> None:
        """Copies an array into this value."""
        fill(self._value, np_arr, "the value")


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """Returns a numpy dtype, given as such or as ONNX's number."""
    if isinstance(element_type, int):
        from ..importers.onnx.nodes.elements import numpy_of

        return numpy_of(element_type)
    found: np.dtype[Any] = np.dtype(element_type)
    return found


def plain(value: Any) -> Any:
    """Returns a value as arrays: OrtValues, and what else has numpy(), are opened."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) or not hasattr(value, "numpy"):
        return value
    return value.numpy()


def fill(target: NDArray, value: Any, what: str) -> None:
    """Copies a result into the caller's array.

    Raises:
        ShapeError, DTypeError: it does not fit.
    """
    array = np.asarray(value)
    if array.shape != target.shape:
        raise ShapeError(f"[session] expected shape {target.shape} for {what}, got {array.shape}")
    if array.dtype != target.dtype:
        raise DTypeError(f"[session] expected {target.dtype} for {what}, got {array.dtype}")
    np.copyto(target, array)
