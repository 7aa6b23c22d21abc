"""Options of sessions and runs: onnxruntime's settings, and those that have an effect here."""

from __future__ import annotations

import enum
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..common.errors import DTypeError, RunCancelled, UnsupportedOp, VkschedError
from .config_entries import DATA_FOLDER, note_entry
from .devices import OrtEpDevice, OrtExecutionProviderDevicePolicy
from .ort_errors import InvalidArgument, MissingEntry, NotImplemented, both
from .providers import CPU, Provider
from .warn_once import say_once


class GraphOptimizationLevel(enum.IntEnum):
    """Has no effect, except ORT_DISABLE_ALL: the planner decides."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Has no effect: independent parts on different devices run in parallel."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Has no effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Attributes that may be set; those in _MISSED cause a warning.

    Any other attribute is an AttributeError, because a misspelled option would be ignored silently.
    """

    _MISSED: frozenset[str] = frozenset()
    """Attributes with an effect other than speed, which is missing here."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            default = getattr(type(self), name, None)
            if default is None or callable(default):
                raise AttributeError(
                    f"[session] {type(self).__name__!r} object has no attribute {name!r}; try one "
                    f"of {', '.join(_attributes(type(self)))}"
                )
            value = _fitting(f"{type(self).__name__}.{name}", default, value)
            if name in self._MISSED and value:
                say_once(f"{type(self).__name__}.{name}")
        object.__setattr__(self, name, value)

    def _add(self, key: str, value: str) -> None:
        self._entries[_fitting("a key", "", key)] = _fitting(f"entry {key!r}", "", value)
        note_entry(type(self).__name__, key, value)

    def _entry(self, key: str) -> str:
        if key not in self._entries:
            raise MissingEntry(f"[session] {type(self).__name__} has no entry {key!r}")
        return self._entries[key]


def _attributes(kind: type[_Options]) -> list[str]:
    return [n for n in dir(kind) if not n.startswith("_") and not callable(getattr(kind, n))]


def _fitting(what: str, default: Any, value: Any) -> Any:
    """Convert a value to the type of the default.

    Raises
    ------
    DTypeError
        The value cannot be converted.
    """
    wanted = type(default)
    try:
        if wanted is str:
            return str.__str__(os.fspath(value))
        if wanted is bool:
            return bool(value)
        return operator.index(value) if wanted is int else wanted(operator.index(value))
    except (TypeError, ValueError):
        raise both(DTypeError, InvalidArgument)(
            f"[session] expected {wanted.__name__} for {what}, got {value!r}"
        ) from None


class SessionOptions(_Options):
    """Options of a session. Attributes that are not listed are ignored, or change only speed.

    Free dimensions with an override have their size in `get_inputs()` and are compiled with the
    session.

    Attributes
    ----------
    enable_profiling
        Record a trace, which `end_profiling` writes.
    profile_file_prefix
        Prefix of the trace's file name.
    graph_optimization_level
        With ORT_DISABLE_ALL, graphs run unoptimized.
    """

    _MISSED = frozenset(("optimized_model_filepath",))

    enable_profiling: bool = False
    profile_file_prefix: str = "vksched_profile_"
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._dimensions: dict[str, int] = {}
        self._providers: list[Provider] = []
        self._is_cancelled = False

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry; see `config_entries.py` for the ones with an effect. Warn about others
        whose effect is missing.
        """
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises
        ------
        MissingEntry
            There is no such entry.
        """
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Set the size of a named dimension of the inputs."""
        self._dimensions[_fitting("a name", "", name)] = _fitting(f"the size of {name}", 0, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Has no effect."""
        say_once("a free dimension by denotation")

    # -- providers -------------------------------------------------------------------------------

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Add a provider, used by sessions without a providers argument."""
        self._providers.append((name, dict(options or {})))

    def add_provider_for_devices(
        self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]
    ) -> None:
        """Add devices of `get_ep_devices()`, used by sessions without a providers argument."""
        for device in devices:
            number = {} if device.ep_name == CPU else {"device_id": device.device.device_id}
            self._providers.append((device.ep_name, {**options, **number}))

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Select the CPU or the default devices, for sessions without a providers argument."""
        policies = OrtExecutionProviderDevicePolicy
        on_cpu = policy in (policies.PREFER_CPU, policies.MIN_OVERALL_POWER)
        self._providers = [CPU] if on_cpu else []

    def has_providers(self) -> bool:
        return bool(self._providers)

    # -- unsupported -------------------------------------------------------------------------------

    def set_load_cancellation_flag(self, value: bool) -> None:
        """Cancel the load of sessions with these options before they compile."""
        self._is_cancelled = bool(value)

    def register_custom_ops_library(self, path: str) -> NoReturn:
        raise _unsupported("libraries of custom ops cannot be loaded; try local functions")

    def add_initializer(self, name: str, value: Any) -> NoReturn:
        raise _unsupported("initializers cannot be replaced; try a model that has them")

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> NoReturn:
        raise _unsupported("initializers cannot be replaced; try a model that has them")

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> NoReturn:
        raise _unsupported("external data is read from files only; try a path to the model")


class RunOptions(_Options):
    """Options of one run. Attributes that are not listed are ignored.

    Attributes
    ----------
    terminate
        Raise Fail in place of results: immediately if it is set before the run, else at its end.
    """

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry; warn if its effect is missing."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises
        ------
        MissingEntry
            There is no such entry.
        """
        return self._entry(key)


def check_terminate(options: RunOptions | None) -> None:
    """Raise RunCancelled if a run is to be terminated, or DTypeError if the argument is not
    RunOptions.
    """
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise both(DTypeError, InvalidArgument)(
            f"[session] expected RunOptions for a run, got {options!r}"
        )
    if options.terminate:
        raise RunCancelled("[session] the run was terminated by its RunOptions")


def free_dimensions(options: SessionOptions) -> Mapping[str, int]:
    """Return the sizes of named dimensions."""
    return options._dimensions


def data_folder(options: SessionOptions) -> str | None:
    """Return the folder of the external data of a model passed as bytes, or None."""
    return options._entries.get(DATA_FOLDER) or None


def is_cancelled(options: SessionOptions) -> bool:
    """Return True if the load of sessions with these options is cancelled."""
    return options._is_cancelled


def chosen_providers(options: SessionOptions) -> Sequence[Provider] | None:
    """Return the providers in the options, or None."""
    return options._providers or None


def _unsupported(what: str) -> VkschedError:
    return both(UnsupportedOp, NotImplemented)(f"[session] {what}")
