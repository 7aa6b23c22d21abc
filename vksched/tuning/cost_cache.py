"""Cost cache: calibrations on disk, one JSON file per device, driver version and limits.

    <cache>/costs/<uuid>-<hash of driver, label and limits>.json:
        {"format", "uuid", "driver", "label", "limits", "calibration": Calibration}

device_cache.py defines when files are read and written. Results of other shaders are not used.
Examples: tests/tuning/test_cost_cache.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..common.errors import VkschedError
from ..ir.op import get_op
from ..plan.costs.node_cost import COPIES
from ..storage import crash_marker
from .calibration_types import Calibration, Sample
from .device_cache import DeviceCache, Identity
from .tunable_calls import shader_hash

FORMAT = 2


class CostCache(DeviceCache[Calibration | None]):
    """Calibrations on disk; None for a device without one. Thread-safe."""

    command = "calibrate"
    folder_name = "costs"
    format = FORMAT

    def add(self, device: Identity, newer: Calibration) -> bool:
        """Merge measurements into those of a device; return True if they were written. The first
        failure logs a warning.
        """
        return self._keep(device, newer)

    def crashed_variants(self, device: Identity) -> frozenset[tuple[str, str]]:
        """Return the ops and limiting resources during which the device or the process crashed."""
        found = crash_marker.crashed_variants(self.path(device))
        return frozenset((op, bound) for op, bounds in found.items() for bound in bounds)

    def _nothing(self) -> Calibration | None:
        return None

    def _parse(self, data: Mapping[str, Any]) -> Calibration | None:
        found = Calibration.from_dict(data["calibration"])
        samples = tuple(filter(_is_current, found.samples))
        found = found if len(samples) == len(found.samples) else replace(found, samples=samples)
        assert found.costs is not None  # damaged samples raise here
        return found

    def _entries(self, calibration: Calibration | None) -> dict[str, Any]:
        return {} if calibration is None else {"calibration": calibration.as_dict()}

    def _merged(self, known: Calibration | None, newer: Calibration | None) -> Calibration | None:
        return newer if known is None or newer is None else known.plus(newer)


def _is_current(sample: Sample) -> bool:
    """Return True if the op and the shaders of a sample are current."""
    if sample.op in COPIES:
        return True
    with suppress(VkschedError):
        op = get_op(sample.name)
        return not sample.shaders or (
            op.kernel is not None and sample.shaders == shader_hash(op.name)
        )
    return False
