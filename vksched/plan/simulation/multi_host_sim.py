"""Multi-host simulation: a run of a plan over several hosts, each with a schedule of its own.

Problem: hosts share the network, and each proceeds while others wait. Method: the host with the
earliest clock proceeds to its next submission or its next message. A host that needs a message that
is not sent yet is suspended until it is. Messages therefore use the wires in the order in which
they are ready. The steps of a host are the ones of `HostPlanExecutor`, see host_schedules.py.

Complexity: O(steps * log(hosts)). Examples: tests/plan/test_host_schedules.py.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from .event_sim import Queues, Run
from .host_schedules import Message, Walks, Wire
from .sim_types import Busy, Program


class RunOfHosts:
    """One run. `now_s` is the clock of the host that proceeds next, at the end the driver's."""

    def __init__(
        self,
        program: Program,
        walks: Walks,
        wires: dict[Wire, float],
        number: int,
        start_s: float,
        queues: Queues,
        spans: list[Busy],
    ) -> None:
        self.number = number
        self.arrives_s: dict[Message, float] = {}
        self._wires = wires
        self._waiting: dict[Message, int] = {}
        own: list[list[int]] = [[] for _ in range(walks.hosts)]
        for split, step in enumerate(program.steps):
            own[walks.on[step.device]].append(split)
        self._hosts = [
            _HostRun(self, host, splits, program, walks, start_s, queues, spans)
            for host, splits in enumerate(own)
        ]
        self._caller = self._hosts[walks.caller]
        self._turns = itertools.count()
        self._ready: list[tuple[float, int, int, Message | None]] = []
        """The ready hosts, and the messages before a wire, by time. Among equal times, the one that
        has waited longest comes first.
        """
        for host in range(walks.hosts):
            self._push(start_s, host)

    @property
    def now_s(self) -> float:
        return self._ready[0][0] if self._ready else self._caller.now_s

    def advance(self) -> bool:
        """Advance the next host or message; return False at the end."""
        now_s, _, number, message = heapq.heappop(self._ready)
        if message is not None:
            self._enter(message, number, now_s)
            return True
        needed = self._hosts[number].step()
        if isinstance(needed, Message):
            self._waiting[needed] = number
        elif needed is not None:
            self._push(self._hosts[number].now_s, number)
        return bool(self._ready)

    def send(self, message: Message, now_s: float) -> None:
        """Submit a message to its first wire. Its bytes wait again before the second port."""
        self._enter(message, 0, now_s)

    def _enter(self, message: Message, wire: int, now_s: float) -> None:
        wires, begins_s = message.wires, now_s
        if wires:
            begins_s = max(now_s, self._wires.get(wires[wire], 0.0))
            self._wires[wires[wire]] = begins_s + message.wire_s
        if wire + 1 < len(wires):
            self._push(begins_s, wire + 1, message)
            return
        self.arrives_s[message] = begins_s + message.wire_s + message.latency_s
        host = self._waiting.pop(message, None)
        if host is not None:
            self._push(self.arrives_s[message], host)

    def _push(self, at_s: float, number: int, message: Message | None = None) -> None:
        heapq.heappush(self._ready, (at_s, next(self._turns), number, message))


class _HostRun(Run):
    """The steps of one host in a run."""

    def __init__(
        self,
        run: RunOfHosts,
        host: int,
        splits: list[int],
        program: Program,
        walks: Walks,
        start_s: float,
        queues: Queues,
        spans: list[Busy],
    ) -> None:
        self._run = run
        self._here = host
        self._splits = splits
        self._walks = walks
        self._unsent: deque[Message] = deque()
        self._complete: dict[int, int] = {}
        """For each device, the last split that the host knows to be complete."""
        super().__init__(program, run.number, start_s - program.run_s, queues, spans)

    def step(self) -> object:
        """Proceed; return the message that it needs, True if it needs none, or None at the end."""
        return next(self._host, None)

    def _walk(self) -> Iterator[object]:
        walks, steps, here = self._walks, self._program.steps, self._here
        is_caller, run = here == walks.caller, len(steps) - self._program.commits
        yield True
        if not is_caller:
            yield from self._receive(m for m in walks.starts if m.target == here)
        self.now_s += walks.run_s[here]
        if is_caller:
            yield from self._say(walks.starts)
        for number in self._splits:
            if number < run:
                yield from self._send_complete()
                yield from self._receive(walks.takes[number])
                yield from self._carry(number, walks.waits[number])
        yield from self._receive(walks.ends[here])
        yield from self._send_all()
        yield from self._wait(walks.ready[here])
        if is_caller:
            self._fetch(self._splits[-1] + 1 if self._splits else 0)
            yield from self._receive(walks.tells)
            yield from self._say(walks.commits)
        else:
            yield from self._say(m for m in walks.tells if m.source == here)
            yield from self._receive(m for m in walks.commits if m.target == here)
        for number in self._splits:
            if number >= run:
                yield from self._carry(number, ())
        yield from self._wait(walks.last[here])
        if is_caller:
            yield from self._receive(walks.done)
        else:
            yield from self._say(m for m in walks.done if m.source == here)

    def _carry(self, number: int, waits: Iterable[int]) -> Iterator[object]:
        step = self._program.steps[number]
        self._copy(step.input_s, step.device, number)
        yield from self._wait(waits)
        self._copy(step.crossed_s, step.device, number)
        yield True
        self._submit(step, number)
        self._unsent += self._walks.sends[number]

    def _wait(self, splits: Iterable[int]) -> Iterator[object]:
        """Wait at once for all: with several hosts, no copies overlap the work. Results of earlier
        splits are sent first.
        """
        for split in splits:
            device = self._program.steps[split].device
            if split <= self._complete.get(device, -1):
                continue
            while self._unsent and (self._unsent[0].split or 0) < split:
                yield from self._send(self._unsent.popleft())
            self._complete[device] = split
            for _ in super()._wait([split]):
                pass

    def _receive(self, messages: Iterable[Message]) -> Iterator[object]:
        """Receive messages, and send all pending ones before the first wait."""
        for message in messages:
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

    def _send_all(self) -> Iterator[object]:
        while self._unsent:
            yield from self._send(self._unsent.popleft())

    def _send(self, message: Message) -> Iterator[object]:
        """Copy a value from its device; a separate thread sends it."""
        if message.split is not None:
            yield from self._wait([message.split])
        self._copy(message.copied_s, message.device, message.split)
        yield True
        self._run.send(message, self.now_s)

    def _say(self, messages: Iterable[Message]) -> Iterator[object]:
        for message in messages:
            yield True
            self._run.send(message, self.now_s)
