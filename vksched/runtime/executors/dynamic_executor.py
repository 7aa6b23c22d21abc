"""DynamicExecutor: decides during each run which device executes which piece of a graph.

    plan/dynamic/dispatcher.py decides --piece, device--> here: copy values, submit
                     ^---- piece that ended, and its time ----'

Problem: the order in which pieces end is unknown beforehand. Method: every device has recorded all
pieces that it supports. The host submits the dispatcher's decisions and polls the oldest piece of
each device, because another device may finish first. If only one device is busy, it waits for that.
Each run results in a static plan of what it did. With VKSCHED_CHECK=1 that plan is verified, and
the happens-before checker checks the host's actions.

One run executes at a time, because it uses all devices. Examples:
tests/engine/test_dynamic_runs.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError
from ...plan.dynamic.dispatcher import POLICIES, Speeds, execute
from ...plan.dynamic.options import DynamicPlan, Options
from ...plan.dynamic.plan_of_run import plan_of
from ...plan.dynamic.solo_selector import SoloOrAllSelector
from ...plan.types.plan_types import HOST
from ...plan.verify import memory_events
from ...plan.verify.happens_before import Checker, Finding, fail_on
from ...plan.verify.memory_events import EventGenerator
from ...plan.verify.verify_plan import verify_plan
from ...trace import Event, Trace
from ..cpu.evaluate import Values
from ..device import PreparedPlan, Times, TransferTimes
from ..run_stats import RunStats
from . import race_checker
from .base_executor import INTERRUPTED_S, BaseExecutor, RunResult
from .executor_context import ExecutorContext
from .run_record import InFlightSplit, Observers, Reporter, RunRecord

POLL_S = 50e-6
"""Polling interval while several devices are busy."""


class DynamicExecutor(BaseExecutor):
    """Executes the pieces of a graph, and decides in each run where they go."""

    def __init__(self, plan: DynamicPlan, context: ExecutorContext) -> None:
        assert plan.options is not None
        self.options = plan.options
        super().__init__(plan, context, self.options.on)
        self.speeds = Speeds(len(plan.topology.devices))
        """The device speeds, as all runs so far showed."""
        self._selector = SoloOrAllSelector(self.options)
        self._warm: set[tuple[int, int]] = set()
        """Pieces that ran on a device: the first time pays for lazy work of drivers."""
        self._target: _DeviceTarget | None = None
        """The target of the current run."""
        self.prepare(context.progress, self._make_session)

    def in_flight_splits(self) -> list[InFlightSplit]:
        target = self._target
        return target.in_flight_splits() if target is not None else []

    def _make_session(self, index: int, progress: Progress | None) -> None:
        recorded = self.options.on[index].plan
        self._prepared_plans[index] = self.devices[index].prepare(recorded, index, progress)

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        number, sequence_number = next(self._numbers), next(self._sequence_numbers) & 0xFFFFFFFF
        run = RunRecord(number, slot, sequence_number, feeds, observers, split=-1)
        self._selector.forget(self.speeds.begin())
        alone = self._selector.choose(self.speeds)
        dispatcher = POLICIES[self.plan.policy](self.options, self.speeds, alone)
        about = self._trace, self._reporter.number, self._timeout_s, self._warm
        self._target = target = _DeviceTarget(self.options, self._prepared_plans, run, *about)
        start = self._trace.clock.now()
        try:
            for run.device, prepared in self._prepared_plans.items():
                prepared.begin(slot)
            execute(dispatcher, target)
            outputs = tuple(target.output(node) for _, node in self.options.graph.outputs)
        except BaseException as error:
            device = run.device
            if isinstance(error, DeviceError):
                self._fail(run, error)
            self._settle(target, interrupted=not isinstance(error, Exception))
            self._reporter.tell_failed(run, device, start, error)
            raise
        finally:
            self._target = None
        end = self._trace.clock.now()
        self._selector.see(end - start, target.cold)
        plan = plan_of(self.options, dispatcher.tape, self.plan.policy, self.plan.notes)
        if race_checker.wanted():
            fail_on(judge(verify_plan(plan), target.events))
        self.last_run = plan, self._report(plan, run, target, start, end)
        return RunResult(outputs, (), self.last_run)

    def _report(
        self, plan: DynamicPlan, run: RunRecord, target: _DeviceTarget, start: float, end: float
    ) -> RunStats:
        """Emit the events of a run under the static plan that it resulted in, and return its
        statistics.
        """
        numbers = {sent.piece: split for split, sent in enumerate(target.sent)}
        run.submitted_s = {numbers[piece]: s for piece, s in target.submitted_s.items()}
        run.complete_s = {numbers[piece]: s for piece, s in target.complete_s.items()}
        times = _ReportedTimes([sent.times for sent in target.sent])
        reporter = Reporter(plan, self._trace, self._reporter.number)
        return reporter.report(run, dict.fromkeys(self._prepared_plans, times), start, end)

    def _describe(self, run: RunRecord) -> str:
        if run.split < 0:
            return "the start of a run"
        nodes = self.options.pieces[run.split].nodes
        names = [self.options.graph.nodes[n].name for n in (nodes[0], nodes[-1])]
        return f"piece {run.split} ({' .. '.join(dict.fromkeys(names))})"

    def _settle(self, target: _DeviceTarget, interrupted: bool) -> None:
        """After a failed run, wait for submitted pieces, so that the next run finds idle devices.
        Devices that have failed are not waited for.
        """
        limit_s = min(INTERRUPTED_S, self._timeout_s) if interrupted else self._timeout_s
        left = {device for device, _ in target.submitted} - self._failed
        try:
            # wait for each: an interrupt may have come before the last one was submitted
            for device, split in target.submitted:
                if device in self._failed:
                    continue
                try:
                    self._prepared_plans[device].wait(target.run.slot, split, limit_s)
                except DeviceError as error:
                    target.run.device = device
                    self._fail(target.run, error, blame=not interrupted)
                except Exception:
                    continue
        except BaseException:  # interrupted again: the state of the device is unknown
            with self._state:
                self._is_shut_down = True
                self._busy.update(left)
                self._state.notify_all()
            raise


@dataclass(slots=True)
class _Piece:
    """A submitted piece. entries: its uploads, as splits of its device. number: its position in
    this run.
    """

    piece: int
    device: int
    split: int
    entries: tuple[int, ...]
    number: int
    times: Times = (None, None)


@dataclass(slots=True)
class _ReportedTimes:
    """The times of a run's splits, as the devices reported them."""

    times: Sequence[Times]

    def times_s(self, slot: int, split: int) -> Times:
        return self.times[split]

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        return {}


Deed = tuple[str, int, int, int]
"""A host action for the checker: kind, piece or value, device, and the piece of the value or
HOST.
"""


@dataclass(slots=True)
class _DeviceTarget:
    """The devices of one run, as the dispatcher sees them."""

    options: Options
    prepared_plans: Mapping[int, PreparedPlan]
    run: RunRecord
    trace: Trace
    number: int
    timeout_s: float
    warm: set[tuple[int, int]]
    sent: list[_Piece] = field(default_factory=list)
    submitted_s: dict[int, float] = field(default_factory=dict)
    complete_s: dict[int, float] = field(default_factory=dict)
    submitted: list[tuple[int, int]] = field(default_factory=list)
    """Devices and splits that were submitted, or were about to be, in order."""
    cold: bool = False
    """True if a piece ran on a device for the first time."""
    events: list[Deed] = field(default_factory=list)
    _of: dict[int, _Piece] = field(default_factory=dict)
    _entries: dict[int, list[int]] = field(default_factory=dict)
    _free_s: dict[int, float] = field(default_factory=dict)

    def now(self) -> float:
        return self.trace.clock.now()

    def bring(self, value: int, source: int, device: int) -> None:
        slot, there = self.run.slot, self.options.on[device]
        array = self.run.feeds.get(value)
        start = self.now()
        if array is None:
            array = self._fetch(value, source)
            about = {"node": value, "bytes": array.nbytes, "way": "out"}
            start = self._keep("copy", source, start, **about, needed_by=len(self.sent))
            self.run.transfer_bytes += self.options.graph.nodes[value].type.device_bytes
        else:
            self.run.input_bytes += array.nbytes
        self.run.device = device
        self.events.append(("upload", value, device, source))
        copy = there.copies[value]
        self.prepared_plans[device].upload(slot, copy, array)
        if value in there.entries:
            self._submit(device, there.entries[value])
            self._entries.setdefault(device, []).append(there.entries[value])
        about = {"node": value, "bytes": array.nbytes, "way": "in", "needed_by": len(self.sent)}
        self._tell("copy", len(self.sent), device, start, about)

    def submit(self, piece: int, device: int) -> None:
        self.run.split, self.run.device = piece, device
        split = self.options.on[device].pieces[piece]
        self.submitted_s[piece] = self.now()
        self.events.append(("submit", piece, device, HOST))
        self._submit(device, split)
        entries = tuple(self._entries.pop(device, ()))
        known = self._of[piece] = _Piece(piece, device, split, entries, len(self.sent))
        self.sent.append(known)
        about = {"nodes": self.options.pieces[piece].nodes}
        self._emit("submit", known.number, device, self.submitted_s[piece], self.now(), about)

    def wait(self, heads: list[tuple[int, int]]) -> tuple[int, float]:
        piece = heads[0][0] if len(heads) == 1 else self._first(heads)
        known = self._of[piece]
        self.run.split, self.run.device = piece, known.device
        start = self.now()
        prepared, slot = self.prepared_plans[known.device], self.run.slot
        prepared.wait(slot, known.split, self.timeout_s)
        end = self._keep("wait", piece, start, needed_by=HOST)
        self.events.append(("wait", piece, known.device, HOST))
        for split in (*known.entries, known.split):
            prepared.check(slot, split, self.run.sequence_number)
        self.events.append(("check", piece, known.device, HOST))
        self.run.waits += 1
        self.run.fence_waits += not self.options.topology.is_cpu(known.device)
        self.complete_s[piece] = end
        known.times = _sum_times([prepared.times_s(slot, s) for s in (*known.entries, known.split)])
        own_s, _ = prepared.times_s(slot, known.split)
        began_s = max(self.submitted_s[piece], self._free_s.get(known.device, 0.0))
        self._free_s[known.device] = end
        if (piece, known.device) not in self.warm:
            self.warm.add((piece, known.device))
            self.cold = True
            return piece, 0.0  # a first run is not representative
        return piece, own_s if own_s is not None else end - began_s

    def output(self, node_id: int) -> NDArray:
        """Return a result in new memory."""
        graph, start = self.options.graph, self.now()
        root = graph.view_base(node_id)
        values = Values(graph)
        for fed, array in self.run.feeds.items():
            values[fed] = array
        if root in self.options.makers:
            values[root] = self._fetch(root, self.options.makers[root])
        result = np.array(values[node_id], order="C", copy=True)
        self.run.output_bytes += result.nbytes
        if root in self.options.makers:
            about = {"node": node_id, "bytes": result.nbytes, "way": "out", "needed_by": HOST}
            self._keep("copy", self.options.makers[root], start, **about)
        return result

    def in_flight_splits(self) -> list[InFlightSplit]:
        """Return the splits in flight, for another thread."""
        out: list[InFlightSplit] = []
        for sent in [each for each in self.sent if each.piece not in self.complete_s]:
            nodes = self.options.pieces[sent.piece].nodes
            ops = tuple(dict.fromkeys(self.options.graph.nodes[n].op for n in nodes))
            name = self.options.topology.devices[sent.device].name
            since_s = self.submitted_s[sent.piece]
            out.append(InFlightSplit(name, sent.number, len(nodes), ops, self.run.number, since_s))
        return out

    def _keep(self, kind: str, piece: int, start: float, **about: object) -> float:
        """Record a host action for a submitted piece; return its end time, now."""
        known = self._of[piece]
        return self._tell(kind, known.number, known.device, start, about)

    def _tell(
        self, kind: str, split: int, device: int, start: float, about: Mapping[str, object]
    ) -> float:
        """Record a host action for a device and emit its event; return its end time."""
        end = self.now()
        self.run.spans.append((kind, split, start, end))
        self._emit(kind, split, device, start, end, about)
        return end

    def _emit(
        self,
        kind: str,
        split: int,
        device: int,
        start: float,
        end: float,
        about: Mapping[str, object],
    ) -> None:
        if self.trace.active:
            name, run = self.options.topology.devices[device].name, self.run.number
            fields = {**about, "split": split}
            self.trace.emit(Event(kind, name, start, end, run, fields, self.number))

    def _fetch(self, value: int, source: int) -> NDArray:
        device = self.run.device = self._of[source].device
        self.run.split = source
        self.events.append(("fetch", value, device, source))
        return self.prepared_plans[device].fetch(self.run.slot, value)

    def _submit(self, device: int, split: int) -> None:
        self.submitted.append((device, split))
        self.prepared_plans[device].submit(self.run.slot, split, self.run.sequence_number)

    def _first(self, heads: list[tuple[int, int]]) -> int:
        """Return the piece that ends first, or one whose state must be polled."""
        limit = time.monotonic() + self.timeout_s
        while True:
            ends: list[tuple[float, int]] = []
            for piece, device in heads:
                self.run.split, self.run.device = piece, device
                at = self.prepared_plans[device].ends_s(self.run.slot, self._of[piece].split)
                if at is not None:
                    ends.append((at, piece))
            first = min(ends, default=None, key=lambda found: found[0])
            if first is not None and (first[0] <= self.now() or len(ends) == len(heads)):
                return first[1]
            if time.monotonic() > limit:
                return min(heads, key=lambda head: self.submitted_s[head[0]])[0]
            time.sleep(POLL_S)


def _sum_times(each: Sequence[Times]) -> Times:
    """Return the total seconds of some splits, and the longest submission among them."""
    taken = [seconds for seconds, _ in each if seconds is not None]
    longest = [seconds for _, seconds in each if seconds is not None]
    return (
        sum(taken) if len(taken) == len(each) else None,
        max(longest) if longest and len(longest) == len(each) else None,
    )


def judge(plan: DynamicPlan, deeds: Sequence[Deed]) -> list[Finding]:
    """Return the unordered accesses of a run, by the static plan that it resulted in."""
    tell, checker = EventGenerator(plan), Checker(plan)
    number = {n: split.id for split in plan.splits for n in split.nodes}
    assert plan.options is not None
    pieces = plan.options.pieces
    copies = {(s.device, c.node): c for s in plan.splits for c in s.uploads}

    def each() -> Iterator[memory_events.Event]:
        yield tell.acquire(0, 0)
        for what, about, device, _ in deeds:
            if what == "upload":
                yield tell.stage(0, device, copies[device, about])
            elif what == "fetch":
                yield tell.fetch(0, about, device)
            else:
                split = number[pieces[about].nodes[0]]
                if what == "check":
                    yield tell.check(0, split)
                else:
                    tell_of = tell.submit if what == "submit" else tell.wait
                    yield from tell_of(0, split)
        yield tell.end(0)
        yield tell.release(0)

    return [finding for event in each() for finding in checker.feed(event)]
