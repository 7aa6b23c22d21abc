"""Variant cache: the fastest variants of calls on disk, one JSON file per device, driver
version and limits.

    <cache>/tuned/<uuid>-<hash of driver, label and limits>.json:
        {"format", "uuid", "driver", "label", "limits", "calls": {key: TuningResult}}

device_cache.py defines when files are read and written. Results of other shaders are retained but
not used. Examples: tests/tuning/test_variant_cache.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..storage import crash_marker
from ..topology.tuned_variants import TunedVariants, size_class_key
from .device_cache import DeviceCache, Identity

FORMAT = 2


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The measured variants of one call.

    Parameters
    ----------
    key
        The call key, see `variants.call_key`.
    best
        The variant to use.
    static
        The variant without tuning.
    seconds
        Time of one call by variant, for variants with correct results.
    dropped
        The other variants, with reasons.
    shaders
        A hash of the shaders that the op may use.
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
        """The speedup over the static choice."""
        return self.seconds[self.static] / self.seconds[self.best]


def choices(found: Iterable[TuningResult]) -> TunedVariants:
    """Return results as tuned variants for lowering."""
    return TunedVariants({each.key: each.best for each in found})


class VariantCache(DeviceCache[dict[str, TuningResult]]):
    """Results on disk by call key. Thread-safe."""

    command = "tune"
    folder_name = "tuned"
    format = FORMAT

    def add(self, device: Identity, found: Iterable[TuningResult]) -> bool:
        """Merge results into those of a device; return True if they were written. The first failure
        logs a warning.
        """
        new = {each.key: each for each in found}
        return self._keep(device, new) if new else True

    def crashed_variants(self, device: Identity) -> dict[str, dict[str, str]]:
        """Return the variants that crashed a device, as `crash_marker.crashed_variants` does."""
        return crash_marker.crashed_variants(self.path(device))

    def _nothing(self) -> dict[str, TuningResult]:
        return {}

    def _parse(self, data: Mapping[str, Any]) -> dict[str, TuningResult]:
        found = [_found(key, entry) for key, entry in data["calls"].items()]
        return {each.key: each for each in found}

    def _entries(self, cached: dict[str, TuningResult]) -> dict[str, Any]:
        calls = {each.key: found_as_dict(each) for each in cached.values()}
        for entry in calls.values():
            del entry["key"]
        return {"calls": dict(sorted(calls.items()))}

    def _merged(
        self, known: dict[str, TuningResult], newer: dict[str, TuningResult]
    ) -> dict[str, TuningResult]:
        return {**known, **newer}


def found_as_dict(found: TuningResult) -> dict[str, Any]:
    """Return a result as plain data."""
    return asdict(found)


def _found(key: str, entry: Mapping[str, Any]) -> TuningResult:
    """Return a result from a file; raise one of DECODE_ERRORS if it is invalid."""
    size_class_key(key)
    seconds = {str(name): float(value) for name, value in entry["seconds"].items()}
    best, static = str(entry["best"]), str(entry["static"])
    if not {best, static} <= seconds.keys() or not all(value > 0 for value in seconds.values()):
        raise ValueError(f"no times of {best!r} and {static!r} for {key!r}")
    dropped = {str(name): str(why) for name, why in entry["dropped"].items()}
    return TuningResult(key, best, static, seconds, dropped, str(entry["shaders"]))
