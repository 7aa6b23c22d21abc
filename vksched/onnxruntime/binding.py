"""IOBinding: inputs and outputs that are bound once for many runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import DeviceError, GraphError
from .devices import OrtDevice
from .ort_errors import translated
from .ort_value import OrtValue, dtype_of, fill, plain


class Named(Protocol):
    """An object with input and output names: a session."""

    def get_inputs(self) -> Sequence[Any]: ...

    def get_outputs(self) -> Sequence[Any]: ...

    def get_overridable_initializers(self) -> Sequence[Any]: ...


class IOBinding:
    """Bound inputs and outputs of a run.

    Values are in host memory; a bound array is read when the session runs.
    """

    def __init__(self, session: Named) -> None:
        self._outputs_known = [arg.name for arg in session.get_outputs()]
        self._inputs_known = [
            arg.name for arg in (*session.get_inputs(), *session.get_overridable_initializers())
        ]
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, NDArray | None] = {}
        self._results: list[Any] = []

    # -- bindings ----------------------------------------------------------------------------------

    @translated()
    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array."""
        self._require(name, self._inputs_known, "input")
        self._inputs[name] = plain(arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to an OrtValue, or to another object with numpy()."""
        self.bind_cpu_input(name, ortvalue)

    @translated()
    def bind_input(
        self,
        name: str,
        device_type: Any,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an input to an array, passed as device_type, or to the memory at buffer_ptr."""
        if isinstance(device_type, str):
            self.bind_cpu_input(name, _memory(device_type, element_type, shape, buffer_ptr))
        else:
            self.bind_cpu_input(name, device_type)

    @translated()
    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to the memory at buffer_ptr, or to new memory."""
        self._require(name, self._outputs_known, "output")
        OrtDevice.make(device_type, device_id)
        wanted = buffer_ptr is not None
        target = _memory(device_type, element_type, shape, buffer_ptr) if wanted else None
        self._targets[name] = target

    @translated()
    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to the memory of an OrtValue."""
        self._require(name, self._outputs_known, "output")
        self._targets[name] = plain(ortvalue)

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._targets.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: values are in host memory."""

    def synchronize_outputs(self) -> None:
        """Do nothing: results are complete when the run returns."""

    # -- results ---------------------------------------------------------------------------------

    def get_outputs(self) -> list[OrtValue]:
        """Return the results of the last run, in the order of bound outputs."""
        return [OrtValue(value) for value in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the results of the last run as arrays."""
        return list(self._results)

    # -- called by the session ---------------------------------------------------------------------

    @property
    def inputs(self) -> dict[str, Any]:
        return dict(self._inputs)

    @property
    def outputs(self) -> list[str]:
        return list(self._targets)

    @translated()
    def put(self, results: Sequence[Any]) -> None:
        """Store the results of a run, in the order of `outputs`."""
        held: list[Any] = []
        for (name, target), value in zip(self._targets.items(), results, strict=True):
            if target is not None:
                fill(target, value, f"output {name!r}")
            held.append(value if target is None else target)
        self._results = held

    @staticmethod
    def _require(name: str, names: Iterable[str], what: str) -> None:
        known = list(names)
        if name not in known:
            raise GraphError(f"[session] expected an {what} of {known}, got {name!r}")


def _memory(
    device_type: str, element_type: Any, shape: Sequence[int] | None, buffer_ptr: int | None
) -> NDArray:
    """Return the memory at an address as an array."""
    if device_type != "cpu":
        raise DeviceError(
            f"[session] expected memory of the cpu, got that of {device_type}; try an array"
        )
    if element_type is None or shape is None or not buffer_ptr:
        raise GraphError("[session] expected element_type, shape and buffer_ptr; try an array")
    dtype = dtype_of(element_type)
    data = (ctypes.c_byte * (math.prod(shape) * dtype.itemsize)).from_address(buffer_ptr)
    array: NDArray = np.ctypeslib.as_array(data).view(dtype).reshape(tuple(shape))
    return array
