"""GraphExecutionState: executes a compiled graph, and replans it for the remaining devices if one
fails.

Problem: a device fails in the middle of a run while other runs are in flight. Method: the graph is
retained, and each run retains its inputs. A failure invalidates the current executor. The first run
that observes this plans the graph again without the device and prepares the next executor, once for
all runs. Each run that failed or had not begun is then executed there from its inputs. The CPU is
the last fallback.

    run 0  gpu:0 -> gpu:1 lost              |  plan without  | gpu:0 -> cpu   result
    run 1  gpu:0 -> gpu:1 lost              |  gpu:1, once   | gpu:0 -> cpu   result
    run 2  waits for a slot, ExecutorClosed |  for all       | gpu:0 -> cpu   result

A device that is lost, times out, drops a submission or fails otherwise is quarantined: no graph of
the scheduler is placed on it. A device that is out of memory is not quarantined, because memory may
be freed. The graph is planned again with the memory that is free and with one copy. If that fails
too, this graph no longer uses the device.

Examples: tests/engine/test_faults.py, tests/scheduler/test_closing.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

from ..common.dtypes import NDArray, Progress
from ..common.errors import DeviceError, OutOfMemory, PlanError, VkschedError
from ..common.fork_guard import Owner
from ..plan.dynamic.options import DynamicPlan
from ..plan.plan import Plan
from ..runtime.executors.ahead_runs import may_run_ahead, run_ahead
from ..runtime.executors.base_executor import (
    CommitFailed,
    ExecutorClosed,
    StatesTorn,
    close_all,
)
from ..runtime.executors.plan_executor import PlanExecutor
from ..runtime.executors.run_record import InFlightSplit, Observers
from ..runtime.run_stats import RunStats
from .executor_generations import MAX_FAILURES, ExecutorGenerations, works
from .plan_builder import PlanBuilder
from .request import Request

R = TypeVar("R")
NO_LOCK = nullcontext()
Done = tuple[tuple[NDArray, ...], tuple[Plan, RunStats] | None]
"""The outputs of a run, its plan and its stats if known."""

_FROM_INSIDE = (
    "expected a call outside of this graph's own runs, got one from an observer or a sink, which "
    "would wait for itself; try returning False to stop a run"
)
_FROM_CALLBACK = (
    "[synchronize] expected a call outside of callbacks, got one from the callback of a run, which "
    "would wait for itself"
)
_CLOSED = (
    "[run] the compiled graph or its scheduler is closed; run it inside the scheduler's `with`, or "
    "compile it again"
)


class GraphExecutionState(ExecutorGenerations):
    """A compiled graph on the devices of one scheduler.

    preparing: builds plans and executors. Its watchdog records each run; if devices are too slow,
    or another plan is faster (replan.py), the next run starts a generation.
    """

    def __init__(
        self, preparing: PlanBuilder, request: Request, progress: Progress | None = None
    ) -> None:
        super().__init__(preparing, request)
        self._owner = Owner()
        # This condition guards the following fields; it wakes threads that wait for the end.
        self._state = threading.Condition()
        self._callers: set[int] = set()  # threads in `run`; each removes only itself
        self._accepted: set[Future[Any]] = set()
        self._workers: set[int] = set()
        self._closing = self._closed = False
        self._closer = False  # True while a thread closes it
        self._inside: set[int] = set()  # pool threads that execute a run
        self.graph = request.graph  # callers use its ids; a plan may use another version
        self._ready(progress)

    def run(self, feeds: Mapping[int, NDArray], observers: Observers | None = None) -> Done:
        """Run once on the calling thread; the arrays must not change until it has finished."""
        self._owner.require("the compiled graph")
        self.require_outside("run")
        me = threading.get_ident()
        try:  # an interrupt may come between any two calls
            self._callers.add(
                me
            )  # without the lock: close() sets its flag before it reads this set
            self._require_open()
            return self._run_until_done(feeds, observers)
        finally:
            self._callers.discard(me)
            if self._closing:
                with self._state:
                    self._state.notify_all()

    def run_ahead(
        self,
        feeds: Iterable[Mapping[int, NDArray]],
        take: Callable[[tuple[NDArray, ...]], bool],
        observers: Observers | None = None,
    ) -> None:
        """Run once for each of some inputs; see `CompiledGraph.run_ahead`."""
        self._owner.require("the compiled graph")
        self.require_outside("run")
        me = threading.get_ident()
        try:  # an interrupt may come between any two calls
            self._callers.add(me)
            self._require_open()
            self._run_ahead(feeds, take, observers)
        finally:
            self._callers.discard(me)
            if self._closing:
                with self._state:
                    self._state.notify_all()

    def submit(
        self,
        feeds: Mapping[int, NDArray],
        then: Callable[[tuple[NDArray, ...]], R],
        observers: Observers | None = None,
    ) -> Future[R]:
        """Start a run and return its future; the arrays must not change until it has finished."""

        def work() -> R:
            me = threading.get_ident()
            with self._state:
                self._workers.add(me)
            try:  # an interrupt may come between any two calls
                self._inside.add(me)
                outputs, _ = self._run_until_done(feeds, observers)
            finally:
                self._inside.discard(me)
            return then(outputs)

        self._owner.require("the compiled graph")
        with self._state:
            self._require_open()
            executor = self._executor
            threads = self.plan.copies if executor is None else executor.threads
            future = self._pool.submit(work, threads)
            self._accepted.add(future)
        future.add_done_callback(self._forget)
        return future

    def synchronize(self) -> None:
        """Wait until all accepted runs have finished."""
        self._owner.require("the compiled graph")
        self.require_outside("synchronize")
        with self._state:
            if threading.get_ident() in self._workers:
                raise PlanError(_FROM_CALLBACK)
            accepted = list(self._accepted)
        wait(accepted)
        with self._state:
            self._state.wait_for(lambda: not self._accepted.intersection(accepted))

    def close(self) -> None:
        """Wait for accepted runs, then free the plan's resources; idempotent. A callback of a
        future cancels runs that have not begun.
        """
        if self._owner.forked:
            return
        self.require_outside("close")
        with self._state:
            self._closing = True
            in_worker = threading.get_ident() in self._workers
            accepted = list(self._accepted)
        if in_worker:  # only this thread could execute them
            self._pool.cancel()
            for future in accepted:
                if future.cancelled():  # the pool does not wake its waiters
                    future.set_running_or_notify_cancel()
        with self._state:
            while self._closer and not self._closed:
                if in_worker:
                    return
                self._state.wait()
            if self._closed:
                return
            self._closer = True
        try:
            with self._state:
                self._state.wait_for(lambda: not self._callers and not self._accepted)
            self._pool.close()
            if self._executor is not None:
                self._unanswered += self._executor.shutdown()
            self._release()
            close_all(self._unanswered)
            self._closed = True
        finally:
            with self._state:
                self._closer = False  # interrupted: the next call closes
                self._state.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def require_outside(self, what: str) -> None:
        """Raise if called by an observer or sink during a run of this graph."""
        me = threading.get_ident()
        if me in self._callers or me in self._inside:
            raise PlanError(f"[{what}] {_FROM_INSIDE}")

    def _forget(self, future: Future[Any]) -> None:
        with self._state:
            self._accepted.discard(future)
            self._state.notify_all()

    def _require_open(self) -> None:
        if self._closing:
            raise PlanError(_CLOSED)

    # -- generations -------------------------------------------------------------------------------

    def _run_until_done(self, feeds: Mapping[int, NDArray], observers: Observers | None) -> Done:
        """Run until no device fails: each failure excludes one device, or reduces the use of
        memory. A device that fails after all results have arrived costs at most the states that it
        held.
        """
        failures = 0
        while True:
            executor = self._executor
            if self._stale or self._drift.left or not works(executor, self._quarantine):
                executor = self._ready()
            late: BaseException | None = None
            try:
                graph = executor.plan.graph
                with self._states.running(graph) if graph.states else NO_LOCK:
                    if not self._quarantine.reasons.keys().isdisjoint(executor.device_names):
                        raise ExecutorClosed  # while this run waited for the states
                    try:
                        values = self._request.values_by_id(graph, feeds, observers or {})
                        results, failed = executor.run(*values), None
                    except CommitFailed as failure:
                        results, late = failure.results, failure.cause
                        failed = dict.fromkeys(failure.devices, str(late) or repr(late))
                    except StatesTorn as failure:
                        self._states.mark_torn(executor.plan, executor.devices, str(failure))
                        raise
                    settled = executor.plan, executor.devices, results.next_states, failed
                    broken = self._states.finish_run(*settled) if graph.states else []
            except ExecutorClosed:
                continue
            except (DeviceError, StatesTorn) as failure:
                error = failure.cause if isinstance(failure, StatesTorn) else failure
                with self._changing:
                    self._faults.record(executor.take_faults(), executor.devices)
                failures += 1
                if not isinstance(error, DeviceError) or not self._faults.may_retry(error):
                    raise error from error.__cause__
                if failures > MAX_FAILURES:
                    raise error from error.__cause__
                continue
            if broken:
                with self._changing:
                    self._faults.record(broken)
            if results.plan_and_stats is not None:
                self.history.add(*results.plan_and_stats)
                if isinstance(executor.plan, DynamicPlan):  # each run creates a new plan
                    self.plan = results.plan_and_stats[0]
                self._watch(executor, *results.plan_and_stats)
            if late is not None:
                with self._changing:
                    self._faults.record(executor.take_faults(), executor.devices)
                if not isinstance(late, DeviceError) or not self._faults.may_retry(late):
                    raise late
                with suppress(VkschedError):  # the next run raises it; this one has its results
                    self._ready()
            return results.outputs, results.plan_and_stats

    def _run_each(
        self,
        feeds: Iterable[Mapping[int, NDArray]],
        take: Callable[[tuple[NDArray, ...]], bool],
        observers: Observers | None,
    ) -> None:
        """Run for some inputs, one after the other, until `take` returns False."""
        for each in feeds:
            if not take(self._run_until_done(each, observers)[0]):
                return

    def _run_ahead(
        self,
        feeds: Iterable[Mapping[int, NDArray]],
        take: Callable[[tuple[NDArray, ...]], bool],
        observers: Observers | None,
    ) -> None:
        executor = self._executor
        if self._stale or self._drift.left or not works(executor, self._quarantine):
            executor = self._ready()
        plan, devices = executor.plan, executor.devices
        if not isinstance(executor, PlanExecutor) or not may_run_ahead(plan):
            return self._run_each(feeds, take, observers)
        source, latest = iter(feeds), dict[int, NDArray]()

        def values() -> Iterator[Mapping[int, NDArray]]:
            nonlocal latest
            for each in source:
                latest = dict(each)
                yield self._request.values_by_id(plan.graph, each, {})[0]

        stats: list[RunStats] = []
        refused: OutOfMemory | None = None
        try:
            with self._states.running(plan.graph):
                if not self._quarantine.reasons.keys().isdisjoint(executor.device_names):
                    return  # while this run waited for the states
                self._states.finish_run(plan, devices, ())  # there are no backups
                try:
                    stats, refused = run_ahead(executor, values(), take)
                except StatesTorn as failure:
                    self._states.mark_torn(plan, devices, str(failure))
                    raise
                self._states.finish_run(plan, devices, ())
        except ExecutorClosed:
            return
        except StatesTorn as failure:
            with self._changing:
                self._faults.record(executor.take_faults(), executor.devices)
            cause = failure.cause
            if not isinstance(cause, DeviceError) or not self._faults.may_retry(cause):
                raise cause from failure
            return
        for of_run in stats:
            self.history.add(plan, of_run)
        if stats:
            self._watch(executor, plan, stats[-1])
        if refused is not None:
            with self._changing:
                self._faults.record(executor.take_faults(), executor.devices)
            if not self._faults.may_retry(refused):
                raise refused
            self._run_each(itertools.chain([latest], source), take, observers)


class Load(NamedTuple):
    """The load of a graph. running: runs in flight. waiting: runs without a slot. at_work: splits
    in flight on each device.
    """

    running: int
    waiting: int
    at_work: list[InFlightSplit]


def load_of(compiled: GraphExecutionState) -> Load:
    """Return the load of a graph, for another thread; never blocks."""
    executor = compiled._executor
    asked = len(compiled._callers) + len(compiled._accepted)
    if executor is None:
        return Load(0, asked, [])
    running = executor.under_way
    return Load(running, max(0, asked - running), executor.in_flight_splits())
