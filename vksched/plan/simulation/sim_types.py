"""Simulation types: the inputs and results of `simulate`, as plain values.

plan --> SplitDraft of each split --> SplitTiming of each: Program --simulate_plan.py-->
Simulation: spans, ends
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..types.plan_types import HOST
from .host_schedules import Walks


@dataclass(frozen=True, slots=True)
class SplitTiming:
    """The times of one split.

    input_s: host time to copy in inputs of the caller. waits: splits that the host then waits for.
    crossed_s: host time to copy in results of these splits, and streamed weights. seconds: time on
    the device. submit_s, fence_s: host time to submit, and to learn of the end. coming_s,
    leaving_s: time of its uploads and downloads on the copy queue, or None if they are a part of
    its work. after: the split whose work must end before asynchronous uploads begin, or HOST for
    none. deferred_downloads: as in `Split`.
    """

    device: int
    input_s: float
    waits: tuple[int, ...]
    crossed_s: float
    seconds: float
    submit_s: float = 0.0
    fence_s: float = 0.0
    coming_s: float | None = None
    leaving_s: float | None = None
    after: int = HOST
    deferred_downloads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """All inputs of the simulation of a plan.

    devices: names. steps: one for each split. commits: the number of final steps that write states.
    fetched_s: host time to fetch the results, before these. final_waits: splits that the host waits
    for at the end. run_s: fixed host time of a run. walks: the messages between several hosts, or
    None for one host. queues: for each device, the first device that shares its compute queue, see
    `Topology.queues`; empty if each has a queue of its own.
    """

    devices: tuple[str, ...]
    steps: tuple[SplitTiming, ...]
    commits: int
    fetched_s: float
    final_waits: tuple[int, ...]
    run_s: float = 0.0
    walks: Walks | None = None
    queues: tuple[int, ...] = ()


class BusySpan(NamedTuple):
    """A span of time.

    kind: "split" on a device; "transfer_queue" on its copy queue; "copy" or "wait" of the host, for
    a device. split: its split, or the awaited split of a wait; None for results that are fetched.
    """

    kind: str
    device: int
    split: int | None
    run: int
    start_s: float
    finish_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The simulated times of some runs. finish_s: the end of each run. spans: in the order of their
    starts on each device.
    """

    devices: tuple[str, ...]
    finish_s: tuple[float, ...]
    spans: tuple[BusySpan, ...]

    @property
    def seconds(self) -> float:
        """The time until the last run ends."""
        return max(self.finish_s, default=0.0)

    @property
    def seconds_per_run(self) -> float:
        """The time between two runs of a steady stream, over the later half of the runs."""
        ends = sorted(self.finish_s)
        half = len(ends) // 2
        if half == len(ends) - 1:
            return ends[-1] / len(ends) if ends else 0.0
        return (ends[-1] - ends[half]) / (len(ends) - 1 - half)

    @property
    def busy_s(self) -> dict[str, float]:
        """The busy seconds of each device, by name."""
        out = dict.fromkeys(self.devices, 0.0)
        for span in self.spans:
            if span.kind == "split":
                out[self.devices[span.device]] += span.finish_s - span.start_s
        return out

    def total_s(self, kind: str) -> float:
        """Return the seconds of all spans of a kind."""
        return sum(s.finish_s - s.start_s for s in self.spans if s.kind == kind)
