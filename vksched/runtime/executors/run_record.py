"""Run records: the state of a run in flight, and the reports at its end.

Examples: tests/runtime/test_executor.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from ...common.dtypes import NDArray
from ...common.errors import DeviceError
from ...plan.costs.node_cost import op_seconds
from ...plan.types.plan_types import UPLOAD, PlanValue, Split
from ...trace import Event, Trace
from ..device import Times, TransferTimes
from ..run_stats import HostSpan, RunStats, SplitStats

Observers = Mapping[int, Sequence[Callable[[str, NDArray], object]]]
"""Callbacks by node, called with name and value; a callback that returns False cancels the run."""


@dataclass(slots=True)
class RunRecord:
    """One run in flight."""

    number: int
    slot: int
    sequence_number: int
    feeds: Mapping[int, NDArray]
    observers: Observers
    submitted_s: dict[int, float] = field(default_factory=dict)
    handed_over: set[int] = field(default_factory=set)
    """Splits that the device has received for certain: an interrupt may occur during a
    submission.
    """
    deadline_s: float = math.inf
    """The end of all waits after an interrupt, by the scheduler's clock."""
    complete_s: dict[int, float] = field(default_factory=dict)
    done_on: dict[int, int] = field(default_factory=dict)
    device: int = 0
    split: int = 0
    """The current operation and its split, for the message of an error."""
    fence_waits: int = 0
    waits: int = 0
    transfer_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    spans: list[HostSpan] = field(default_factory=list)


class InFlightSplit(NamedTuple):
    """A submitted split whose end the host has not seen yet.

    Parameters
    ----------
    ops
        The names of its ops, for static plans the longest first.
    since_s
        The time of its submission, in seconds of the scheduler's clock.
    """

    device: str
    split: int
    nodes: int
    ops: tuple[str, ...]
    run: int
    since_s: float


class Timed(Protocol):
    """A source of the device times of splits."""

    def times_s(self, slot: int, split: int) -> Times: ...

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes: ...


class Reporter:
    """Reports the runs of one plan."""

    def __init__(self, plan: PlanValue, trace: Trace, number: int = -1) -> None:
        """Create a reporter. number: the number of the plan in the process."""
        self._plan = plan
        self._trace = trace
        self.number = number

    @cached_property
    def _op_seconds(self) -> tuple[dict[str, float], ...]:
        return op_seconds(self._plan)

    def in_flight_splits(self, run: RunRecord) -> list[InFlightSplit]:
        """Return the splits in flight of a run that another thread executes, in plan order."""
        out: list[InFlightSplit] = []
        for split_id, since_s in sorted(run.submitted_s.copy().items()):
            if split_id not in run.complete_s:
                split, ops = self._plan.splits[split_id], self._op_seconds[split_id]
                name = self._plan.topology.devices[split.device].name
                longest = tuple(sorted(ops, key=lambda op: -ops[op]))
                out.append(
                    InFlightSplit(name, split_id, len(split.nodes), longest, run.number, since_s)
                )
        return out

    def describe(self, split_id: int) -> str:
        """Return the description of a split in error messages."""
        nodes = self._plan.splits[split_id].nodes
        names = [self._plan.graph.nodes[n].name for n in (nodes[0], nodes[-1])]
        text = names[0] if len(nodes) == 1 else f"{names[0]} .. {names[-1]}, {len(nodes)} nodes"
        return f"split {split_id} ({text})"

    def report(
        self, run: RunRecord, prepared_plans: Mapping[int, Timed], start: float, end: float
    ) -> RunStats:
        """Return the statistics of a run and emit its events."""
        splits: list[SplitStats] = []
        free_at: dict[int, float] = {}
        active, devices = self._trace.active, self._plan.topology.devices
        for split in self._plan.splits:
            submitted, complete = run.submitted_s[split.id], run.complete_s[split.id]
            begin = max(submitted, free_at.get(split.device, submitted))
            transfers = (
                self._transfer_intervals(run, split, prepared_plans[split.device])
                if split.async_transfers
                else {}
            )
            if UPLOAD in transfers:
                begin = max(begin, transfers[UPLOAD][1])
            measured, longest = times_of(prepared_plans[split.device], run, split)
            seconds = measured if measured is not None else complete - begin
            # A device's clock has another origin: place its duration right after the preceding
            # work.
            finish = min(complete, begin + seconds)
            free_at[split.device] = finish
            name = devices[split.device].name
            splits.append(
                SplitStats(split.id, name, len(split.nodes), seconds, longest, begin, finish)
            )
            if active:
                fields = {
                    "split": split.id,
                    "device_s": measured,
                    "observed_s": complete,
                    "ops": self._op_seconds[split.id],
                }
                self._trace.emit(
                    Event("split", name, begin, finish, run.number, fields, self.number)
                )
                self._report_transfers(run, split, transfers)
        stats = RunStats(
            run.number,
            end - start,
            run.fence_waits,
            run.waits,
            run.transfer_bytes,
            run.input_bytes,
            run.output_bytes,
            tuple(splits),
            start,
            tuple(run.spans),
        )
        if active:
            self._report_run(stats)
        return stats

    def tell(self, stats: RunStats, events: Iterable[Event], clocks: str) -> None:
        """Emit the events of a run of several hosts, if there are sinks.

        Parameters
        ----------
        clocks
            The accuracy of the hosts' clocks.
        """
        self.tell_events(stats.run, events)
        if self._trace.active:
            self._report_run(stats, clocks=clocks)

    def tell_events(self, run: int, events: Iterable[Event]) -> None:
        """Emit the events of a run of this plan."""
        for event in events:
            self._trace.emit(replace(event, run=run, plan=self.number))

    def _report_run(self, stats: RunStats, **more: object) -> None:
        about = {"stats": stats, **more}
        when = stats.start_s, stats.end_s
        self._trace.emit(Event("run", "host", *when, stats.run, about, self.number))

    def _transfer_intervals(
        self, run: RunRecord, split: Split, prepared: Timed
    ) -> dict[str, tuple[float, float, float | None]]:
        """Return, for each stage on the transfer queue, its start and end by the scheduler's clock,
        and its seconds by the device's clock, or None. If the device does not report when, uploads
        are placed right after their submission, and downloads right before the host saw them.
        """
        out: dict[str, tuple[float, float, float | None]] = {}
        submitted, complete = run.submitted_s[split.id], run.complete_s[split.id]
        for stage, (start, seconds) in _transfer_times(prepared, run, split).items():
            took = seconds or 0.0
            if start is None:
                start = submitted if stage == UPLOAD else max(submitted, complete - took)
            out[stage] = start, min(complete, start + took), seconds
        return out

    def _report_transfers(
        self,
        run: RunRecord,
        split: Split,
        transfers: Mapping[str, tuple[float, float, float | None]],
    ) -> None:
        nodes, name = self._plan.graph.nodes, self._plan.topology.devices[split.device].name
        for stage, (start, end, seconds) in transfers.items():
            copied = split.uploads if stage == UPLOAD else split.downloads
            fields = {
                "split": split.id,
                "way": "in" if stage == UPLOAD else "out",
                "bytes": sum(nodes[copy.node].type.device_bytes for copy in copied),
                "device_s": seconds,
            }
            self._trace.emit(
                Event("transfer_queue", name, start, end, run.number, fields, self.number)
            )

    def emit(self, span: HostSpan, run: RunRecord, **fields: object) -> None:
        """Emit the event of a host operation for a device."""
        kind, split, start, end = span
        name = self._plan.topology.devices[self._plan.splits[split].device].name
        fields["split"] = split
        self._trace.emit(Event(kind, name, start, end, run.number, fields, self.number))

    def tell_failed(self, run: RunRecord, device: int, start: float, error: BaseException) -> None:
        """Emit the event of a failed run, if there are sinks.

        Parameters
        ----------
        device
            The device in use at the time.
        """
        if not self._trace.active:
            return
        name = self._plan.topology.devices[device].name
        fields = {"error": type(error).__name__, "message": str(error)}
        now = self._trace.clock.now()
        self._trace.emit(Event("failed", name, start, now, run.number, fields, self.number))

    def tell_memory(self, kind: str, device: int, start: float, resident_bytes: int) -> None:
        """Emit the event of allocating or freeing a plan's memory, if there are sinks.

        Parameters
        ----------
        resident_bytes
            Bytes of weights and states that were resident before, or stay resident.
        """
        if not self._trace.active:
            return
        memory = self._plan.memory[device]
        shared = memory.weight_bytes + memory.state_bytes
        fields = {
            "bytes": max(0, memory.peak_bytes - shared),
            "weight_bytes": memory.weight_bytes,
            "state_bytes": memory.state_bytes,
            "resident_bytes": resident_bytes,
        }
        name, now = self._plan.topology.devices[device].name, self._trace.clock.now()
        self._trace.emit(Event(kind, name, start, now, -1, fields, self.number))


def times_of(prepared: Timed, run: RunRecord, split: Split) -> Times:
    """Return the device times of a finished split."""
    try:
        return prepared.times_s(run.slot, split.id)
    except DeviceError:  # the results are complete: the next run will find the device lost
        return None, None


def _transfer_times(prepared: Timed, run: RunRecord, split: Split) -> TransferTimes:
    try:
        return prepared.async_transfer_s(run.slot, split.id)
    except DeviceError:  # see `times_of`
        return {}
