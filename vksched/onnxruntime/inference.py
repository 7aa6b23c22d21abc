"""InferenceSession: a model on its own devices, with onnxruntime's interface."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..common.errors import (
    DTypeError,
    GraphError,
    ModelFormatError,
    VkschedError,
    dict_text,
)
from ..common.fork_guard import ProcessBound
from ..importers import load_onnx
from ..trace import Recorder
from .binding import IOBinding
from .compiled_session import OpenedModel
from .config_entries import DATA_FOLDER
from .devices import OrtEpDevice, OrtMemoryInfo, get_ep_devices
from .options import (
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    check_terminate,
    chosen_providers,
    data_folder,
    free_dimensions,
    is_cancelled,
)
from .ort_errors import ModelLoadCanceled, NoSuchFile, both, translated
from .ort_value import OrtValue, plain
from .providers import CPU, VULKAN, Provider, choose_devices
from .warn_once import say_once

if TYPE_CHECKING:
    from ..importers.onnx.model import Model, ModelValue
    from ..models.compiled_model import CompiledModel

NO_EFFECT = frozenset(("disabled_optimizers", "enable_fallback"))
"""Additional arguments of sessions that do not change results."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output.

    Attributes
    ----------
    shape
        Sizes, names, and None for unknown dimensions.
    type
        For instance "tensor(float)".
    """

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Metadata in the model file."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession(ProcessBound):
    """A model on vksched's devices, with the interface of onnxruntime's class.

    In a forked child, a session that uses only the CPU compiles again at its first use there;
    others are rejected. A session holds the memory of its weights until `close()`, the end of a
    `with` block, or garbage collection. `run` is thread-safe. Unknown arguments are ignored.

    Parameters
    ----------
    path_or_bytes
        A file, or its bytes.
    providers
        See `choose_devices`; None selects the default devices.

    Raises
    ------
    ModelFormatError
        The model is invalid.
    DeviceError
        A device does not exist.
    """

    _INSTEAD = (
        "to send the path of the model and its options, and to make a session in each process: "
        "InferenceSession(path, ...) in the `initializer` of a process pool, or "
        "functools.partial(InferenceSession, path, ...) for what is to be called there"
    )

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
        if not isinstance(sess_options, (SessionOptions, type(None))):
            raise DTypeError(f"[session] expected SessionOptions, got {sess_options!r}")
        for name in kwargs.keys() - NO_EFFECT:
            say_once(f"the argument {name!r} of InferenceSession")
        named = isinstance(path_or_bytes, (str, os.PathLike))
        self._model_path = os.fsdecode(path_or_bytes) if named else None  # programs read it
        self._sess_options = options = sess_options or SessionOptions()
        model = _load(path_or_bytes, self._model_path, options)
        self._model = _sized(model, free_dimensions(options))
        self._recorder = Recorder() if options.enable_profiling else None
        self._started_ns = time.monotonic_ns()
        with translated(loading=True):
            self._opened = self._open(providers or chosen_providers(options), provider_options)

    def _open(
        self,
        providers: Sequence[Provider] | None,
        provider_options: Sequence[Mapping[str, Any]] | None,
    ) -> OpenedModel:
        """Return the model compiled for the devices of the providers."""
        level = self._sess_options.graph_optimization_level
        optimize = level != GraphOptimizationLevel.ORT_DISABLE_ALL
        chosen = choose_devices(providers, provider_options)
        return OpenedModel(self._model, chosen, self._recorder, optimize)

    # -- model metadata ----------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return the required inputs of a run."""
        return [self._arg(value) for value in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [self._arg(value) for value in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with a default value, which a run may override."""
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
        return NodeArg(value.name, shape, value.type)

    @property
    def _inputs_meta(self) -> list[NodeArg]:  # programs read this attribute
        return self.get_inputs()

    @property
    def _outputs_meta(self) -> list[NodeArg]:
        return self.get_outputs()

    # -- runs ------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once and return the requested outputs in order; all outputs for None.

        Raises
        ------
        GraphError, ShapeError, DTypeError
            Names or arrays do not fit the model.
        """
        with translated():
            names = self._names(output_names)
            check_terminate(run_options)
            found = self._opened.run(**self._feeds(input_feed))
            check_terminate(run_options)
            return [found[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Start a run, then call `callback(results, user_data, error)`; error is "" on success."""

        def done(future: Future[dict[str, Any]]) -> None:
            error = future.exception()
            if error is not None:
                callback([], user_data, str(error))
            else:
                found = future.result()
                callback([found[name] for name in names], user_data, "")

        with translated():
            names = self._names(output_names)
            check_terminate(run_options)
            self._opened.run.submit(**self._feeds(input_feed)).add_done_callback(done)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run once, with OrtValues as inputs and outputs."""
        found = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(value) for value in found]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run once with bound inputs, and store the results in the binding."""
        names = iobinding.outputs
        iobinding.put(self.run(names, iobinding.inputs, run_options) if names else [])

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return an uninitialized value."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def _feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of a run as arrays; raise GraphError for missing or unknown names."""
        known = [value.name for value in self._model.inputs]
        empty = {value.name: None for value in self._model.inputs if value.kind == "optional"}
        missing = [name for name in known if name not in feeds and name not in empty]
        unknown = [name for name in feeds if name not in known and name not in self._model.defaults]
        if missing or unknown:
            raise GraphError(
                f"[session] expected inputs {known}, got {list(feeds)}; try session.run(None, "
                f"{dict_text(known)})"
            )
        return {**empty, **{name: plain(value) for name, value in feeds.items()}}

    def _names(self, wanted: Sequence[str] | None) -> list[str]:
        known = [value.name for value in self._model.outputs]
        names = list(wanted) if wanted else known
        unknown = [name for name in names if name not in known]
        if unknown:
            raise GraphError(f"[session] expected outputs of {known}, got {unknown}")
        return names

    # -- devices and options ---------------------------------------------------------------------

    @property
    def model_run(self) -> CompiledModel:
        """The compiled model, with its plans: `session.model_run.plan.explain()`."""
        return self._opened.run

    def get_providers(self) -> list[str]:
        """Return the names of the providers in use: "VulkanExecutionProvider" if the session has a
        Vulkan device, also if another GPU provider was requested, and "CPUExecutionProvider". See
        `get_provider_options()` for their devices.
        """
        return list(self.get_provider_options())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return, for each provider, its devices and the requested providers that it replaces.

        Vulkan devices that replace a provider in VKSCHED_PROVIDERS have the name of the requested
        provider.
        """
        chosen = self._opened.chosen
        gpus = [name for name in self._opened.devices if name != "cpu"]
        out: dict[str, dict[str, str]] = {}
        if gpus:
            for name in chosen.shown or (VULKAN,):
                out[name] = {"devices": ",".join(gpus)}
        out[CPU] = {"devices": "cpu"}
        if chosen.stands_for:
            out[next(iter(out))]["stands_for"] = ",".join(chosen.stands_for)
        return out

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Move the model to the devices of other providers, after active runs have finished."""
        before = self._opened
        with translated(loading=True):
            self._opened = self._open(providers, provider_options)
        before.close()

    @property
    def _providers(self) -> list[str]:  # programs read this attribute
        return self.get_providers()

    @property
    def _provider_options(self) -> dict[str, dict[str, str]]:
        return self.get_provider_options()

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return, for each input, host memory."""
        return [OrtMemoryInfo("Cpu") for _ in self._model.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return, for each output, host memory."""
        return [OrtMemoryInfo("Cpu") for _ in self._model.outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Return, for each input, the CPU, which uploads it to the devices."""
        return [get_ep_devices()[-1] for _ in self._model.inputs]

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    def disable_fallback(self) -> None:
        """Has no effect."""

    def enable_fallback(self) -> None:
        """Has no effect."""

    def get_profiling_start_time_ns(self) -> int:
        return self._started_ns

    def end_profiling(self) -> str:
        """Write the trace in Chrome's format and return the file name, or "" without profiling."""
        if self._recorder is None:
            return ""
        now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")
        path = f"{self._sess_options.profile_file_prefix}_{now}.json"
        self._recorder.save(path)
        self._recorder.events.clear()
        return path

    # -- close -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for active runs and free the devices. May be called twice."""
        self._opened.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _load(source: Any, path: str | None, options: SessionOptions) -> Model:
    """Load a model.

    Raises
    ------
    ModelFormatError
        The model is invalid.
    VkschedError
        The onnx package is not installed, or the load was cancelled.
    """
    if path is not None and not os.path.exists(path):
        raise both(ModelFormatError, NoSuchFile)(
            f"[session] expected a model file at {path!r}, got no such file"
        )
    folder = data_folder(options)
    if path is not None and folder is not None:
        say_once(f"the entry {DATA_FOLDER!r} for a model that is given by its path")
        folder = None
    with translated(loading=True):
        model = load_onnx(source, folder=folder)
    if is_cancelled(options):
        raise both(VkschedError, ModelLoadCanceled)(
            "[session] expected a load that goes on, got SessionOptions that cancel it; try "
            "set_load_cancellation_flag(False)"
        )
    return model


def _sized(model: Model, sizes: Mapping[str, int]) -> Model:
    """Return a model with sizes for named dimensions, and warn about unknown names."""
    known = {d for value in model.inputs for d in value.dims or () if isinstance(d, str)}
    for name in sizes.keys() - known:
        say_once(f"a size for the dimension {name!r}, which no input has,")
    return model.with_sizes(sizes)
