"""Device cache: measurements on disk, one JSON file per device and driver version.

    <cache>/<folder>/<uuid>-<hash of driver and label>.json:
        {"format", "uuid", "driver", "label", and the data of a subclass}

Results of another driver version are not used. Files are replaced atomically under a lock, so any
number of processes may read and write. The cache is optional: a folder that cannot be found or
written, or a file that cannot be read, only causes a warning. A damaged file is renamed to
`.damaged`. Subclasses are in variant_cache.py and cost_cache.py. Examples:
tests/tuning/test_tuner_store.py, tests/tuning/test_cost_store.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ..common.user_warning import warn
from ..storage.cache_folder import folder_of, make_folder, warn_full
from ..storage.disk_cache import locked, read_whole, replace_whole, set_aside
from . import crash_marker
from .crash_marker import CrashMarker

MAX_FILES = 8
"""Maximum number of files of one device; those of the least recently used drivers are removed."""

DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
)  # fmt: skip
"""Errors of parsing a damaged file."""

_warned: set[tuple[Path, str]] = set()
"""Files and reasons that were warned about."""

Cached = TypeVar("Cached")


@dataclass(frozen=True, slots=True)
class Identity:
    """The cache key of a device: its UUID, its driver with version, and its name."""

    uuid: str
    driver: str
    label: str = ""

    @property
    def file_name(self) -> str:
        return f"{self.prefix}-{self.hash}.json"

    @property
    def prefix(self) -> str:
        """The prefix of the file names of a device, for all drivers."""
        return re.sub(r"[^0-9a-zA-Z]+", "-", self.uuid or self.label)

    @property
    def hash(self) -> str:
        return hashlib.sha256(f"{self.driver}\n{self.label}".encode()).hexdigest()[:8]


class DeviceFiles(ABC, Generic[Cached]):
    """The files of one kind of results. Thread-safe.

    `Cached` is the type of the content of a device's file, and `command` the command that measures
    it.
    """

    command: ClassVar[str]
    folder_name: ClassVar[str]
    format: ClassVar[int]

    def __init__(self, folder: Path | None = None) -> None:
        self._root = folder
        self._warned = False

    @abstractmethod
    def _nothing(self) -> Cached:
        """Return the value of a device without a file."""

    @abstractmethod
    def _parse(self, data: Mapping[str, Any]) -> Cached:
        """Return the content of a file; raise one of DAMAGE if it is damaged."""

    @abstractmethod
    def _entries(self, cached: Cached) -> dict[str, Any]:
        """Return the content as plain data, as `_parse` reads it."""

    @abstractmethod
    def _merged(self, known: Cached, newer: Cached) -> Cached:
        """Return both values merged; newer entries win."""

    @cached_property
    def folder(self) -> Path | None:
        """The folder of the files, or None if there is none."""
        return self._root / self.folder_name if self._root else folder_of(self.folder_name)

    def path(self, device: Identity) -> Path | None:
        """Return the file of a device."""
        return None if self.folder is None else self.folder / device.file_name

    def load(self, device: Identity) -> Cached:
        """Return the cached value of a device; without one, or with a warning if the file is
        damaged, the empty value.
        """
        path = self.path(device)
        if path is None:
            return self._nothing()
        found, why = self._read(path, device)
        if why and (path, why) not in _warned:
            _warned.add((path, why))
            warn(f"[{self.command}] {path} is not used: {why}; try `vksched {self.command}`")
        return found

    def _keep(self, device: Identity, newer: Cached) -> bool:
        """Merge results into those of a device; return True if they were written. The first failure
        logs a warning.
        """
        try:
            self._write(device, newer)
        except OSError as error:
            if not warn_full(self.folder or Path(), error) and not self._warned:
                self._warned = True
                text = f"results are not cached: {error}; try VKSCHED_CACHE=<folder>"
                warn(f"[{self.command}] {text}")
            return False
        return True

    def clear(self, device: Identity) -> bool:
        """Delete the results of a device; return True if there were any."""
        path = self.path(device)
        crash_marker.forget(path)
        if path is None:
            return False
        try:
            path.unlink()
        except OSError:
            return False
        return True

    def crash_marker(self, device: Identity) -> CrashMarker:
        """Return a crash marker for measurements on a device; the user closes it."""
        return CrashMarker(self.path(device))

    def _write(self, device: Identity, newer: Cached) -> None:
        path = self.path(device)
        if path is None:
            raise FileNotFoundError("the user has no home")
        make_folder(path.parent)
        with locked(path.parent / "lock"):
            merged = self._merged(self._read(path, device, held=True)[0], newer)
            data = {"format": self.format, **asdict(device), **self._entries(merged)}
            replace_whole(path, json.dumps(data, indent=1))
            _remove_oldest(path, device)

    def _read(self, path: Path, device: Identity, held: bool = False) -> tuple[Cached, str]:
        """Return the content of a file for a device, and why it is empty; "" if that is usual.
        held: True if the lock is held.
        """
        content = b""
        try:
            content = read_whole(path)
            data = json.loads(content)
            if data["format"] != self.format:
                return self._nothing(), f"expected format {self.format}, got {data['format']!r}"
            if data["driver"] != device.driver:
                why = f"expected the driver {device.driver}, got {data['driver']}"
                return self._nothing(), why
            return self._parse(data), ""
        except FileNotFoundError:
            return self._nothing(), ""
        except DAMAGE as error:
            if not isinstance(error, OSError):
                set_aside(path, content, held)
            return self._nothing(), f"{type(error).__name__}: {error}"


def _remove_oldest(path: Path, device: Identity) -> None:
    """Remove files of a device until those of a few drivers are left."""
    name = re.compile(re.escape(device.prefix) + r"-[0-9a-f]{8}\.json")
    others = [each for each in path.parent.iterdir() if name.fullmatch(each.name) and each != path]
    for old in sorted(others, key=_changed, reverse=True)[MAX_FILES - 1 :]:
        crash_marker.forget(old)
        with suppress(OSError):  # Windows: another process reads it
            old.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
