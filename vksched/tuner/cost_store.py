"""Cost store: calibrations on disk, one JSON file per device and driver version.

    <cache>/costs/<uuid>-<hash of driver and label>.json:
        {"format", "uuid", "driver", "label", "calibration": Calibration}

It keeps the promises of store.py: files are replaced whole, under a lock; what another driver or
other shaders gave is not used; a file that cannot be read or written costs a warning. Examples:
tests/tuner/test_cost_store.py.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from ..errors import VkschedError
from ..ops.core.op import get_op
from ..plan.cost import COPIES
from ..trace import warn
from . import attempts, files
from .attempts import Attempt
from .calibration import Calibration, Sample
from .calls import shader_hash
from .store import DAMAGE, Identity, default_folder

FORMAT = 1

_told: set[tuple[Path, str]] = set()
"""Files that a warning was given of, and why."""


class CostStore:
    """The calibrations on disk. May be used from any number of threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._told = False

    @cached_property
    def folder(self) -> Path | None:
        """Where the files are; None where there is no place for them."""
        folder = self._given or default_folder()
        return None if folder is None else folder / "costs"

    def path(self, device: Identity) -> Path | None:
        """Returns the file of a device."""
        return None if self.folder is None else self.folder / device.file_name

    def load(self, device: Identity) -> Calibration | None:
        """Returns what is known of a device; None, with a warning, of a file that is damaged."""
        path = self.path(device)
        if path is None:
            return None
        found, why = _read(path, device)
        if why and (path, why) not in _told:
            _told.add((path, why))
            warn(f"[calibrate] {path} is not used: {why}; try `vksched calibrate`")
        return found

    def add(self, device: Identity, newer: Calibration) -> bool:
        """Adds measurements to those of a device; returns whether they are kept. A warning says why
        not, the first time.
        """
        path = self.path(device)
        try:
            if path is None:
                raise FileNotFoundError("the user has no home")
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.locked(path.parent / "lock"):
                known, _ = _read(path, device)
                merged = newer if known is None else known.plus(newer)
                data = {"format": FORMAT, **asdict(device), "calibration": merged.as_dict()}
                files.replace(path, json.dumps(data, indent=1))
        except OSError as error:
            if not self._told:
                self._told = True
                warn(f"[calibrate] results are not kept: {error}; try VKSCHED_CACHE=<folder>")
            return False
        return True

    def clear(self, device: Identity) -> bool:
        """Forgets what is known of a device; returns whether there was anything."""
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
        """Returns a note of what is being measured on a device, to be closed."""
        return Attempt(self.path(device))

    def lost(self, device: Identity) -> frozenset[tuple[str, str]]:
        """Returns the ops and bounds during which the device, or the process, was lost."""
        found = attempts.lost(self.path(device))
        return frozenset((op, bound) for op, bounds in found.items() for bound in bounds)


def _read(path: Path, device: Identity) -> tuple[Calibration | None, str]:
    """Returns what a file has for a device, and why it has nothing, "" where that is usual."""
    try:
        data = json.loads(files.read(path))
        if data["format"] != FORMAT:
            return None, f"expected format {FORMAT}, got {data['format']!r}"
        if data["driver"] != device.driver:
            return None, f"expected the driver {device.driver}, got {data['driver']}"
        found = Calibration.from_dict(data["calibration"])
    except FileNotFoundError:
        return None, ""
    except DAMAGE as error:
        return None, f"{type(error).__name__}: {error}"
    return replace(found, samples=tuple(filter(_is_current, found.samples))), ""


def _is_current(sample: Sample) -> bool:
    """Whether a sample is of an op, and of shaders, that are here."""
    if sample.op in COPIES:
        return True
    with suppress(VkschedError):
        op = get_op(sample.name)
        return not sample.shaders or (
            op.kernel is not None and sample.shaders == shader_hash(op.name)
        )
    return False
