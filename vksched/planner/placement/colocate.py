"""Colocation: place weights and states on devices, and the ops that read them with them.

    w @ gpu:0 --> matmul: gpu:0               the heaviest weight or state determines the device
    w @ cpu ====> matmul: gpu:1               streamed in each run, if arithmetic intensity suffices
    dynamic_update_slice @ gpu:1 <-- cache: gpu:1       an unpinned state follows its readers

Complexity: O(edges). Examples: tests/plan/test_plan.py, tests/planner/test_offload.py,
tests/planner/test_state_placement.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...ir.graph import Node
from ...plan.costs.op_support import OpSupport
from .candidate_devices import NONE, Caps, PlacementHints, PlacementState
from .states import StatePlacement

MIN_PULL_INTENSITY = 16.0
"""Flops per byte of a state below which a reader follows its neighbours, such as the update of a
moment; a matmul of many rows is worth a transfer to the preferred device.
"""


class Colocation(PlacementState):
    """The steps of placement that pin weights and states."""

    def __init__(self, support: OpSupport, caps: Caps, hints: PlacementHints) -> None:
        super().__init__(support, caps, hints)
        self._state_placement = StatePlacement(support, self.device, hints.order)
        self._dequantizing: set[int] = set()
        """Dequantize nodes of weights in host memory, to be placed with their first reader."""

    def leave_in_host_memory(self, weights: Iterable[int]) -> None:
        """Pin weights without a device to the CPU."""
        for weight in sorted(weights):
            if weight not in self.pinned_devices:
                self.pinned_devices[weight] = self.topology.cpu
                self.passed_over[weight] = ", as not all of them fit"

    def apply_hints(self) -> None:
        """Place nodes as hinted, with their weights, as far as memory allows."""
        for node in self.support.computed if self.hints.on else ():
            device = self.hints.on.get(node.id)
            if device is None or node.id in self.device or not self.supports(node, device):
                continue
            leaves = dict.fromkeys(self.graph.transitive_leaves(node))
            new = [w for w in leaves if w in self._weights and w not in self.pinned_devices]
            if any(weight in self.user_reasons for weight in leaves):
                continue  # the user's pin of a weight takes precedence
            if any(self._why_not_pinned(node, weight, device) for weight in new):
                continue
            for weight in new:
                self.pinned_devices[weight] = device
                self.budget.take(device, weight)
            self.put(node, device, self.hints.reason)

    def pull(self) -> None:
        """Place nodes on the device of their heaviest weight or state.

        A state without a device is placed late, because its readers may determine its device. Nodes
        whose neighbours have no device are placed last.
        """
        late = [node for node in self.support.computed if not self._pull_by_held(node, False)]
        for is_last in (False, True):
            if late:
                self.place_remaining({node.id for node in late})
            for node in late:
                if is_last or node.id in self.device or self._devices_near(node):
                    self._pull_by_held(node, True)
            late = [node for node in late if node.id not in self.device]
        for n in sorted(self._dequantizing):  # nothing reads them
            self._pull(self.graph.nodes[n], self.support.operands[n])

    def _pull_by_held(self, node: Node, late: bool) -> bool:
        """Pin each weight of a node to a device with memory for it, and place the node with the
        heaviest one; if that is in host memory, on a GPU if this pays off. The dequantize node of a
        weight in host memory is placed with its first reader.

        late: also pin states. Returns True if the node is done; before, nodes whose heaviest leaf
        is an unpinned state have to wait.
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
                self._pin_weight(node, source)
        dequantizing = [n for n in self.support.operands[node.id] if n in self._dequantizing]
        self._dequantizing.difference_update(dequantizing)
        if node.id in self.device:
            self._place_dequantize(node, dequantizing)
        elif self._from_host(held) and node.declaration.is_dequantize:
            self._dequantizing.add(node.id)
        elif not (self._from_host(held) and self._offload(node, held, dequantizing)):
            for n in dequantizing:
                self._pull(self.graph.nodes[n], self.support.operands[n])
            self._pull(node, held)
        return True

    def _heaviest(self, weights: Sequence[int]) -> int:
        return max(weights, key=lambda w: (self._bytes(w), -w)) if len(weights) > 1 else weights[0]

    def _from_host(self, weights: Sequence[int]) -> bool:
        """Return True if the heaviest weight is in host memory, and a GPU is preferred."""
        pinned_device = self.pinned_devices.get(self._heaviest(weights), self.topology.cpu)
        return self._is_cpu(pinned_device) and bool(self._gpus)

    def _pull(self, node: Node, operands: Sequence[int]) -> None:
        """Place a node on the device of its heaviest weight, or of the node that dequantizes it."""
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
                pinned_device, rule = self.device[n], f"next to {self.graph.nodes[n].name}"
        if self.supports(node, pinned_device):
            self.put(node, pinned_device, rule)

    def _place_dequantize(self, node: Node, dequantizing: Sequence[int]) -> None:
        """Place dequantize nodes with their reader: floats are larger than quantized weights."""
        for n in dequantizing:
            widens, device = self.graph.nodes[n], self.device[node.id]
            if not self._is_cpu(device) and self.supports(widens, device):
                self.put(
                    widens, device, f"next to {node.name}, because quantized weights are streamed"
                )
            else:
                self._pull(widens, self.support.operands[n])

    def _pin_weight(self, node: Node, weight: int) -> None:
        """Pin a weight to the first device that supports the node and has memory, or to the CPU if
        those are full.

        If only the CPU supports the node, the next reader decides: the CPU can read weights
        anywhere.
        """
        pinned_device, full = self.device.get(node.id, self.topology.cpu), False
        if node.id not in self.device:
            reasons: list[str] = []
            for pinned_device in self._devices_for(node, weight):
                reason = self._why_not_pinned(node, weight, pinned_device)
                if reason is None:
                    break
                reasons.append(reason)
            if reasons:
                self.passed_over[weight] = f", as {'; '.join(reasons)}"
            full = any(self.support.supports(node, d) for d in self._gpus)
        decided = not self._is_cpu(pinned_device) or full or not self._others
        if decided:
            self.pinned_devices[weight] = pinned_device
            self.budget.take(pinned_device, weight)

    def _devices_for(self, node: Node, weight: int) -> Iterable[int]:
        """Return all devices in the order in which they may hold a weight or state of a node. A
        state has one device: first come those of its other readers, then, for a node of low
        arithmetic intensity, those of its neighbours.
        """
        order = self.hints.order
        if weight not in self.graph.states:
            return order
        near = self._state_placement.ranked(weight)
        if self.support.flops(node) < MIN_PULL_INTENSITY * self._bytes(weight):
            near += self._devices_near(node)
        return dict.fromkeys((*(d for d in near if not self._is_cpu(d)), *order))

    def _devices_near(self, node: Node) -> list[int]:
        """Return the devices of a node's operands and readers, those with most bytes first."""
        around = {*self.support.operands[node.id], *self.support.readers[node.id]}
        placed = sorted(around & self.device.keys(), key=lambda n: (-self._bytes(n), n))
        return [self.device[n] for n in placed]

    def _why_not_pinned(self, node: Node, weight: int, device: int) -> str | None:
        reason = self.unsupported_reason(node, device) or self._cannot_hold(weight, device)
        if reason is not None:
            return reason
        full = self.budget.refuses(device, weight)
        return f"{self.topology.devices[device].name} is full" if full else None

    def _offload(self, node: Node, leaves: Sequence[int], dequantizing: Sequence[int]) -> bool:
        """Place a node whose heaviest weight or state is in host memory on a GPU if streaming pays
        off.

        dequantizing: dequantize nodes of its weights, placed with it. Returns True if it was
        placed.
        """
        cpu = self.pinned_devices.get(self._heaviest(leaves), self.topology.cpu)
        together = [*(self.graph.nodes[n] for n in dequantizing), node]
        read = {i for each in together for i in self.support.operands[each.id]}
        weights = [w for w in leaves if w in read]
        streamed = [w for w in weights if self.pinned_devices.get(w) == cpu]
        moved = sum(self._bytes(w) for w in streamed)
        if not moved:
            return False
        intensity = sum(map(self.support.flops, together)) / moved
        others = (self.pinned_devices.get(w, cpu) for w in weights)
        for device in (d for d in dict.fromkeys((*others, *self._gpus)) if not self._is_cpu(d)):
            if self.topology.cpu_of(device) != cpu:  # weights are not streamed over a network
                continue
            spec = self.topology.devices[device]
            needed = (
                moved if not spec.unified_memory else 2 * moved
            )  # with a staging buffer in the same memory
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
        """Return the minimum flops per byte of weights for which streaming pays off."""
        own = self.topology.devices[device].offload_flops_per_byte
        return own if self.hints.streams is None or own == math.inf else self.hints.streams

    def _cannot_hold(self, weight: int, device: int) -> str | None:
        node = self.graph.nodes[weight]
        return self.unsupported_reason(node, device) if node.op == "state" else None

    def place_states(self) -> None:
        """Place each state on the device with the fewest transfers, or where an earlier graph or
        the user has placed it; its next value is written there.
        """
        for node_id, state in self.graph.states.items():
            node = self.graph.nodes[node_id]
            if node_id == state:
                self.put(node, *self._place_state(node))
            else:
                self.put(node, self.device[state], f"writes {self.graph.nodes[state].name}")
            self.fixed.add(node_id)

    def _place_state(self, node: Node) -> tuple[int, str]:
        """Return the device of a state and the reason."""
        pinned_device, why = self.pinned_devices.get(node.id), None
        if pinned_device is not None and node.id in self.support.state_devices:
            return pinned_device, "state"
        if pinned_device is not None:
            why = self._cannot_hold(node.id, pinned_device)
            if why is None and node.id in self.user_reasons:
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
        if why is not None and node.id in self.user_reasons:
            name = self.topology.devices[found].name
            text = f"{self.user_reasons[node.id]}, which cannot: {why}"
            self.notes.append(f"{node.name}: {text}; it lives on {name}")
        return found, rule
