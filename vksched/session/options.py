"""Options of sessions and runs: what people set for onnxruntime, and what of it means something
here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..errors import UnsupportedOp
from ..trace import warn_user

_told: set[str] = set()


class GraphOptimizationLevel(enum.IntEnum):
    """Has no effect: the planner decides."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Has no effect: independent parts on different devices run at the same time."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Has no effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Attributes that may be set; the unknown ones, and those in _MISSED, with a warning."""

    _MISSED: frozenset[str] = frozenset()
    """Attributes whose effect the caller would miss, as they do something besides speed."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        known = name.startswith("_") or hasattr(type(self), name)
        if not known or (name in self._MISSED and value):
            self._say_once(f"{type(self).__name__}.{name}")
        object.__setattr__(self, name, value)

    @staticmethod
    def _say_once(what: str) -> None:
        if what not in _told:
            _told.add(what)
            warn_user(f"[session] {what} has no effect here")


class SessionOptions(_Options):
    """Of a session. enable_profiling: keeps a trace that `end_profiling` writes, to a file whose
    name starts with profile_file_prefix. Free dimensions that are overridden are shown in
    `get_inputs()` and compiled when the session is made. With the level ORT_DISABLE_ALL graphs run
    as they are in the file. The rest has no effect.
    """

    _MISSED = frozenset(("optimized_model_filepath",))

    enable_profiling: bool = False
    profile_file_prefix: str = "vksched_profile_"
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
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

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry, which has no effect."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Returns an entry.

        Raises:
            KeyError: there is none.
        """
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Gives a named dimension of the inputs a size."""
        self._dimensions[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Has no effect."""
        self._say_once("a free dimension by denotation")

    def register_custom_ops_library(self, path: str) -> NoReturn:
        raise UnsupportedOp(
            "[session] libraries of custom ops cannot be loaded; try local functions"
        )

    def add_initializer(self, name: str, value: Any) -> NoReturn:
        raise UnsupportedOp("[session] initializers cannot be replaced; try a model that has them")

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> NoReturn:
        raise UnsupportedOp("[session] initializers cannot be replaced; try a model that has them")


class RunOptions(_Options):
    """Of one run; without effect."""

    _MISSED = frozenset(("terminate",))

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry, which has no effect."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Returns an entry.

        Raises:
            KeyError: there is none.
        """
        return self._entries[key]


def free_dimensions(options: SessionOptions) -> Mapping[str, int]:
    """Returns the sizes given to named dimensions."""
    return options._dimensions
