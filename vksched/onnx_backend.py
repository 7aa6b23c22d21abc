"""ONNX's backend interface, for tools that accept an `onnx.backend.base.Backend`.

    from vksched import onnx_backend
    with onnx_backend.prepare(model, "vulkan:0,vulkan:1") as rep:
        (scores,) = rep.run([batch])

Devices have the names of a Scheduler's devices, comma-separated in order of priority; "CPU" is
"cpu". Models prepared for the same devices share a scheduler, which stays open until close() or the
end of the process. Examples: tests/onnxruntime_api/test_onnx_backend.py.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from .common.dtypes import Shape
from .common.errors import DeviceError, GraphError, VkschedError
from .importers import load_onnx, require_onnx
from .runtime.vulkan import device_probe
from .scheduler.scheduler import Scheduler

require_onnx()

import onnx  # noqa: E402
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper  # noqa: E402
from onnx.backend.base import Backend, BackendRep, namedtupledict  # noqa: E402

from .importers.onnx.nodes.functions import canonical_domain  # noqa: E402
from .importers.onnx.nodes.values import CpuValue  # noqa: E402
from .models.compiled_model import CompiledModel  # noqa: E402

DEFAULT_DEVICE = "vulkan:0"


class VkschedRep(BackendRep):
    """A compiled model; as a context manager, it is freed at the end of the block."""

    def __init__(self, run: CompiledModel) -> None:
        self._run = run
        self._outputs = namedtupledict("Outputs", [v.name for v in run.outputs])
        self._finalizer = weakref.finalize(self, _dropped.append, run)
        self._finalizer.atexit = False

    @property
    def model_run(self) -> CompiledModel:
        """The compiled model, with its plans, inputs and outputs."""
        return self._run

    def run(self, inputs: Any, **kwargs: Any) -> tuple[CpuValue, ...]:
        """Run once and return the outputs as a named tuple.

        Parameters
        ----------
        inputs
            A list or tuple in the model's order, a dict by name, or the only input as an array.
            Initializers that are inputs may follow.
        kwargs
            Options of other backends, which are ignored.
        """
        found = self._run(**self._feeds(inputs))
        return self._outputs(*found.values())

    def close(self) -> None:
        """Free the memory of the model on the devices. May be called twice."""
        self._finalizer.detach()
        self._run.close()

    def __enter__(self) -> VkschedRep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        if not isinstance(inputs, (list, tuple)):
            inputs = [inputs]
        model = self._run.model
        names = [v.name for v in model.inputs]
        if len(inputs) > len(names):  # then all declared inputs, in file order
            names = [v.name for v in model.file.model.graph.input]
        if len(inputs) > len(names):
            raise GraphError(
                f"[onnx backend] expected at most {len(names)} inputs, got {len(inputs)}"
            )
        return dict(zip(names, inputs, strict=False))


class _Schedulers:
    """Open schedulers, by their devices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, ...], Scheduler] = {}

    def get(self, devices: tuple[str, ...]) -> Scheduler:
        with self._lock:
            if devices not in self._open:
                self._open[devices] = Scheduler(devices)
            return self._open[devices]

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


_schedulers = _Schedulers()
_dropped: deque[CompiledModel] = deque()
"""Unreferenced models, freed at the next call, because garbage collection can happen at any
time.
"""


def close() -> None:
    """Free all prepared models and close their devices; the next `prepare` opens them again."""
    _dropped.clear()
    _schedulers.close()


atexit.register(close)


def _sweep() -> None:
    while _dropped:
        _dropped.popleft().close()


def _names(device: str) -> tuple[str, ...]:
    """Return the device names in a name as ONNX backends' callers write it."""
    names = [name.strip() for name in device.split(",")]
    return tuple("cpu" if name.lower() == "cpu" else name for name in names)


class VkschedBackend(Backend):
    """The functions of this module as a class, for tools that require a class."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = DEFAULT_DEVICE, **kwargs: Any) -> bool:
        """Return True if a model is valid: then it runs, on the CPU if no device supports it."""
        try:
            load_onnx(model)
        except VkschedError:
            return False
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if all devices of a name exist and are usable."""
        try:
            for name in _names(device):
                device_probe.resolve(name)
        except DeviceError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = DEFAULT_DEVICE, **kwargs: Any) -> VkschedRep:
        """Return a compiled model. Free shapes are compiled at the first run that uses them.

        Parameters
        ----------
        model
            A model, a path, or the bytes of a file.
        kwargs
            placement, limit and precision, as for Scheduler.compile. Options of other backends are
            ignored.

        Raises
        ------
        ModelFormatError
            The model is invalid.
        DeviceError
            A device does not exist.
        """
        _sweep()
        known = ("placement", "limit", "precision")
        options = {name: kwargs[name] for name in known if name in kwargs}
        loaded = load_onnx(model)
        return VkschedRep(_schedulers.get(_names(device)).compile(loaded, **options))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = DEFAULT_DEVICE, **kwargs: Any
    ) -> tuple[CpuValue, ...]:
        """Run a model once."""
        with cls.prepare(model, device, **kwargs) as rep:
            return rep.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = DEFAULT_DEVICE,
        outputs_info: Sequence[tuple[Any, Shape]] | None = None,
        **kwargs: Any,
    ) -> tuple[CpuValue, ...]:
        """Run a single node once.

        Parameters
        ----------
        inputs
            Arrays by position, without omitted inputs, or by name.
        outputs_info
            Expected dtype and shape of each result.
        kwargs
            opset_version, that of the node's domain, by default the newest; others as for
            `prepare`.
        """
        model = _model_of(node, _by_name(node, inputs), outputs_info, kwargs.get("opset_version"))
        return cls.run_model(model, inputs, device, **kwargs)


is_compatible = VkschedBackend.is_compatible
prepare = VkschedBackend.prepare
run_model = VkschedBackend.run_model
run_node = VkschedBackend.run_node
supports_device = VkschedBackend.supports_device


# -- one node --------------------------------------------------------------------------------------


def _by_name(node: NodeProto, inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    arrays = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(arrays) != len(names):
        raise GraphError(
            f"[onnx backend] expected {len(names)} inputs for {node.op_type}, got {len(arrays)}"
        )
    return dict(zip(names, arrays, strict=True))


def _model_of(
    node: NodeProto,
    inputs: Mapping[str, Any],
    outputs_info: Sequence[tuple[Any, Shape]] | None,
    version: int | None,
) -> ModelProto:
    """Return a model of one node, with the types of its inputs."""
    names = [name for name in node.output if name]
    if outputs_info is not None:
        outputs = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
            )
            for n, (dtype, shape) in zip(names, outputs_info, strict=True)
        ]
    else:
        outputs = [ValueInfoProto(name=name) for name in names]
    input_infos = [helper.make_value_info(name, _type_of(value)) for name, value in inputs.items()]
    graph = helper.make_graph([node], node.op_type, input_infos, outputs)
    domain = canonical_domain(node.domain)
    imports = {"": onnx.defs.onnx_opset_version()}
    imports[domain] = version or _newest(domain)
    opsets = [helper.make_opsetid(d, v) for d, v in imports.items()]
    model = helper.make_model(graph, opset_imports=opsets)
    if outputs_info is None:
        model = onnx.shape_inference.infer_shapes(model)
    return model


def _newest(domain: str) -> int:
    schemas = onnx.defs.get_all_schemas_with_history()
    return max((s.since_version for s in schemas if s.domain == domain), default=1)


def _type_of(value: Any) -> TypeProto:
    if isinstance(value, (list, tuple)):
        items = _type_of(value[0]) if value else helper.make_tensor_type_proto(1, None)
        return helper.make_sequence_type_proto(items)
    return helper.make_tensor_type_proto(_elem_type(value.dtype), value.shape)


def _elem_type(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
