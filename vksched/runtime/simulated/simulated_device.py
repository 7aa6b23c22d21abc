"""SimulatedDevice: a substitute of a Vulkan device with a simulated clock, for tests and what-if
plans.

It computes with numpy. It takes the time that its DeviceSpec predicts, plus transfers on the link
to the host and back. With measured costs the host takes its part, as with hardware. A device with a
transfer queue (`Limits.copy_queue`) overlaps the transfers that the plan puts there. It is stricter
than hardware: reading a value before the host has waited for it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, DeviceLost, DeviceTimeout, PlanError
from ...plan.costs.node_cost import COPY_IN, COPY_OUT, copy_seconds, node_seconds
from ...plan.types.plan_types import COMPUTE, DOWNLOAD, UPLOAD, PlanValue, Split, Upload
from ...topology.device_spec import DeviceSpec
from ...topology.links import Link
from ...topology.perf_model import PerfModel
from ..cpu.evaluate import Values, last_uses, run_split
from ..device import Device, Times, TransferTimes
from ..simulated_clock import Cores, SimulatedClock, SimulatedStream
from ..state_store import CpuStates
from .device_wrapper import innermost

Interval = tuple[float, float]
"""Start and end, in seconds."""

HERE = Link(math.inf)
"""The link from the host to itself."""


class SimulatedDevice:
    """A simulated device. Devices with a common clock run concurrently on it.

    Parameters
    ----------
    link
        The link to the host in the topology of plans; by default the topology's default link.
    slowdown
        The factor over the spec's times, above 0. May be set at any time.
    cores
        Cores that it occupies while it works, shared with other devices; by default those of
        the clock, if the spec says that it computes on the host's cores.

    Raises
    ------
    DeviceError
        The slowdown is not above 0 or not finite.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        clock: SimulatedClock,
        link: Link | None = None,
        slowdown: float = 1.0,
        cores: Cores | None = None,
    ) -> None:
        self._spec = spec
        self.clock = clock
        self.link = link
        self.slowdown = slowdown
        self.states = CpuStates()
        self.cores = cores or (clock.cores if spec.on_cores else Cores())
        self.copying_until_s = 0.0
        self.submissions = 0

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        return self._spec

    @property
    def slowdown(self) -> float:
        return self._slowdown

    @slowdown.setter
    def slowdown(self, times: float) -> None:
        if not (isinstance(times, (int, float)) and 0 < times < math.inf):
            raise DeviceError(
                f"[SimulatedDevice] expected a slowdown above 0, got {times!r}; try 1.0"
            )
        self._slowdown = float(times)

    def holds(self, key: object) -> bool:
        return self.states.holds(key)

    def reopen(self) -> SimulatedDevice:
        return SimulatedDevice(self._spec, self.clock, self.link, self.slowdown, self.cores)

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> SimulatedPreparedPlan:
        return SimulatedPreparedPlan(self, plan, index)

    def close(self) -> None:
        return None


def stream_on(devices: Sequence[Device]) -> SimulatedStream | None:
    """Return a simulated stream on the clock of the simulated devices; None if there are none, or
    if they have several clocks.
    """
    inside = map(innermost, devices)
    clocks = {id(d.clock): d.clock for d in inside if isinstance(d, SimulatedDevice)}
    return next(iter(clocks.values())).stream() if len(clocks) == 1 else None


class _BufferedStates:
    """The states as one split sees them; its writes are buffered until the split is complete."""

    def __init__(self, states: CpuStates) -> None:
        self._states = states
        self.written: dict[object, NDArray] = {}

    def view(self, key: object) -> NDArray:
        return self.written.get(key, self._states.view(key))

    def write(self, key: object, array: NDArray) -> None:
        self.written[key] = array

    def change(self, keys: Sequence[object], write: Callable[[list[NDArray]], None]) -> None:
        arrays = [self.view(key).copy() for key in keys]
        write(arrays)
        self.written.update(zip(keys, arrays, strict=True))


class SimulatedPreparedPlan:
    """One plan on a simulated device."""

    def __init__(self, device: SimulatedDevice, plan: PlanValue, index: int) -> None:
        self._device = device
        self._plan = plan
        self._index = index
        self._dead = last_uses(plan, index)
        topology = plan.topology
        # values of the host are already in its memory
        self._link = HERE if topology.is_cpu(index) else topology.link_in(index)
        self._way_back = HERE if topology.is_cpu(index) else topology.link_out(index)
        self._makers: dict[int, list[int]] = {}
        for split in plan.splits:
            for copy in split.downloads:
                self._makers.setdefault(copy.node, []).append(split.id)
        self._values = [Values(plan.graph) for _ in range(plan.copies)]
        self._intervals: list[dict[int, Interval]] = [{} for _ in range(plan.copies)]
        self._transfer_intervals: list[dict[tuple[int, str], Interval]] = [
            {} for _ in range(plan.copies)
        ]
        """Transfer-queue intervals by split and stage."""
        self._downloaded: list[set[int]] = [set() for _ in range(plan.copies)]
        """Splits whose downloads the host has waited for."""
        own = [split for split in plan.splits if split.device == index]
        self._async_uploads = {
            c.node for s in own if UPLOAD in s.async_transfers for c in s.uploads
        }
        self._async_downloads = {
            (s.id, c.node) for s in own if DOWNLOAD in s.async_transfers for c in s.downloads
        }
        self._sequence_numbers: list[dict[int, int]] = [{} for _ in range(plan.copies)]
        self._waited_until_s = [0.0] * plan.copies
        self._copies_time_s = {s.id: self._copies_s(s) for s in plan.splits}
        self._alone = plan.topology.is_cpu(index) and len(plan.splits) == 1 and not plan.any_order
        specs, used = plan.topology.devices, {s.device for s in plan.splits}
        # a dynamic plan has this device only, but any other device may take part
        if plan.any_order:
            used = {d for d, spec in enumerate(specs) if not spec.disabled_reason}
        runs_s = [specs[d].costs.run_s for d in used if d != index]
        # the host's work per run is counted once, at the first device
        first = index == min(used, default=-1)
        self._run_s = max([self._costs.run_s, *runs_s]) if first else 0.0

    @property
    def _costs(self) -> PerfModel:
        """The device's costs now, as they count for this plan."""
        spec = self._device.spec
        return spec.costs.alone() if self._alone else spec.costs

    def _copies_s(self, split: Split) -> float:
        """Return the device's own time for uploads and downloads of a split. Streamed weights count
        fully, also if they were not measured, unless the host writes them in each run.
        """
        data, nodes, seconds = self._plan.graph.data, self._plan.graph.nodes, 0.0
        for copy in () if UPLOAD in split.async_transfers else split.uploads:
            size_bytes = nodes[copy.node].type.device_bytes
            own_s = self._own_s(COPY_IN, size_bytes)
            streams = copy.node in data and not split.refills
            streamed_s = size_bytes / self._link.bytes_per_s if streams else 0.0
            seconds += own_s or streamed_s
        for out in () if DOWNLOAD in split.async_transfers else split.downloads:
            seconds += self._own_s(COPY_OUT, nodes[out.node].type.device_bytes)
        return seconds

    def _own_s(self, direction: str, size_bytes: int, async_transfer: bool = False) -> float:
        """Return the device's own time for a transfer, as measured. async_transfer: the transfer
        queue takes all of the time if it was not measured.
        """
        if self._link is HERE:
            return 0.0
        link = self._link if direction == COPY_IN else self._way_back
        measured_s = copy_seconds(self._device.spec, direction, size_bytes)
        return link.seconds(size_bytes) if async_transfer and not measured_s else measured_s

    @property
    def _submission_s(self) -> float:
        """The device's overhead of a submission."""
        spec = self._device.spec
        return spec.costs.start_s if spec.costs.calls else spec.submit_s

    def _schedule_transfer(self, slot: int, split: Split, stage: str) -> float:
        """Schedule the copies of a stage on the transfer queue; return their end time."""
        direction = COPY_IN if stage == UPLOAD else COPY_OUT
        device, nodes, seconds = self._device, self._plan.graph.nodes, self._submission_s
        for copy in split.uploads if stage == UPLOAD else split.downloads:
            seconds += self._own_s(
                direction, nodes[copy.node].type.device_bytes, async_transfer=True
            )
        device.submissions += 1
        device.clock.advance_to(device.clock.now() + self._costs.submit_s)
        start = max(device.clock.now(), device.copying_until_s, self._ready_s(slot, split, stage))
        device.copying_until_s = start + seconds
        self._transfer_intervals[slot][split.id, stage] = (start, start + seconds)
        return start + seconds

    def _ready_s(self, slot: int, split: Split, stage: str) -> float:
        """Return the end time of all dependencies of a stage; dropped submissions count as
        ended.
        """
        ends = [0.0]
        for after, number in split.after(stage):
            known = self._intervals[slot].get(number)
            if after != COMPUTE:
                known = self._transfer_intervals[slot].get((number, after))
            ends.append(known[1] if known is not None else 0.0)
        return max(ends)

    def begin(self, slot: int) -> None:
        self._values[slot].clear()
        self._intervals[slot].clear()
        self._transfer_intervals[slot].clear()
        self._downloaded[slot].clear()
        self._sequence_numbers[slot].clear()
        clock = self._device.clock
        clock.advance_to(clock.now() + self._run_s)

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        clock = self._device.clock
        size_bytes = self._plan.graph.nodes[copy.node].type.device_bytes
        async_transfer = copy.node in self._async_uploads
        host_s = self._link.seconds(size_bytes) - self._own_s(COPY_IN, size_bytes, async_transfer)
        clock.advance_to(clock.now() + max(0.0, host_s))
        self._values[slot][copy.node] = self._snapshot(array)

    def _snapshot(self, array: NDArray) -> NDArray:
        """Return a copy of a staged value, which later writes by the caller do not change."""
        snapshot: NDArray = array.copy()
        return snapshot

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        device, graph = self._device, self._plan.graph
        if self._sequence_numbers[slot].get(split) == sequence_number:
            return  # repeated after an interrupt: it is in flight
        current = self._plan.splits[split]
        if UPLOAD in current.async_transfers:
            self._schedule_transfer(slot, current, UPLOAD)
        device.submissions += 1
        spec = device.spec
        device.clock.advance_to(device.clock.now() + self._costs.submit_s)
        duration = self._submission_s
        duration += sum(node_seconds(spec, graph, graph.nodes[n]) for n in current.nodes)
        duration = device.slowdown * duration + self._copies_time_s[split]
        ready = self._ready_s(slot, current, COMPUTE)
        start = max(device.clock.now(), device.cores.busy_until_s, ready)
        device.cores.busy_until_s = start + duration
        self._intervals[slot][split] = (start, start + duration)
        if self._has_operands(slot, split):
            # else a submission was dropped and operands are missing: `check` will raise
            self._compute(slot, split)
        for number in current.deferred_downloads:
            if number in self._intervals[slot]:  # else its submission was dropped
                self._schedule_transfer(slot, self._plan.splits[number], DOWNLOAD)
        self._sequence_numbers[slot][split] = sequence_number

    def _compute(self, slot: int, split: int) -> None:
        """Compute a split. After an interrupt, a split that overwrites its operands has had no
        effect.
        """
        values, states = self._values[slot], _BufferedStates(self._device.states)
        if self._plan.splits[split].in_place:
            values = values.copy()
        run_split(self._plan, self._plan.splits[split], values, self._dead, states)
        self._device.states.replace(states.written.items())
        self._values[slot] = values

    def _has_operands(self, slot: int, split: int) -> bool:
        graph, values, nodes = self._plan.graph, self._values[slot], self._plan.splits[split].nodes
        own, roots = set(nodes), graph.view_bases
        read = {operand for node in nodes for operand in graph.nodes[node].inputs}
        outside = [i for i in read if roots[i] not in own and roots[i] not in graph.data]
        return all(operand in values or roots[operand] in values for operand in outside)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        known = self._intervals[slot]
        # the fence of a dropped submission is that of the submissions before it
        last = split if split in known else max((n for n in known if n < split), default=None)
        end = known[last][1] if last is not None else 0.0
        if end > self._device.clock.now() + timeout_s:
            raise DeviceTimeout(f"[wait] split {split} takes longer than {timeout_s:g} simulated s")
        self._device.clock.advance_to(end)
        if split in known:
            self._wait_fence()
        self._waited_until_s[slot] = max(self._waited_until_s[slot], end)
        self._finish_downloads(slot, split)

    def _wait_fence(self) -> None:
        clock = self._device.clock
        clock.advance_to(clock.now() + self._costs.fence_s)

    def _finish_downloads(self, slot: int, split: int) -> None:
        """Schedule the downloads of a split and of those before it, and wait for them."""
        async_transfer, waited = self._transfer_intervals[slot], self._downloaded[slot]
        submitted = [self._plan.splits[n] for n in sorted(self._intervals[slot]) if n <= split]
        now = [s for s in submitted if DOWNLOAD in s.async_transfers and s.id not in waited]
        for each in now:
            if (each.id, DOWNLOAD) not in async_transfer:
                self._device.clock.wait_for_turn()
                self._schedule_transfer(slot, each, DOWNLOAD)
        if now:
            self._device.clock.advance_to(max(async_transfer[each.id, DOWNLOAD][1] for each in now))
            self._wait_fence()
            waited.update(each.id for each in now)

    def ends_s(self, slot: int, split: int) -> float | None:
        known = self._intervals[slot].get(split)
        return known[1] if known is not None else -math.inf  # dropped: `check` will raise

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        if self._sequence_numbers[slot].get(split) != sequence_number:
            raise DeviceLost(f"[check] split {split} of {self._device.name} did not run")
        if self._intervals[slot][split][1] > self._waited_until_s[slot]:
            raise PlanError(f"[check] split {split} of {self._device.name} was not waited for")

    def fetch(self, slot: int, node: int) -> NDArray:
        for split in self._makers.get(node, ()):
            if split in self._intervals[slot]:
                if self._intervals[slot][split][1] > self._waited_until_s[slot]:
                    name = self._plan.graph.nodes[node].name
                    raise PlanError(f"[fetch] {name} is read before its split was waited for")
                clock, async_transfer = self._device.clock, (split, node) in self._async_downloads
                size_bytes = self._plan.graph.nodes[node].type.device_bytes
                own_s = self._own_s(COPY_OUT, size_bytes, async_transfer)
                host_s = self._way_back.seconds(size_bytes) - own_s
                clock.advance_to(clock.now() + max(0.0, host_s))
                return self._values[slot][node]
        raise PlanError(f"[fetch] {self._plan.graph.nodes[node].name} was not copied out")

    def times_s(self, slot: int, split: int) -> Times:
        start, end = self._intervals[slot][split]
        return end - start, end - start

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        transfers = self._transfer_intervals[slot]
        return {
            stage: (start, end - start)
            for (number, stage), (start, end) in transfers.items()
            if number == split
        }

    def close(self) -> None:
        for values in self._values:
            values.clear()
