"""Place layers: selects the devices of a language model's layers, once for all of its steps.

    topology, model --layer_costs.py--> layers, places
                                            '--partition_layers.py--> partition --> placement
                                                                          '--> bytes per device

The placement has the form of a user's `placement` for `Scheduler.compile`. It uses one set of names
for all steps, so no weight and no state moves between them. Examples:
tests/generation/test_place_layers.py.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ...common.dtypes import numpy_dtype
from ...ir.build_graph import build_graph
from ...ir.precision import SINGLE
from ...planner.search.select import MARGIN_ESTIMATED, MARGIN_MEASURED, known
from ...topology.topology import Topology
from ..device_precision import modes_of
from .layer_cost_cache import cached_or_measured
from .layer_costs import BETWEEN, EXPERTS, INSIDE, LayerCosts, measure_layers
from .partition_layers import Experts, Layer, LayerPartition, LayerRange, partition_layers

if TYPE_CHECKING:
    from ...engine.request_precision import Precision
    from ...importers.gguf.kv_cache import KeyValueCache
    from ...importers.gguf.model import LanguageModel

MIN_FREE_BYTES = 256 << 20
"""The free memory, in addition to twice the weights and the KV cache, from which on a device surely
has room for all steps.
"""
NO_ROOM = float("-inf")
COMPILE_S = 0.015
"""The seconds to compile one layer of a prefill microbatch, mostly for planning."""


@dataclass(frozen=True)
class LayerPlacement:
    """The placement of a model's layers on a machine."""

    topology: Topology
    measured: LayerCosts
    partition: LayerPartition

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, in their order."""
        return self.measured.layers

    @property
    def placement(self) -> dict[str, str]:
        """Name patterns to device names, as for `Scheduler.compile`."""
        names = [spec.name for spec in self.topology.devices]
        out = {"*": names[self.partition.layer_ranges[0].device]}
        for layer_range in self.partition.layer_ranges:
            for number in range(layer_range.start, layer_range.end):
                name = self.layers[number].name
                joint = "." if name.startswith(BETWEEN) else ""
                out[f"{name}{joint}*"] = names[layer_range.device]
                if number >= layer_range.experts and self.layers[number].experts:
                    out[f"{name}.{INSIDE}.*"] = out[f"{name}.*{EXPERTS}*"] = names[-1]
        return out

    def weight_bytes(self, layer_range: LayerRange) -> int:
        """Return the bytes of the weights of a layer range, without experts on the host."""
        mine = self.layers[layer_range.start : layer_range.end]
        held: dict[str, int] = {}
        for layer in mine:
            held.update(layer.weights)
        return sum(held.values()) - sum(experts.size_bytes for experts in self.away(layer_range))

    def away(self, layer_range: LayerRange) -> list[Experts]:
        """Return the experts of a layer range that are on the host, for each layer with experts."""
        layers = self.layers[layer_range.experts : layer_range.end]
        return [layer.experts for layer in layers if layer.experts]

    @property
    def n_cpu_moe(self) -> int:
        """The number of layers whose experts, but not their attention, are on the host."""
        return sum(len(self.away(layer_range)) for layer_range in self.partition.layer_ranges)

    def cache_bytes(self, layer_range: LayerRange) -> int:
        """Return the bytes of the KV cache of a layer range."""
        return sum(layer.cache_bytes for layer in self.layers[layer_range.start : layer_range.end])

    def work_bytes(self, layer_range: LayerRange) -> int:
        """Return the bytes of all other buffers of a layer range, over all steps."""
        mine = self.layers[layer_range.start : layer_range.end]
        return self.measured.shared_bytes + sum(layer.work_bytes for layer in mine)

    def flows(self, parts: int, length: int) -> bool:
        """Return True if it pays to compile a step of `parts` microbatches.

        It must save more at its first use than its compilation costs, and its buffers must fit.
        length: the capacity of the KV cache in tokens.
        """
        loads: dict[int, float] = {}
        for layer_range in self.partition.layer_ranges:
            loads[layer_range.device] = loads.get(layer_range.device, 0.0) + layer_range.read_s
        saved_s = (parts - 1) * (sum(loads.values()) - max(loads.values()))
        return saved_s > COMPILE_S * parts * len(self.layers) and all(
            self._room_bytes(layer_range) >= self._parts_bytes(layer_range, parts, length)
            for layer_range in self.partition.layer_ranges
        )

    def _room_bytes(self, layer_range: LayerRange) -> float:
        """Return the bytes that a layer range leaves free on its device."""
        place = self.measured.places[layer_range.device]
        mine = self.layers[layer_range.start : layer_range.end]
        held = self.weight_bytes(layer_range) + self.cache_bytes(layer_range)
        return place.room_bytes - held - sum(layer.work_bytes for layer in mine)

    def _parts_bytes(self, layer_range: LayerRange, parts: int, length: int) -> float:
        """Return the bytes of microbatches: new keys and values, each and concatenated, hidden
        states for transfers, and the buffers of one microbatch.
        """
        share = parts * self.measured.tokens / length
        hidden_bytes = 4 * parts * self.measured.hidden_bytes
        return 2 * share * self.cache_bytes(layer_range) + hidden_bytes + self.measured.shared_bytes


class LayerScheduler(Protocol):
    """The interface of a scheduler that layer placement uses."""

    policy: str
    with_cpu: bool

    @property
    def topology(self) -> Topology: ...


def place_layers(
    scheduler: LayerScheduler,
    model: LanguageModel,
    cache: KeyValueCache,
    sizes: Sequence[int],
    full: Container[str] = (),
    precision: Precision = SINGLE,
    in_flight: int = 1,
) -> LayerPlacement | None:
    """Return the placement of a model's layers, or None if there is no choice to make: only the CPU
    works, one device surely has room for everything, or the policy does not optimize.

    full: names of devices that ran out of memory. precision: the precision of the model's steps.
    in_flight: the number of groups of slots whose steps overlap, each with its own KV cache.
    """
    topology = scheduler.topology
    working = [spec for spec in topology.devices[:-1] if not spec.disabled_reason]
    if scheduler.policy != "auto" or not working:
        return None
    if not full and takes_all(scheduler, model, cache):
        return None
    about = model, cache, sizes, topology, modes_of(topology, precision)
    measured = cached_or_measured(*about, lambda: _measured(*about))
    partition = decide(measured, topology, scheduler.with_cpu, full, in_flight)
    return LayerPlacement(topology, measured, partition)


def takes_all(scheduler: LayerScheduler, model: LanguageModel, cache: KeyValueCache) -> bool:
    """Return True if only one device works and it surely has room for a model and its KV cache."""
    working = [spec for spec in scheduler.topology.devices[:-1] if not spec.disabled_reason]
    if scheduler.policy != "auto" or scheduler.with_cpu or len(working) != 1:
        return False
    held_bytes = model.device_bytes + cache_bytes_of(model, cache)
    return working[0].memory_bytes >= 2 * held_bytes + MIN_FREE_BYTES


def cache_bytes_of(model: LanguageModel, cache: KeyValueCache) -> int:
    """Return the bytes of the KV cache of all layers and slots."""
    each = numpy_dtype(cache.dtype).itemsize
    row_bytes = model.hyper.cached_values * each
    return cache.slots * (row_bytes * cache.length + model.recurrent_bytes)


def lay_out(
    model: LanguageModel,
    cache: KeyValueCache,
    sizes: Sequence[int],
    topology: Topology,
    with_cpu: bool = False,
) -> LayerPlacement:
    """Return the placement of a model's layers.

    sizes: the sizes of compiled steps in tokens, from 1 on. with_cpu: the CPU competes with other
    devices; otherwise it takes only layers that do not fit on them.
    """
    measured = _measured(model, cache, sizes, topology)
    return LayerPlacement(topology, measured, decide(measured, topology, with_cpu))


def _measured(
    model: LanguageModel,
    cache: KeyValueCache,
    sizes: Sequence[int],
    topology: Topology,
    modes: Sequence[str] = (),
) -> LayerCosts:
    rows = None if cache.slots == 1 else 1
    steps = (model.step(cache, size, rows=rows) for size in (1, sizes[-1]))
    write, read = (build_graph(step.logits, step.updates)[0] for step in steps)
    return measure_layers(write, read, sizes, topology, modes)


def decide(
    measured: LayerCosts,
    topology: Topology,
    with_cpu: bool,
    full: Container[str] = (),
    in_flight: int = 1,
) -> LayerPartition:
    """Return the fastest partition over the enabled devices, one for each memory. full: devices
    without memory, which get no layers. in_flight: as of `place_layers`.
    """
    able = [not spec.disabled_reason and spec.name not in full for spec in topology.devices]
    usable = [next((d for d in pool if able[d]), None) for pool in topology.memory_nodes]
    places = [
        place if d == topology.cpu or d in usable else replace(place, room_bytes=NO_ROOM)
        for d, place in enumerate(measured.places)
    ]
    sure = known(topology, [d for d in usable if d is not None])
    margin = MARGIN_MEASURED if sure else MARGIN_ESTIMATED
    layers = [
        replace(
            layer,
            cache_bytes=in_flight * layer.cache_bytes,
            work_bytes=in_flight * layer.work_bytes,
        )
        for layer in measured.layers
    ]
    return partition_layers(layers, places, with_cpu, margin, in_flight)
