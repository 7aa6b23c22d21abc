"""Device files: what was measured, on disk, one JSON file per device and driver version.

    <cache>/<folder>/<uuid>-<hash of driver and label>.json:
        {"format", "uuid", "driver", "label", and what a store keeps}

What another driver version gave is not used. Files are replaced whole, under a lock, so any number
of processes may read and write. Nothing here is needed: a folder that cannot be found or written,
or a file that cannot be read, costs a warning. A file that is damaged is renamed to `.damaged`.
`store.py` and `cost_store.py` say what they keep. Examples: tests/tuning/test_tuner_store.py,
tests/tuning/test_cost_store.py.
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
from ..storage.disk_cache import (
    folder_of,
    locked,
    make_folder,
    read_whole,
    replace_whole,
    set_aside,
    warn_full,
)
from . import crash_marker
from .crash_marker import CrashMarker

MAX_FILES = 8
"""Of one device: then those of the drivers that were not used for longest are removed."""

DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
)  # fmt: skip
"""What reading a file that is damaged raises."""

_warned: set[tuple[Path, str]] = set()
"""Files that a warning was given of, and why."""

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class Identity:
    """A device as its results know it: its UUID, its driver with version, and its name."""

    uuid: str
    driver: str
    label: str = ""

    @property
    def file_name(self) -> str:
        return f"{self.prefix}-{self.hash}.json"

    @property
    def prefix(self) -> str:
        """What the files of all drivers of a device begin with."""
        return re.sub(r"[^0-9a-zA-Z]+", "-", self.uuid or self.label)

    @property
    def hash(self) -> str:
        return hashlib.sha256(f"{self.driver}\n{self.label}".encode()).hexdigest()[:8]


class DeviceFiles(ABC, Generic[Kept]):
    """The files of one kind of results. May be used from any number of threads.

    Kept: what a file has of a device. command: the one that measures it.
    """

    command: ClassVar[str]
    folder_name: ClassVar[str]
    format: ClassVar[int]

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._warned = False

    @abstractmethod
    def _nothing(self) -> Kept:
        """Returns what is known of a device without a file."""

    @abstractmethod
    def _parse(self, data: Mapping[str, Any]) -> Kept:
        """Returns what a file has; raises one of DAMAGE where it is damaged."""

    @abstractmethod
    def _entries(self, kept: Kept) -> dict[str, Any]:
        """Return it as plain data, as `_parse` reads it."""

    @abstractmethod
    def _merged(self, known: Kept, newer: Kept) -> Kept:
        """Return both; where they differ, what is newer."""

    @cached_property
    def folder(self) -> Path | None:
        """Where the files are; None where there is no place for them."""
        return self._given / self.folder_name if self._given else folder_of(self.folder_name)

    def path(self, device: Identity) -> Path | None:
        """Return the file of a device."""
        return None if self.folder is None else self.folder / device.file_name

    def load(self, device: Identity) -> Kept:
        """Returns what is known of a device; nothing, with a warning, of a file that is damaged."""
        path = self.path(device)
        if path is None:
            return self._nothing()
        found, why = self._read(path, device)
        if why and (path, why) not in _warned:
            _warned.add((path, why))
            warn(f"[{self.command}] {path} is not used: {why}; try `vksched {self.command}`")
        return found

    def _keep(self, device: Identity, newer: Kept) -> bool:
        """Add results to those of a device; returns whether they are kept. A warning says why
        not, the first time.
        """
        try:
            self._write(device, newer)
        except OSError as error:
            if not warn_full(self.folder or Path(), error) and not self._warned:
                self._warned = True
                text = f"results are not kept: {error}; try VKSCHED_CACHE=<folder>"
                warn(f"[{self.command}] {text}")
            return False
        return True

    def clear(self, device: Identity) -> bool:
        """Forget what is known of a device; returns whether there was anything."""
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
        """Return a note of what is being measured on a device, to be closed."""
        return CrashMarker(self.path(device))

    def _write(self, device: Identity, newer: Kept) -> None:
        path = self.path(device)
        if path is None:
            raise FileNotFoundError("the user has no home")
        make_folder(path.parent)
        with locked(path.parent / "lock"):
            merged = self._merged(self._read(path, device, held=True)[0], newer)
            data = {"format": self.format, **asdict(device), **self._entries(merged)}
            replace_whole(path, json.dumps(data, indent=1))
            _remove_oldest(path, device)

    def _read(self, path: Path, device: Identity, held: bool = False) -> tuple[Kept, str]:
        """Returns what a file has for a device, and why it has nothing, "" where that is usual.
        held: whether the caller has the lock.
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
    """Leave the files of a few drivers of a device."""
    name = re.compile(re.escape(device.prefix) + r"-[0-9a-f]{8}\.json")
    others = [each for each in path.parent.iterdir() if name.fullmatch(each.name) and each != path]
    for old in sorted(others, key=_changed, reverse=True)[MAX_FILES - 1 :]:
        crash_marker.forget(old)
        with suppress(OSError):  # Windows: somebody reads it
            old.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
