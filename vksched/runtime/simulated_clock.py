"""SimulatedClock: seconds that pass only when a simulated device says so, for each run its own.

Problem: runs that are under way at once are threads, and threads take turns as they like. If they
shared one time, a run would begin where another one happened to be, and a stream would take longer
each time that a thread was late. Method: each run has a time of its own, that of its host. A run
submits only when no other run, under way or about to begin, has an earlier time. So submissions
reach the queues of devices in the order of simulated time, as in
`plan/simulation/simulate_plan.py`, whatever the order of real threads.

    run 0   at 0.0 submits 0 | at 3.0 submits 1 ...................... | at 9.0 ends
    run 1   at 0.0 waits for its turn | submits 0 | at 3.5 submits 1   | waits: run 2 begins at 9.0

A run that was accepted begins where its slot became free, so the others wait for it as well. A
caller that submits a stream does so in no time: inside `hold` no run goes on, so that all of the
stream is there when it begins. A run that its own program holds up, as an observer that waits for
another run does, lets the others go on after HELD_UP_S of real time.

Complexity: O(runs under way) for each submission. Examples: tests/runtime/test_simulated_clock.py.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

HELD_UP_S = 2.0
"""Real seconds after which a run does not wait for the turn of others any more."""


@dataclass(slots=True)
class Cores:
    """The cores of a computer, by simulated time. busy_until_s: all of them are taken, as each
    device that computes there takes all.
    """

    busy_until_s: float = 0.0


@dataclass(slots=True)
class _Run:
    """A run under way. number: of equal times the least one goes first."""

    number: int
    now_s: float


class SimulatedClock:
    """Seconds that pass only when somebody says so. Runs of graphs have times of their own."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._numbers = itertools.count()
        self._holds = 0
        self._runs: dict[int, _Run] = {}
        """By thread the run that it carries out."""
        self._streams: set[SimulatedStream] = set()
        """Graphs of which runs were accepted that have not begun."""
        self._state = threading.Condition()
        self.cores = Cores()
        """Those of the host, on which software devices and its CPU compute."""

    def now(self) -> float:
        """Return the time of the run that this thread carries out; of other threads the latest
        time at which a run ended.
        """
        run = self._runs.get(threading.get_ident())
        return self._now_s if run is None else run.now_s

    def advance_to(self, time_s: float) -> None:
        """Move the time of this thread's run forward, or the clock where it has none; never
        back.
        """
        run = self._runs.get(threading.get_ident())
        if run is not None:
            run.now_s = max(run.now_s, time_s)
            return
        with self._state:
            self._now_s = max(self._now_s, time_s)

    def wait_for_turn(self) -> None:
        """Wait until no other run can submit anything at an earlier time."""
        run = self._runs.get(threading.get_ident())
        if run is None:
            return
        with self._state:
            self._wait_for_turn(run)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let no run go on until the end of the block, which must wait for none: what is submitted
        inside is submitted at one moment.
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
        """Return the account of the runs of one graph."""
        return SimulatedStream(self)

    def _wait_for_turn(self, run: _Run) -> None:
        self._state.notify_all()  # this run has come later: it may be the turn of another one
        self._state.wait_for(lambda: not self._holds)
        self._state.wait_for(lambda: not self._holds and self._is_next(run), HELD_UP_S)

    def _is_next(self, run: _Run) -> bool:
        if any(stream.begins_soon for stream in self._streams):
            return False
        mine = run.now_s, run.number
        return all((r.now_s, r.number) >= mine for r in list(self._runs.values()))


@dataclass(eq=False)
class SimulatedStream:
    """The runs of one graph by simulated time: those that were accepted, and those under way.

        accept: queued --take--> starting --wait_at--> waiting for a slot --run--> under way
                                     '---------------------------------------------^

    threads: how many may have begun or wait for a slot at once; 0 while no run begins, as another
    plan is made. slots: how many may be under way, by the plan that they follow.
    """

    clock: SimulatedClock
    threads: int = 0
    slots: Mapping[int, int] = field(default_factory=dict)
    _accepted: dict[int, float] = field(default_factory=dict)
    """By number of a run that has not begun, when it was accepted."""
    _queued: Counter[int] = field(default_factory=Counter)
    """By pool of threads, how many runs none of these has taken."""
    _pools: dict[int, int] = field(default_factory=dict)
    """The pool of a run that was accepted and has not ended, by number."""
    _sizes: dict[int, int] = field(default_factory=dict)
    _taken: dict[int, int] = field(default_factory=dict)
    """The number of the run that a thread will carry out, by thread."""
    _starting: set[int] = field(default_factory=set)
    _waiting: dict[int, int] = field(default_factory=dict)
    """By number of a run that waits for a slot of a plan, the plan."""
    _busy: Counter[int] = field(default_factory=Counter)
    """By pool, how many of its threads have a run that has not ended."""
    _under_way: Counter[int] = field(default_factory=Counter)
    """How many runs of each plan are under way."""
    _free_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """By plan and slot the end of its last run."""
    _from_s: float = 0.0
    """The time at which the plans of now were ready."""

    @property
    def begins_soon(self) -> bool:
        """Whether a run was accepted for which there is a thread and a slot."""
        under_way, slots = self._under_way, self.slots
        if any(under_way[plan] < slots.get(plan, 0) for plan in self._waiting.values()):
            return True
        if under_way.total() + len(self._waiting) >= self.threads:
            return False
        if self._starting:
            return True
        return any(left and self._busy[p] < self._sizes[p] for p, left in self._queued.items())

    def open(self, slots: Mapping[int, int], threads: int) -> None:
        """Takes runs by plans that are ready now."""
        with self.clock._state:
            self.slots, self.threads, self._from_s = slots, threads, self.clock._now_s
            self._free_s.clear()
            self.clock._state.notify_all()

    def close(self) -> None:
        """Let the runs under way end without those that have not begun."""
        with self.clock._state:
            self.slots, self.threads = {}, 0
            self.clock._state.notify_all()

    def accept(self, pool: int, size: int) -> int:
        """Return the number of a run that a thread of a pool will carry out. size: its threads."""
        clock = self.clock
        with clock._state:
            number = next(clock._numbers)
            self._accepted[number] = clock.now()
            self._pools[number], self._sizes[pool] = pool, size
            self._queued[pool] += 1
            clock._streams.add(self)
            return number

    def take(self, number: int) -> None:
        """This thread will carry out an accepted run."""
        with self.clock._state:
            pool = self._pools[number]
            self._taken[threading.get_ident()] = number
            self._starting.add(number)
            self._queued[pool] -= 1
            self._busy[pool] += 1

    def wait_at(self, plan: int) -> None:
        """The run that this thread will carry out goes to a plan, by its number, where it waits for
        a slot.
        """
        with self.clock._state:
            number = self._taken.get(threading.get_ident())
            if number in self._starting:
                self._starting.discard(number)
                self._waiting[number] = plan
                self.clock._state.notify_all()

    def drop(self, number: int) -> None:
        """An accepted run has ended, or will not begin; safe to call twice."""
        with self.clock._state:
            if number in self._accepted and number not in {*self._starting, *self._waiting}:
                pool = self._pools.pop(number)
                self._queued[pool] -= 1
            self._begin(number)
            self._end(number)
            self.clock._state.notify_all()

    @contextmanager
    def run(self, plan: int, slot: int) -> Iterator[None]:
        """A run on this thread has a slot of a plan, by its number, until the end of the block. One
        inside another run is a part of that one.
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
                clock._wait_for_turn(run)  # ends are in order, too
        finally:
            with clock._state:
                del clock._runs[me]
                self._under_way[plan] -= 1
                self._free_s[plan, slot] = run.now_s
                clock._now_s = max(clock._now_s, run.now_s)
                self._end(number)
                clock._state.notify_all()

    def _begin(self, number: int) -> float:
        """Take a run out of those that have not begun; returns when it was accepted."""
        accepted_s = self._accepted.pop(number, self.clock._now_s)
        self._starting.discard(number)
        self._waiting.pop(number, None)
        if not self._accepted:
            self.clock._streams.discard(self)
        return accepted_s

    def _end(self, number: int) -> None:
        """The thread of a run is free for another one."""
        pool = self._pools.pop(number, None)
        if pool is not None:
            self._busy[pool] -= 1
