"""Store: what was measured, on disk, one JSON file per device and driver version.

    <cache>/tuned/<uuid>-<hash of driver and label>.json:
        {"format", "uuid", "driver", "label", "calls": {key: Found}}

What another driver version or other shaders gave is not used. Files are replaced whole, under a
lock, so any number of processes may read and write. Nothing here is needed: a folder that cannot be
found or written, or a file that cannot be read, costs a warning.
Examples: tests/tuner/test_tuner_store.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs

from ..machine.choices import Choices, like_key
from ..trace import warn
from . import attempts, files
from .attempts import Attempt

FORMAT = 1
MOST_FILES = 8
"""Of one device: then those of the drivers that were not used for longest are removed."""

DAMAGE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError
)  # fmt: skip
"""What reading a file that is damaged raises."""

_told: set[tuple[Path, str]] = set()
"""Files that a warning was given of, and why."""


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


@dataclass(frozen=True, slots=True)
class Found:
    """What measuring the variants of one call gave.

    key: `variants.call_key`. best: the variant to use. static: the one used without tuning.
    seconds: of one call, by variant, for those that gave a right result. dropped: the others, with
    the reasons. shaders: a hash of the shaders that the op may use.
    """

    key: str
    best: str
    static: str
    seconds: Mapping[str, float]
    dropped: Mapping[str, str] = field(default_factory=dict)
    shaders: str = ""

    @property
    def op(self) -> str:
        return self.key.partition(" ")[0]

    @property
    def gain(self) -> float:
        """How many times faster than the static choice it is."""
        return self.seconds[self.static] / self.seconds[self.best]


def choices(found: Iterable[Found]) -> Choices:
    """Returns results as what lowering asks."""
    return Choices({each.key: each.best for each in found})


def default_folder() -> Path | None:
    """Returns the user's folder for results: VKSCHED_CACHE, or where the system has such files;
    None where the user has no folders.
    """
    named = os.environ.get("VKSCHED_CACHE", "")
    try:
        return Path(named) if named else platformdirs.user_cache_path("vksched", appauthor=False)
    except RuntimeError:  # neither HOME nor an entry of the user
        return None


class Store:
    """The results on disk. May be used from any number of threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._told = False

    @cached_property
    def folder(self) -> Path | None:
        """Where the results are; None where there is no place for them."""
        folder = self._given or default_folder()
        return None if folder is None else folder / "tuned"

    def path(self, device: Identity) -> Path | None:
        """Returns the file of a device."""
        return None if self.folder is None else self.folder / device.file_name

    def load(self, device: Identity) -> dict[str, Found]:
        """Returns the results for a device by call key; none, with a warning, of a file that is
        damaged.
        """
        path = self.path(device)
        if path is None:
            return {}
        found, why = _read(path, device)
        if why and (path, why) not in _told:
            _told.add((path, why))
            warn(f"[tune] {path} is not used: {why}; try `vksched tune`")
        return found

    def add(self, device: Identity, found: Iterable[Found]) -> bool:
        """Adds results to those of a device; returns whether they are kept. A warning says why
        not, the first time.
        """
        new = {each.key: each for each in found}
        if not new:
            return True
        try:
            self._add(device, new)
        except OSError as error:
            if not self._told:
                self._told = True
                warn(f"[tune] results are not kept: {error}; try VKSCHED_CACHE=<folder>")
            return False
        return True

    def _add(self, device: Identity, new: Mapping[str, Found]) -> None:
        path = self.path(device)
        if path is None:
            raise FileNotFoundError("the user has no home")
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(path.parent / "lock"):
            merged = {**_read(path, device)[0], **new}
            files.replace(path, json.dumps(_as_dict(device, merged.values()), indent=1))
            _remove_oldest(path, device)

    def clear(self, device: Identity) -> bool:
        """Forgets the results of a device; returns whether there were any."""
        path = self.path(device)
        attempts.forget(path)
        if path is None:
            return False
        try:
            path.unlink()
        except OSError:
            return False
        return True

    def attempt(self, device: Identity) -> Attempt:
        """Returns a note of what is being tried on a device, to be closed."""
        return Attempt(self.path(device))

    def lost(self, device: Identity) -> dict[str, dict[str, str]]:
        """Returns the variants that took a device with them, as `attempts.lost`."""
        return attempts.lost(self.path(device))


def _read(path: Path, device: Identity) -> tuple[dict[str, Found], str]:
    """Returns what a file has for a device, and why it has nothing, "" where that is usual."""
    try:
        data = json.loads(files.read(path))
        if data["format"] != FORMAT:
            return {}, f"expected format {FORMAT}, got {data['format']!r}"
        if data["driver"] != device.driver:
            return {}, f"expected the driver {device.driver}, got {data['driver']}"
        found = [_found(key, entry) for key, entry in data["calls"].items()]
    except FileNotFoundError:
        return {}, ""
    except DAMAGE as error:
        return {}, f"{type(error).__name__}: {error}"
    return {each.key: each for each in found}, ""


def _remove_oldest(path: Path, device: Identity) -> None:
    """Leaves the files of a few drivers of a device."""
    name = re.compile(re.escape(device.prefix) + r"-[0-9a-f]{8}\.json")
    files = [each for each in path.parent.iterdir() if name.fullmatch(each.name) and each != path]
    for old in sorted(files, key=_changed, reverse=True)[MOST_FILES - 1 :]:
        attempts.forget(old)
        with suppress(OSError):  # Windows: somebody reads it
            old.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _as_dict(device: Identity, found: Iterable[Found]) -> dict[str, Any]:
    calls = {each.key: found_as_dict(each) for each in found}
    for entry in calls.values():
        del entry["key"]
    return {"format": FORMAT, **asdict(device), "calls": dict(sorted(calls.items()))}


def found_as_dict(found: Found) -> dict[str, Any]:
    """Returns a result as plain data."""
    return asdict(found)


def _found(key: str, entry: Mapping[str, Any]) -> Found:
    """Returns a result of a file; raises one of DAMAGE where it is none."""
    like_key(key)
    seconds = {str(name): float(value) for name, value in entry["seconds"].items()}
    best, static = str(entry["best"]), str(entry["static"])
    if not {best, static} <= seconds.keys() or not all(value > 0 for value in seconds.values()):
        raise ValueError(f"no times of {best!r} and {static!r} for {key!r}")
    dropped = {str(name): str(why) for name, why in entry["dropped"].items()}
    return Found(key, best, static, seconds, dropped, str(entry["shaders"]))
