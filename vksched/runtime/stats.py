"""Stats: what a run of a plan cost, as its executor saw it.

Examples: tests/runtime/test_executor.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SplitStats:
    """device_s: time on the device by its own clock where it has one, else as the host saw it.
    longest_s: of its longest submission, by the device's clock; None where it has none.
    """

    split: int
    device: str
    nodes: int
    device_s: float
    longest_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunStats:
    """What one run cost.

    fences_waited: waits for a submission of a GPU. waits: these and waits for the CPU's splits.
    crossing_bytes: moved from one device to another, as words. input_bytes, output_bytes: between
    caller and devices.
    """

    run: int
    seconds: float
    fences_waited: int
    waits: int
    crossing_bytes: int
    input_bytes: int
    output_bytes: int
    splits: tuple[SplitStats, ...] = field(default=())

    @property
    def device_seconds(self) -> dict[str, float]:
        """Seconds per device, in order of first use."""
        out: dict[str, float] = {}
        for split in self.splits:
            out[split.device] = out.get(split.device, 0.0) + split.device_s
        return out
