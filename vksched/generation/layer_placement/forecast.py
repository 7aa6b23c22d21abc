"""Forecast: predicts the placement, memory and speed of a language model without loading it.

    meta model, topology --place_layers.py--> layer placement --plan of each step--> simulated runs
                                                           '--> bytes          '--> tokens/s

Alternative machines, without a card or with only that card, are compared as in `what_if.py`.

Complexity: one layer placement and two plans for each machine. Examples:
tests/cli/test_cli_memory_fit.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...common.errors import OutOfMemory
from ...engine.request import Request, plan_by_policy
from ...engine.request_precision import Precision, apply_precision
from ...ir.build_graph import build_graph
from ...ir.graph import Graph
from ...ir.precision import SINGLE
from ...plan.plan import Plan
from ...plan.simulation.simulate_plan import simulate
from ...planner.what_if import Comparison, MachineChange, compare
from ...topology.topology import Topology
from ..device_precision import AUTO, FAST, modes_of, precision_by_name
from .layer_costs import measure_layers
from .partition_layers import PARTS, LayerRange
from .place_layers import LayerPlacement, decide

if TYPE_CHECKING:
    from ...importers.gguf.model import LanguageModel


@dataclass(frozen=True)
class PlacedLayers:
    """Layers on a device, with sizes in bytes. first, last: their names. away: the layers whose
    experts are on the host. work_bytes: the buffers of all steps. capacity_bytes: the bytes that
    plans may use on the device.
    """

    device: str
    first: str
    last: str
    layers: int
    away: int
    weight_bytes: int
    cache_bytes: int
    work_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.work_bytes


@dataclass(frozen=True)
class Speeds:
    """The decode and prefill speed in tokens per second."""

    decode: float
    prefill: float


@dataclass(frozen=True)
class Forecast:
    """The prediction for a model on one machine. notes: the notes of its plans."""

    held: tuple[PlacedLayers, ...]
    speeds: Speeds
    notes: tuple[str, ...]


class Forecaster:
    """Predicts the performance of a model with a context of `ctx` tokens on any machine. sizes: the
    sizes of compiled steps in tokens, from 1 on. with_cpu: the CPU competes with other devices.
    cache_type: the element type of the KV cache. precision: a mode, or AUTO or FAST.
    """

    def __init__(
        self,
        model: LanguageModel,
        ctx: int,
        sizes: Sequence[int],
        with_cpu: bool = False,
        cache_type: str = "f32",
        precision: str = SINGLE,
    ) -> None:
        meta = model.meta()
        cache = meta.cache(ctx, cache_type)
        steps = (meta.step(cache, size) for size in (1, sizes[-1]))
        self._write, self._read = (build_graph(s.logits, s.updates)[0] for s in steps)
        self._ctx = ctx
        self._sizes = tuple(sizes)
        self._with_cpu = with_cpu
        self._precision = precision
        self._known: list[tuple[Topology, LayerPlacement, tuple[Plan, Plan]]] = []

    def compare(self, topology: Topology, changes: Sequence[MachineChange] = ()) -> Comparison:
        """Return the decode time per token with and without each device."""
        return compare(topology, lambda each: self._planned(each)[1][0], changes)

    def forecast(self, topology: Topology) -> Forecast | None:
        """Return the forecast for a machine; None if the model does not fit."""
        try:
            layer_placement, plans = self._planned(topology)
        except OutOfMemory:
            return None
        written, read = (simulate(plan) for plan in plans)
        parts = PARTS if layer_placement.flows(PARTS, self._ctx) else 1
        read_s = read.seconds + (parts - 1) * max(read.busy_s.values())
        return Forecast(
            tuple(
                _placed_layers(layer_placement, layer_range)
                for layer_range in layer_placement.partition.layer_ranges
            ),
            Speeds(1 / written.seconds, parts * self._sizes[-1] / read_s),
            tuple(dict.fromkeys(note for plan in plans for note in plan.notes)),
        )

    def _planned(self, topology: Topology) -> tuple[LayerPlacement, tuple[Plan, Plan]]:
        for known, layer_placement, plans in self._known:
            if known == topology:
                return layer_placement, plans
        modes = modes_of(topology, self._precision)
        measured = measure_layers(self._write, self._read, self._sizes, topology, modes)
        layer_placement = LayerPlacement(
            topology, measured, decide(measured, topology, self._with_cpu)
        )
        plans = self._plan(self._write, layer_placement), self._plan(self._read, layer_placement)
        self._known.append((topology, layer_placement, plans))
        return layer_placement, plans

    def _plan(self, graph: Graph, layer_placement: LayerPlacement) -> Plan:
        """Return the plan of a step, built as the scheduler builds it."""
        topology, placed = layer_placement.topology, layer_placement.placement
        precision: Precision = self._precision
        if precision in (AUTO, FAST):
            precision = precision_by_name(precision, placed, topology)
        graph = apply_precision(graph, {}, SINGLE, precision, None)
        request = Request(graph, tuple(placed.items()), {}).optimized(topology)
        return plan_by_policy(request, topology, with_cpu=self._with_cpu)


def _placed_layers(layer_placement: LayerPlacement, layer_range: LayerRange) -> PlacedLayers:
    spec = layer_placement.topology.devices[layer_range.device]
    return PlacedLayers(
        spec.name,
        layer_placement.layers[layer_range.start].name,
        layer_placement.layers[layer_range.end - 1].name,
        layer_range.end - layer_range.start,
        len(layer_placement.away(layer_range)),
        layer_placement.weight_bytes(layer_range),
        layer_placement.cache_bytes(layer_range),
        layer_placement.work_bytes(layer_range),
        spec.memory_bytes,
    )


def as_dict(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast as plain data for json.dumps."""
    return {
        "devices": [
            {
                "device": held.device,
                "first": held.first,
                "last": held.last,
                "layers": held.layers,
                "n_cpu_moe": held.away,
                "weight_bytes": held.weight_bytes,
                "cache_bytes": held.cache_bytes,
                "work_bytes": held.work_bytes,
                "total_bytes": held.total_bytes,
                "capacity_bytes": held.capacity_bytes,
            }
            for held in forecast.held
        ],
        "decode_per_s": forecast.speeds.decode,
        "prefill_per_s": forecast.speeds.prefill,
        "notes": list(forecast.notes),
    }
