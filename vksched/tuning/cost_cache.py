"""Cost store: calibrations on disk, one JSON file per device and driver version.

    <cache>/costs/<uuid>-<hash of driver and label>.json:
        {"format", "uuid", "driver", "label", "calibration": Calibration}

`device_files.py` says when files are read and written. What other shaders gave is not used.
Examples: tests/tuning/test_cost_store.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..common.errors import VkschedError
from ..ir.op import get_op
from ..plan.costs.node_cost import COPIES
from . import crash_marker
from .calibration_types import Calibration, Sample
from .device_cache import DeviceFiles, Identity
from .tunable_calls import shader_hash

FORMAT = 2


class CostStore(DeviceFiles[Calibration | None]):
    """The calibrations on disk; None of a device that was not measured. May be used from any
    number of threads.
    """

    command = "calibrate"
    folder_name = "costs"
    format = FORMAT

    def add(self, device: Identity, newer: Calibration) -> bool:
        """Add measurements to those of a device; returns whether they are kept. A warning says why
        not, the first time.
        """
        return self._keep(device, newer)

    def crashed_variants(self, device: Identity) -> frozenset[tuple[str, str]]:
        """Return the ops and bounds during which the device, or the process, was lost."""
        found = crash_marker.crashed_variants(self.path(device))
        return frozenset((op, bound) for op, bounds in found.items() for bound in bounds)

    def _nothing(self) -> Calibration | None:
        return None

    def _parse(self, data: Mapping[str, Any]) -> Calibration | None:
        found = Calibration.from_dict(data["calibration"])
        return replace(found, samples=tuple(filter(_is_current, found.samples)))

    def _entries(self, kept: Calibration | None) -> dict[str, Any]:
        return {} if kept is None else {"calibration": kept.as_dict()}

    def _merged(self, known: Calibration | None, newer: Calibration | None) -> Calibration | None:
        return newer if known is None or newer is None else known.plus(newer)


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
