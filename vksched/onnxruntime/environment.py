"""Module functions of onnxruntime: logging, telemetry, threads, allocators.

Nothing is sent anywhere. vksched manages memory and threads itself, so most functions are accepted
and have no effect.
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
    """Set the level of the logger "vksched", from 0 (all messages) to 4 (fatal).

    Warnings use Python's warnings module and its filters.

    Raises
    ------
    GraphError
        The number is out of range.
    DTypeError
        The severity is not a number.
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
    """Has no effect: there is only one level of debug messages."""


def set_default_logger_callback(callback: Callable[..., Any] | None, severity: int = 2) -> None:
    """Has no effect: messages go to Python's logger "vksched"."""
    if callback is not None:
        say_once("set_default_logger_callback")


def disable_telemetry_events() -> None:
    """Do nothing: no telemetry is sent."""


def enable_telemetry_events() -> None:
    """Do nothing: no telemetry is sent."""


def set_seed(seed: int) -> None:
    """Has no effect: random ops without their own seed differ in every run."""
    say_once("set_seed")


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Has no effect: vksched manages its threads."""


def has_collective_ops() -> bool:
    """Return False: collective ops are not supported."""
    return False


def create_and_register_allocator(memory: OrtMemoryInfo, config: Any = None) -> None:
    """Has no effect: vksched manages its memory."""


def create_and_register_allocator_v2(
    provider: str, memory: OrtMemoryInfo, options: Mapping[str, str], config: Any = None
) -> None:
    """Has no effect: vksched manages its memory."""


def register_execution_provider_library(name: str, path: str) -> NoReturn:
    raise both(UnsupportedOp, Fail)(
        f"[session] libraries of providers cannot be loaded, got {path!r} for {name}; try the "
        "devices of vksched.devices()"
    )


def unregister_execution_provider_library(name: str) -> NoReturn:
    raise both(UnsupportedOp, Fail)(f"[session] expected a library that is loaded, got {name!r}")


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy values to others with equal shapes."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: there are no libraries to load."""


def print_debug_info() -> None:
    """Print information for a bug report."""
    print(f"{package_name} version: {version} ({get_build_info()})")
    print(f"platform: {platform.platform()}, Python {sys.version.split()[0]}")
    print(f"providers: {', '.join(get_available_providers())}")
