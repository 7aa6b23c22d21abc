"""Divide: the layers of a model over devices, so that a turn of a conversation takes least.

Problem: layers run one after the other, and each lies on one device with its weights, keys and
values. A token that is written takes the sum of all layers and of the transfers. A long prompt
flows in parts: it takes the sum for its first part, and for each further one what the slowest
device takes. Method: each device takes one range of the layers, the host as many as need be. For
a set of devices the least sum is found from left to right. It is found again with a limit on the
prompt's part of a layer_range, which is lowered until the sum grows beyond what is gained.

    layers   0 1 2 3 4 5 | 6 7 8 | 9        ends[{gpu:1, gpu:0}][9] =
             gpu:1       | gpu:0 | host       min over s: ends[{gpu:1}][s] + cost of gpu:0 on s .. 8

Where a layer_range is more than a device holds, the experts of its last layers go to the host. More
devices have to win by a margin over fewer. Complexity: 2**devices * devices * layers**2 for each
limit, at most MOST devices. Examples: tests/generation/test_partition_layers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, combinations

import numpy as np

from ...common.dtypes import NDArray

MOST = 4
"""Devices that are weighed, the fastest ones."""
WRITTEN, PARTS = 128, 4
"""A turn: so many tokens are written after a prompt of so many parts."""


@dataclass(frozen=True)
class Experts:
    """The experts of a layer. size_bytes: on a device. write_s, read_s: by device, how much longer
    the layer takes where they are on the host.
    """

    size_bytes: int
    write_s: tuple[float, ...]
    read_s: tuple[float, ...]


@dataclass(frozen=True)
class Layer:
    """What a layer takes. weights: bytes of each by its key, as two layers may share one.
    cache_bytes: of its keys and values. work_bytes: beside these, for itself alone. write_s,
    read_s: by device, the seconds of one token and of one part of a prompt.
    """

    name: str
    weights: Mapping[str, int]
    cache_bytes: int
    work_bytes: int
    write_s: tuple[float, ...]
    read_s: tuple[float, ...]
    experts: Experts | None = None

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())


@dataclass(frozen=True)
class DeviceBudget:
    """A device. room_bytes: for a range of layers. write_s, read_s: of a layer_range beside its
    layers: hidden states come and go, and work is handed over.
    """

    room_bytes: float
    write_s: float = 0.0
    read_s: float = 0.0


@dataclass(frozen=True)
class LayerRange:
    """Layers start .. end - 1 on a device; from `experts` on, their experts are on the host."""

    device: int
    start: int
    end: int
    experts: int
    read_s: float


@dataclass(frozen=True)
class LayerPartition:
    """seconds: of a turn, as PARTS and WRITTEN say."""

    layer_ranges: tuple[LayerRange, ...]
    seconds: float

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each layer."""
        return tuple(s.device for s in self.layer_ranges for _ in range(s.start, s.end))


def partition_layers(
    layers: Sequence[Layer], places: Sequence[DeviceBudget], competes: bool, margin: float
) -> LayerPartition:
    """Return where layers lie.

    places: the host last, which has room for all. competes: the host may take layers that others
    have room for. margin: the share by which more devices have to be faster.
    """
    host = len(places) - 1
    tables = _Tables(layers, places)
    order = sorted(range(host), key=lambda d: (tables.total(d), d))[:MOST]
    sets = [
        (chosen, with_host)
        for count in range(len(order) + 1)
        for chosen in combinations(sorted(order), count)
        for with_host in (False, True)
        if chosen or with_host
    ]
    sets.sort(key=lambda each: len(each[0]) + each[1])
    found = [(s, tables.least(*s)) for s in sets if competes or not s[1]]
    if not any(partition for _, partition in found):
        found = [(s, tables.least(*s)) for s in sets]
    best: LayerPartition | None = None
    most_s = math.inf
    for (chosen, _), partition in found:
        if partition and partition.seconds <= most_s:
            best = partition
            # a first device beside a host that has to help is no device more
            most_s = partition.seconds * (1 - margin if chosen or competes else 1)
    assert best is not None, "the host has room"
    return best


@dataclass
class _Tables:
    """For each device what each layer_range takes, as (start, end) of all layers."""

    layers: Sequence[Layer]
    places: Sequence[DeviceBudget]
    _known: dict[int, _Table] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> NDArray:
        """The bytes of each layer_range, weights that two layers share once."""
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
        """Return the seconds of all layers on one device, whatever its memory."""
        return sum(WRITTEN * layer.write_s[device] + layer.read_s[device] for layer in self.layers)

    def table(self, device: int) -> _Table:
        if device not in self._known:
            self._known[device] = _Table(self.layers, self.places[device], device, self.sizes)
        return self._known[device]

    def least(self, chosen: tuple[int, ...], with_host: bool) -> LayerPartition | None:
        """Return the fastest way in which each of some devices has a layer_range; None where no
        way fits.
        """
        tables = [self.table(device) for device in chosen]
        hosts = [self.table(len(self.places) - 1)] if with_host else []
        best: LayerPartition | None = None
        limit = math.inf
        while layer_ranges := _path(tables, hosts, limit):
            at = {table.device: table for table in (*tables, *hosts)}
            alone_s = sum(at[s.device].cost[s.start, s.end] for s in layer_ranges)
            load_s = dict.fromkeys(at, 0.0)
            for layer_range in layer_ranges:
                load_s[layer_range.device] += layer_range.read_s
            seconds = float(alone_s + (PARTS - 1) * max(load_s.values()))
            if best is None or seconds < best.seconds:
                best = LayerPartition(layer_ranges, seconds)
            if alone_s >= best.seconds:
                break
            limit = math.nextafter(max(s.read_s for s in layer_ranges), 0.0)
        return best


class _Table:
    """cost: of a layer_range by its start and end, read_s: of that a part of a prompt, both
    infinite where it has no room. experts: the first layer of it whose experts are on the host.
    """

    def __init__(
        self, layers: Sequence[Layer], place: DeviceBudget, device: int, sizes: NDArray
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
        # the last layer from which on all experts together are as large as what is too much
        first = np.searchsorted(saved, saved[ends] - short, "right") - 1
        self.experts: NDArray = np.where(short > 0, first, ends)
        fits = (self.experts >= starts) & (starts < ends) & (unable[ends] == unable[starts])
        late = np.maximum(self.experts, starts)
        writes = write[ends] - write[starts] + more_write[ends] - more_write[late] + place.write_s
        reads = read[ends] - read[starts] + more_read[ends] - more_read[late] + place.read_s
        self.read_s: NDArray = np.where(fits, reads, np.inf)
        self.cost: NDArray = np.where(fits, WRITTEN * writes + reads, np.inf)

    def layer_range(self, start: int, end: int) -> LayerRange:
        read_s = float(self.read_s[start, end])
        return LayerRange(self.device, start, end, int(self.experts[start, end]), read_s)


def _sums(values: Sequence[float]) -> NDArray:
    return np.array([0.0, *accumulate(values)])


def _path(
    tables: Sequence[_Table], hosts: Sequence[_Table], limit: float
) -> tuple[LayerRange, ...]:
    """Return the layer_ranges with the least sum, one for each device and any number for the host,
    whose parts of a prompt take no longer than a limit; none where there is no such way.
    """
    lanes = [*tables, *hosts]
    costs = [np.where(lane.read_s <= limit, lane.cost, np.inf) for lane in lanes]
    count = len(costs[0])
    reached: list[_Reached] = []
    for used in range(1 << len(tables)):
        here = _Reached(np.full(count, np.inf), [None] * count)
        if not used:
            here.least[0] = 0.0
        for lane in reversed(range(len(tables))):  # of equal ways the first device comes first
            if used >> lane & 1:
                before = used ^ 1 << lane
                here.extend(reached[before].least, costs[lane], before, lane)
        for lane in range(len(tables), len(lanes)):
            here.extend(here.least.copy(), costs[lane], used, lane)
        reached.append(here)
    if not math.isfinite(reached[-1].least[-1]):
        return ()
    out: list[LayerRange] = []
    used, end = len(reached) - 1, count - 1
    while (way := reached[used].ways[end]) is not None:
        used, start, lane = way
        out.append(lanes[lane].layer_range(start, end))
        end = start
    return tuple(out[::-1])


@dataclass
class _Reached:
    """What a set of devices takes at least for all layers before each one. ways: the set and the
    layer before the last layer_range, and whose that is.
    """

    least: NDArray
    ways: list[tuple[int, int, int] | None]

    def extend(self, before: NDArray, cost: NDArray, used: int, lane: int) -> None:
        """Put one more layer_range behind what was reached before, where that is less."""
        sums = before[:, None] + cost
        starts = sums.argmin(0)
        least = sums.min(0)
        for end in np.flatnonzero(least < self.least):
            self.least[end] = least[end]
            self.ways[end] = used, int(starts[end]), lane
