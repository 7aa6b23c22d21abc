"""Stats: what a run of a plan cost, as its executor saw it.

These are named tuples, which take a quarter of the time of frozen dataclasses to make: each run
makes some.

Examples: tests/runtime/test_executor.py.
"""

from __future__ import annotations

from typing import NamedTuple

HostSpan = tuple[str, int, float, float]
"""A stretch of the host's time: kind, split, start and end in seconds of the scheduler's clock.
"copy": it wrote a value for the device of the split, or read one of its results. "wait": for the
split.
"""


class SplitStats(NamedTuple):
    """device_s: time on the device by its own clock where it has one, else as the host saw it.
    longest_s: of its longest submission, by the device's clock; None where it has none.
    begin_s, end_s: when it was at work, in seconds of the scheduler's clock. A device's own clock
    has another origin: its time is put right behind the submission, or behind the split before it.
    """

    split: int
    device: str
    nodes: int
    device_s: float
    longest_s: float | None = None
    begin_s: float = 0.0
    end_s: float = 0.0


class RunStats(NamedTuple):
    """What one run cost.

    fence_waits: waits for a submission of a GPU. waits: these and waits for the CPU's splits.
    transfer_bytes: moved from one device to another, as words. input_bytes, output_bytes: between
    caller and devices. start_s: when it began, in seconds of the scheduler's clock. spans: what the
    host did for the devices, in order.
    """

    run: int
    seconds: float
    fence_waits: int
    waits: int
    transfer_bytes: int
    input_bytes: int
    output_bytes: int
    splits: tuple[SplitStats, ...] = ()
    start_s: float = 0.0
    spans: tuple[HostSpan, ...] = ()

    @property
    def end_s(self) -> float:
        """When it was done, in seconds of the scheduler's clock."""
        return self.start_s + self.seconds

    @property
    def device_seconds(self) -> dict[str, float]:
        """Seconds per device, in order of first use."""
        out: dict[str, float] = {}
        for split in self.splits:
            out[split.device] = out.get(split.device, 0.0) + split.device_s
        return out
