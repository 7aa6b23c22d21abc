"""Driver probe cache: drivers that have listed their devices without a crash, on disk, so that
later starts call them in their own process, without a child.

    no entry --probe in a child--> survived --> entry
    entry --remove--> probe in this process --> put back     after a crash or a hang: no entry

    <cache>/drivers/<hash of all dependencies>.json: {"notes": [...]}

The hash covers this boot, the drivers' manifests and libraries, the loader, the layers, the cards'
entries in /dev, the environment variables that they read, and the native modules: any change
selects another file. If a dependency cannot be determined, as a library that is not found, there is
no entry. A driver that crashes nevertheless ends one process, and the next start probes in a child
again. Only Linux identifies a boot. Examples: tests/runtime/test_driver_probe_cache.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...common.version import __version__
from ...storage.cache_folder import folder_of, optional_write
from ...storage.disk_cache import DiskCache
from . import binding

FORMAT = 1
MAX_FILES = 16
"""Maximum number of files; the oldest ones are removed."""
BOOT = "/proc/sys/kernel/random/boot_id"
LINKS = "/etc/ld.so.cache"
"""Rewritten whenever a package installs libraries, such as those that a driver needs."""
VARIABLES = (
    *("VK_", "LD_", "XDG_", "ENABLE_", "DISABLE_", "LIBGL_", "LIBVA_", "DRI_", "DRM_"),
    *("MESA_", "GALLIUM_", "LP_", "ST_", "GALLIVM_", "RADV_", "ACO_", "AMD_", "AMDVLK_", "RADEON_"),
    *("ANV_", "INTEL_", "HSA_", "ROC", "NVK_", "NV_", "__NV_", "__GL", "CUDA_", "NVIDIA_", "ZINK_"),
    *("VIRGL_", "VN_", "TU_", "PAN_", "V3D", "SWIFTSHADER_"),
    *("DISPLAY", "WAYLAND_DISPLAY", "HOME", "MANGOHUD", "OBS_"),
)
"""Prefixes of environment variables that loader, layers and drivers read."""
NOT = "XDG_SESSION_ID", "XDG_ACTIVATION_TOKEN"
"""Exceptions, which change from terminal to terminal and which no driver reads."""

FileStamp = tuple[str, int, int, int]
"""The version of a file: path, inode, size and time of change."""


class Entry:
    """The cache entry of the current drivers.

    Parameters
    ----------
    manifests
        Driver manifests.
    settings
        Other files that the loader reads, of layers and its own.
    """

    def __init__(self, manifests: Sequence[str], settings: Sequence[str]) -> None:
        folder = folder_of("drivers")
        key = None if folder is None else cache_key(manifests, settings)
        self._name = f"{key}.json"
        self._files = DiskCache(folder if key else None, "devices", max_files=MAX_FILES)

    def take(self) -> tuple[str, ...] | None:
        """Remove the entry and return the loader's notes; None if there was no entry. A process
        that survives the probe puts it back.
        """
        # if another process was first, this one probes in a child
        return self._files.take(self._name, lambda text: tuple(map(str, json.loads(text)["notes"])))

    def put(self, notes: Sequence[str]) -> None:
        """Record that all drivers survived."""
        if self._files.folder is not None:
            with optional_write(self._files.folder):
                self._files.put(self._name, json.dumps({"notes": list(notes)}).encode())


def cache_key(manifests: Sequence[str], settings: Sequence[str]) -> str | None:
    """Return a hash of everything that determines the behaviour of drivers while they list devices;
    None if that cannot be determined.
    """
    try:
        libraries = [each for manifest in manifests for each in _libraries(manifest)]
        key_data = (
            *(FORMAT, __version__, Path(BOOT).read_text("ascii"), platform.release()),
            sorted((k, v) for k, v in os.environ.items() if _is_relevant(k)),
            [_stamp(path) for path in (*manifests, *libraries, *_native(), *_loader())],
            [_stamp(path) for path in (*settings, LINKS) if os.path.exists(path)],
            sorted(_cards()),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return hashlib.sha256(json.dumps(key_data).encode()).hexdigest()[:32]


def _is_relevant(variable: str) -> bool:
    return variable.startswith(VARIABLES) and variable not in NOT


def _stamp(path: str) -> FileStamp:
    about = os.stat(path)
    return path, about.st_ino, about.st_size, about.st_mtime_ns


def _libraries(manifest: str) -> Iterator[str]:
    """Yield the files that may be the library of a driver.

    Raises
    ------
    OSError, ValueError, KeyError, TypeError
        The manifest names no existing library.
    """
    named = str(json.loads(Path(manifest).read_text("utf-8"))["ICD"]["library_path"])
    if os.path.dirname(named):
        yield os.path.join(os.path.dirname(manifest), named)
        return
    found = [os.path.join(folder, named) for folder in _folders()]
    found = [path for path in found if os.path.exists(path)]
    if not found:
        raise FileNotFoundError(named)
    yield from found


def _folders() -> list[str]:
    """Return the library search path of the system."""
    own = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if each]
    triplet = f"{platform.machine()}-linux-gnu"
    roots = "/lib", "/usr/lib", "/usr/local/lib"
    return own + [f"{root}{part}" for root in roots for part in (f"/{triplet}", "64", "")]


def _native() -> list[str]:
    """Return the files of the native modules."""
    return [str(module.__file__) for module in (binding.kp, binding.companion)]


def _loader() -> list[str]:
    """Return the file of the Vulkan loader in this process.

    Raises
    ------
    ValueError
        It is not found.
    """
    lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    found = {line[line.index("/") :] for line in lines if "libvulkan.so" in line}
    if not found:
        raise ValueError("no Vulkan loader")
    return sorted(found)


def _cards() -> Iterator[str]:
    for folder, begins in (("/dev/dri", ""), ("/dev", ("nvidia", "kfd", "dxg", "mali"))):
        with suppress(OSError):
            yield from (name for name in os.listdir(folder) if name.startswith(begins))
