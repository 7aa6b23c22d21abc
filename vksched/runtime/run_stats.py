"""Run statistics: the times and transfers of a run, as its executor measured them.

These are named tuples, which are created in a quarter of the time of frozen dataclasses: each run
creates several.

Examples: tests/runtime/test_executor.py.
"""

from __future__ import annotations

from typing import NamedTuple

HostSpan = tuple[str, int, float, float]
"""A host operation: kind, split, start and end in seconds of the scheduler's clock. "copy": it
wrote a value for the split's device or read a result. "wait": it waited for the split.
"""


class SplitStats(NamedTuple):
    """The times of one split.

    Parameters
    ----------
    device_s
        Time on the device by its own clock, or as the host measured it if the device has none.
    longest_s
        Time of its longest submission by the device's clock, or None.
    begin_s, end_s
        Start and end in seconds of the scheduler's clock. A device's own clock has another origin:
        its time is placed right after the submission, or after the preceding split.
    """

    split: int
    device: str
    nodes: int
    device_s: float
    longest_s: float | None = None
    begin_s: float = 0.0
    end_s: float = 0.0


class RunStats(NamedTuple):
    """The statistics of one run.

    Parameters
    ----------
    fence_waits
        Waits for a submission of a GPU.
    waits
        Waits for submissions of GPUs and for the CPU's splits.
    transfer_bytes
        Bytes moved between devices, rounded up to 32-bit words.
    input_bytes, output_bytes
        Bytes between caller and devices.
    start_s
        Start time in seconds of the scheduler's clock.
    spans
        Host operations for the devices, in order.
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
        """The end time in seconds of the scheduler's clock."""
        return self.start_s + self.seconds

    @property
    def device_seconds(self) -> dict[str, float]:
        """Seconds per device, in order of first use."""
        out: dict[str, float] = {}
        for split in self.splits:
            out[split.device] = out.get(split.device, 0.0) + split.device_s
        return out
