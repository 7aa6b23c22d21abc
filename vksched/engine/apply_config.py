"""Apply config: applies a sharding config to each graph before planning, by the costs of plans.

    request --config, topology, state locations--> request with shards, devices, pipeline order

Examples: tests/engine/test_config_run.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ..common.errors import OutOfMemory, VkschedError
from ..common.user_warning import VkschedWarning
from ..ir.graph import Graph
from ..ir.graph_builder import BuildResult
from ..ir.tensor import Tensor
from ..ops.creation.state import StatePiece
from ..parallel.apply_config import AppliedConfig, Pieces, apply_config
from ..parallel.config.config_types import Config
from ..parallel.sharding.sharding_strategy import Devices, ShardedAxis
from ..plan.costs.node_cost import node_seconds
from ..plan.simulation.simulate_plan import simulate
from ..plan.types.node_names import NameIndex
from ..planner.planner import plan_graph
from ..topology.topology import Topology
from .request import Request

Lie = Callable[[Tensor], "Sequence[tuple[StatePiece, str | None]] | None"]
"""Return the pieces of a state that is in use, with the names of their devices."""


class PlanCostOracle:
    """The costs of plans on one machine, for `parallel.apply.CostOracle`."""

    def __init__(self, topology: Topology, policy: str, with_cpu: bool) -> None:
        self._topology = topology
        self._policy = policy
        self._with_cpu = with_cpu
        self._known: dict[tuple[int, str], float] = {}

    def seconds(self, graph: Graph, node: int, device: str) -> float:
        """Return the predicted seconds of a node on a device."""
        key = graph.signatures[node], device
        if key not in self._known:
            spec = self._topology.devices[self._topology.index(device)]
            self._known[key] = node_seconds(spec, graph, graph.nodes[node])
        return self._known[key]

    def run_seconds(self, built: BuildResult) -> float:
        """Return the predicted seconds of a run of a graph; infinite if it cannot run."""
        try:
            plan = plan_graph(
                built.graph,
                self._topology,
                policy=self._policy,
                overrides=tuple(built.pinned_devices.items()),
                with_cpu=self._with_cpu,
                pipeline_order=built.pipeline_order,
            )
        except OutOfMemory:
            return math.inf
        return simulate(plan).seconds


class ConfigApplier:
    """Applies one config to requests. lie: returns the locations of states. known: names that need
    no warning.
    """

    def __init__(
        self,
        config: Config,
        lie: Lie,
        topology: Callable[[], Topology],
        policy: str,
        with_cpu: bool,
    ) -> None:
        self.config = config
        self._lie = lie
        self._topology = topology
        self._policy = policy
        self._with_cpu = with_cpu
        self._known: set[str] = set()

    def apply(self, request: Request, resolve: Callable[[str], str]) -> Request:
        """Return an equivalent request with the config applied. resolve: maps device names to those
        of the machine.
        """
        graph, topology = request.graph, self._topology()
        config = _resolved(self.config, resolve)
        shown = {graph.nodes[n].name for n in request.observers}
        applied = self._applied(graph, config, topology, shown)
        self._warn(applied.warnings)
        built = request.of_graph(applied.graph)
        names = NameIndex(applied.graph, "placement")
        placed = [(n, device) for key, device in built.overrides for n in names.find(key)]
        overrides = (*applied.overrides, *placed)
        done = replace(
            built,
            overrides=overrides,
            pipeline_order=applied.pipeline_order or built.pipeline_order,
        )
        return replace(done, notes=applied.notes, all_reduce_nodes=applied.all_reduce_nodes)

    def _warn(self, unmatched: Mapping[str, str]) -> None:
        """Warn once of each name that has matched nothing until now."""
        for name, text in unmatched.items():
            if name not in self._known:
                warnings.warn(text, VkschedWarning, stacklevel=6)
        self._known.update(self.config.sections)
        if self.config.pipeline is not None:
            self._known.update(self.config.pipeline.stages)

    def _applied(
        self, graph: Graph, config: Config, topology: Topology, shown: Collection[str]
    ) -> AppliedConfig:
        costs = PlanCostOracle(topology, self._policy, self._with_cpu)
        return apply_config(graph, config, topology, costs, shown, self._pieces(graph))

    def _pieces(self, graph: Graph) -> Pieces:
        """Return the layouts of states that are in use."""
        out: dict[int, tuple[Devices, ShardedAxis] | None] = {}
        for node_id in graph.initial:
            state = graph.keys[node_id]
            assert isinstance(state, Tensor)
            lies = self._lie(state)
            if lies is None:
                continue
            if not lies:
                out[node_id] = None
                continue
            homes = tuple(home or "" for _, home in lies)
            pieces = [piece for piece, _ in lies]
            out[node_id] = homes, ShardedAxis(pieces[0].axis, tuple(piece.size for piece in pieces))
        return out


def _resolved(config: Config, resolve: Callable[[str], str]) -> Config:
    """Return a config with the machine's device names."""
    sections = {}
    for name, section in config.sections.items():
        try:
            devices = tuple(resolve(device) for device in section.devices)
        except VkschedError as error:
            raise type(error)(f"{error} (in {config.source}, {name})") from error
        sections[name] = replace(section, devices=devices)
    pipeline = config.pipeline
    if pipeline is not None:
        pipeline = replace(pipeline, devices=tuple(resolve(d) for d in pipeline.devices))
    return replace(config, sections=sections, pipeline=pipeline)
