"""Simulated: what `simulate` reads and gives, as plain values.

plan --> SimSplit of each split --> SplitTiming of each: Program --simulate.py--> Simulation: spans,
ends
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types.plan_types import HOST
from .host_schedules import Walks

LiveIn = Sequence[tuple[int, int]]
"""Values that a split copies in, with the split that each comes from, or HOST."""


@dataclass(frozen=True, slots=True)
class SimSplit:
    """A split before its times are known: what plans and drafts of plans both have.

    commits: whether it gives states their next values. async_transfers, deferred_downloads,
    refills: as in `Split`. after: the split whose work must have ended before copies in begin
    beside it, or HOST for none.
    """

    device: int
    nodes: tuple[int, ...]
    live_in: LiveIn
    live_out: Sequence[int]
    waits: tuple[int, ...]
    commits: bool
    async_transfers: tuple[str, ...] = ()
    after: int = HOST
    deferred_downloads: tuple[int, ...] = ()
    refills: bool = False


@dataclass(frozen=True, slots=True)
class SplitTiming:
    """One split as the clock sees it.

    given_s: the host copies in what the caller gave. waits: splits that it then waits for.
    crossed_s: it copies in what comes from these, and weights over others. seconds: on the device.
    submit_s, fence_s: host time to hand a submission over, and to learn of its end. coming_s,
    leaving_s: what its copies in and out take on the copy queue, None where they are a part of its
    work. after, deferred_downloads: as in `HostPlan`.
    """

    device: int
    given_s: float
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
    """All that the clock needs of a plan.

    devices: names. steps: by split. commits: how many of them, at the end, write states. fetched_s:
    the host copies out the results, before these. final_waits: splits to wait for at the end.
    run_s: host time of a run, whatever it submits. walks: what several hosts tell each other; None
    where one does all. queues: for each device the first one whose work its own takes turns with,
    see `Topology.queues`; empty where each has a queue of its own.
    """

    devices: tuple[str, ...]
    steps: tuple[SplitTiming, ...]
    commits: int
    fetched_s: float
    final_waits: tuple[int, ...]
    run_s: float = 0.0
    walks: Walks | None = None
    queues: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Busy:
    """A stretch of time. kind: "split" on a device; "transfer_queue" on its copy queue; "copy" or
    "wait" of the host, for a device.

    split: which one; of a wait the one waited for; None of results that are copied out.
    """

    kind: str
    device: int
    split: int | None
    run: int
    start_s: float
    finish_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What some runs take. finish_s: the end of each run. spans: in the order of their starts on
    each device.
    """

    devices: tuple[str, ...]
    finish_s: tuple[float, ...]
    spans: tuple[Busy, ...]

    @property
    def seconds(self) -> float:
        """The time until the last run is done."""
        return max(self.finish_s, default=0.0)

    @property
    def seconds_per_run(self) -> float:
        """The time between two runs of a stream, once it flows: of the later half of the runs."""
        ends = sorted(self.finish_s)
        half = len(ends) // 2
        if half == len(ends) - 1:
            return ends[-1] / len(ends) if ends else 0.0
        return (ends[-1] - ends[half]) / (len(ends) - 1 - half)

    @property
    def busy_s(self) -> dict[str, float]:
        """The seconds that each device works, by name."""
        out = dict.fromkeys(self.devices, 0.0)
        for span in self.spans:
            if span.kind == "split":
                out[self.devices[span.device]] += span.finish_s - span.start_s
        return out

    def total_s(self, kind: str) -> float:
        """Return the seconds of all spans of a kind."""
        return sum(s.finish_s - s.start_s for s in self.spans if s.kind == kind)
