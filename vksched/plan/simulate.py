"""Simulate: what a plan would take, event by event, with nothing run.

Problem: the estimates of single nodes do not say how long a run takes: devices work beside each
other, the host copies and waits, queues are in order. Method: the same loop as the executor's, with
a clock for the host of each run and the end of the queue for each device. Several runs at once, one
per copy of the plan, take the devices in the order in which they submit.

    host    copy x | submit 0 | wait 0 ....... | copy h | submit 1 | wait 1 .... | fetch y
    gpu:0            [ split 0              ]
    gpu:1                                              [ split 1             ]

Over several hosts each has such a loop and a clock of its own, see walks.py. A message takes the
link between two hosts for its bytes, one after the other, and arrives a latency later; links of
other pairs are free meanwhile. Hosts that no link names are joined by a network: there a message
takes the port of either host, which all its messages to or from others share.

Null devices on a simulated clock take the same times; tests compare both.
Complexity: O((splits + copies) * runs). Examples: tests/plan/test_simulate.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..graph import Graph
from ..machine.hosts import CALLER
from ..machine.spec import Machine
from . import cost
from .value import HOST, PlanValue, commits, value_of
from .walks import Message, Values, Walks, Wire, make_walks

Entering = Sequence[tuple[int, int]]
"""Values that a split copies in, with the split that each comes from, or HOST."""


@dataclass(frozen=True, slots=True)
class Part:
    """A split before its times are known: what plans and drafts of plans both have.

    commits: whether it gives states their next values.
    """

    device: int
    nodes: tuple[int, ...]
    entering: Entering
    leaving: Sequence[int]
    waits: tuple[int, ...]
    commits: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One split as the clock sees it.

    given_s: the host copies in what the caller gave. waits: splits that it then waits for.
    crossed_s: it copies in what comes from these. seconds: on the device. submit_s, fence_s: host
    time to hand it over, and to learn of its end.
    """

    device: int
    given_s: float
    waits: tuple[int, ...]
    crossed_s: float
    seconds: float
    submit_s: float = 0.0
    fence_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """All that the clock needs of a plan.

    devices: names. steps: by split. commits: how many of them, at the end, write states. fetched_s:
    the host copies out the results, before these. final_waits: splits to wait for at the end.
    run_s: host time of a run, whatever it submits. walks: what several hosts tell each other; None
    where one does all.
    """

    devices: tuple[str, ...]
    steps: tuple[Step, ...]
    commits: int
    fetched_s: float
    final_waits: tuple[int, ...]
    run_s: float = 0.0
    walks: Walks | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """A stretch of time. kind: "split" on a device; "copy" or "wait" of the host, for a device.

    split: which one; of a wait the one waited for; None of results that are copied out.
    """

    kind: str
    device: int
    split: int | None
    run: int
    start_s: float
    finish_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What some runs take. finish_s: the end of each run. spans: in the order of their starts on
    each device.
    """

    devices: tuple[str, ...]
    finish_s: tuple[float, ...]
    spans: tuple[Busy, ...]

    @property
    def seconds(self) -> float:
        """The time until the last run is done."""
        return max(self.finish_s, default=0.0)

    @property
    def seconds_per_run(self) -> float:
        """The time between two runs of a stream, once it flows: of the later half of the runs."""
        ends = sorted(self.finish_s)
        half = len(ends) // 2
        if half == len(ends) - 1:
            return ends[-1] / len(ends) if ends else 0.0
        return (ends[-1] - ends[half]) / (len(ends) - 1 - half)

    @property
    def busy_s(self) -> dict[str, float]:
        """The seconds that each device works, by name."""
        out = dict.fromkeys(self.devices, 0.0)
        for span in self.spans:
            if span.kind == "split":
                out[self.devices[span.device]] += span.finish_s - span.start_s
        return out

    def total_s(self, kind: str) -> float:
        """Returns the seconds of all spans of a kind."""
        return sum(s.finish_s - s.start_s for s in self.spans if s.kind == kind)


def simulate(plan: PlanValue, runs: int = 1) -> Simulation:
    """Returns what runs of a plan take, as many at once as it has copies."""
    return run_program(program_of(plan), runs, plan.copies)


def program_of(plan: PlanValue) -> Program:
    """Returns what the clock needs of a plan."""
    parts = [
        Part(
            s.device,
            s.nodes,
            [(c.node, c.source) for c in s.copies_in],
            [c.node for c in s.copies_out],
            s.waits,
            commits(plan.graph, s.nodes, s.in_place),
        )
        for s in plan.splits
    ]
    known: list[dict[int, float]] = [{} for _ in plan.machine.devices]

    def seconds(node: int, device: int) -> float:
        call, spec = plan.graph.signatures[node], plan.machine.devices[device]
        if call not in known[device]:
            known[device][call] = cost.node_seconds(spec, plan.graph, plan.graph.nodes[node])
        return known[device][call]

    return make_program(plan.graph, plan.machine, parts, plan.final_waits, seconds)


def make_program(
    graph: Graph,
    machine: Machine,
    parts: Sequence[Part],
    final_waits: tuple[int, ...],
    seconds: Callable[[int, int], float],
) -> Program:
    """Returns what the clock needs of splits. seconds: of a node on a device."""
    names = tuple(spec.name for spec in machine.devices)
    nodes, host_of = graph.nodes, machine.host_of

    def enters_s(value: int, device: int) -> float:
        return host_seconds(machine, device, cost.COPY_IN, nodes[value].type.device_bytes)

    def leaves_s(value: int, device: int) -> float:
        return host_seconds(machine, device, cost.COPY_OUT, nodes[value].type.device_bytes)

    made_in = {n: number for number, part in enumerate(parts) for n in part.nodes}
    wanted = [
        (value_of(graph, node, False), made_in.get(graph.root(node))) for node in _shown(graph)
    ]
    results = [(value, split) for value, split in wanted if split is not None]
    written = sum(part.commits for part in parts)
    flows = [(part.device, part.entering, part.waits) for part in parts]
    values = Values(lambda value: nodes[value].type.device_bytes, leaves_s, graph.data)
    walks = make_walks(machine, flows, written, final_waits, results, values)
    steps: list[Step] = []
    for number, part in enumerate(parts):
        given_s = crossed_s = 0.0
        for value, source in part.entering:
            if source != HOST:
                near = host_of(parts[source].device) == host_of(part.device)
                left_s = leaves_s(value, parts[source].device) if near else 0.0
                crossed_s += left_s + enters_s(value, part.device)
            elif value not in graph.data:
                given_s += enters_s(value, part.device)
        entering = [value for value, _ in part.entering]
        on_device_s = beside_seconds(graph, machine, part.device, entering, part.leaving)
        on_device_s += sum([seconds(node, part.device) for node in part.nodes])
        costs = machine.devices[part.device].costs
        steps.append(
            Step(
                part.device,
                given_s,
                part.waits if walks is None else walks.waits[number],
                crossed_s,
                on_device_s,
                costs.submit_s,
                costs.fence_s,
            )
        )
    fetched_s = 0.0
    for value, split in results:
        if host_of(parts[split].device) == CALLER:
            fetched_s += leaves_s(value, parts[split].device)
    run_s = max((machine.devices[part.device].costs.run_s for part in parts), default=0.0)
    if walks is not None:
        final_waits, run_s = walks.last, walks.run_s[walks.caller]
    return Program(names, tuple(steps), written, fetched_s, final_waits, run_s, walks)


def _shown(graph: Graph) -> tuple[int, ...]:
    """Returns the nodes that the caller gets."""
    return (*(node for _, node in graph.outputs), *graph.kept)


def host_seconds(machine: Machine, device: int, way: str, size_bytes: int) -> float:
    """Returns what the host takes to copy a value to a device or back, less the device's own part
    of that. way: COPY_IN or COPY_OUT.
    """
    if machine.is_cpu(device):
        return 0.0
    link = machine.link_in(device) if way == cost.COPY_IN else machine.link_out(device)
    spec, taken_s = machine.devices[device], link.seconds(size_bytes)
    return max(0.0, taken_s - cost.copy_seconds(spec, way, size_bytes))


def beside_seconds(
    graph: Graph, machine: Machine, device: int, entering: Iterable[int], leaving: Iterable[int]
) -> float:
    """Returns what a split takes on its device beside its nodes. Where nobody has measured what a
    submission takes, its rough cost counts as the device's.
    """
    spec = machine.devices[device]
    seconds = spec.costs.start_s if spec.costs.calls else spec.submit_s
    if machine.is_cpu(device):
        return seconds
    link = machine.link_in(device)
    for way, values in ((cost.COPY_IN, entering), (cost.COPY_OUT, leaving)):
        for value in values:
            size_bytes = graph.nodes[value].type.device_bytes
            taken_s = cost.copy_seconds(spec, way, size_bytes)
            if not taken_s and value in graph.data:
                taken_s = size_bytes / link.bytes_per_s
            seconds += taken_s
    return seconds


def run_program(program: Program, runs: int = 1, copies: int = 1) -> Simulation:
    """Returns what runs take, as many at once as there are copies."""
    free_s = [0.0] * len(program.devices)
    spans: list[Busy] = []
    ends: list[float] = []
    wires: dict[Wire, float] = {}

    def begin(number: int, start_s: float) -> _Run:
        if program.walks is None:
            return _Run(program, number, start_s, free_s, spans)
        return _RunOfHosts(program, program.walks, wires, number, start_s, free_s, spans)

    under_way = [begin(number, 0.0) for number in range(min(copies, runs))]
    ready = [(run.now_s, run.number, run) for run in under_way]
    started = len(ready)
    heapq.heapify(ready)
    while ready:  # the run that submits next, of all hosts that are about to
        _, _, run = heapq.heappop(ready)
        if run.advance():
            heapq.heappush(ready, (run.now_s, run.number, run))
            continue
        ends.append(run.now_s)
        if started < runs:
            following = begin(started, run.now_s)
            heapq.heappush(ready, (following.now_s, started, following))
            started += 1
    return Simulation(program.devices, tuple(ends), tuple(spans))


class _Run:
    """One run: its host's clock, which stands where the next split is submitted."""

    def __init__(
        self,
        program: Program,
        number: int,
        start_s: float,
        free_s: list[float],
        spans: list[Busy],
    ) -> None:
        self.number = number
        self.now_s = start_s + program.run_s
        self._program = program
        self._free_s = free_s
        self._spans = spans
        self._done_s: list[float] = []
        self._prepare()

    def advance(self) -> bool:
        """Submits a split and goes on to the next one; returns False at the end of the run."""
        number = len(self._done_s)
        if number < len(self._program.steps):
            step = self._program.steps[number]
            self.now_s += step.submit_s
            start_s = max(self.now_s, self._free_s[step.device])
            finish_s = self._free_s[step.device] = start_s + step.seconds
            self._done_s.append(finish_s)
            self._tell("split", step.device, number, start_s, finish_s)
        return self._prepare()

    def _prepare(self) -> bool:
        """Does what the host does before the next split; returns whether there is one."""
        steps, number = self._program.steps, len(self._done_s)
        run = len(steps) - self._program.commits
        if number < len(steps):
            step = steps[number]
            self._copy(step.given_s, step.device, number)
            self._wait(step.waits)
            if number == run:
                self._fetch(number)
            self._copy(step.crossed_s, step.device, number)
            return True
        self._wait(self._program.final_waits)
        if run == number:
            self._fetch(number)
        return False

    def _fetch(self, number: int) -> None:
        """Gets the results. number: of the split that comes next."""
        device = self._program.steps[number - 1].device if number else 0
        self._copy(self._program.fetched_s, device, None)

    def _copy(self, seconds: float, device: int, split: int | None) -> None:
        if seconds:
            self._tell("copy", device, split, self.now_s, self.now_s + seconds)
            self.now_s += seconds

    def _wait(self, splits: Iterable[int]) -> None:
        for split in splits:
            until_s = self._done_s[split]
            if until_s > self.now_s:
                device = self._program.steps[split].device
                self._tell("wait", device, split, self.now_s, until_s)
                self.now_s = until_s
            self.now_s += self._program.steps[split].fence_s

    def _tell(
        self, kind: str, device: int, split: int | None, start_s: float, finish_s: float
    ) -> None:
        self._spans.append(Busy(kind, device, split, self.number, start_s, finish_s))


class _RunOfHosts(_Run):
    """One run of several hosts, each with a clock. `now_s` is that of the host in whose walk we
    are: before a split that of its host, at the end the caller's.
    """

    def __init__(
        self,
        program: Program,
        walks: Walks,
        wires: dict[Wire, float],
        number: int,
        start_s: float,
        free_s: list[float],
        spans: list[Busy],
    ) -> None:
        self._walks = walks
        self._wires = wires
        self._clocks = [start_s] * walks.hosts
        self._at = walks.caller
        super().__init__(program, number, start_s, free_s, spans)

    @property
    def now_s(self) -> float:
        return self._clocks[self._at]

    @now_s.setter
    def now_s(self, seconds: float) -> None:
        self._clocks[self._at] = seconds

    def _prepare(self) -> bool:
        number, steps, walks = len(self._done_s), self._program.steps, self._walks
        if not number:
            self._bring(walks.starts)
            for host in {message.target for message in walks.starts}:
                self._clocks[host] += walks.run_s[host]
        if number < len(steps):
            self._bring(walks.takes[number])
        self._go(number)
        more = super()._prepare()
        if number == len(steps):
            self._bring(walks.done)
            self._at = walks.caller
        return more

    def _go(self, number: int) -> None:
        """Goes on in the walk of the host of a split; behind the last one in the caller's."""
        steps, walks = self._program.steps, self._walks
        self._at = walks.on[steps[number].device] if number < len(steps) else walks.caller

    def _fetch(self, number: int) -> None:
        walks = self._walks
        self._bring(walks.results)
        self._at = walks.caller
        self._wait(walks.ready)
        super()._fetch(number)
        self._bring(walks.commits)
        self._go(number)

    def _bring(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._at = message.source
            self._wait(message.waits)
            self._copy(message.copied_s, message.device, message.split)
            begins_s, wires = self.now_s, self._wires
            for wire in message.wires:  # bytes leave one port and wait before the other one
                begins_s = max(begins_s, wires.get(wire, 0.0))
                wires[wire] = begins_s + message.wire_s
            self._at = message.target
            arrives_s = begins_s + message.wire_s + message.latency_s
            if arrives_s > self.now_s:
                self._tell("wait", message.device, message.split, self.now_s, arrives_s)
                self.now_s = arrives_s
