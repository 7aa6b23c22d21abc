"""OrtValue: a value in host memory with onnxruntime's interface, exchangeable with DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import DTypeError, GraphError, ShapeError
from .devices import OrtDevice
from .ort_errors import translated


class OrtValue:
    """A tensor, a sequence of tensors, or maps in host memory."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    @translated()
    def ortvalue_from_numpy(
        numpy_obj: NDArray, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Wrap an array without a copy; vksched manages device memory itself.

        Raises
        ------
        DeviceError
            There is no such device type.
        """
        OrtDevice.make(device_type, device_id)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    @translated()
    def ortvalue_from_numpy_with_onnx_type(data: NDArray, onnx_element_type: int) -> OrtValue:
        """Return the memory of an array as a value of another ONNX type with equal element size.

        Raises
        ------
        DTypeError
            The element sizes differ.
        """
        dtype = dtype_of(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise DTypeError(
                f"[session] expected elements of {dtype.itemsize} bytes for {dtype}, got "
                f"{data.dtype}; try array.view()"
            )
        return OrtValue(data.view(dtype))

    @staticmethod
    @translated()
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return an uninitialized value in host memory.

        Raises
        ------
        DeviceError
            There is no such device type.
        """
        OrtDevice.make(device_type, device_id)
        return OrtValue(np.zeros(tuple(shape), dtype_of(element_type)))

    @staticmethod
    @translated()
    def from_dlpack(data: Any) -> OrtValue:
        """Return a value that shares the memory of another library's tensor.

        Parameters
        ----------
        data
            An object with __dlpack__, for instance a numpy array or a torch tensor, or a DLPack
            capsule.

        Raises
        ------
        DTypeError
            It is neither.
        GraphError
            Its memory cannot be shared.
        """
        try:
            return OrtValue(np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data)))
        except (TypeError, AttributeError, ValueError):
            raise DTypeError(
                f"[session] expected a tensor that has __dlpack__, got {type(data).__name__}"
            ) from None
        except (BufferError, RuntimeError) as error:
            raise GraphError(
                f"[session] expected a tensor in host memory whose elements numpy has, got "
                f"{type(data).__name__}: {error}; try a copy on the CPU as float32"
            ) from None

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule that shares this value's memory."""
        newer = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        options = {name: value for name, value in newer.items() if value is not None}
        return self._value.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._value.__dlpack_device__()
        return int(kind), int(number)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        if copy:
            return np.array(self._value, dtype)
        return np.asarray(self._value, dtype)

    def numpy(self) -> Any:
        return self._value

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Return False: values are dense."""
        return False

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and not _has_maps(self._value)

    def has_value(self) -> bool:
        return self._value is not None

    def shape(self) -> list[int]:
        return list(self._value.shape)

    def data_type(self) -> str:
        """Return the type as onnxruntime writes it: "tensor(float)"."""
        from ..importers.onnx.nodes.elements import element_name, element_of

        if _has_maps(self._value):
            maps = self._value if isinstance(self._value, list) else [self._value]
            key = "string" if isinstance(next(iter(maps[0]), 0), str) else "int64"
            inner = f"map({key},tensor(float))"
            return inner if maps is not self._value else f"seq({inner})"
        if self.is_tensor_sequence():
            inner = OrtValue(self._value[0]).data_type() if self._value else "tensor(float)"
            return f"seq({inner})"
        return f"tensor({element_name(element_of(self._value))})"

    def element_type(self) -> int:
        """Return the ONNX element type."""
        from ..importers.onnx.nodes.elements import element_of

        return element_of(self._value)

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self._value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._value.nbytes)

    @translated()
    def update_inplace(self, data: Any) -> None:
        """Copy an array or another value into this value.

        Raises
        ------
        ShapeError, DTypeError
            It does not fit.
        """
        fill(self._value, plain(data), "the value")


def _has_maps(value: Any) -> bool:
    """Return True if a value is a map or a sequence of maps."""
    return isinstance(value[0] if isinstance(value, list) and value else value, dict)


class _Capsule:
    """A DLPack capsule in the form that numpy accepts."""

    def __init__(self, capsule: Any) -> None:
        if type(capsule).__name__ != "PyCapsule":
            raise TypeError
        self._capsule = capsule

    def __dlpack__(self, **unused: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST


_HOST = (1, 0)
"""DLPack's device for host memory; numpy checks the capsule and rejects others."""


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """Return a numpy dtype from a dtype or an ONNX element type."""
    if isinstance(element_type, int):
        from ..importers.onnx.nodes.elements import numpy_of

        return numpy_of(element_type)
    found: np.dtype[Any] = np.dtype(element_type)
    return found


def plain(value: Any) -> Any:
    """Convert a value to arrays, including OrtValues and other objects with numpy()."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) or not hasattr(value, "numpy"):
        return value
    return value.numpy()


def fill(target: NDArray, value: Any, what: str) -> None:
    """Copy a result into the caller's array.

    Raises
    ------
    ShapeError, DTypeError
        It does not fit.
    """
    array = np.asarray(value)
    if array.shape != target.shape:
        raise ShapeError(f"[session] expected shape {target.shape} for {what}, got {array.shape}")
    if array.dtype != target.dtype:
        raise DTypeError(f"[session] expected {target.dtype} for {what}, got {array.dtype}")
    np.copyto(target, array)
