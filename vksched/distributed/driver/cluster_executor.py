"""ClusterExecutor: an executor that runs a plan over several hosts.

    prepare:  partition the plan -> the driver's own part and one host plan per worker, concurrently
    run:      start all hosts -> walk the own part, which receives the outputs -> wait for all
    states:   all are ready -> commit on all hosts; an unconfirmed host may have torn states
    failure:  abort on all hosts -> wait until they have stopped -> find the cause -> free the slot

A slot is reused only after its previous run has ended on every host. A host that does not confirm
the end is marked as failed, and this executor too.

Examples: tests/distributed/test_cluster.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ...common.dtypes import NDArray, Progress
from ...common.errors import (
    DeviceError,
    DeviceLost,
    DeviceTimeout,
    PlanError,
    RunAborted,
)
from ...common.formatting import format_seconds
from ...plan.multi_host.host_plan import HostPlan
from ...plan.multi_host.verify_host_plans import fit_together
from ...plan.plan import Plan
from ...plan.types.plan_types import HOST
from ...planner.partition.host_partition import cut
from ...runtime.device import Closeable
from ...runtime.executors.base_executor import (
    INTERRUPTED_S,
    BaseExecutor,
    CommitFailed,
    RunResult,
    close_all,
    guarded,
)
from ...runtime.executors.executor_context import ExecutorContext
from ...runtime.executors.run_record import Observers, RunRecord
from ...runtime.run_stats import RunStats
from ...topology.host_names import DRIVER, host_of, on
from ...trace import Event, GatheredTrace
from ...trace.format import OF_SPLITS
from ..protocols import RunKey, TensorTransport, Worker, WorkerRunResult
from ..wire.stats_codec import remap_ids
from ..worker.host_plan_executor import HostPlanExecutor
from .first_error import FirstError, only_itself

NUMBERS = itertools.count()
"""Counter of the plans over several hosts in this process."""


@dataclass(slots=True)
class _Run:
    """A run in progress.

    results: set once hosts commit. done: statistics of the hosts that are done. over: hosts on
    which no work of it remains. events: events of the driver's own part.
    """

    key: RunKey
    first_error: FirstError = field(default_factory=FirstError)
    results: RunResult | None = None
    started: list[str] = field(default_factory=list)
    done: dict[str, WorkerRunResult] = field(default_factory=dict)
    events: Sequence[Event] = ()
    over: set[str] = field(default_factory=set)


class ClusterExecutor(BaseExecutor):
    """A prepared plan over several hosts.

    hosts: workers by name. Only the names of remote devices of `context` matter.
    """

    def __init__(
        self,
        plan: Plan,
        hosts: Mapping[str, Worker],
        transport: TensorTransport,
        context: ExecutorContext,
    ) -> None:
        super().__init__(plan, context, {split.device for split in plan.splits})
        self._transport = transport
        self._plan_number = next(NUMBERS)
        own, *others = fit_together(cut(plan))  # each host verifies its own part
        self._parts: dict[str, HostPlan] = {part.host: part for part in (own, *others)}
        self._hosts = {part.host: _known(hosts, part.host) for part in others}
        self._limit_s = context.timeout_s * (1 + len(plan.splits))
        self._input_bytes = _input_bytes(plan)
        here = [d for d in context.devices if host_of(d.name) == DRIVER]
        clock = context.trace.clock
        start, there = clock.now(), {d: self._note_resident(d) for d in self._working}
        self._gathered = GatheredTrace(clock)
        self._own = HostPlanExecutor(
            own,
            transport,
            replace(context, devices=here, trace=self._gathered, run_numbers=itertools.count()),
        )
        try:
            self._prepare_hosts(guarded(context.progress))
        except BaseException:
            self._free()
            raise
        for device, there_bytes in there.items():
            self._reporter.tell_memory("prepare", device, start, there_bytes)
        self._prepared = tuple(there)
        """Devices whose memory has not been reported as freed yet."""

    def _prepare_hosts(self, progress: Progress | None) -> None:
        """Prepare all hosts concurrently; if one fails, release the others."""

        def prepare(name: str) -> None:
            try:
                self._hosts[name].prepare(self._plan_number, self._parts[name], progress)
            except DeviceError as error:
                self._name(error, name)
                error.during = error.during or "preparing"
                raise

        blame = FirstError()
        with ThreadPoolExecutor(max(1, len(self._hosts)), "vksched-prepare") as threads:
            asked = {name: threads.submit(prepare, name) for name in self._hosts}
            for name, future in asked.items():
                error = future.exception()
                if error is not None:
                    blame.add(name, error)
        if blame.any:
            raise blame.cause()

    # -- a run -------------------------------------------------------------------------------------

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        sequence_number = next(self._sequence_numbers)
        record = RunRecord(next(self._numbers), slot, sequence_number, feeds, observers)
        self._under_way[slot] = record
        run = _Run(RunKey(self._plan_number, slot, sequence_number))
        start = self._trace.clock.now()
        try:
            for name, host in self._hosts.items():
                wanted = {node: feeds[node] for node in self._parts[name].inputs}
                self._start(run, host, wanted)
            with self._gathered.gathering(self._trace.active) as run.events:
                results = self._own.carry(run.key, feeds, partial(self._agree, run), observers)
        except CommitFailed as failed:
            self._finish(run)
            run.first_error.add(DRIVER, failed.cause)
            raise self._torn(run, failed.results, failed.devices) from failed
        except BaseException as raised:
            run.first_error.add(DRIVER, self._own.why(raised))
            if run.results is not None:  # interrupted while hosts were asked to commit
                self._commit(run)
                self._finish(run)
                own = {split.device for split in self._own.plan.commits}
                raise self._torn(run, run.results, frozenset(own)) from raised
            self._give_up(run, interrupted=not isinstance(raised, Exception))
            cause = self._assign_first_error(run)
            self._reporter.tell_events(record.number, self._events(run))
            self._report_failure(record, start, cause)
            if cause is raised:
                raise
            raise cause from raised
        self._finish(run)
        if run.first_error.any:
            raise self._torn(run, results, frozenset())
        assert results.plan_and_stats is not None
        run.done[DRIVER] = WorkerRunResult(results.plan_and_stats[1])
        stats = self._merge(run, record, start, self._trace.clock.now())
        results.plan_and_stats = self.last_run = self.plan, stats
        return results

    def _start(self, run: _Run, host: Worker, feeds: Mapping[int, NDArray]) -> None:
        run.started.append(host.name)
        try:
            failed = partial(self._host_failed, run, host.name)
            host.start(run.key, feeds, failed, self._trace.active)
        except Exception as error:
            run.started.remove(host.name)
            if isinstance(error, DeviceError):
                self._name(error, host.name)
            run.first_error.add(host.name, error)
            raise

    def _host_failed(self, run: _Run, host: str, error: BaseException) -> None:
        """Handle a failure of a host's part: the own part stops waiting for its values."""
        run.first_error.add(host, error)
        self._transport.abort(run.key)

    def _agree(self, run: _Run, results: RunResult) -> None:
        """Wait until all hosts are ready to commit, then let them commit."""
        for name, host in self._hosts.items():
            try:
                if self._parts[name].plan.commits:
                    host.ready(run.key, self._limit_s)
                else:
                    self._wait_for(run, name, self._limit_s)
            except Exception as error:  # which is no fault of the devices here
                self._annotate(run, name, error)
                raise RunAborted(f"[run] {name} has failed") from error
        if run.first_error.any:
            raise RunAborted("[run] another host has failed")
        if self.plan.commits:
            run.results = results
            self._commit(run)

    def _commit(self, run: _Run) -> None:
        """Send commit to all hosts with states, even if one of them fails; commit is idempotent."""
        for name, host in self._hosts.items():
            if self._parts[name].plan.commits:
                try:
                    host.commit(run.key)
                except Exception as error:
                    run.first_error.add(name, error)

    def _wait_for(self, run: _Run, name: str, limit_s: float) -> None:
        run.done[name] = self._hosts[name].finish(run.key, limit_s)
        run.over.add(name)

    def _finish(self, run: _Run) -> None:
        """Wait until all committing hosts are done.

        If a host does not finish, its states are torn and this executor is marked as failed.
        """
        for name in [name for name in self._hosts if name not in run.over]:
            try:
                self._wait_for(run, name, self._limit_s)
            except BaseException as error:
                self._annotate(run, name, error)
                # interrupted: hosts that finish soon count as done
                if not isinstance(error, Exception):
                    with suppress(DeviceError):
                        self._wait_for(run, name, min(INTERRUPTED_S, self._timeout_s))

    def _give_up(self, run: _Run, interrupted: bool) -> None:
        """Abort the run on all hosts and wait until they have stopped; see
        `BaseExecutor._settle`.
        """
        limit_s = min(INTERRUPTED_S, self._timeout_s) if interrupted else self._limit_s
        left = [name for name in run.started if name not in run.over]
        try:
            for name in left:
                self._hosts[name].abort(run.key)
            for name in left:
                try:
                    self._wait_for(run, name, limit_s)
                except Exception as error:
                    self._annotate(run, name, error)
        except BaseException:  # interrupted again: the state of this slot is unknown
            self.stop_accepting()
            raise

    # -- failures ----------------------------------------------------------------------------------

    def _assign_first_error(self, run: _Run) -> BaseException:
        """Return the cause of a failed run; mark the device or host that caused it as failed."""
        cause = run.first_error.cause()
        if isinstance(cause, DeviceError):
            self._note(cause)
        return cause

    def _note(self, error: DeviceError) -> None:
        """Mark the executor as failed if a device or a host has failed."""
        error.during = error.during or f"a run over {len(self._parts)} hosts"
        faults = _faults_of(error, [spec.name for spec in self.plan.topology.devices])
        with self._state:
            self._is_shut_down = True
            known = {fault.device for fault in self._faults}
            self._faults += [fault for fault in faults if fault.device not in known]
            self._state.notify_all()

    def _name(self, error: DeviceError, host: str) -> None:
        """Make an error of a host name one of its devices."""
        only_itself(host, error)
        if not error.device:
            error.host = error.host or host
            error.device = self._devices_of(error.host)[0]

    def _devices_of(self, host: str) -> list[str]:
        return [s.name for s in self.plan.topology.devices if host_of(s.name) == host]

    def _annotate(self, run: _Run, name: str, error: BaseException) -> None:
        """Record why a host is not done. A host that does not confirm may still use the slot."""
        if isinstance(error, DeviceTimeout) and not error.device and error.host in (DRIVER, name):
            error.host = name
            self.stop_accepting()
        run.first_error.add(name, error)

    def _torn(self, run: _Run, results: RunResult, own: frozenset[int]) -> CommitFailed:
        """Return the failure of a run whose states on named or unconfirmed devices may be torn."""
        torn = {self._index(DRIVER, device) for device in own}
        for name, part in self._parts.items():
            if name != DRIVER and name not in run.done:
                torn |= {self._index(name, split.device) for split in part.plan.commits}
        cause = self._assign_first_error(run)
        return CommitFailed(cause, results, frozenset(torn))

    def _index(self, host: str, device: int) -> int:
        spec = self._parts[host].plan.topology.devices[device]
        return self.plan.topology.index(on(host, spec.name))

    def _report_failure(self, record: RunRecord, start: float, error: BaseException) -> None:
        self._reporter.tell_failed(record, self._working[0], start, error)

    # -- reports -----------------------------------------------------------------------------------

    def _merge(self, run: _Run, record: RunRecord, start: float, end: float) -> RunStats:
        """Return the statistics of the run on all hosts, with the ids of the whole plan."""
        splits, spans = [], []
        for name, (stats, *_) in run.done.items():
            numbers = self._parts[name].numbers
            devices = [self.plan.topology.devices[self.plan.splits[n].device].name for n in numbers]
            splits += [
                s._replace(split=numbers[s.split], device=devices[s.split]) for s in stats.splits
            ]
            spans += [(kind, numbers[at], a, b) for kind, at, a, b in stats.spans]
        parts = [ran.stats for ran in run.done.values()]
        merged = RunStats(
            record.number,
            end - start,
            sum(stats.fence_waits for stats in parts),
            sum(stats.waits for stats in parts),
            self.plan.transfer_bytes,
            self._input_bytes,
            run.done[DRIVER].stats.output_bytes,
            tuple(sorted(splits)),
            start,
            tuple(sorted(spans, key=lambda span: span[2:])),
        )
        self._reporter.tell(merged, self._events(run), _clocks(run.done))
        return merged

    def _events(self, run: _Run) -> list[Event]:
        """Return the events of all hosts that reported them, in order of time."""
        events_of = {name: ran.events for name, ran in run.done.items()} | {DRIVER: run.events}
        found = [
            remap_ids(event, self._parts[name].numbers, name)
            for name, events in events_of.items()
            for event in events
            if event.name in OF_SPLITS
        ]
        return sorted(found, key=lambda event: event.end_s)

    # -- shutdown ----------------------------------------------------------------------------------

    def shutdown(self) -> tuple[Closeable, ...]:
        """Wait for the runs in progress and free the plan on all hosts; see
        `BaseExecutor.shutdown`.
        """
        super().shutdown()
        if self._threads:  # called from a callback of a run
            return (_DeferredRelease(self._release),)
        return self._release()

    def _release(self) -> tuple[Closeable, ...]:
        start = self._trace.clock.now()
        left = self._free()
        prepared, self._prepared = self._prepared, ()
        for device in prepared:
            self._tell_freed(device, start)
        return left

    def _free(self) -> tuple[Closeable, ...]:
        for host in self._hosts.values():
            host.release_plan(self._plan_number)
        return self._own.shutdown()


class _DeferredRelease:
    """Resources that can be freed only after a run has ended."""

    def __init__(self, free: Callable[[], tuple[Closeable, ...]]) -> None:
        self._free = free

    def close(self) -> None:
        close_all(self._free())


def _faults_of(error: DeviceError, devices: Sequence[str]) -> list[DeviceError]:
    """Return an error for each device that an error disables.

    An error of a whole host disables all its devices, and so does an error that names an unknown
    device.
    """
    if error.host or error.device in devices:
        host = error.host
    else:
        host = error.host = host_of(error.device)
    if not host:
        return [error]
    faults = [_of_device(error, name) for name in devices if host_of(name) == host]
    error.device = error.device if error.device in devices else faults[0].device
    return faults


def _of_device(error: DeviceError, device: str) -> DeviceError:
    # a host that is up but silent gives no sign of recovery
    kind = DeviceLost if isinstance(error, DeviceTimeout) else type(error)
    copy = kind(*error.args)
    copy.device, copy.host, copy.during = device, error.host, error.during
    return copy


def _clocks(done: Mapping[str, WorkerRunResult]) -> str:
    """Return the error bounds of the remote clocks as text."""
    others = {name: ran.error_s for name, ran in done.items() if name != DRIVER}
    return ", ".join(f"{name} within {format_seconds(s)}" for name, s in others.items())


def _known(hosts: Mapping[str, Worker], name: str) -> Worker:
    if name not in hosts:
        raise PlanError(f"[cluster] expected one of {', '.join(hosts)} as host, got {name}")
    return hosts[name]


def _input_bytes(plan: Plan) -> int:
    """Return the bytes that a run uploads from the driver to devices."""
    nodes, copies = plan.graph.nodes, (c for s in plan.splits for c in s.uploads)
    fed = (nodes[c.node] for c in copies if c.source == HOST)
    return sum(node.type.host_bytes for node in fed if node.op == "input")
