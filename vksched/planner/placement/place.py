"""Place: choose the device of each node, with a reason, by the priority policy.

Problem: devices have an order of preference, the CPU last; a value that is transferred between
devices costs a wait and a copy. Method: apply overrides; place ops with their weights and states
(colocate.py), states where they cause the fewest transfers (states.py); propagate devices from
operands to users and back (candidate_devices.py); place the rest on the first device that supports
it; then move unconstrained nodes next to their neighbours while this reduces transferred bytes
(merge_neighbours.py). A weight pinned to the CPU, by an override or because the devices are full,
stays in host memory; an op with enough arithmetic per byte of it still runs on a GPU, and the
weight is streamed in each run.

    w0 @ gpu:0   w1 @ gpu:1                                 w2 @ cpu
       |            |                                          : streamed, 512 rows pay off
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
from .colocate import Colocation
from .merge_neighbours import Merger


def place(
    support: OpSupport, overrides: Overrides, caps: Caps, hints: PlacementHints | None = None
) -> tuple[tuple[Placement, ...], tuple[str, ...]]:
    """Return the placement of every node, and notes for the user.

    caps: the nodes that do not fit. A node that streams its weights needs little memory, so it and
    its neighbours may run beyond the cap of a device. hints: by default the devices in their order.
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


class _Placer(Colocation):
    """The steps of placement after colocation."""

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
        """Return why the devices before `end` cannot run a node, as part of a reason."""
        before = (self._is_cpu(end) and self._others) or range(end)
        reasons = [
            f"{self.topology.devices[d].name} cannot: {reason}"
            for d in sorted(before)
            if (reason := self.unsupported_reason(node, d)) is not None
        ]
        return f", as {'; '.join(reasons)}" if reasons else ""

    def merge(self) -> None:
        """Move unconstrained nodes to the devices of neighbours to reduce transfers."""
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
    """Place nodes and pin weights as the user requests, or note why not."""
    resolved = resolve_overrides(placer.graph, placer.topology, overrides)
    effective = {text for n, (_, text) in resolved.items() if placer.graph.nodes[n].op != "input"}
    for node_id, (device, text) in resolved.items():
        target = placer.graph.nodes[node_id]
        if target.op in ("weight", "state"):
            if target.id in placer.support.state_devices:
                _stay(placer, target, device, text)
                continue
            placer.pinned_devices[target.id] = device
            placer.user_reasons[target.id] = text
            placer.budget.take(device, target.id)
        elif target.id in placer._rank:
            _override(placer, target, device, text)
        elif target.op == "input" and text not in effective:
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
    """Return the placements of all nodes; leaves and views follow the nodes that run."""
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
        if node.id in placer.user_reasons:
            reader = next(
                r for r in placer.support.readers[node.id] if pinned_device != placer.device[r]
            )
            why = (
                placer.unsupported_reason(placer.graph.nodes[reader], pinned_device or 0)
                or placer.reason[reader]
            )
            placer.notes.append(
                f"{placer.user_reasons[node.id]} has no effect: "
                f"{placer.graph.nodes[reader].name}, which reads it, runs "
                f"on {placer.topology.devices[placer.device[reader]].name} ({why})"
            )
        pinned_device = (gpus or users or [cpu])[0]  # the CPU can read it anywhere
    others = _names(placer, [d for d in users if d != pinned_device])
    also = f"; also on {others}, for the ops there" if others else ""
    return Placement(pinned_device, f"{node.op}{also}")
