"""Survived: on disk, which drivers have listed their devices without a crash, so that later starts
ask them in their own process, and start no child.

    no entry --asked in a child--> survived --> entry
    entry --taken away--> asked in this process --> put back     a crash, or a hang: there is none

    <cache>/drivers/<hash of all that decides>.json: {"notes": [...]}

The hash is of this boot, the drivers' manifests and libraries, the loader, the layers, the cards'
entries in /dev, the variables that they read, and the native modules: whatever changes has another
file. What cannot be told surely, as a library that is not found, has none. So a driver that crashes
after all ends one process, and the next start asks a child again. Only Linux tells of a boot.
Examples: tests/runtime/test_driver_probe_cache.py.
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
from ...storage.disk_cache import (
    folder_of,
    kept_if_room,
    make_folder,
    read_whole,
    remove_old,
    replace_whole,
)
from . import binding

FORMAT = 1
MAX_FILES = 16
"""Then those written first are removed."""
BOOT = "/proc/sys/kernel/random/boot_id"
LINKS = "/etc/ld.so.cache"
"""Is written anew whenever a package brings libraries, such as those that a driver needs."""
VARIABLES = (
    *("VK_", "LD_", "XDG_", "ENABLE_", "DISABLE_", "LIBGL_", "LIBVA_", "DRI_", "DRM_"),
    *("MESA_", "GALLIUM_", "LP_", "ST_", "GALLIVM_", "RADV_", "ACO_", "AMD_", "AMDVLK_", "RADEON_"),
    *("ANV_", "INTEL_", "HSA_", "ROC", "NVK_", "NV_", "__NV_", "__GL", "CUDA_", "NVIDIA_", "ZINK_"),
    *("VIRGL_", "VN_", "TU_", "PAN_", "V3D", "SWIFTSHADER_"),
    *("DISPLAY", "WAYLAND_DISPLAY", "HOME", "MANGOHUD", "OBS_"),
)
"""What the names of variables begin with that loader, layers and drivers read."""
NOT = "XDG_SESSION_ID", "XDG_ACTIVATION_TOKEN"
"""Those among them that change from terminal to terminal and that no driver reads."""

Told = tuple[str, int, int, int]
"""A file: its path, its number in the file system, its size and when it was changed."""


class Entry:
    """What is kept of the drivers as they are now.

    manifests: of drivers. settings: other files that the loader reads, of layers and its own.
    """

    def __init__(self, manifests: Sequence[str], settings: Sequence[str]) -> None:
        folder = folder_of("drivers")
        key = None if folder is None else cache_key(manifests, settings)
        self._path = folder / f"{key}.json" if folder and key else None

    def take(self) -> tuple[str, ...] | None:
        """Take the entry away; returns what the loader said of drivers that it left out, None
        where there was no entry. Who took it and lives puts it back.
        """
        if self._path is None:
            return None
        try:
            notes = tuple(map(str, json.loads(read_whole(self._path))["notes"]))
            self._path.unlink()  # who fails to, as another process was first, asks a child
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return notes

    def put(self, notes: Sequence[str]) -> None:
        """Keep that all drivers survived."""
        if self._path is None:
            return
        folder = self._path.parent
        with kept_if_room(folder):
            make_folder(folder)
            replace_whole(self._path, json.dumps({"notes": list(notes)}))
            remove_old(folder, MAX_FILES)


def cache_key(manifests: Sequence[str], settings: Sequence[str]) -> str | None:
    """Return a hash of all that decides what drivers do while they list their devices; None where
    that cannot be told.
    """
    try:
        libraries = [each for manifest in manifests for each in _libraries(manifest)]
        told = (
            *(FORMAT, __version__, Path(BOOT).read_text("ascii"), platform.release()),
            sorted((k, v) for k, v in os.environ.items() if _counts(k)),
            [_told(path) for path in (*manifests, *libraries, *_native(), *_loader())],
            [_told(path) for path in (*settings, LINKS) if os.path.exists(path)],
            sorted(_cards()),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _counts(variable: str) -> bool:
    return variable.startswith(VARIABLES) and variable not in NOT


def _told(path: str) -> Told:
    about = os.stat(path)
    return path, about.st_ino, about.st_size, about.st_mtime_ns


def _libraries(manifest: str) -> Iterator[str]:
    """Yield the files that may be the library of a driver.

    Raises:
        OSError, ValueError, KeyError, TypeError: the manifest names none that is found.
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
    """Return where the system looks for libraries."""
    own = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if each]
    triplet = f"{platform.machine()}-linux-gnu"
    roots = "/lib", "/usr/lib", "/usr/local/lib"
    return own + [f"{root}{part}" for root in roots for part in (f"/{triplet}", "64", "")]


def _native() -> list[str]:
    """Return the files of the native modules."""
    return [str(module.__file__) for module in (binding.kp, binding.companion)]


def _loader() -> list[str]:
    """Return the file of the Vulkan loader in this process.

    Raises:
        ValueError: none is found.
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
