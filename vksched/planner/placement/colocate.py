"""Colocating: weights and states get homes, and what reads them goes there.

    w @ gpu:0 --> matmul: gpu:0               the heaviest weight or state pulls its reader
    w @ cpu ====> matmul: gpu:1               streamed in each run, if it has enough arithmetic
    dynamic_update_slice @ gpu:1 <-- cache: gpu:1       a state without a home follows its readers

Complexity: O(edges). Examples: tests/plan/test_plan.py, tests/planner/test_offload.py,
tests/planner/test_state_placement.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...ir.graph import Node
from ...plan.costs.op_support import OpSupport
from .candidate_devices import NONE, Caps, PlacementHints, Placing
from .states import StatePlacement

FOLLOWS = 16.0
"""Flops for each byte of a state below which a reader goes where its neighbours are: the update of
a moment does, and a product of many rows is worth a transfer to the preferred device.
"""


class Colocating(Placing):
    """The stages in which weights and states get homes."""

    def __init__(self, support: OpSupport, caps: Caps, hints: PlacementHints) -> None:
        super().__init__(support, caps, hints)
        self._state_placement = StatePlacement(support, self.device, hints.order)
        self._widening: set[int] = set()
        """What widens a weight in host memory, and waits for the first reader of the wide form."""

    def leave_in_host_memory(self, weights: Iterable[int]) -> None:
        """Give weights without a home one in the memory of the host."""
        for weight in sorted(weights):
            if weight not in self.pinned_devices:
                self.pinned_devices[weight] = self.topology.cpu
                self.passed_over[weight] = ", as not all of them fit"

    def apply_hints(self) -> None:
        """Put nodes where they are wished, weights with them, as far as there is room."""
        for node in self.support.computed if self.hints.on else ():
            device = self.hints.on.get(node.id)
            if device is None or node.id in self.device or not self.supports(node, device):
                continue
            behind = dict.fromkeys(self.graph.transitive_leaves(node))
            new = [w for w in behind if w in self._weights and w not in self.pinned_devices]
            if any(weight in self.kept for weight in behind):
                continue  # the user's placement of a weight pulls the node
            if any(self._why_not_pinned(node, weight, device) for weight in new):
                continue
            for weight in new:
                self.pinned_devices[weight] = device
                self.budget.take(device, weight)
            self.put(node, device, self.hints.reason)

    def pull(self) -> None:
        """Put nodes where the heaviest weight or state is that they read.

        A state without a home pulls late: until then it may turn out where its readers are. Those
        whose neighbours have no device pull last.
        """
        late = [node for node in self.support.computed if not self._pull_by_held(node, False)]
        for is_last in (False, True):
            if late:
                self.place_remaining({node.id for node in late})
            for node in late:
                if is_last or node.id in self.device or self._devices_near(node):
                    self._pull_by_held(node, True)
            late = [node for node in late if node.id not in self.device]
        for n in sorted(self._widening):  # nothing reads them
            self._pull(self.graph.nodes[n], self.support.operands[n])

    def _pull_by_held(self, node: Node, late: bool) -> bool:
        """Give each weight of a node a home with room for it; the heaviest one pulls the node
        there, or, from host memory, to a GPU where that pays. What widens a weight in host memory
        waits for the first reader of the wide form, and goes with it.

        late: states get a home, too. Returns whether all is done: before, nodes whose heaviest one
        is a state without a home have to wait.
        """
        if node.id in self.graph.states:
            return True
        held = [i for i in dict.fromkeys(self.graph.transitive_leaves(node)) if i in self._weights]
        if not late:
            known = [i for i in held if i not in self.graph.states or i in self.pinned_devices]
            if known != held and self._heaviest(held) not in known:
                return False
            held = known
        if not held:
            return True
        for source in held:
            if source not in self.pinned_devices:
                self._find_home(node, source)
        widening = [n for n in self.support.operands[node.id] if n in self._widening]
        self._widening.difference_update(widening)
        if node.id in self.device:
            self._widen_beside(node, widening)
        elif self._from_host(held) and node.declaration.is_dequantize:
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
        pinned_device = self.pinned_devices.get(self._heaviest(weights), self.topology.cpu)
        return self._is_cpu(pinned_device) and bool(self._gpus)

    def _pull(self, node: Node, operands: Sequence[int]) -> None:
        """Put a node where its heaviest weight is, or where that is widened."""
        heaviest = self._heaviest([i for i in operands if i in self._weights])
        puller, pinned_device = self.graph.nodes[heaviest], self.pinned_devices.get(heaviest, -1)
        pinned_device = self._near_cpu(node) if pinned_device < 0 else pinned_device
        rule = f"{puller.op} {puller.name} lives here{self.passed_over.get(heaviest, '')}"
        for n in self.support.operands[node.id]:
            widens = (
                self.graph.nodes[n].declaration.is_dequantize
                and heaviest in self.support.operands[n]
            )
            if widens and self.device.get(n, pinned_device) != pinned_device:
                pinned_device, rule = self.device[n], f"beside {self.graph.nodes[n].name}"
        if self.supports(node, pinned_device):
            self.put(node, pinned_device, rule)

    def _widen_beside(self, node: Node, widening: Sequence[int]) -> None:
        """Put what widens weights beside the reader of the wide form, which has more bytes."""
        for n in widening:
            widens, device = self.graph.nodes[n], self.device[node.id]
            if not self._is_cpu(device) and self.supports(widens, device):
                self.put(widens, device, f"beside {node.name}, as weights of few bits are streamed")
            else:
                self._pull(widens, self.support.operands[n])

    def _find_home(self, node: Node, weight: int) -> None:
        """The first device that runs the node and has room, or host memory where those are full.

        Where only the CPU runs it the next reader decides: numpy finds its weights in any case.
        """
        pinned_device, full = self.device.get(node.id, self.topology.cpu), False
        if node.id not in self.device:
            reasons: list[str] = []
            for pinned_device in self._homes_for(node, weight):
                reason = self._why_not_pinned(node, weight, pinned_device)
                if reason is None:
                    break
                reasons.append(reason)
            if reasons:
                self.passed_over[weight] = f", as {'; '.join(reasons)}"
            full = any(self.support.supports(node, d) for d in self._gpus)
        settled = not self._is_cpu(pinned_device) or full or not self._others
        if settled:
            self.pinned_devices[weight] = pinned_device
            self.budget.take(pinned_device, weight)

    def _homes_for(self, node: Node, weight: int) -> Iterable[int]:
        """Return all devices in the order in which they may be the home of a weight or state that
        a node reads. A state has one home: first come the devices of its other readers, then, for a
        node of little arithmetic, those of what the node reads and is read by.
        """
        order = self.hints.order
        if weight not in self.graph.states:
            return order
        near = self._state_placement.ranked(weight)
        if self.support.flops(node) < FOLLOWS * self._bytes(weight):
            near += self._devices_near(node)
        return dict.fromkeys((*(d for d in near if not self._is_cpu(d)), *order))

    def _devices_near(self, node: Node) -> list[int]:
        """Return the devices of what a node reads and is read by, those with most bytes first."""
        around = {*self.support.operands[node.id], *self.support.readers[node.id]}
        placed = sorted(around & self.device.keys(), key=lambda n: (-self._bytes(n), n))
        return [self.device[n] for n in placed]

    def _why_not_pinned(self, node: Node, weight: int, device: int) -> str | None:
        reason = self.unsupported_reason(node, device) or self._cannot_hold(weight, device)
        if reason is not None:
            return reason
        full = self.budget.refuses(device, weight)
        return f"{self.topology.devices[device].name} is full" if full else None

    def _offload(self, node: Node, behind: Sequence[int], widening: Sequence[int]) -> bool:
        """Put a node whose heaviest weight or state is in host memory on a GPU, where that pays.

        widening: what widens some of the weights for it, and goes with it.
        """
        cpu = self.pinned_devices.get(self._heaviest(behind), self.topology.cpu)
        together = [*(self.graph.nodes[n] for n in widening), node]
        read = {i for each in together for i in self.support.operands[each.id]}
        weights = [w for w in behind if w in read]
        streamed = [w for w in weights if self.pinned_devices.get(w) == cpu]
        moved = sum(self._bytes(w) for w in streamed)
        if not moved:
            return False
        intensity = sum(map(self.support.flops, together)) / moved
        others = (self.pinned_devices.get(w, cpu) for w in weights)
        for device in (d for d in dict.fromkeys((*others, *self._gpus)) if not self._is_cpu(d)):
            if self.topology.cpu_of(device) != cpu:  # no weight crosses a network in each run
                continue
            spec = self.topology.devices[device]
            needed = (
                moved if not spec.unified_memory else 2 * moved
            )  # a staging buffer lies there, too
            fits = needed + self._bytes(node.id) <= spec.memory_bytes
            least = self._least_intensity(device)
            candidate_devices = all(self.support.supports(each, device) for each in together)
            if (
                not (fits and intensity >= least and candidate_devices)
                or self.caps.first[device] == NONE
            ):
                continue
            kind = self.graph.nodes[streamed[0]].op
            names = ", ".join(self.graph.nodes[w].name for w in streamed)
            for each in together:
                self.put(
                    each,
                    device,
                    f"{kind} {names} stays in host memory{self.passed_over.get(streamed[0], '')}; "
                    + self._why_streamed(intensity, least),
                )
            return True
        return False

    def _why_streamed(self, intensity: float, least: float) -> str:
        if self.hints.streams is not None:
            return "streamed, as a run takes less time then, by simulation"
        return f"streamed, as its rows make {intensity:.3g} flops per byte, {least:g} pay"

    def _least_intensity(self, device: int) -> float:
        """Return the flops for each byte of its weights from which on a node is worth that they
        are streamed to a device.
        """
        own = self.topology.devices[device].offload_flops_per_byte
        return own if self.hints.streams is None or own == math.inf else self.hints.streams

    def _cannot_hold(self, weight: int, device: int) -> str | None:
        node = self.graph.nodes[weight]
        return self.unsupported_reason(node, device) if node.op == "state" else None

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
        """Return the home of a state and the rule behind it."""
        pinned_device, why = self.pinned_devices.get(node.id), None
        if pinned_device is not None and node.id in self.support.state_devices:
            return pinned_device, "state"
        if pinned_device is not None:
            why = self._cannot_hold(node.id, pinned_device)
            if why is None and node.id in self.kept:
                return pinned_device, "state"
            self.budget.release(pinned_device, node.id)
        for found in self._state_placement.ranked(node.id):
            has_room = found == pinned_device or not self.budget.refuses(found, node.id)
            if has_room and self._cannot_hold(node.id, found) is None:
                rule = "state"
                break
        else:
            rule = (
                "state" if pinned_device is not None and why is None else "first device with room"
            )
            found = (
                pinned_device
                if pinned_device is not None and why is None
                else self._first_candidate(node)
            )
        self.budget.take(found, node.id)
        if why is not None and node.id in self.kept:
            name = self.topology.devices[found].name
            text = f"{self.kept[node.id]}, which cannot: {why}"
            self.notes.append(f"{node.name}: {text}; it lives on {name}")
        return found, rule
