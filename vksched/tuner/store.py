"""Store: what was measured, on disk, one JSON file per device.

    <cache>/tuned/<uuid>.json: {"format", "uuid", "driver", "label", "calls": {key: Found}}

What another driver version or other shaders gave is not used. Files are replaced whole, under a
lock, so any number of processes may read and write. Nothing here is needed: a folder that cannot be
written, or a file that cannot be read, costs a warning. Examples: tests/test_tuner_store.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from ..ops.choices import Choices
from ..trace import warn

FORMAT = 1

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
        return re.sub(r"[^0-9a-zA-Z]+", "-", self.uuid or f"{self.label} {self.driver}") + ".json"


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


def default_folder() -> Path:
    """Returns the user's folder for results: VKSCHED_CACHE, or where the system has such files."""
    named = os.environ.get("VKSCHED_CACHE", "")
    return Path(named) if named else platformdirs.user_cache_path("vksched", appauthor=False)


class Store:
    """The results on disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()) / "tuned"

    def path(self, device: Identity) -> Path:
        """Returns the file of a device."""
        return self.folder / device.file_name

    def load(self, device: Identity) -> dict[str, Found]:
        """Returns the results for a device by call key; none, with a warning, of a file that is
        damaged or of another driver version.
        """
        found, why = self._read(device)
        if why and (self.path(device), why) not in _told:
            _told.add((self.path(device), why))
            warn(f"[tune] {self.path(device)} is not used: {why}; try `vksched tune`")
        return found

    def add(self, device: Identity, found: Iterable[Found]) -> bool:
        """Adds results to those of a device; returns whether they are kept. A warning says why
        not.
        """
        new = {each.key: each for each in found}
        if not new:
            return True
        path = self.path(device)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                merged = self._read(device)[0] | new
                _replace(path, json.dumps(_as_dict(device, merged.values()), indent=1))
        except OSError as error:
            warn(f"[tune] results are not kept: {error}; try VKSCHED_CACHE=<folder>")
            return False
        return True

    def clear(self, device: Identity) -> bool:
        """Forgets the results of a device; returns whether there were any."""
        try:
            self.path(device).unlink()
        except OSError:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, whatever process it is in; the lock ends with its process."""
        with open(self.folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self, device: Identity) -> tuple[dict[str, Found], str]:
        """Returns what a file has for a device, and why it has nothing, "" where that is usual."""
        try:
            data = json.loads(self.path(device).read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                return {}, f"expected format {FORMAT}, got {data['format']!r}"
            if data["driver"] != device.driver:
                return {}, f"expected the driver {device.driver}, got {data['driver']}"
            found = [_found(key, entry) for key, entry in data["calls"].items()]
        except FileNotFoundError:
            return {}, ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {}, f"{type(error).__name__}: {error}"
        return {each.key: each for each in found}, ""


def _replace(path: Path, text: str) -> None:
    """Writes a file so that readers see the old one or the new one, whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _as_dict(device: Identity, found: Iterable[Found]) -> dict[str, Any]:
    calls = {each.key: found_as_dict(each) for each in found}
    for entry in calls.values():
        del entry["key"]
    return {"format": FORMAT, **asdict(device), "calls": dict(sorted(calls.items()))}


def found_as_dict(found: Found) -> dict[str, Any]:
    """Returns a result as plain data."""
    return asdict(found)


def _found(key: str, entry: Mapping[str, Any]) -> Found:
    """Returns a result of a file; raises ValueError, TypeError or KeyError where it is none."""
    seconds = {str(name): float(value) for name, value in entry["seconds"].items()}
    best, static = str(entry["best"]), str(entry["static"])
    if not {best, static} <= seconds.keys() or not all(value > 0 for value in seconds.values()):
        raise ValueError(f"no times of {best!r} and {static!r} for {key!r}")
    dropped = {str(name): str(why) for name, why in entry["dropped"].items()}
    return Found(key, best, static, seconds, dropped, str(entry["shaders"]))
