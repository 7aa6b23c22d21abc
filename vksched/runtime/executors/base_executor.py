"""BaseExecutor: what all executors have in common: slots that runs take in turn, prepared_plans of
devices, and what happens when one fails.

    run: wait for a slot -> carry out -> give it back        a device fails: no new runs, `shutdown`

Examples: tests/runtime/test_executor.py, tests/scheduler/test_closing.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, DeviceTimeout, PlanError
from ...common.user_warning import warn
from ...plan.plan import Plan
from ...plan.types.offsets import aligned
from ...trace import Trace
from ..device import Closing, Device, PreparedPlan
from ..run_stats import RunStats
from ..simulated_clock import SimulatedStream
from . import race_checker
from .run_record import InFlightSplit, Observers, Reporter, RunRecord

IN_REAL_TIME = nullcontext()
INTERRUPTED_S = 2.0
"""How long Ctrl-C waits for what is under way, so that the graph stays usable."""


class ExecutorClosed(Exception):
    """The executor takes no runs any more; the one that it was asked for has not begun."""


@dataclass(slots=True)
class RunResult:
    """outputs: as in `Graph.outputs`. kept: the next values of states, as in
    `Graph.backed_up_states`. plan_and_stats: the plan of this run and its statistics, once it is
    done.
    """

    outputs: tuple[NDArray, ...]
    kept: tuple[NDArray, ...] = ()
    plan_and_stats: tuple[Plan, RunStats] | None = None


class CommitFailed(Exception):
    """A run is complete, but the states of some devices may be old or torn.

    cause: what happened. results: those of the run. devices: whose states they are.
    """

    def __init__(self, cause: BaseException, results: RunResult, devices: frozenset[int]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.results = results
        self.devices = devices


class BaseExecutor:
    """A plan made ready to run: memory allocated, weights uploaded, everything recorded.

    A run that a device fails takes it out of use: those that wait for a slot are turned away with
    ExecutorClosed, those under way go on, and `close` waits for them. prepare: makes the prepared
    plan of a device. working: the devices that take part. number: of the plan, for events.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Sequence[Device],
        trace: Trace,
        timeout_s: float,
        numbers: Iterator[int] | None,
        working: Iterable[int],
        number: int = -1,
    ) -> None:
        self.plan = plan
        self.devices = tuple(devices)
        self._trace = trace
        self._reporter = Reporter(plan, trace, number)
        self._timeout_s = timeout_s
        self._numbers = numbers or itertools.count()
        self._sequence_numbers = itertools.count(1)
        self._working = tuple(sorted(working))
        self.device_names = tuple(plan.topology.devices[d].name for d in self._working)
        """The devices that take part, in order of priority."""
        self.last_run: tuple[Plan, RunStats] | None = None
        """What the last finished run did, and what it cost; None before the first."""
        # What follows changes under this condition; it wakes those who wait for a slot or the end.
        self._state = threading.Condition()
        self._waiting = 0
        """How many runs wait for a slot."""
        self._slots = range(plan.copies)
        self._threads: dict[int, int] = {}
        """By slot in use the thread of its run, which alone takes it out."""
        self._under_way: dict[int, RunRecord] = {}
        """By slot in use what is recorded of its run; only that run's thread changes it."""
        self._is_shut_down = False
        self._busy: set[int] = set()
        """Devices that may still work on this memory, as they did not end in time."""
        self._log: race_checker.Log | None = None
        self._failed: set[int] = set()
        self._faults: list[DeviceError] = []
        self._prepared_plans: dict[int, PreparedPlan] = {}
        self.stream: SimulatedStream | None = None
        """Of the runs by simulated time, where devices are simulated."""
        self._states_there: dict[int, int] = {}
        """By device the bytes of states that other plans had brought."""

    def prepare(
        self, progress: Progress | None, make: Callable[[int, Progress | None], None]
    ) -> None:
        """Make the prepared plans of all devices; where one cannot be made, none is left."""
        guarded_progress = guarded(progress) if progress is not None else None
        try:
            for index in self._working:
                start, there_bytes = self._trace.clock.now(), self._note_resident(index)
                try:
                    make(index, guarded_progress)
                except DeviceError as error:
                    error.device, error.during = self.devices[index].name, "preparing"
                    raise
                self._reporter.tell_memory("prepare", index, start, there_bytes)
        except BaseException:
            close_all(self._prepared_plans.values())
            raise

    def _note_resident(self, index: int) -> int:
        """Return the bytes of weights and states that a device has before a plan is made ready;
        notes which of them are states of other plans.
        """
        before, planned = self._weights_there(index), self.plan.memory[index].resident_bytes
        self._states_there[index] = max(0, planned - before)
        return max(before, planned)

    def _tell_freed(self, index: int, start: float) -> None:
        stays_bytes = self._weights_there(index) + self._states_there[index]
        self._reporter.tell_memory("release", index, start, stays_bytes)

    def _weights_there(self, index: int) -> int:
        """Return the bytes of this plan's weights that a device holds now; 0 if nobody listens."""
        graph, held = self.plan.graph, self.devices[index].holds
        weights = self.plan.memory[index].weights if self._trace.active else ()
        return sum(4 * aligned(graph.words[n]) for n in weights if held(graph.keys[n]))

    @property
    def last_stats(self) -> RunStats | None:
        """What the last finished run cost; None before the first."""
        return self.last_run[1] if self.last_run is not None else None

    @property
    def number(self) -> int:
        """The number of the plan, for events."""
        return self._reporter.number

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the plans that runs may follow, for events."""
        return (self.number,)

    @property
    def threads(self) -> int:
        """How many runs may have begun at once, or wait for the end of another one."""
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
        """Run once on the calling thread; waits for a free slot first, or for the one given. The
        arrays must not change until it is done.

        Raises:
            RunCancelled: an observer said so. CommitFailed: the run is complete, but not its
                states. DeviceError, IndexOutOfRange: it failed; no state has changed.
        """
        held, me = -1, threading.get_ident()
        slots = self._slots if slot is None else (slot,)
        try:  # an interrupt may come between any two calls
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
                    del self._threads[held]  # without the lock, which an interrupt may keep from it
                if (
                    self._waiting or self._is_shut_down
                ):  # both are said before anybody looks at slots
                    with self._state:
                        self._state.notify_all()

    def open(self) -> None:
        """Has runs by simulated time wait for those that begin soon. Runs with states do not: one
        may wait for a run of another graph.
        """
        if self.stream is not None and not self.plan.graph.states:
            self.stream.open({self.number: self.plan.copies}, self.threads)

    def _free_slot(self, slots: Iterable[int]) -> int | None:
        """Return the first of some slots that no run has."""
        for slot in slots:
            if slot not in self._threads:
                return slot
        return None

    def _wait_for_slot(self, slots: Iterable[int]) -> int:
        """Return a slot as soon as there is one, or any where no run begins any more."""
        self._waiting += 1
        try:
            self._state.wait_for(lambda: self._is_shut_down or self._free_slot(slots) is not None)
        finally:
            self._waiting -= 1
        return self._free_slot(slots) or 0

    @property
    def under_way(self) -> int:
        """How many runs have a slot now."""
        return len(self._threads)

    def in_flight_splits(self) -> list[InFlightSplit]:
        """Returns what the devices have of the runs under way; it waits for nothing, so what it
        tells may have ended meanwhile.
        """
        runs = list(self._under_way.values())
        return [each for run in runs for each in self._reporter.in_flight_splits(run)]

    def take_faults(self) -> list[DeviceError]:
        """Return the first failure of each device, each once; after `shutdown` there are no
        more.
        """
        with self._state:
            faults, self._faults = self._faults, []
        return faults

    def shutdown(self) -> tuple[Closing, ...]:
        """Take no new runs, waits for those under way, and frees all but the prepared plans of
        devices that may still work on their memory. Returns these, to be closed as late as can be:
        all, where a run's own observer or sink asks, which cannot wait for the end of that run.
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
        """Wait for the runs under way, then frees what the plan holds; it cannot run any more."""
        close_all(self.shutdown())

    def _describe(self, run: RunRecord) -> str:
        """Returns what a run is about, as errors name it."""
        return self._reporter.describe(run.split)

    def _run(self, slot: int, feeds: Mapping[int, NDArray], observers: Observers) -> RunResult:
        raise NotImplementedError

    def stop_accepting(self) -> None:
        """Take no new runs."""
        with self._state:
            self._is_shut_down = True
            self._state.notify_all()

    def _fail(self, run: RunRecord, error: DeviceError, blame: bool = True) -> None:
        """Take the executor out of use: the device may still work on the slot of the failed run.

        blame: whether that is the device's fault, not that of a user who would not wait.
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


def guarded(progress: Progress) -> Progress:
    """Return a function of the caller's; what it raises is no device's failure then."""

    def call(what: str, done: int, total: int) -> None:
        try:
            progress(what, done, total)
        except DeviceError as error:
            raise PlanError(f"[progress] the function given failed: {error}") from error

    return call


def close_all(prepared_plans: Iterable[Closing]) -> None:
    """Close each; what cannot be freed, as a device does not answer, is a warning."""
    for prepared in prepared_plans:
        try:
            prepared.close()
        except DeviceError as error:
            warn(f"[close] {error}")
