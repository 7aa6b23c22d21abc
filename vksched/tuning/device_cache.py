"""Device cache: measurements on disk, one JSON file per device, driver version and limits.

    <cache>/<folder>/<uuid>-<hash of driver, label and limits>.json:
        {"format", "uuid", "driver", "label", "limits", and the data of a subclass}

Results of another driver version or of other features are not used: a known fault of a driver
(topology/driver_faults.py) excludes features, for which other kernels run. Files are replaced
atomically under a lock, so any number of processes may read and write (storage/disk_cache.py). The
cache is optional: a folder that cannot be found or written, or a file that cannot be read, only
causes a warning. Subclasses are in variant_cache.py and cost_cache.py. Examples:
tests/tuning/test_variant_cache.py, tests/tuning/test_cost_cache.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ..common.user_warning import warn
from ..storage import crash_marker
from ..storage.cache_folder import folder_of, warn_full
from ..storage.disk_cache import DiskCache, StaleFile

MAX_FILES = 8
"""Maximum number of files of one device; those of the least recently used drivers are removed."""

Cached = TypeVar("Cached")


@dataclass(frozen=True, slots=True)
class Identity:
    """The cache key of a device: its UUID, its driver with version, its name, and its limits as
    `Limits.kernel_text` returns them.
    """

    uuid: str
    driver: str
    label: str = ""
    limits: str = ""

    @property
    def file_name(self) -> str:
        return f"{self.prefix}-{self.hash}.json"

    @property
    def prefix(self) -> str:
        """The prefix of the file names of a device, for all drivers."""
        return re.sub(r"[^0-9a-zA-Z]+", "-", self.uuid or self.label)

    @property
    def hash(self) -> str:
        text = f"{self.driver}\n{self.label}\n{self.limits}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class DeviceCache(ABC, Generic[Cached]):
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
        """Return the content of a file; raise one of DECODE_ERRORS if it is damaged."""

    @abstractmethod
    def _entries(self, cached: Cached) -> dict[str, Any]:
        """Return the content as plain data, as `_parse` reads it."""

    @abstractmethod
    def _merged(self, known: Cached, newer: Cached) -> Cached:
        """Return both values merged; newer entries win."""

    @cached_property
    def _files(self) -> DiskCache:
        folder = self._root / self.folder_name if self._root else folder_of(self.folder_name)
        remedy = f"; try `vksched {self.command}`"
        return DiskCache(folder, self.command, remedy, max_files=MAX_FILES)

    @property
    def folder(self) -> Path | None:
        """The folder of the files, or None if there is none."""
        return self._files.folder

    def path(self, device: Identity) -> Path | None:
        """Return the file of a device."""
        return self._files.path(device.file_name)

    def load(self, device: Identity) -> Cached:
        """Return the cached value of a device; without one, or with a warning if the file is
        damaged, the empty value.
        """
        found = self._files.get(device.file_name, partial(self._content, device))
        return self._nothing() if found is None else found

    def _keep(self, device: Identity, newer: Cached) -> bool:
        """Merge results into those of a device; return True if they were written. The first failure
        logs a warning.
        """

        def merge(known: Cached | None) -> bytes:
            merged = self._merged(self._nothing() if known is None else known, newer)
            data = {"format": self.format, **asdict(device), **self._entries(merged)}
            return json.dumps(data, indent=1).encode()

        parse, counted = partial(self._content, device), f"{device.prefix}-????????.json"
        try:
            for old in self._files.update(device.file_name, parse, merge, counted):
                crash_marker.forget(old)
        except OSError as error:
            if not warn_full(self.folder or Path(), error) and not self._warned:
                self._warned = True
                text = f"results are not cached: {error}; try VKSCHED_CACHE=<folder>"
                warn(f"[{self.command}] {text}")
            return False
        return True

    def clear(self, device: Identity) -> bool:
        """Delete the results of a device; return True if there were any."""
        crash_marker.forget(self.path(device))
        return self._files.clear(device.file_name)

    def _content(self, device: Identity, content: bytes) -> Cached:
        """Return the content of a file of a device."""
        data = json.loads(content)
        if data["format"] != self.format:
            raise StaleFile(f"expected format {self.format}, got {data['format']!r}")
        if data["driver"] != device.driver:
            raise StaleFile(f"expected the driver {device.driver}, got {data['driver']}")
        return self._parse(data)
