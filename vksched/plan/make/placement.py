"""Placement: which device runs each node, and by which rule.

Problem: devices in order of preference, the CPU last; a value that crosses between devices costs a
wait and a copy. Method: the priority policy. Overrides; weights pull their ops; sweeps carry
devices from operands to users and back; the rest goes to the first device that can; what nothing
holds is then moved beside its neighbours while this lowers the bytes that cross (`merging.py`). A
weight whose home is the CPU, as an override says so or the devices are full, stays in host memory;
an op that does enough arithmetic per byte of it runs on a GPU all the same, the weight streamed in
for each run.

    w0 @ gpu:0   w1 @ gpu:1                                 w2 @ cpu
       |            |                                          : streamed, 512 rows pay
    matmul ----> matmul --> relu (follows its operand) ---> matmul @ gpu:1

Complexity: O(sweeps * edges). Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ...graph import Graph, Node
from ...machine.spec import Machine
from ...types import WORD_BYTES
from ..names import NameIndex
from ..support import Support
from ..value import Placement
from .merging import Merger
from .room import Room
from .states import StateHomes

NONE = -1
"""The cap of a device that must not take any node, not even one that streams its weights."""

Overrides = Sequence[tuple[str | int, str]]


@dataclass
class Caps:
    """What each device must not take, as it would not fit: nodes by their number in order.

    first: the first one; None: it may take all, NONE: nothing. peaks: those around the moment that
    takes most.
    """

    first: list[int | None]
    peaks: list[range]


@dataclass(frozen=True, slots=True)
class Wishes:
    """Where nodes shall run if they can.

    order: all devices, the best one first. on: the device of single nodes, by id, with the rule to
    tell the user. A node with a device of its own follows no neighbour.
    """

    order: tuple[int, ...]
    on: Mapping[int, int]
    rule: str


def place(
    support: Support, overrides: Overrides, caps: Caps, wishes: Wishes | None = None
) -> tuple[tuple[Placement, ...], tuple[str, ...]]:
    """Returns the placement of every node and notes for the user.

    caps: what does not fit. A node that streams its weights needs little memory: it, and what
    follows it, may stand beyond the first node that a device must not take. wishes: by default the
    devices in their order.
    """
    wishes = wishes or Wishes(support.machine.order, {}, "")
    placer = _Placer(support, caps, wishes)
    _apply_overrides(placer, overrides)
    placer.grant_wishes()
    placer.pull()
    placer.place_states()
    placer.sweep()
    placer.place_rest()
    if not wishes.on:
        placer.merge()
    return _placements(placer), tuple(dict.fromkeys(placer.notes))


def resolve_overrides(
    graph: Graph, machine: Machine, overrides: Overrides
) -> dict[int, tuple[int, str]]:
    """Returns for each node that an override names its device and the override as text.

    Node ids win over patterns, later patterns over earlier ones. A view stands for what it views.

    Raises:
        PlanError: no such node, or a pattern that matches nothing. DeviceError: a device that is
            not there.
    """
    out: dict[int, tuple[int, str]] = {}
    names = NameIndex(graph, "placement")
    for key, name in sorted(overrides, key=lambda item: isinstance(item[0], int)):
        device = machine.index(name)
        matched = [graph.root(node_id) for node_id in names.find(key)]
        told = graph.nodes[key].name if isinstance(key, int) else key
        out.update((node_id, (device, f"override: {told} on {name}")) for node_id in matched)
    return out


class _Placer:
    """The state of one pass; `device` and `rule` grow from stage to stage."""

    def __init__(self, support: Support, caps: Caps, wishes: Wishes) -> None:
        self.support = support
        self.wishes = wishes
        self.graph = support.graph
        self.machine = support.machine
        self._is_cpu = self.machine.is_cpu
        self._gpus = tuple(takewhile(lambda d: not self._is_cpu(d), wishes.order))
        """Devices that are asked before a CPU."""
        self.caps = caps
        self.device: dict[int, int] = {}
        self.rule: dict[int, str] = {}
        self.fixed: set[int] = set()
        self.homes: dict[int, int] = dict(support.homes)
        self.passed_over: dict[int, str] = {}
        self.kept: dict[int, str] = {}
        self._others = {d for d in range(self.machine.cpu) if not self._is_cpu(d)}
        """All devices but CPUs."""
        self._weights = frozenset(n.id for n in self.graph.nodes if n.op in ("weight", "state"))
        self.notes: list[str] = []
        self._rank = {n.id: position for position, n in enumerate(support.computed)}
        self.room = Room(support)
        self._state_homes = StateHomes(support, self.device, wishes.order)
        self._widening: set[int] = set()
        """What widens a weight in host memory, and waits for the first reader of the wide form."""

    def why_not(self, node: Node, device: int) -> str | None:
        cap, number = self.caps.first[device], self._rank[node.id]
        if (cap is not None and number >= cap) or number in self.caps.peaks[device]:
            return f"{self.machine.devices[device].name} is full"
        return self.support.why_not(node, device)

    def can(self, node: Node, device: int) -> bool:
        """Whether a device may take a node: beyond its cap only beside what streams there."""
        if self.why_not(node, device) is None:
            return True
        at_peak = self._rank[node.id] in self.caps.peaks[device]
        beside = not at_peak and self._beside_streams(node, device)
        return beside and self.support.can(node, device)

    def _beside_streams(self, node: Node, device: int) -> bool:
        cap = self.caps.first[device]
        neighbours = (*self.support.operands[node.id], *self.support.readers[node.id])
        if cap is None or cap == NONE:  # a state that lives there keeps nothing beside it
            return False
        return any(self.device.get(n) == device and self._rank[n] >= cap for n in neighbours)

    def _first_able(self, node: Node) -> int:
        first = next(d for d in self.wishes.order if self.can(node, d))
        return self._near_cpu(node) if self._gpus and self._is_cpu(first) else first

    def _near_cpu(self, node: Node) -> int:
        """Returns the CPU that takes what no other device can: that of the host which has most of
        what a node reads, else of one that reads its result.
        """
        if len(self.machine.hosts) == 1:
            return self.machine.cpu
        placed = [n for n in self.support.operands[node.id] if n in self.device]
        beside = sorted(placed, key=lambda n: (-self._bytes(n), n))
        beside += [n for n in self.support.readers[node.id] if n in self.device]
        cpus = (self.machine.cpu_of(self.device[n]) for n in beside)
        return next((d for d in cpus if d is not None and self.can(node, d)), self.machine.cpu)

    def put(self, node: Node, device: int, rule: str) -> None:
        self.device[node.id] = device
        self.rule[node.id] = rule

    # -- stages ------------------------------------------------------------------------------------

    def grant_wishes(self) -> None:
        """Puts nodes where they are wished, weights with them, as far as there is room."""
        for node in self.support.computed if self.wishes.on else ():
            device = self.wishes.on.get(node.id)
            if device is None or node.id in self.device or not self.can(node, device):
                continue
            behind = dict.fromkeys(self.graph.sources_behind(node))
            new = [w for w in behind if w in self._weights and w not in self.homes]
            if any(weight in self.kept for weight in behind):
                continue  # the user's placement of a weight pulls the node
            if any(self._why_no_home(node, weight, device) for weight in new):
                continue
            for weight in new:
                self.homes[weight] = device
                self.room.take(device, weight)
            self.put(node, device, self.wishes.rule)

    def pull(self) -> None:
        """Puts nodes where the heaviest weight or state is that they read.

        A state without a home pulls last: until then it may turn out where its readers are.
        """
        late = [node for node in self.support.computed if not self._pull_by_held(node, False)]
        if late:
            self.sweep({node.id for node in late})
            for node in late:
                self._pull_by_held(node, True)
        for n in sorted(self._widening):  # nothing reads them
            self._pull(self.graph.nodes[n], self.support.operands[n])

    def _pull_by_held(self, node: Node, late: bool) -> bool:
        """Gives each weight of a node a home with room for it; the heaviest one pulls the node
        there, or, from host memory, to a GPU where that pays. What widens a weight in host memory
        waits for the first reader of the wide form, and goes with it.

        late: states get a home, too. Returns whether all is done: before, nodes whose heaviest one
        is a state without a home have to wait.
        """
        if node.id in self.graph.states:
            return True
        held = [i for i in dict.fromkeys(self.graph.sources_behind(node)) if i in self._weights]
        if not late:
            known = [i for i in held if i not in self.graph.states or i in self.homes]
            if known != held and self._heaviest(held) not in known:
                return False
            held = known
        if not held:
            return True
        for source in held:
            if source not in self.homes:
                self._find_home(node, source)
        widening = [n for n in self.support.operands[node.id] if n in self._widening]
        self._widening.difference_update(widening)
        if node.id in self.device:
            self._widen_beside(node, widening)
        elif self._from_host(held) and node.declaration.widens:
            self._widening.add(node.id)
        elif not (self._from_host(held) and self._offload(node, held, widening)):
            for n in widening:
                self._pull(self.graph.nodes[n], self.support.operands[n])
            self._pull(node, held)
        return True

    def _heaviest(self, weights: Sequence[int]) -> int:
        return max(weights, key=lambda w: (self._bytes(w), -w)) if len(weights) > 1 else weights[0]

    def _from_host(self, weights: Sequence[int]) -> bool:
        """Whether the heaviest weight of a node is in host memory, and a GPU is preferred."""
        home = self.homes.get(self._heaviest(weights), self.machine.cpu)
        return self._is_cpu(home) and bool(self._gpus)

    def _pull(self, node: Node, operands: Sequence[int]) -> None:
        """Puts a node where its heaviest weight is, or where that is widened."""
        heaviest = self._heaviest([i for i in operands if i in self._weights])
        puller, home = self.graph.nodes[heaviest], self.homes.get(heaviest, -1)
        home = self._near_cpu(node) if home < 0 else home
        rule = f"{puller.op} {puller.name} lives here{self.passed_over.get(heaviest, '')}"
        for n in self.support.operands[node.id]:
            widens = self.graph.nodes[n].declaration.widens and heaviest in self.support.operands[n]
            if widens and self.device.get(n, home) != home:
                home, rule = self.device[n], f"beside {self.graph.nodes[n].name}"
        if self.can(node, home):
            self.put(node, home, rule)

    def _widen_beside(self, node: Node, widening: Sequence[int]) -> None:
        """Puts what widens weights beside the reader of the wide form, which has more bytes."""
        for n in widening:
            widens, device = self.graph.nodes[n], self.device[node.id]
            if not self._is_cpu(device) and self.can(widens, device):
                self.put(widens, device, f"beside {node.name}, as weights of few bits are streamed")
            else:
                self._pull(widens, self.support.operands[n])

    def _find_home(self, node: Node, weight: int) -> None:
        """The first device that runs the node and has room, or host memory where those are full.

        Where only the CPU runs it the next reader decides: numpy finds its weights in any case.
        """
        home, full = self.device.get(node.id, self.machine.cpu), False
        if node.id not in self.device:
            reasons: list[str] = []
            for home in self._homes_for(node, weight):
                reason = self._why_no_home(node, weight, home)
                if reason is None:
                    break
                reasons.append(reason)
            if reasons:
                self.passed_over[weight] = f", as {'; '.join(reasons)}"
            full = any(self.support.can(node, d) for d in self._gpus)
        settled = not self._is_cpu(home) or full or not self._others
        if settled:
            self.homes[weight] = home
            self.room.take(home, weight)

    def _homes_for(self, node: Node, weight: int) -> Iterable[int]:
        """Returns all devices in the order in which they may be the home of a weight or state that
        a node reads. A state has one home: first come the devices of its other readers, then those
        of what the node reads and is read by.
        """
        order = self.wishes.order
        if weight not in self.graph.states:
            return order
        around = [*self.support.operands[node.id], *self.support.readers[node.id]]
        placed = sorted({n for n in around if n in self.device}, key=lambda n: (-self._bytes(n), n))
        near = (*self._state_homes.ranked(weight), *(self.device[n] for n in placed))
        return dict.fromkeys((*(d for d in near if not self._is_cpu(d)), *order))

    def _why_no_home(self, node: Node, weight: int, device: int) -> str | None:
        reason = self.why_not(node, device) or self._cannot_hold(weight, device)
        if reason is not None:
            return reason
        full = self.room.refuses(device, weight)
        return f"{self.machine.devices[device].name} is full" if full else None

    def _offload(self, node: Node, behind: Sequence[int], widening: Sequence[int]) -> bool:
        """Puts a node whose heaviest weight is in host memory on a GPU, where that pays.

        widening: what widens some of the weights for it, and goes with it.
        """
        cpu = self.homes.get(self._heaviest(behind), self.machine.cpu)
        together = [*(self.graph.nodes[n] for n in widening), node]
        read = {i for each in together for i in self.support.operands[each.id]}
        weights = [w for w in behind if w in read]
        streamed = [
            w for w in weights if self.homes.get(w) == cpu and self.graph.nodes[w].op == "weight"
        ]
        # a state that lives there crosses in each run, too
        moved = sum(self._bytes(w) for w in weights if self.homes.get(w) == cpu)
        if not streamed:
            return False
        intensity = sum(map(self.support.flops, together)) / moved
        others = (self.homes.get(w, cpu) for w in weights)
        for device in (d for d in dict.fromkeys((*others, *self._gpus)) if not self._is_cpu(d)):
            if self.machine.cpu_of(device) != cpu:  # no weight crosses a network in each run
                continue
            spec, room = self.machine.devices[device], self.room.left(device)
            # a window in the device's own memory takes as much as the weight would
            fits = spec.windows_apart or (self.kept.keys() >= {*streamed} and 2 * moved <= room)
            pays = intensity >= spec.offload_flops_per_byte
            able = all(self.support.can(each, device) for each in together)
            if not (fits and pays and able) or self.caps.first[device] == NONE:
                continue
            if not spec.windows_apart:
                self.room.take_window(device, moved)
            names = ", ".join(self.graph.nodes[w].name for w in streamed)
            for each in together:
                self.put(
                    each,
                    device,
                    f"weight {names} stays in host memory{self.passed_over.get(streamed[0], '')}; "
                    f"streamed, as its rows make {intensity:.3g} flops per byte, "
                    f"{spec.offload_flops_per_byte:g} pay",
                )
            return True
        return False

    def _cannot_hold(self, weight: int, device: int) -> str | None:
        node = self.graph.nodes[weight]
        return self.why_not(node, device) if node.op == "state" else None

    def place_states(self) -> None:
        """A state is where the least crosses for it, or where an earlier graph or the user has put
        it; its next value is written there.
        """
        for node_id, state in self.graph.states.items():
            node = self.graph.nodes[node_id]
            if node_id == state:
                self.put(node, *self._place_state(node))
            else:
                self.put(node, self.device[state], f"writes {self.graph.nodes[state].name}")
            self.fixed.add(node_id)

    def _place_state(self, node: Node) -> tuple[int, str]:
        """Returns the home of a state and the rule behind it."""
        home, why = self.homes.get(node.id), None
        if home is not None and node.id in self.support.homes:
            return home, "state"
        if home is not None:
            why = self._cannot_hold(node.id, home)
            if why is None and node.id in self.kept:
                return home, "state"
            self.room.release(home, node.id)
        for found in self._state_homes.ranked(node.id):
            if not (self._cannot_hold(node.id, found) or self.room.refuses(found, node.id)):
                rule = "state"
                break
        else:
            rule = "state" if home is not None and why is None else "first device with room"
            found = home if home is not None and why is None else self._first_able(node)
        self.room.take(found, node.id)
        if why is not None and node.id in self.kept:
            name = self.machine.devices[found].name
            text = f"{self.kept[node.id]}, which cannot: {why}"
            self.notes.append(f"{node.name}: {text}; it lives on {name}")
        return found, rule

    def sweep(self, late: Collection[int] = ()) -> None:
        """Carries devices along the edges; not the CPU's, which one op there would else give to all
        that nothing holds. late: nodes that get their device otherwise, and states with them.
        """
        carried = self._others or set(range(self.machine.cpu))
        apart = {*late, *self.graph.states}
        for node in [n for n in self._left() if n.id not in apart]:
            self._follow(node, self.support.operands[node.id], carried)
        for node in [n for n in reversed(self._left()) if n.id not in apart]:
            self._follow(node, self.support.readers[node.id], carried)

    def _left(self) -> list[Node]:
        """The nodes without a device."""
        return [n for n in self.support.computed if n.id not in self.device]

    def _follow(self, node: Node, neighbours: Sequence[int], devices: set[int]) -> None:
        placed = [n for n in neighbours if self.device.get(n) in devices]
        if len(placed) > 1:
            placed.sort(key=lambda n: (-self._bytes(n), n))
        for other in placed:
            if self.can(node, self.device[other]):
                self.put(node, self.device[other], f"beside {self.graph.nodes[other].name}")
                return

    def place_rest(self) -> None:
        for node in self._left():
            device = self._first_able(node)
            reasons = self._reasons(node, device)
            self.put(node, device, "first device that can run it" + reasons)
        for node in self.support.computed if self._others else ():
            device = self.device[node.id]
            if not self._is_cpu(device) or node.id in self.fixed:
                continue
            if not any(self.can(node, d) for d in self._others):
                self.rule[node.id] = self._reasons(node, device).removeprefix(", ")

    def _reasons(self, node: Node, end: int) -> str:
        """Returns why the devices before `end` that cannot run a node cannot, as part of a rule."""
        before = self._others if self._is_cpu(end) else range(end)
        reasons = [
            f"{self.machine.devices[d].name} cannot: {reason}"
            for d in sorted(before)
            if (reason := self.why_not(node, d)) is not None
        ]
        return f", as {'; '.join(reasons)}" if reasons else ""

    def merge(self) -> None:
        """Moves what nothing holds to its neighbours' devices while less crosses for it."""
        operands = self.support.operands
        free = [
            n
            for n in self.support.computed
            if n.id not in self.fixed and self._weights.isdisjoint(operands[n.id])
        ]
        caps = zip(self.caps.first, self.caps.peaks, strict=True)
        roomy = {d for d, (first, peak) in enumerate(caps) if first is None and not peak}
        merger = Merger(self.support, self.device, self.can, self.put)
        merger.merge(free, roomy & self._others)

    # -- helpers -----------------------------------------------------------------------------------

    def _bytes(self, node_id: int) -> int:
        return self.graph.words[node_id] * WORD_BYTES


def _apply_overrides(placer: _Placer, overrides: Overrides) -> None:
    """Puts nodes where the user wants them, or says why not; weights get their homes."""
    resolved = resolve_overrides(placer.graph, placer.machine, overrides)
    heeded = {text for n, (_, text) in resolved.items() if placer.graph.nodes[n].op != "input"}
    for node_id, (device, text) in resolved.items():
        target = placer.graph.nodes[node_id]
        if target.op in ("weight", "state"):
            if target.id in placer.support.homes:
                _stay(placer, target, device, text)
                continue
            placer.homes[target.id] = device
            placer.kept[target.id] = text
            placer.room.take(device, target.id)
        elif target.id in placer._rank:
            _override(placer, target, device, text)
        elif target.op == "input" and text not in heeded:
            placer.notes.append(f"{text}: an input goes wherever it is read; place its readers")


def _stay(placer: _Placer, node: Node, device: int, text: str) -> None:
    home = placer.support.homes[node.id]
    if home != device:
        name = placer.machine.devices[home].name
        placer.notes.append(f"{text} has no effect: {node.name} lives on {name} already")


def _override(placer: _Placer, node: Node, device: int, text: str) -> None:
    reason = placer.why_not(node, device)
    if reason is None:
        placer.put(node, device, text)
    else:
        other = placer._first_able(node)
        placer.put(node, other, f"{text}, which cannot: {reason}")
        placer.notes.append(
            f"{node.name}: {text}, which cannot: {reason}; "
            f"it runs on {placer.machine.devices[other].name}"
        )
    placer.fixed.add(node.id)


def _placements(placer: _Placer) -> tuple[Placement, ...]:
    """Returns the placements of all nodes: leaves and views get theirs from those that run."""
    out: list[Placement] = []
    views, roots = placer.graph.views, placer.graph.roots
    for node in placer.graph.nodes:
        if node.id in placer.device:
            out.append(Placement(placer.device[node.id], placer.rule[node.id]))
        elif node.id in views:
            root = roots[node.id]
            out.append(Placement(out[root].device, f"view of {placer.graph.nodes[root].name}"))
        else:
            out.append(_leaf(placer, node))
    return tuple(out)


def _names(placer: _Placer, devices: Iterable[int]) -> str:
    """Returns the names of some devices, as text."""
    return ", ".join(placer.machine.devices[d].name for d in sorted(devices))


def _leaf(placer: _Placer, node: Node) -> Placement:
    cpu = placer.machine.cpu
    users = list(dict.fromkeys([placer.device[r] for r in placer.support.readers[node.id]]))
    if node.op == "input":
        return Placement(cpu, f"from the caller to {_names(placer, users) or 'no device'}")
    home = placer.homes.get(node.id)
    if len(users) == 1 and home in (None, users[0]):
        return Placement(users[0], node.op)
    gpus = [d for d in users if not placer.machine.is_cpu(d)]
    if home is not None and placer.machine.is_cpu(home) and gpus:
        return Placement(home, f"{node.op} in host memory; streamed to {_names(placer, gpus)}")
    if home is None or (users and home not in users):
        if node.id in placer.kept:
            reader = next(r for r in placer.support.readers[node.id] if home != placer.device[r])
            why = placer.why_not(placer.graph.nodes[reader], home or 0) or placer.rule[reader]
            placer.notes.append(
                f"{placer.kept[node.id]} has no effect: {placer.graph.nodes[reader].name}, which "
                f"reads it, runs on {placer.machine.devices[placer.device[reader]].name} ({why})"
            )
        home = (gpus or users or [cpu])[0]  # numpy has it in any case
    others = _names(placer, [d for d in users if d != home])
    also = f"; also on {others}, for the ops there" if others else ""
    return Placement(home, f"{node.op}{also}")
