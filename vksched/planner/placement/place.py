"""Placement: which device runs each node, and by which rule.

Problem: devices in order of preference, the CPU last; a value that crosses between devices costs a
wait and a copy. Method: the priority policy. Overrides; weights and states pull their ops
(`pulls.py`), states live where the least crosses (`states.py`); sweeps carry devices from operands
to users and back (`placing.py`); the rest goes to the first device that can; what nothing holds is
then moved beside its neighbours while this lowers the bytes that cross (`merging.py`). A weight
whose home is the CPU, as an override says so or the devices are full, stays in host memory;
an op that does enough arithmetic per byte of it runs on a GPU all the same, the weight streamed in
for each run.

    w0 @ gpu:0   w1 @ gpu:1                                 w2 @ cpu
       |            |                                          : streamed, 512 rows pay
    matmul ----> matmul --> relu (follows its operand) ---> matmul @ gpu:1

Complexity: O(sweeps * edges). Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.graph import Node
from ...plan.costs.op_support import OpSupport
from ...plan.types.placement_overrides import Overrides, resolve_overrides
from ...plan.types.plan_types import Placement
from .candidate_devices import Caps, PlacementHints
from .colocate import Colocating
from .merge_neighbours import Merger


def place(
    support: OpSupport, overrides: Overrides, caps: Caps, hints: PlacementHints | None = None
) -> tuple[tuple[Placement, ...], tuple[str, ...]]:
    """Return the placement of every node and notes for the user.

    caps: what does not fit. A node that streams its weights needs little memory: it, and what
    follows it, may stand beyond the first node that a device must not take. hints: by default the
    devices in their order.
    """
    hints = hints or PlacementHints(support.topology.order, {}, "")
    placer = _Placer(support, caps, hints)
    _apply_overrides(placer, overrides)
    placer.leave_in_host_memory(hints.spread)
    placer.apply_hints()
    placer.pull()
    placer.place_states()
    placer.place_remaining()
    placer.place_rest()
    if not hints.on:
        placer.merge()
    return _placements(placer), tuple(dict.fromkeys(placer.notes))


class _Placer(Colocating):
    """The stages behind the pulls."""

    def place_rest(self) -> None:
        for node in self._left():
            device = self._first_candidate(node)
            reasons = self._reasons(node, device)
            self.put(node, device, "first device that can run it" + reasons)
        for node in self.support.computed if self._others else ():
            device = self.device[node.id]
            if not self._is_cpu(device) or node.id in self.fixed:
                continue
            if not any(self.supports(node, d) for d in self._others):
                self.reason[node.id] = self._reasons(node, device).removeprefix(", ")

    def _reasons(self, node: Node, end: int) -> str:
        """Return why the devices before `end` that cannot run a node cannot, as part of a rule."""
        before = (self._is_cpu(end) and self._others) or range(end)
        reasons = [
            f"{self.topology.devices[d].name} cannot: {reason}"
            for d in sorted(before)
            if (reason := self.unsupported_reason(node, d)) is not None
        ]
        return f", as {'; '.join(reasons)}" if reasons else ""

    def merge(self) -> None:
        """Move what nothing holds to its neighbours' devices while less crosses for it."""
        operands = self.support.operands
        free = [
            n
            for n in self.support.computed
            if n.id not in self.fixed and self._weights.isdisjoint(operands[n.id])
        ]
        caps = zip(self.caps.first, self.caps.peaks, strict=True)
        roomy = {d for d, (first, peak) in enumerate(caps) if first is None and not peak}
        merger = Merger(self.support, self.device, self.supports, self.put)
        merger.merge(free, roomy & self._others)


def _apply_overrides(placer: _Placer, overrides: Overrides) -> None:
    """Put nodes where the user wants them, or says why not; weights get their homes."""
    resolved = resolve_overrides(placer.graph, placer.topology, overrides)
    heeded = {text for n, (_, text) in resolved.items() if placer.graph.nodes[n].op != "input"}
    for node_id, (device, text) in resolved.items():
        target = placer.graph.nodes[node_id]
        if target.op in ("weight", "state"):
            if target.id in placer.support.state_devices:
                _stay(placer, target, device, text)
                continue
            placer.pinned_devices[target.id] = device
            placer.kept[target.id] = text
            placer.budget.take(device, target.id)
        elif target.id in placer._rank:
            _override(placer, target, device, text)
        elif target.op == "input" and text not in heeded:
            placer.notes.append(f"{text}: an input goes wherever it is read; place its readers")


def _stay(placer: _Placer, node: Node, device: int, text: str) -> None:
    pinned_device = placer.support.state_devices[node.id]
    if pinned_device != device:
        name = placer.topology.devices[pinned_device].name
        placer.notes.append(f"{text} has no effect: {node.name} lives on {name} already")


def _override(placer: _Placer, node: Node, device: int, text: str) -> None:
    reason = placer.unsupported_reason(node, device)
    if reason is None:
        placer.put(node, device, text)
    else:
        other = placer._first_candidate(node)
        placer.put(node, other, f"{text}, which cannot: {reason}")
        placer.notes.append(
            f"{node.name}: {text}, which cannot: {reason}; "
            f"it runs on {placer.topology.devices[other].name}"
        )
    placer.fixed.add(node.id)


def _placements(placer: _Placer) -> tuple[Placement, ...]:
    """Return the placements of all nodes: leaves and views get theirs from those that run."""
    out: list[Placement] = []
    views, roots = placer.graph.views, placer.graph.view_bases
    for node in placer.graph.nodes:
        if node.id in placer.device:
            out.append(Placement(placer.device[node.id], placer.reason[node.id]))
        elif node.id in views:
            root = roots[node.id]
            out.append(Placement(out[root].device, f"view of {placer.graph.nodes[root].name}"))
        else:
            out.append(_leaf(placer, node))
    return tuple(out)


def _names(placer: _Placer, devices: Iterable[int]) -> str:
    """Return the names of some devices, as text."""
    return ", ".join(placer.topology.devices[d].name for d in sorted(devices))


def _leaf(placer: _Placer, node: Node) -> Placement:
    cpu = placer.topology.cpu
    users = list(dict.fromkeys([placer.device[r] for r in placer.support.readers[node.id]]))
    if node.op == "input":
        return Placement(cpu, f"from the caller to {_names(placer, users) or 'no device'}")
    pinned_device = placer.pinned_devices.get(node.id)
    if len(users) == 1 and pinned_device in (None, users[0]):
        return Placement(users[0], node.op)
    gpus = [d for d in users if not placer.topology.is_cpu(d)]
    if pinned_device is not None and placer.topology.is_cpu(pinned_device) and gpus:
        return Placement(
            pinned_device, f"{node.op} in host memory; streamed to {_names(placer, gpus)}"
        )
    if pinned_device is None or (users and pinned_device not in users):
        if node.id in placer.kept:
            reader = next(
                r for r in placer.support.readers[node.id] if pinned_device != placer.device[r]
            )
            why = (
                placer.unsupported_reason(placer.graph.nodes[reader], pinned_device or 0)
                or placer.reason[reader]
            )
            placer.notes.append(
                f"{placer.kept[node.id]} has no effect: {placer.graph.nodes[reader].name}, which "
                f"reads it, runs on {placer.topology.devices[placer.device[reader]].name} ({why})"
            )
        pinned_device = (gpus or users or [cpu])[0]  # numpy has it in any case
    others = _names(placer, [d for d in users if d != pinned_device])
    also = f"; also on {others}, for the ops there" if others else ""
    return Placement(pinned_device, f"{node.op}{also}")
