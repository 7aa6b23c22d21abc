"""InferenceSession: a model on devices of its own, behind onnxruntime's interface."""

from __future__ import annotations

import datetime
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import DTypeError, GraphError
from ..importers import load
from ..scheduler import Scheduler
from ..trace import Recorder
from .binding import IOBinding
from .options import GraphOptimizationLevel, RunOptions, SessionOptions, free_dimensions
from .providers import CPU, VULKAN, Provider, choose_devices
from .values import OrtValue, plain

if TYPE_CHECKING:
    from ..importers.onnx.model import ModelValue
    from ..models.run import ModelRun


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output. shape: sizes, names, and None where nothing is said. type: as in
    "tensor(float)".
    """

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the file says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """A model that runs on vksched's devices; the interface is that of onnxruntime's class.

    path_or_bytes: a file, or its bytes. providers: see `choose_devices`; None stands for the
    default devices. Keyword arguments of onnxruntime that are not named here have no effect.

    Its devices are freed by `close()`, at the end of a `with`, or when it is garbage; until then a
    session holds the memory of its weights. `run` may be called from any thread.

    Raises:
        ModelFormatError: the model is not valid. DeviceError: there is no such device.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise DTypeError(f"[session] expected a path or bytes, got {path_or_bytes!r}")
        self._options = sess_options or SessionOptions()
        self._chosen = choose_devices(providers, provider_options)
        source: Any = path_or_bytes
        self._model = load(source).with_sizes(free_dimensions(self._options))
        self._recorder = Recorder() if self._options.enable_profiling else None
        self._started_ns = time.monotonic_ns()
        sinks = [self._recorder] if self._recorder is not None else []
        level = self._options.graph_optimization_level
        scheduler = Scheduler(
            self._chosen.devices,
            trace=sinks,
            optimize=level != GraphOptimizationLevel.ORT_DISABLE_ALL,
        )
        try:
            self._run: ModelRun = scheduler.compile(self._model)
        except BaseException:
            scheduler.close()
            raise
        self._devices = tuple(device.name for device in scheduler.devices)
        self._finalizer = weakref.finalize(self, _close, self._run, scheduler)

    # -- what the model says ---------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs that a run needs."""
        return [self._arg(value) for value in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [self._arg(value) for value in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns the inputs that have a value already, and may be given another."""
        return [self._arg(value) for value in self._model.defaults.values()]

    def get_modelmeta(self) -> ModelMetadata:
        proto = self._model.file.model
        return ModelMetadata(
            str(proto.producer_name),
            str(proto.graph.name),
            str(proto.domain),
            str(proto.doc_string),
            str(proto.graph.doc_string),
            int(proto.model_version),
            {str(entry.key): str(entry.value) for entry in proto.metadata_props},
        )

    def _arg(self, value: ModelValue) -> NodeArg:
        shape = list(value.dims or ()) if value.kind == "tensor" else []
        type_ = f"tensor({value.dtype})"
        kind = {"tensor": "", "sequence": "seq", "optional": "optional"}[value.kind]
        return NodeArg(value.name, shape, f"{kind}({type_})" if kind else type_)

    # -- runs ------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs once and returns the outputs asked for, in that order; all for None.

        Raises:
            GraphError, ShapeError, DTypeError: names or arrays do not fit the model.
        """
        names = self._names(output_names)
        found = self._run(**{name: plain(value) for name, value in input_feed.items()})
        return [found[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Starts a run and returns at once. callback: called with the results, user_data and a
        message, which is empty unless the run failed.
        """
        names = self._names(output_names)

        def done(future: Future[dict[str, Any]]) -> None:
            error = future.exception()
            if error is not None:
                callback([], user_data, str(error))
            else:
                found = future.result()
                callback([found[name] for name in names], user_data, "")

        feeds = {name: plain(value) for name, value in input_feed.items()}
        self._run.submit(**feeds).add_done_callback(done)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Runs once, with OrtValues in and out."""
        return [OrtValue(v) for v in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Runs once with what is bound; the results are in the binding then."""
        iobinding.put(self.run(iobinding.outputs, iobinding.inputs) if iobinding.outputs else [])

    def _names(self, wanted: Sequence[str] | None) -> list[str]:
        known = [value.name for value in self._model.outputs]
        names = list(wanted) if wanted else known
        unknown = [name for name in names if name not in known]
        if unknown:
            raise GraphError(f"[session] expected outputs of {known}, got {unknown}")
        return names

    # -- devices and options ---------------------------------------------------------------------

    @property
    def model_run(self) -> ModelRun:
        """The compiled model, with its plans: `session.model_run.plan.explain()`."""
        return self._run

    def get_providers(self) -> list[str]:
        """Returns what the session runs on: "VulkanExecutionProvider" where it has a Vulkan device,
        also where another GPU provider was asked for, and "CPUExecutionProvider". Which devices
        these are, and what they stand for, is in `get_provider_options()`.
        """
        return list(self.get_provider_options())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Returns by provider its devices, and the providers asked for that it stands for."""
        gpus = [name for name in self._devices if name != "cpu"]
        out: dict[str, dict[str, str]] = {}
        if gpus:
            out[VULKAN] = {"devices": ",".join(gpus)}
        out[CPU] = {"devices": "cpu"}
        if self._chosen.stands_for:
            out[next(iter(out))]["stands_for"] = ",".join(self._chosen.stands_for)
        return out

    def get_session_options(self) -> SessionOptions:
        return self._options

    def disable_fallback(self) -> None:
        """Has no effect."""

    def enable_fallback(self) -> None:
        """Has no effect."""

    def get_profiling_start_time_ns(self) -> int:
        return self._started_ns

    def end_profiling(self) -> str:
        """Writes the trace so far in Chrome's format and returns the name of the file; "" where
        profiling was not enabled.
        """
        if self._recorder is None:
            return ""
        now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")
        path = f"{self._options.profile_file_prefix}_{now}.json"
        self._recorder.save(path)
        self._recorder.events.clear()
        return path

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for runs under way and frees its devices; safe to call twice."""
        self._finalizer()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _close(run: ModelRun, scheduler: Scheduler) -> None:
    """Frees what a session held, also when it is collected: then nobody would see an error."""
    try:
        run.close()
    finally:
        scheduler.close()
