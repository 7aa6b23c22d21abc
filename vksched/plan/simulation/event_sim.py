"""Event simulation: the loops of hosts, event by event, and the queues and links that they share.

Problem: concurrent runs share queues and links, and each host of a run proceeds while others wait.
Method: the earliest event of all runs is next. A host proceeds to its next submission or its next
message; a message proceeds to its next wire. A host that needs a message that is not sent yet is
suspended until it is. Work and messages therefore use queues and wires in the order in which they
are ready.

    events   run 0: host submits split 1 | run 1: host submits split 0 | run 0: message at port 2

The loop of a single host is that of the executor, see simulate_plan.py; that of one of several
hosts is that of `HostPlanExecutor`, see host_schedules.py.

Complexity: O(steps * log(runs * hosts)). Examples: tests/plan/test_simulate.py,
tests/plan/test_host_schedules.py.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ..types.plan_types import HOST
from .host_schedules import Message, Walks, Wire
from .sim_types import BusySpan, Program, Simulation, SplitTiming


class DeviceQueues:
    """The times at which the compute queue and the copy queue of each device become idle.

    of: for each device, the first device that shares its compute queue.
    """

    def __init__(self, of: Sequence[int]) -> None:
        self._of = of
        self._work_s = [0.0] * len(of)
        self._copies_s = [0.0] * len(of)

    def work(self, device: int, ready_s: float, seconds: float) -> tuple[float, float]:
        """Add work to a compute queue, and return its start and its end."""
        queue = self._of[device]
        start_s = max(ready_s, self._work_s[queue])
        finish_s = self._work_s[queue] = start_s + seconds
        return start_s, finish_s

    def copy(self, device: int, ready_s: float, seconds: float) -> tuple[float, float]:
        """Add copies to a copy queue, and return their start and their end."""
        start_s = max(ready_s, self._copies_s[device])
        finish_s = self._copies_s[device] = start_s + seconds
        return start_s, finish_s


class EventSim:
    """The runs of a program: their events by time, and all that they share."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.queues = DeviceQueues(program.queues or range(len(program.devices)))
        self.spans: list[BusySpan] = []
        self.wires_s: dict[Wire, float] = {}
        """The times at which wires become idle."""
        self._events: list[tuple[float, int, int, Run, Callable[[], object]]] = []
        """For each event the time, the number of its run, and its turn: among equal times of a run,
        the one that has waited longest comes first.
        """
        self._turns = itertools.count()

    def simulate(self, runs: int, copies: int) -> Simulation:
        """Return the times of runs, with as many concurrent runs as there are copies."""
        started, ends = min(copies, runs), list[float]()
        for number in range(started):
            Run(self, number, 0.0)
        while self._events:
            _, _, _, run, event = heapq.heappop(self._events)
            run.pending -= 1
            event()
            if run.pending:
                continue
            ends.append(run.caller.now_s)
            if started < runs:
                Run(self, started, run.caller.now_s)
                started += 1
        return Simulation(self.program.devices, tuple(ends), tuple(self.spans))

    def push(self, at_s: float, run: Run, event: Callable[[], object]) -> None:
        """Add an event of a run."""
        run.pending += 1
        heapq.heappush(self._events, (at_s, run.number, next(self._turns), run, event))


class Run:
    """One run: its hosts, and the messages between them. It ends when no event is pending."""

    def __init__(self, sim: EventSim, number: int, start_s: float) -> None:
        self.sim = sim
        self.number = number
        self.pending = 0
        self.arrives_s: dict[Message, float] = {}
        self.waiting: dict[Message, HostLoop] = {}
        walks = sim.program.walks
        if walks is None:
            self.caller = HostLoop(self, start_s)
            sim.push(self.caller.now_s, self, self.caller.advance)
            return
        hosts = [PeerLoop(self, host, walks, start_s) for host in range(len(walks.own))]
        self.caller = hosts[walks.caller]
        for host in hosts:
            sim.push(start_s, self, host.advance)

    def send(self, message: Message, now_s: float, wire: int = 0) -> None:
        """Submit a message to a wire. Its bytes wait again before the second port."""
        wires, begins_s, idle_s = message.wires, now_s, self.sim.wires_s
        if wires:
            begins_s = max(now_s, idle_s.get(wires[wire], 0.0))
            idle_s[wires[wire]] = begins_s + message.wire_s
        if wire + 1 < len(wires):
            self.sim.push(begins_s, self, partial(self.send, message, begins_s, wire + 1))
            return
        self.arrives_s[message] = begins_s + message.wire_s + message.latency_s
        host = self.waiting.pop(message, None)
        if host is not None:
            self.sim.push(self.arrives_s[message], self, host.advance)


class HostLoop:
    """The loop of the only host of a run. Its clock is the host's time at the next submission."""

    def __init__(self, run: Run, start_s: float) -> None:
        program = run.sim.program
        self.now_s = start_s + program.run_s
        self._run = run
        self._program = program
        self._queues = run.sim.queues
        self._spans = run.sim.spans
        self._done_s: dict[int, float] = {}
        self._async_downloads: dict[int, float | None] = {}
        """For each split, the end of downloads that the host has not waited for; None if not yet
        submitted.
        """
        self._host = self._walk()
        next(self._host, None)

    def advance(self) -> None:
        """Submit the next split or message, and proceed to the following one."""
        needed = next(self._host, None)
        if isinstance(needed, Message):
            self._run.waiting[needed] = self
        elif needed is not None:
            self._run.sim.push(self.now_s, self._run, self.advance)

    def _walk(self) -> Iterator[object]:
        """Run the loop of the host, with a stop before each submission."""
        steps = self._program.steps
        every = len(steps)
        run = every - self._program.commits
        is_early = 0 < run < every and not steps[run].waits
        for number in range(every):
            yield from self._carry(number, number == run and not is_early)
        yield from self._wait(self._program.final_waits)
        if run == every or is_early:
            self._fetch(run)

    def _carry(self, number: int, fetches: bool = False) -> Iterator[object]:
        """Copy the inputs of a split, and submit it. fetches: fetch the results before the work of
        earlier splits crosses.
        """
        step = self._program.steps[number]
        self._copy(step.input_s, step.device, number)
        yield from self._wait(step.waits)
        if fetches:
            self._fetch(number)
        self._copy(step.crossed_s, step.device, number)
        yield True
        self._submit(step, number)

    def _submit(self, step: SplitTiming, number: int) -> None:
        there_s = 0.0
        if step.coming_s is not None:
            self.now_s += step.submit_s
            free_s = self._done_s[step.after] if step.after != HOST else 0.0
            there_s = self._submit_copies(step.device, number, step.coming_s, free_s)
        self.now_s += step.submit_s
        start_s, finish_s = self._queues.work(step.device, max(self.now_s, there_s), step.seconds)
        self._done_s[number] = finish_s
        self._record_span("split", step.device, number, start_s, finish_s)
        if step.leaving_s is not None:
            self._async_downloads[number] = None
        for other in step.deferred_downloads:
            self._submit_downloads(other, self._done_s[other])

    def _submit_downloads(self, number: int, free_s: float = 0.0) -> None:
        """Submit the downloads of a split. free_s: the end of its work."""
        step = self._program.steps[number]
        self.now_s += step.submit_s
        end_s = self._submit_copies(step.device, number, step.leaving_s or 0.0, free_s)
        self._async_downloads[number] = end_s

    def _submit_copies(self, device: int, split: int, seconds: float, free_s: float = 0.0) -> float:
        """Submit copies to a copy queue, and return their end. free_s: the time at which their
        memory is free.
        """
        start_s, finish_s = self._queues.copy(device, max(self.now_s, free_s), seconds)
        self._record_span("transfer_queue", device, split, start_s, finish_s)
        return finish_s

    def _fetch(self, number: int) -> None:
        """Fetch the results. number: the number of the next split."""
        device = self._program.steps[number - 1].device if number else 0
        self._copy(self._program.fetched_s, device, None)

    def _copy(self, seconds: float, device: int, split: int | None) -> None:
        if seconds:
            self._record_span("copy", device, split, self.now_s, self.now_s + seconds)
            self.now_s += seconds

    def _wait(self, splits: Iterable[int]) -> Iterator[object]:
        for split in splits:
            self._wait_until(self._done_s[split], split)
            yield from self._await_downloads(split)

    def _await_downloads(self, split: int) -> Iterator[bool]:
        """Submit and await the downloads of a split and of the earlier ones on its device."""
        steps = self._program.steps
        device = steps[split].device
        now = [n for n in self._async_downloads if n <= split and steps[n].device == device]
        for number in now:
            if self._async_downloads[number] is None:
                yield True
                self._submit_downloads(number)
        if now:
            self._wait_until(max(self._async_downloads.pop(number) or 0.0 for number in now), split)

    def _wait_until(self, until_s: float, split: int) -> None:
        if until_s > self.now_s:
            device = self._program.steps[split].device
            self._record_span("wait", device, split, self.now_s, until_s)
            self.now_s = until_s
        self.now_s += self._program.steps[split].fence_s

    def _record_span(
        self, kind: str, device: int, split: int | None, start_s: float, finish_s: float
    ) -> None:
        self._spans.append(BusySpan(kind, device, split, self._run.number, start_s, finish_s))


class PeerLoop(HostLoop):
    """The loop of one of several hosts of a run."""

    def __init__(self, run: Run, host: int, walks: Walks, start_s: float) -> None:
        self._here = host
        self._walks = walks
        self._unsent: deque[Message] = deque()
        self._complete: dict[int, int] = {}
        """For each device, the last split that the host knows to be complete."""
        super().__init__(run, start_s - run.sim.program.run_s)

    def _walk(self) -> Iterator[object]:
        walks, here = self._walks, self._here
        run = len(self._program.steps) - self._program.commits
        yield True
        yield from self._receive(walks.starts)
        self.now_s += walks.run_s[here]
        yield from self._say(walks.starts)
        for number in walks.own[here]:
            if number < run:
                yield from self._send_complete()
                yield from self._receive(walks.takes[number])
                yield from self._carry(number)
        yield from self._receive(walks.ends[here])
        while self._unsent:
            yield from self._send(self._unsent.popleft())
        yield from self._wait(walks.ready[here])
        if here == walks.caller:
            self._fetch(walks.own[here][-1] + 1 if walks.own[here] else 0)
        for messages in (walks.tells, walks.commits):
            yield from self._say(messages)
            yield from self._receive(messages)
        for number in walks.own[here]:
            if number >= run:
                yield from self._carry(number)
        yield from self._wait(walks.last[here])
        yield from self._say(walks.done)
        yield from self._receive(walks.done)

    def _submit(self, step: SplitTiming, number: int) -> None:
        super()._submit(step, number)
        self._unsent += self._walks.sends[number]

    def _wait(self, splits: Iterable[int]) -> Iterator[object]:
        """Wait at once for all: with several hosts, no copies overlap the work. Results of earlier
        splits are sent first.
        """
        for number in splits:
            device = self._program.steps[number].device
            if number <= self._complete.get(device, -1):
                continue
            while self._unsent and (self._unsent[0].split or 0) < number:
                yield from self._send(self._unsent.popleft())
            self._complete[device] = number
            for _ in super()._wait([number]):
                pass

    def _receive(self, messages: Iterable[Message]) -> Iterator[object]:
        """Receive the messages to this host, and send all pending ones before the first wait."""
        for message in (each for each in messages if each.target == self._here):
            yield True
            while self._run.arrives_s.get(message, self.now_s + 1.0) > self.now_s and self._unsent:
                yield from self._send(self._unsent.popleft())
            if message not in self._run.arrives_s:
                yield message
            arrives_s = self._run.arrives_s[message]
            if arrives_s > self.now_s:
                self._record_span("wait", message.device, message.split, self.now_s, arrives_s)
                self.now_s = arrives_s

    def _send_complete(self) -> Iterator[object]:
        """Send all values that are complete by now."""
        for message in [m for m in self._unsent if self._done_s[m.split or 0] <= self.now_s]:
            self._unsent.remove(message)
            yield from self._send(message)

    def _send(self, message: Message) -> Iterator[object]:
        """Copy a value from its device; a separate thread sends it."""
        if message.split is not None:
            yield from self._wait([message.split])
        self._copy(message.copied_s, message.device, message.split)
        yield True
        self._run.send(message, self.now_s)

    def _say(self, messages: Iterable[Message]) -> Iterator[object]:
        """Send the messages from this host."""
        for message in (each for each in messages if each.source == self._here):
            yield True
            self._run.send(message, self.now_s)
