"""SimulatedClock: time that only simulated devices advance, with a separate time for each run.

Problem: concurrent runs are threads, which are scheduled in any order. With a shared time, the
start of a run would depend on the progress of other runs, and a stream would take longer whenever a
thread was late. Method: each run has its own time, that of its host. A run submits only if no other
run, in flight or about to begin, has an earlier time. Then submissions reach device queues in the
order of simulated time, as in `plan/simulation/simulate_plan.py`, independent of thread scheduling.

    run 0   at 0.0 submits 0 | at 3.0 submits 1 ...................... | at 9.0 ends
    run 1   at 0.0 waits for run 0   | submits 0 | at 3.5 submits 1   | waits: run 2 begins at 9.0

An accepted run begins at the time at which its slot becomes free, therefore other runs wait for it,
too. Submitting a stream takes no simulated time: inside `hold` all runs pause, so that the whole
stream is accepted when it begins. If a run is blocked by its own program, as by an observer that
waits for another run, the others continue after HELD_UP_S of real time.

Complexity: O(runs in flight) for each submission. Examples: tests/runtime/test_simulated_clock.py.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

HELD_UP_S = 2.0
"""Real seconds after which a run stops waiting for runs with earlier times."""


@dataclass(slots=True)
class Cores:
    """The cores of a host in simulated time.

    Parameters
    ----------
    busy_until_s
        The time until which all cores are in use; each device that computes there uses all.
    """

    busy_until_s: float = 0.0


@dataclass(slots=True)
class _Run:
    """A run in flight. number: breaks ties between equal times, smallest first."""

    number: int
    now_s: float


class SimulatedClock:
    """Simulated time; runs of graphs have their own times."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._numbers = itertools.count()
        self._holds = 0
        self._runs: dict[int, _Run] = {}
        """The run by thread that executes it."""
        self._streams: set[SimulatedStream] = set()
        """Graphs with accepted runs that have not begun."""
        self._state = threading.Condition()
        self.cores = Cores()
        """The cores of the host, on which software devices and the CPU compute."""

    def now(self) -> float:
        """Return the time of this thread's run; on other threads the latest end time of a run."""
        run = self._runs.get(threading.get_ident())
        return self._now_s if run is None else run.now_s

    def advance_to(self, time_s: float) -> None:
        """Advance the time of this thread's run, or the clock if it has none; never backwards."""
        run = self._runs.get(threading.get_ident())
        if run is not None:
            run.now_s = max(run.now_s, time_s)
            return
        with self._state:
            self._now_s = max(self._now_s, time_s)

    def wait_for_turn(self) -> None:
        """Wait until no other run can submit at an earlier time."""
        run = self._runs.get(threading.get_ident())
        if run is None:
            return
        with self._state:
            self._wait_for_turn(run)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Pause all runs during the block, which must not wait for a run: submissions inside are
        simultaneous.
        """
        with self._state:
            self._holds += 1
        try:
            yield
        finally:
            with self._state:
                self._holds -= 1
                self._state.notify_all()

    def stream(self) -> SimulatedStream:
        """Return the simulated stream of one graph's runs."""
        return SimulatedStream(self)

    def _wait_for_turn(self, run: _Run) -> None:
        self._state.notify_all()  # a run that waits now may be the next one
        self._state.wait_for(lambda: not self._holds)
        self._state.wait_for(lambda: not self._holds and self._is_next(run), HELD_UP_S)

    def _is_next(self, run: _Run) -> bool:
        if any(stream.begins_soon for stream in self._streams):
            return False
        mine = run.now_s, run.number
        return all((r.now_s, r.number) >= mine for r in list(self._runs.values()))


@dataclass(eq=False)
class SimulatedStream:
    """The runs of one graph in simulated time: accepted ones, and those in flight.

        accept: queued --take--> starting --wait_at--> waiting for a slot --run--> in flight
                                     '---------------------------------------------^

    Parameters
    ----------
    threads
        Maximum number of runs that have begun or wait for a slot; 0 while a new plan is being
        created.
    slots
        Maximum number of runs in flight, by plan.
    """

    clock: SimulatedClock
    threads: int = 0
    slots: Mapping[int, int] = field(default_factory=dict)
    _accepted: dict[int, float] = field(default_factory=dict)
    """Acceptance time by number of a run that has not begun."""
    _queued: Counter[int] = field(default_factory=Counter)
    """Number of runs by thread pool that no thread has taken."""
    _pools: dict[int, int] = field(default_factory=dict)
    """Thread pool by number of an accepted run that has not ended."""
    _sizes: dict[int, int] = field(default_factory=dict)
    _taken: dict[int, int] = field(default_factory=dict)
    """Number of the run that a thread will execute, by thread."""
    _starting: set[int] = field(default_factory=set)
    _waiting: dict[int, int] = field(default_factory=dict)
    """Plan by number of a run that waits for a slot."""
    _busy: Counter[int] = field(default_factory=Counter)
    """Number of threads by pool whose run has not ended."""
    _under_way: Counter[int] = field(default_factory=Counter)
    """Number of runs in flight by plan."""
    _free_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """End time of the last run by plan and slot."""
    _from_s: float = 0.0
    """The time at which the current plans were ready."""

    @property
    def begins_soon(self) -> bool:
        """Return True if an accepted run has a free thread and a free slot."""
        under_way, slots = self._under_way, self.slots
        if any(under_way[plan] < slots.get(plan, 0) for plan in self._waiting.values()):
            return True
        if under_way.total() + len(self._waiting) >= self.threads:
            return False
        if self._starting:
            return True
        return any(left and self._busy[p] < self._sizes[p] for p, left in self._queued.items())

    def open(self, slots: Mapping[int, int], threads: int) -> None:
        """Accept runs with plans that are ready now."""
        with self.clock._state:
            self.slots, self.threads, self._from_s = slots, threads, self.clock._now_s
            self._free_s.clear()
            self.clock._state.notify_all()

    def close(self) -> None:
        """Let the runs in flight end without the runs that have not begun."""
        with self.clock._state:
            self.slots, self.threads = {}, 0
            self.clock._state.notify_all()

    def accept(self, pool: int, size: int) -> int:
        """Return the number of a new run that a thread of a pool will execute.

        Parameters
        ----------
        size
            Number of threads of the pool.
        """
        clock = self.clock
        with clock._state:
            number = next(clock._numbers)
            self._accepted[number] = clock.now()
            self._pools[number], self._sizes[pool] = pool, size
            self._queued[pool] += 1
            clock._streams.add(self)
            return number

    def take(self, number: int) -> None:
        """Assign an accepted run to this thread."""
        with self.clock._state:
            pool = self._pools[number]
            self._taken[threading.get_ident()] = number
            self._starting.add(number)
            self._queued[pool] -= 1
            self._busy[pool] += 1

    def wait_at(self, plan: int) -> None:
        """Record that this thread's next run waits for a slot of a plan."""
        with self.clock._state:
            number = self._taken.get(threading.get_ident())
            if number in self._starting:
                self._starting.discard(number)
                self._waiting[number] = plan
                self.clock._state.notify_all()

    def drop(self, number: int) -> None:
        """Remove an accepted run that has ended or will not begin; safe to call twice."""
        with self.clock._state:
            if number in self._accepted and number not in {*self._starting, *self._waiting}:
                pool = self._pools.pop(number)
                self._queued[pool] -= 1
            self._begin(number)
            self._end(number)
            self.clock._state.notify_all()

    @contextmanager
    def run(self, plan: int, slot: int) -> Iterator[None]:
        """Give this thread's run a slot of a plan during the block. A nested run is a part of the
        outer one.
        """
        clock, me = self.clock, threading.get_ident()
        if me in clock._runs:
            yield
            return
        with clock._state:
            number = self._taken.pop(me, None)
            if number is None:
                number, accepted_s = next(clock._numbers), clock._now_s
            else:
                accepted_s = self._begin(number)
            run = _Run(number, max(accepted_s, self._free_s.get((plan, slot), self._from_s)))
            clock._runs[me] = run
            self._under_way[plan] += 1
            clock._state.notify_all()
        try:
            yield
            with clock._state:
                clock._wait_for_turn(run)  # ends are ordered, too
        finally:
            with clock._state:
                del clock._runs[me]
                self._under_way[plan] -= 1
                self._free_s[plan, slot] = run.now_s
                clock._now_s = max(clock._now_s, run.now_s)
                self._end(number)
                clock._state.notify_all()

    def _begin(self, number: int) -> float:
        """Remove a run from those that have not begun; return its acceptance time."""
        accepted_s = self._accepted.pop(number, self.clock._now_s)
        self._starting.discard(number)
        self._waiting.pop(number, None)
        if not self._accepted:
            self.clock._streams.discard(self)
        return accepted_s

    def _end(self, number: int) -> None:
        """Release the thread of a run."""
        pool = self._pools.pop(number, None)
        if pool is not None:
            self._busy[pool] -= 1
