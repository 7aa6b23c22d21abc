"""The null device: a Vulkan device that is not there, with a simulated clock, for tests and what-if
plans.

It computes with numpy. It takes the time that its DeviceSpec predicts, and that values need on the
link to the host and back. It is stricter than hardware: a value that is read before the host waited
for it is an error.
"""

from __future__ import annotations

import math
import threading

from ..errors import DeviceLost, DeviceTimeout, PlanError
from ..machine.links import Link
from ..machine.spec import DeviceSpec
from ..plan.cost import split_seconds
from ..plan.value import CopyIn, PlanValue
from ..types import NDArray, Progress
from .device import Times
from .host.evaluate import Values, last_uses, run_split
from .states import HostStates

HERE = Link(math.inf)
"""The way from the host to itself."""


class SimulatedClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._now

    def advance_to(self, time_s: float) -> None:
        """Moves the clock forward; never back."""
        with self._lock:
            self._now = max(self._now, time_s)


class NullDevice:
    """A simulated device. Devices that share a clock run beside each other on it.

    link: the way to the host, which the machine of a plan has; its default where none is given.
    slowdown: how many times longer than its spec says its work takes.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        clock: SimulatedClock,
        link: Link | None = None,
        slowdown: float = 1.0,
    ) -> None:
        self._spec = spec
        self.clock = clock
        self.link = link
        self.slowdown = slowdown
        self.states = HostStates()
        self.busy_until_s = 0.0
        self.submissions = 0

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        return self._spec

    def holds(self, key: object) -> bool:
        return self.states.holds(key)

    def prepare(self, plan: PlanValue, index: int, progress: Progress | None = None) -> NullSession:
        return NullSession(self, plan, index)

    def close(self) -> None:
        return None


class NullSession:
    """One plan's share of a simulated device."""

    def __init__(self, device: NullDevice, plan: PlanValue, index: int) -> None:
        self._device = device
        self._plan = plan
        self._index = index
        self._dead = last_uses(plan, index)
        names = [spec.name for spec in plan.machine.devices]
        host, links = names[-1], plan.machine.links
        # what the host itself computes with is there already
        self._link = links.between(host, names[index]) if names[index] != host else HERE
        self._way_back = links.between(names[index], host) if names[index] != host else HERE
        self._makers: dict[int, list[int]] = {}
        for split in plan.splits:
            for copy in split.copies_out:
                self._makers.setdefault(copy.node, []).append(split.id)
        self._values = [Values(plan.graph) for _ in range(plan.copies)]
        self._intervals: list[dict[int, tuple[float, float]]] = [{} for _ in range(plan.copies)]
        self._tickets: list[dict[int, int]] = [{} for _ in range(plan.copies)]
        self._waited_until_s = [0.0] * plan.copies
        self._streamed_bytes = {
            s.id: sum(
                plan.graph.nodes[c.node].type.device_bytes
                for c in s.copies_in
                if c.node in plan.graph.data
            )
            for s in plan.splits
        }

    def begin(self, slot: int) -> None:
        self._values[slot].clear()
        self._intervals[slot].clear()
        self._tickets[slot].clear()

    def stage(self, slot: int, copy: CopyIn, array: NDArray) -> None:
        clock = self._device.clock
        size_bytes = self._plan.graph.nodes[copy.node].type.device_bytes
        clock.advance_to(clock.now() + self._link.seconds(size_bytes))
        self._values[slot][copy.node] = array.copy()

    def submit(self, slot: int, split: int, ticket: int) -> None:
        device, graph = self._device, self._plan.graph
        device.submissions += 1
        duration = split_seconds(device.spec, graph, self._plan.splits[split].nodes)
        duration *= device.slowdown
        duration += self._streamed_bytes[split] / self._link.bytes_per_s
        start = max(device.clock.now(), device.busy_until_s)
        device.busy_until_s = start + duration
        self._intervals[slot][split] = (start, start + duration)
        self._tickets[slot][split] = ticket
        before = (s.id for s in self._plan.splits[:split] if s.device == self._index)
        if all(number in self._intervals[slot] for number in before):
            # else one was dropped, and there is nothing to compute with: the check will tell
            run_split(
                self._plan, self._plan.splits[split], self._values[slot], self._dead, device.states
            )

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        known = self._intervals[slot]
        # of a dropped submission the fence says no more than those before it
        last = split if split in known else max((n for n in known if n < split), default=None)
        end = known[last][1] if last is not None else 0.0
        if end > self._device.clock.now() + timeout_s:
            raise DeviceTimeout(f"[wait] split {split} takes longer than {timeout_s:g} simulated s")
        self._device.clock.advance_to(end)
        self._waited_until_s[slot] = max(self._waited_until_s[slot], end)

    def check(self, slot: int, split: int, ticket: int) -> None:
        if self._tickets[slot].get(split) != ticket:
            raise DeviceLost(f"[check] split {split} of {self._device.name} did not run")
        if self._intervals[slot][split][1] > self._waited_until_s[slot]:
            raise PlanError(f"[check] split {split} of {self._device.name} was not waited for")

    def fetch(self, slot: int, node: int) -> NDArray:
        for split in self._makers.get(node, ()):
            if split in self._intervals[slot]:
                if self._intervals[slot][split][1] > self._waited_until_s[slot]:
                    name = self._plan.graph.nodes[node].name
                    raise PlanError(f"[fetch] {name} is read before its split was waited for")
                clock, type_ = self._device.clock, self._plan.graph.nodes[node].type
                clock.advance_to(clock.now() + self._way_back.seconds(type_.device_bytes))
                return self._values[slot][node]
        raise PlanError(f"[fetch] {self._plan.graph.nodes[node].name} was not copied out")

    def times_s(self, slot: int, split: int) -> Times:
        start, end = self._intervals[slot][split]
        return end - start, end - start

    def close(self) -> None:
        for values in self._values:
            values.clear()
