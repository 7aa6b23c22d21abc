"""What onnxruntime offers beside sessions: messages, telemetry, threads, allocators.

Nothing here sends anything anywhere, and the memory and the threads are vksched's own: most of this
is accepted and has no effect.
"""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ..common.errors import DTypeError, GraphError, UnsupportedOp
from .devices import OrtMemoryInfo
from .ort_errors import Fail, InvalidArgument, both
from .ort_value import OrtValue
from .providers import get_available_providers
from .version import get_build_info, package_name, version
from .warn_once import say_once

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger "vksched": 0 for all messages to 4 for fatal ones. Warnings are
    Python's, and have Python's filters.

    Raises:
        GraphError: it is another number. DTypeError: it is none.
    """
    if not isinstance(severity, int):
        raise both(DTypeError, InvalidArgument)(
            f"[session] expected a number for the severity, got {severity!r}"
        )
    if not 0 <= severity < len(_LEVELS):
        raise both(GraphError, InvalidArgument)(
            f"[session] expected a severity of 0 to 4, got {severity}"
        )
    logging.getLogger("vksched").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Has no effect: there is one kind of debug message."""


def set_default_logger_callback(callback: Callable[..., Any] | None, severity: int = 2) -> None:
    """Has no effect: messages go to Python's logger "vksched"."""
    if callback is not None:
        say_once("set_default_logger_callback")


def disable_telemetry_events() -> None:
    """Return at once: nothing is ever sent."""


def enable_telemetry_events() -> None:
    """Return at once: nothing is ever sent."""


def set_seed(seed: int) -> None:
    """Has no effect: random ops without a seed of their own draw other numbers in every run."""
    say_once("set_seed")


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Has no effect: vksched chooses its threads."""


def has_collective_ops() -> bool:
    """Return False: there are none."""
    return False


def create_and_register_allocator(memory: OrtMemoryInfo, config: Any = None) -> None:
    """Has no effect: the memory is vksched's own."""


def create_and_register_allocator_v2(
    provider: str, memory: OrtMemoryInfo, options: Mapping[str, str], config: Any = None
) -> None:
    """Has no effect: the memory is vksched's own."""


def register_execution_provider_library(name: str, path: str) -> NoReturn:
    raise both(UnsupportedOp, Fail)(
        f"[session] libraries of providers cannot be loaded, got {path!r} for {name}; try the "
        "devices of vksched.devices()"
    )


def unregister_execution_provider_library(name: str) -> NoReturn:
    raise both(UnsupportedOp, Fail)(f"[session] expected a library that is loaded, got {name!r}")


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies values to others of the same shapes."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Return at once: there are no libraries to load."""


def print_debug_info() -> None:
    """Print what a report of a fault needs."""
    print(f"{package_name} version: {version} ({get_build_info()})")
    print(f"platform: {platform.platform()}, Python {sys.version.split()[0]}")
    print(f"providers: {', '.join(get_available_providers())}")
