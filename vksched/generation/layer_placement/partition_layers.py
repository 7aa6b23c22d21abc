"""Partition layers: assigns contiguous ranges of a language model's layers to devices, for the
fastest prefill and decode.

Problem: layers run in sequence, each on the device that holds its weights and KV cache. A decoded
token costs the sum of all layers and transfers. A long prompt is pipelined in microbatches: the
first one costs the sum, each further one the time of the slowest device. Method: each device takes
one layer range, the host any number. For each set of devices, dynamic programming from left to
right finds the minimum sum. It is repeated with a limit on the microbatch time of a layer range,
which is lowered until the sum grows by more than the limit saves.

With several groups of sequences in flight, devices work on different groups at the same time: then
all groups together take the largest of that sum and, for each device, its part for all groups.

    layers   0 1 2 3 4 5 | 6 7 8 | 9        ends[{gpu:1, gpu:0}][9] =
             gpu:1       | gpu:0 | host       min over s: ends[{gpu:1}][s] + cost of gpu:0 on s .. 8

If a layer range exceeds the memory of its device, the experts of its last layers are assigned to
the host. A larger set of devices must be faster by a margin than a smaller one. Complexity:
2**devices * devices * layers**2 for each limit, with at most MAX_DEVICES devices. Examples:
tests/generation/test_partition_layers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, combinations

import numpy as np

from ...common.dtypes import NDArray
from ...common.schema import Number, Size

MAX_DEVICES = 4
"""The maximum number of devices that are considered, fastest first."""
WRITTEN, PARTS = 128, 4
"""The workload: `WRITTEN` decoded tokens after a prompt of `PARTS` microbatches."""

LATER_SHARE = 0.02
"""The share by which the first device should be busier than later ones if several groups are in
flight. A group writes its KV cache once its step has ended on the last device. There, these writes
would wait for the next step of another group if its results were ready before.
"""


@dataclass(frozen=True)
class Experts:
    """The experts of a layer. size_bytes: their bytes on a device. write_s, read_s: for each
    device, the extra seconds of the layer if its experts are on the host, for a token and for a
    microbatch.
    """

    size_bytes: Size
    write_s: tuple[Number, ...]
    read_s: tuple[Number, ...]


@dataclass(frozen=True)
class Layer:
    """The costs of a layer. weights: the bytes of each weight by its key, because two layers may
    share one. cache_bytes: the bytes of its KV cache. work_bytes: its other buffers. write_s,
    read_s: for each device, the seconds of one token and of one prefill microbatch.
    """

    name: str
    weights: Mapping[str, Size]
    cache_bytes: Size
    work_bytes: Size
    write_s: tuple[Number, ...]
    read_s: tuple[Number, ...]
    experts: Experts | None = None

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())


@dataclass(frozen=True)
class DeviceBudget:
    """A device's memory budget. room_bytes: the bytes for a layer range. write_s, read_s: the
    overhead of a layer range for transfers of hidden states and submission, for a token and for a
    microbatch.
    """

    room_bytes: float
    write_s: float = 0.0
    read_s: float = 0.0


@dataclass(frozen=True)
class LayerRange:
    """Layers start .. end - 1 on a device; layers from `experts` on have their experts on the
    host.
    """

    device: int
    start: int
    end: int
    experts: int
    read_s: float


@dataclass(frozen=True)
class LayerPartition:
    """A partition of all layers. seconds: the time of the workload of PARTS and WRITTEN, or of one
    microbatch and WRITTEN for each group in flight.
    """

    layer_ranges: tuple[LayerRange, ...]
    seconds: float

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each layer."""
        return tuple(s.device for s in self.layer_ranges for _ in range(s.start, s.end))


def partition_layers(
    layers: Sequence[Layer],
    places: Sequence[DeviceBudget],
    competes: bool,
    margin: float,
    in_flight: int = 1,
) -> LayerPartition:
    """Return the fastest partition of layers.

    places: the devices, the host last, which has room for all layers. competes: the host may take
    layers that would fit on other devices. margin: the share by which a larger set of devices must
    be faster. in_flight: the number of groups of sequences whose steps overlap.
    """
    host = len(places) - 1
    tables = _Tables(layers, places, in_flight)
    order = sorted(range(host), key=lambda d: (tables.total(d), d))[:MAX_DEVICES]
    sets = [
        (chosen, with_host)
        for count in range(len(order) + 1)
        for chosen in combinations(sorted(order), count)
        for with_host in (False, True)
        if chosen or with_host
    ]
    sets.sort(key=lambda each: len(each[0]) + each[1])
    found = [(s, tables.fastest(*s)) for s in sets if competes or not s[1]]
    if not any(partition for _, partition in found):
        found = [(s, tables.fastest(*s)) for s in sets]
    best: LayerPartition | None = None
    most_s = math.inf
    for (chosen, _), partition in found:
        if partition and partition.seconds <= most_s:
            best = partition
            # if the host is needed anyway, the first device does not count as an additional one
            most_s = partition.seconds * (1 - margin if chosen or competes else 1)
    assert best is not None, "the host has room"
    return best


@dataclass
class _Tables:
    """The cost tables of layer ranges on each device, indexed by [start, end]."""

    layers: Sequence[Layer]
    places: Sequence[DeviceBudget]
    in_flight: int
    _known: dict[int, _Table] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> NDArray:
        """The bytes of each layer range; weights that layers share count once."""
        count = len(self.layers)
        out = np.zeros((count + 1, count + 1))
        for start in range(count):
            seen: dict[str, int] = {}
            unshared = 0
            for end, layer in enumerate(self.layers[start:], start + 1):
                seen.update(layer.weights)
                unshared += layer.cache_bytes + layer.work_bytes
                out[start, end] = unshared + sum(seen.values())
        return out

    def total(self, device: int) -> float:
        """Return the seconds of all layers on one device, ignoring its memory."""
        return sum(WRITTEN * layer.write_s[device] + layer.read_s[device] for layer in self.layers)

    def table(self, device: int) -> _Table:
        if device not in self._known:
            about = self.layers, self.places[device], device, self.sizes
            self._known[device] = _Table(*about, self.in_flight)
        return self._known[device]

    def fastest(self, chosen: tuple[int, ...], with_host: bool) -> LayerPartition | None:
        """Return the fastest partition in which each of the chosen devices has a layer range; None
        if none fits.
        """
        tables = [self.table(device) for device in chosen]
        hosts = [self.table(len(self.places) - 1)] if with_host else []
        best: LayerPartition | None = None
        limit = math.inf

        def load_of(layer_range: LayerRange) -> float:
            return float(at[layer_range.device].load_s[layer_range.start, layer_range.end])

        at = {table.device: table for table in (*tables, *hosts)}
        while layer_ranges := _best_ranges(tables, hosts, limit):
            alone_s = sum(at[s.device].cost[s.start, s.end] for s in layer_ranges)
            load_s = dict.fromkeys(at, 0.0)
            for layer_range in layer_ranges:
                load_s[layer_range.device] += load_of(layer_range)
            seconds = self._seconds(float(alone_s), float(max(load_s.values())))
            if best is None or seconds < best.seconds:
                best = LayerPartition(layer_ranges, seconds)
            if alone_s >= best.seconds:
                break
            limit = math.nextafter(max(map(load_of, layer_ranges)), 0.0)
        return best

    def _seconds(self, alone_s: float, busiest_s: float) -> float:
        """Return the time of the workload. alone_s: the sum of all layers. busiest_s: the load of
        the busiest device.
        """
        if self.in_flight == 1:
            return alone_s + (PARTS - 1) * busiest_s
        return max(alone_s, self.in_flight * busiest_s)


class _Table:
    """The costs of layer ranges on one device.

    cost[start, end]: seconds for a layer range. read_s[start, end]: the prefill part of them. Both
    are inf if the range does not fit. load_s[start, end]: the time that devices can spend at the
    same time, on different microbatches or on different groups. experts[start, end]: the first
    layer of the range whose experts are on the host.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        place: DeviceBudget,
        device: int,
        sizes: NDArray,
        in_flight: int,
    ) -> None:
        self.device = device
        count = len(layers)
        starts, ends = np.arange(count + 1)[:, None], np.arange(count + 1)[None]
        able = [math.isfinite(layer.write_s[device] + layer.read_s[device]) for layer in layers]
        unable = _sums([not can for can in able])
        both = list(zip(layers, able, strict=True))
        write = _sums([layer.write_s[device] if can else 0 for layer, can in both])
        read = _sums([layer.read_s[device] if can else 0 for layer, can in both])
        apart = [layer.experts for layer in layers]
        saved = _sums([e.size_bytes if e else 0 for e in apart])
        more_write = _sums([e.write_s[device] if e else 0 for e in apart])
        more_read = _sums([e.read_s[device] if e else 0 for e in apart])
        short = np.maximum(sizes - place.room_bytes, 0)
        # the last layer from which on all experts together cover the excess bytes
        first = np.searchsorted(saved, saved[ends] - short, "right") - 1
        self.experts: NDArray = np.where(short > 0, first, ends)
        fits = (self.experts >= starts) & (starts < ends) & (unable[ends] == unable[starts])
        late = np.maximum(self.experts, starts)
        writes = write[ends] - write[starts] + more_write[ends] - more_write[late] + place.write_s
        reads = read[ends] - read[starts] + more_read[ends] - more_read[late] + place.read_s
        self.read_s: NDArray = np.where(fits, reads, np.inf)
        self.cost: NDArray = np.where(fits, WRITTEN * writes + reads, np.inf)
        self.load_s: NDArray = self.read_s
        if in_flight > 1:
            self.load_s = self.cost * np.where(starts > 0, 1 + LATER_SHARE, 1.0)

    def layer_range(self, start: int, end: int) -> LayerRange:
        read_s = float(self.read_s[start, end])
        return LayerRange(self.device, start, end, int(self.experts[start, end]), read_s)


def _sums(values: Sequence[float]) -> NDArray:
    return np.array([0.0, *accumulate(values)])


def _best_ranges(
    tables: Sequence[_Table], hosts: Sequence[_Table], limit: float
) -> tuple[LayerRange, ...]:
    """Return the layer ranges with the minimum sum, one for each device and any number for the
    host, whose load is within the limit; empty if there are none.
    """
    lanes = [*tables, *hosts]
    costs = [np.where(lane.load_s <= limit, lane.cost, np.inf) for lane in lanes]
    count = len(costs[0])
    reached: list[_Frontier] = []
    for used in range(1 << len(tables)):
        here = _Frontier(np.full(count, np.inf), [None] * count)
        if not used:
            here.min_cost[0] = 0.0
        for lane in reversed(range(len(tables))):  # ties: the first device comes first
            if used >> lane & 1:
                before = used ^ 1 << lane
                here.extend(reached[before].min_cost, costs[lane], before, lane)
        for lane in range(len(tables), len(lanes)):
            here.extend(here.min_cost.copy(), costs[lane], used, lane)
        reached.append(here)
    if not math.isfinite(reached[-1].min_cost[-1]):
        return ()
    out: list[LayerRange] = []
    used, end = len(reached) - 1, count - 1
    while (way := reached[used].ways[end]) is not None:
        used, start, lane = way
        out.append(lanes[lane].layer_range(start, end))
        end = start
    return tuple(out[::-1])


@dataclass
class _Frontier:
    """The minimum costs of layers 0 .. n - 1 on a set of devices, for each n. ways: the predecessor
    set, the start and the device of the last layer range.
    """

    min_cost: NDArray
    ways: list[tuple[int, int, int] | None]

    def extend(self, before: NDArray, cost: NDArray, used: int, lane: int) -> None:
        """Append a layer range to the earlier states if that lowers the cost."""
        sums = before[:, None] + cost
        starts = sums.argmin(0)
        min_cost = sums.min(0)
        for end in np.flatnonzero(min_cost < self.min_cost):
            self.min_cost[end] = min_cost[end]
            self.ways[end] = used, int(starts[end]), lane
