"""Binding of Kompute and its companion: import the native modules, list devices, translate errors.

Only this file imports them to run graphs (native/build.py installs them into vksched_native;
docs/development/adr/0001-kompute-companion.md gives the reasons). Without them `available()` says
how to install them. Examples: tests/runtime/test_companion.py.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ...common.errors import DeviceError, DeviceLost, DeviceTimeout, OutOfMemory
from ...common.fork_guard import Owner, in_child
from .mesa_shader_cache import settle_shader_cache

DRIVER_SELECTORS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
_DEFAULT_DATA_DIRS = "/usr/local/share:/usr/share"

kp: Any = None
companion: Any = None
"""The native modules, None until `load` has imported them."""
_load_lock = threading.Lock()
_keep_count = 0
"""Number of active `keep_drivers_loaded` blocks."""
_drivers: Owner | None = None
"""The process that loaded the drivers, which do not survive a fork."""
_device_list: tuple[dict[str, str], list[dict[str, Any]]] | None = None
"""The last device list of the drivers, with the environment variables that selected them."""
robust: ContextVar[bool] = ContextVar("robust", default=False)
"""See `robust_access`."""


# -- the native modules ----------------------------------------------------------------------------


def available() -> str | None:
    """Return None if the native modules and a Vulkan loader are available, else the reason.

    The reason says what to do. No driver is loaded: `describe_devices` does that.
    """
    try:
        load()
    except ImportError as error:
        return _explain(error)
    if forked():
        # use the parent's result: another of its threads may have held the loader's locks
        return None
    try:
        version = companion.loader_version()
    except RuntimeError as error:
        return f"the Vulkan loader does not work ({error}); try reinstalling libvulkan1"
    if tuple(map(int, version.split("."))) < (1, 1):
        return f"expected a loader for Vulkan 1.1, got {version}; try a newer libvulkan1"
    return None


def describe_devices(known: bool = False) -> list[dict[str, Any]]:
    """Return every physical device in loader order, without opening any; units are in the names.

    Parameters
    ----------
    known
        True if the last list may be returned without asking the drivers.

    Raises
    ------
    DeviceError
        There is no loader or no working driver, or the drivers were loaded before this process was
        forked.
    """
    global _drivers, _device_list
    chosen = {k: v for k, v in os.environ.items() if k.startswith("VK_")}
    if known and _device_list is not None and _device_list[0] == chosen and not forked():
        return _device_list[1]
    reason = available()
    if reason is not None:
        raise DeviceError(f"[devices] expected the native modules, got none: {reason}")
    _drivers = _drivers or Owner()
    _drivers.require("Vulkan")
    try:
        # older builds of the modules cannot keep drivers loaded
        keep_drivers = (True,) if _keep_count and hasattr(companion, "release_drivers") else ()
        settle_shader_cache()
        devices: list[dict[str, Any]] = companion.describe_devices(*keep_drivers)
        settle_shader_cache()
    except companion.VulkanError as error:
        if error.result == "VK_ERROR_INCOMPATIBLE_DRIVER":
            raise DeviceError(
                f"[devices] expected a Vulkan driver, got none that works ({error}); try "
                "`make setup` or your GPU's driver package"
            ) from error
        raise _translated(error, "devices", "the Vulkan loader") from error
    _device_list = chosen, devices
    return devices


@contextlib.contextmanager
def robust_access() -> Iterator[None]:
    """Open devices on this thread with robust buffer access inside the block, if supported: kernels
    then cannot access memory of others beyond a buffer.
    """
    token = robust.set(True)
    try:
        yield
    finally:
        robust.reset(token)


@contextlib.contextmanager
def keep_drivers_loaded() -> Iterator[None]:
    """Keep drivers loaded inside the block. A driver is unloaded with its last instance, and
    loading it again takes longer than opening a device.
    """
    global _keep_count
    with _load_lock:
        _keep_count += 1
    try:
        yield
    finally:
        with _load_lock:
            _keep_count -= 1
            last = _keep_count == 0 and hasattr(companion, "release_drivers") and not forked()
        if last:
            companion.release_drivers()


def load() -> None:
    """Import both modules once; raise ImportError if they are missing."""
    global kp, companion
    with _load_lock:
        if companion is not None:
            return
        _add_own_drivers()
        root = logging.getLogger()
        before = list(root.handlers)
        try:
            kp = importlib.import_module("vksched_native.kp")
            companion = importlib.import_module("vksched_native.companion")
        finally:
            # importing kp calls logging.basicConfig(), which is the application's business
            for handler in set(root.handlers) - set(before):
                root.removeHandler(handler)


def forked() -> bool:
    """Return True if drivers were loaded before this process was forked, which cannot use them."""
    return _drivers is not None and _drivers.forked


@in_child
def _after_fork() -> None:
    global _load_lock, _keep_count
    _load_lock, _keep_count = threading.Lock(), 0
    if _drivers is not None:
        companion.leak(companion)  # also skips drivers that wait for their threads at exit


def _add_own_drivers() -> None:
    """Make the loader find the drivers that `make setup` installed, after the system's.

    An additional data folder works with every loader; VK_ADD_DRIVER_FILES needs 1.3.207.
    """
    own = Path(sys.prefix) / "share" / "vksched"
    if any(name in os.environ for name in DRIVER_SELECTORS):
        return
    folders = (os.environ.get("XDG_DATA_DIRS") or _DEFAULT_DATA_DIRS).split(os.pathsep)
    if str(own) not in folders and any((own / "vulkan" / "icd.d").glob("*.json")):
        os.environ["XDG_DATA_DIRS"] = os.pathsep.join([*folders, str(own)])


def _explain(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"Kompute and its companion are not built for this Python {version}; try `make setup` "
            f"in a clone of vksched and its .venv, or `{sys.executable} native/build.py` there"
        )
    if "libvulkan" in str(error):
        return f"there is no Vulkan loader ({error}); try your system's libvulkan1 or vulkan-loader"
    return f"the native modules do not load ({error}); try native/build.py --force"


# -- errors ----------------------------------------------------------------------------------------


def _translated(error: RuntimeError, stage: str, name: str) -> DeviceError:
    """Return the vksched error of an error from the companion or kp."""
    if isinstance(error, companion.DeviceLost):
        return DeviceLost(f"[{stage}] {name}: expected a working device, got a lost one ({error})")
    if isinstance(error, companion.OutOfMemory):
        return OutOfMemory(
            f"[{stage}] {name}: expected enough memory, got {error}; try less at once"
        )
    if isinstance(error, companion.Timeout):
        return DeviceTimeout(f"[{stage}] {name}: expected an end in time, got {error}")
    return DeviceError(f"[{stage}] {name}: {error}")


# a class in the role of a function: a generator would double the cost of a submission
class errors:
    """Translate native errors inside a block to vksched errors that name the device."""

    __slots__ = ("_name", "_stage")

    def __init__(self, stage: str, name: str) -> None:
        self._stage = stage
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DeviceError):
            error.device = error.device or self._name
        elif isinstance(error, RuntimeError):
            ours = _translated(error, self._stage, self._name)
            ours.device = self._name
            raise ours from error


@contextlib.contextmanager
def kp_errors(stage: str, name: str) -> Iterator[None]:
    """Translate errors of kp inside a block, using the VkResult that it recorded."""
    _forget_error()
    try:
        with errors(stage, name):
            try:
                yield
            except RuntimeError as error:
                companion.raise_error(str(error))
                raise
            companion.raise_error(stage)
    except MemoryError as error:
        ours = OutOfMemory(f"[{stage}] {name}: expected host memory, got {error!r}")
        ours.device = name
        raise ours from error


def _forget_error() -> None:
    with contextlib.suppress(companion.VulkanError):
        companion.raise_error("")
