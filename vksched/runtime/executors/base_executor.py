"""BaseExecutor: the base of all executors: slots of concurrent runs, prepared plans of devices, and
device failures.

    run: acquire a slot -> execute -> release it        a device fails: no new runs, `shutdown`

Examples: tests/runtime/test_executor.py, tests/scheduler/test_closing.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, DeviceTimeout, PlanError
from ...common.user_warning import warn
from ...plan.plan import Plan
from ...plan.types.offsets import aligned
from ..device import Closeable, PreparedPlan
from ..run_stats import RunStats
from ..simulated_clock import SimulatedStream
from . import race_checker
from .executor_context import ExecutorContext
from .run_record import InFlightSplit, Observers, Reporter, RunRecord

IN_REAL_TIME = nullcontext()
INTERRUPTED_S = 2.0
"""Maximum time that Ctrl-C waits for work in flight, so that the graph stays usable."""


class ExecutorClosed(Exception):
    """The executor accepts no runs any more; the requested one has not begun."""


@dataclass(slots=True)
class RunResult:
    """Results of a run.

    Parameters
    ----------
    outputs
        The outputs, in the order of `Graph.outputs`.
    kept
        The next values of states, in the order of `Graph.backed_up_states`.
    plan_and_stats
        The plan of this run and its statistics, once it is done.
    """

    outputs: tuple[NDArray, ...]
    next_states: tuple[NDArray, ...] = ()
    plan_and_stats: tuple[Plan, RunStats] | None = None


class CommitFailed(Exception):
    """A run is complete, but the states of some devices may be old or torn.

    Parameters
    ----------
    cause
        The original error.
    results
        The results of the run.
    devices
        The devices of these states.
    """

    def __init__(self, cause: BaseException, results: RunResult, devices: frozenset[int]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.results = results
        self.devices = devices


class StatesTorn(Exception):
    """A device failed while a run wrote states there without a wait for its results, which are
    incomplete.

    Parameters
    ----------
    cause
        The original error: that of the device, or an interrupt before it.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class BaseExecutor:
    """Executes a plan: memory is allocated, weights are uploaded, commands are recorded.

    After a device failure in a run, the executor is out of use: runs that wait for a slot raise
    ExecutorClosed, runs in flight go on, and `close` waits for them.

    Parameters
    ----------
    working
        The devices that the plan uses.
    """

    def __init__(self, plan: Plan, context: ExecutorContext, working: Iterable[int]) -> None:
        self.plan = plan
        self.devices = tuple(context.devices)
        self._trace = context.trace
        self._reporter = Reporter(plan, context.trace, context.plan_number)
        self._timeout_s = context.timeout_s
        self._numbers = context.run_numbers
        self._sequence_numbers = itertools.count(1)
        self._working = tuple(sorted(working))
        self.device_names = tuple(plan.topology.devices[d].name for d in self._working)
        """The devices that the plan uses, in order of priority."""
        self.last_run: tuple[Plan, RunStats] | None = None
        """The plan and statistics of the last finished run; None before the first."""
        # The condition of the attributes below; it wakes threads that wait for a slot or the end.
        self._state = threading.Condition()
        self._waiting = 0
        """Number of runs that wait for a slot."""
        self._slots = range(plan.copies)
        self._threads: dict[int, int] = {}
        """The thread of the run by slot in use; only this thread removes it."""
        self._under_way: dict[int, RunRecord] = {}
        """The record of the run by slot in use; only the run's thread changes it."""
        self._is_shut_down = False
        self._busy: set[int] = set()
        """Devices that may still use this memory, because they did not finish in time."""
        self._log: race_checker.Log | None = None
        self._failed: set[int] = set()
        self._faults: list[DeviceError] = []
        self._prepared_plans: dict[int, PreparedPlan] = {}
        self.stream: SimulatedStream | None = None
        """The simulated times of the runs, if devices are simulated."""
        self._other_states: dict[int, int] = {}
        """Bytes of states of other plans, by device."""

    def prepare(
        self, progress: Progress | None, make: Callable[[int, Progress | None], None]
    ) -> None:
        """Create the prepared plans of all devices; if one fails, close the others."""
        progress = guarded(progress)
        try:
            for index in self._working:
                start, there_bytes = self._trace.clock.now(), self._note_resident(index)
                try:
                    make(index, progress)
                except DeviceError as error:
                    error.device, error.during = self.devices[index].name, "preparing"
                    raise
                self._reporter.tell_memory("prepare", index, start, there_bytes)
        except BaseException:
            close_all(self._prepared_plans.values())
            raise

    def _note_resident(self, index: int) -> int:
        """Return the bytes of weights and states on a device before a plan is prepared, and record
        the part that is states of other plans.
        """
        before, planned = self._resident_weights(index), self.plan.memory[index].resident_bytes
        self._other_states[index] = max(0, planned - before)
        return max(before, planned)

    def _tell_freed(self, index: int, start: float) -> None:
        stays_bytes = self._resident_weights(index) + self._other_states[index]
        self._reporter.tell_memory("release", index, start, stays_bytes)

    def _resident_weights(self, index: int) -> int:
        """Return the bytes of this plan's weights on a device; 0 without trace sinks."""
        graph, held = self.plan.graph, self.devices[index].holds
        weights = self.plan.memory[index].weights if self._trace.active else ()
        return sum(4 * aligned(graph.words[n]) for n in weights if held(graph.keys[n]))

    @property
    def last_stats(self) -> RunStats | None:
        """The statistics of the last finished run; None before the first."""
        return self.last_run[1] if self.last_run is not None else None

    @property
    def number(self) -> int:
        """The number of the plan in events."""
        return self._reporter.number

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the plans that runs may follow, in events."""
        return (self.number,)

    @property
    def threads(self) -> int:
        """Maximum number of runs that have begun or wait for the end of another one."""
        return self.plan.copies

    @property
    def is_shut_down(self) -> bool:
        return self._is_shut_down

    def run(
        self,
        feeds: Mapping[int, NDArray],
        observers: Observers | None = None,
        slot: int | None = None,
    ) -> RunResult:
        """Run once on the calling thread, in `slot` or the first free slot, waiting until it is
        free. The arrays must not change during the run.

        Raises
        ------
        RunCancelled
            An observer returned False.
        CommitFailed
            The run is complete, but not its states.
        StatesTorn
            The run failed while it wrote states.
        DeviceError, IndexOutOfRange
            The run failed; no state has changed.
        """
        held, me = -1, threading.get_ident()
        slots = self._slots if slot is None else (slot,)
        try:  # an interrupt may occur between any two calls
            with self._state:
                free = self._free_slot(slots)
                if free is None:
                    free = self._wait_for_slot(slots)
                if self._is_shut_down:
                    raise ExecutorClosed
                if self._log:
                    self._log.acquire(free)
                held = free
                self._threads[held] = me
            with IN_REAL_TIME if self.stream is None else self.stream.run(self.number, held):
                return self._run(held, feeds, observers or {})
        finally:
            if held >= 0:
                try:
                    self._under_way.pop(held, None)
                    if self._log:
                        self._log.release(held)
                finally:
                    # without the lock, which an interrupt may prevent it from acquiring
                    del self._threads[held]
                if (
                    self._waiting or self._is_shut_down
                ):  # both are set before another thread looks at slots
                    with self._state:
                        self._state.notify_all()

    @contextmanager
    def all_slots(self) -> Iterator[None]:
        """Give this thread all slots during the block.

        Raises
        ------
        ExecutorClosed
            No run may begin any more.
        """
        me, held = threading.get_ident(), list[int]()
        try:  # an interrupt may occur between any two calls
            with self._state:
                self._state.wait_for(lambda: self._is_shut_down or not self._threads)
                if self._is_shut_down:
                    raise ExecutorClosed
                for slot in self._slots:
                    held.append(slot)
                    self._threads[slot] = me
            with IN_REAL_TIME if self.stream is None else self.stream.run(self.number, 0):
                yield
        finally:
            for slot in held:
                self._under_way.pop(slot, None)
                self._threads.pop(slot, None)
            if self._waiting or self._is_shut_down:
                with self._state:
                    self._state.notify_all()

    @property
    def race_log(self) -> race_checker.Log | None:
        """The checker of this executor's operations, if there is one."""
        return self._log

    def open(self) -> None:
        """Let runs in simulated time wait for runs that begin soon. Runs with states do not wait,
        because one may wait for a run of another graph.
        """
        if self.stream is not None and not self.plan.graph.states:
            self.stream.open({self.number: self.plan.copies}, self.threads)

    def _free_slot(self, slots: Iterable[int]) -> int | None:
        """Return the first free one of some slots."""
        for slot in slots:
            if slot not in self._threads:
                return slot
        return None

    def _wait_for_slot(self, slots: Iterable[int]) -> int:
        """Return a slot when one is free, or any slot if no run can begin any more."""
        self._waiting += 1
        try:
            self._state.wait_for(lambda: self._is_shut_down or self._free_slot(slots) is not None)
        finally:
            self._waiting -= 1
        return self._free_slot(slots) or 0

    @property
    def under_way(self) -> int:
        """The number of runs that have a slot."""
        return len(self._threads)

    def in_flight_splits(self) -> list[InFlightSplit]:
        """Return the splits in flight of all runs, without waiting; some may have ended
        meanwhile.
        """
        runs = list(self._under_way.values())
        return [each for run in runs for each in self._reporter.in_flight_splits(run)]

    def take_faults(self) -> list[DeviceError]:
        """Return the first failure of each device and forget it; after `shutdown` there are no new
        ones.
        """
        with self._state:
            faults, self._faults = self._faults, []
        return faults

    def shutdown(self) -> tuple[Closeable, ...]:
        """Accept no new runs, wait for the current ones, and free everything except the prepared
        plans of devices that may still use their memory. Return these, to be closed as late as
        possible. If a run's own observer or sink calls this, return all prepared plans, because it
        cannot wait for the end of its run.
        """
        me = threading.get_ident()
        if self.stream is not None:
            self.stream.close()
        with self._state:
            self._is_shut_down = True
            self._state.notify_all()
            self._state.wait_for(lambda: all(t == me for t in list(self._threads.values())))
            if self._threads:
                return tuple(self._prepared_plans.values())
            prepared_plans, self._prepared_plans = self._prepared_plans, {}
        for index, prepared in prepared_plans.items():
            if index not in self._busy:
                start = self._trace.clock.now()
                close_all([prepared])
                self._tell_freed(index, start)
        return tuple(prepared for index, prepared in prepared_plans.items() if index in self._busy)

    def close(self) -> None:
        """Wait for the current runs, then free all memory of the plan; it cannot run any more."""
        close_all(self.shutdown())

    def _describe(self, run: RunRecord) -> str:
        """Return a description of a run for error messages."""
        return self._reporter.describe(run.split)

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        raise NotImplementedError

    def stop_accepting(self) -> None:
        """Accept no new runs."""
        with self._state:
            self._is_shut_down = True
            self._state.notify_all()

    def _fail(self, run: RunRecord, error: DeviceError, blame: bool = True) -> None:
        """Take the executor out of use: the device may still use the slot of the failed run.

        blame: True if the device is at fault, False if the user interrupted the run.
        """
        error.device = self.plan.topology.devices[run.device].name
        error.during = self._describe(run)
        with self._state:
            self._is_shut_down = True
            if blame and run.device not in self._failed:
                self._faults.append(error)
            self._failed.add(run.device)
            if isinstance(error, DeviceTimeout):
                self._busy.add(run.device)
            self._state.notify_all()


def guarded(progress: Progress | None) -> Progress | None:
    """Wrap a user's callback so that its errors do not count as device failures."""
    if progress is None:
        return None

    def call(what: str, done: int, total: int) -> None:
        try:
            progress(what, done, total)
        except DeviceError as error:
            raise PlanError(f"[progress] the callback failed: {error}") from error

    return call


def close_all(prepared_plans: Iterable[Closeable]) -> None:
    """Close each prepared plan; if a device does not answer, log a warning."""
    for prepared in prepared_plans:
        try:
            prepared.close()
        except DeviceError as error:
            warn(f"[close] {error}")
