"""Apply a config to a graph: turn its sections into devices, shards and an order of nodes.

    graph + config --pipeline--> microbatches, stages, positions --shard--> shards on devices

The result computes equal results. It is an ordinary graph, with a device for each node that the
config names; plans, passes and checks need no knowledge of it. Examples:
tests/parallel/test_shard.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..common.errors import PlanError
from ..ir.graph import Graph
from ..ir.graph_builder import BuildResult
from ..topology.topology import Topology
from .config.config_types import AUTO, Config, Section, Shard
from .config.match_sections import sections_of, unmatched
from .pipeline.build_pipeline import BuiltPipeline, arrange, matching, stage_devices
from .sharding.choose_sharding import Sharder
from .sharding.config_axes import check_axes, idle_shards, where_of
from .sharding.cost_oracle import CostOracle
from .sharding.device_order import find_steps
from .sharding.sharded_values import input_independent_nodes
from .sharding.sharding_strategy import Devices, ShardedAxis

CANDIDATE_SHARDS: tuple[Shard | None, ...] = (
    None,
    Shard(axis=0, ratio=AUTO),
    Shard(axis=1, ratio=AUTO),
    Shard(weights="columns", ratio=AUTO),
    Shard(weights="rows", ratio=AUTO),
)
"""The candidates of `shard: auto`."""
MAX_SECTIONS = 4
"""Maximum number of `auto` sections that are chosen one by one; beyond that all get one choice."""

Pieces = Mapping[int, tuple[Devices, ShardedAxis] | None]
"""States that have a layout already, by node; None for replicated ones."""


@dataclass(frozen=True)
class AppliedConfig:
    """A graph with a config applied.

    Parameters
    ----------
    graph
        The graph to plan.
    overrides
        Pairs of node id and device name.
    pipeline_order
        The position of nodes in the pipeline, by name.
    notes
        The choices, as text.
    warnings
        By names of the config that have no effect on this graph, the reason.
    all_reduce_nodes
        Names of nodes that are operands or results of sums over devices.
    """

    graph: Graph
    overrides: tuple[tuple[int, str], ...] = ()
    pipeline_order: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    all_reduce_nodes: frozenset[str] = frozenset()


def apply_config(
    graph: Graph,
    config: Config,
    topology: Topology,
    oracle: CostOracle,
    shown: Collection[str] = (),
    pieces: Pieces | None = None,
) -> AppliedConfig:
    """Return an equivalent graph that follows a config.

    Parameters
    ----------
    graph, config
        The graph and the config.
    topology
        The machine that will run it; disabled devices count as present.
    oracle
        The costs of nodes and runs.
    shown
        Names of nodes whose full values are needed, besides the outputs.
    pieces
        The layouts of existing states.

    Raises
    ------
    PlanError
        A device does not exist, or an axis is not divisible.
    """
    names = [node.name for node in graph.nodes]
    warnings = unmatched(names, config)
    wanted = [node.id for node in graph.nodes if node.name in shown]
    found = _pipelined(graph, config, topology, oracle, wanted)
    notes: list[str] = []
    if found is None:
        work = _Work(graph, topology, oracle, wanted, pieces or {}, {})
        sections = [_resolved(section, topology) for section in sections_of(names, config)]
    else:
        work = _after(found.result, graph, topology, oracle, wanted, pieces or {})
        sections, ignored = _placed(found.result, config, topology)
        warnings |= ignored
        notes.append(found.note)
    check_axes(work.graph, sections, input_independent_nodes(work.graph), config)
    chosen, choices = _choose(work, sections)
    sharder = work.sharder(chosen)
    result = work.built_by(sharder)
    warnings |= idle_shards(chosen, sharder.shard, config)
    overrides = tuple(result.pinned_devices.items())
    return AppliedConfig(
        result.graph,
        overrides,
        result.pipeline_order,
        (*notes, *choices),
        warnings,
        result.all_reduce_nodes,
    )


def _pipelined(
    graph: Graph, config: Config, topology: Topology, oracle: CostOracle, shown: list[int]
) -> BuiltPipeline | None:
    """Return the graph as a pipeline; None if the config has none for it."""
    pipeline = config.pipeline and matching(config.pipeline, (n.name for n in graph.nodes))
    if pipeline is None:
        return None
    known = [spec.name for spec in topology.devices]
    _check_devices("pipeline", pipeline.devices, known)
    sections = {
        name: resolved.devices
        for name, section in config.sections.items()
        if (resolved := _resolved(section, topology)) is not None
    }
    return arrange(graph, pipeline, stage_devices(pipeline, sections, known), oracle, shown)


def _after(
    batched: BuildResult,
    old: Graph,
    topology: Topology,
    oracle: CostOracle,
    shown: list[int],
    pieces: Pieces,
) -> _Work:
    """Return the remaining work on a graph of microbatches, in its own node ids."""
    graph = batched.graph
    by_name = {node.name: node.id for node in graph.nodes} | dict(graph.aliases)
    by_key = {old.keys[node]: layout for node, layout in pieces.items()}
    layouts = {n: by_key[graph.keys[n]] for n in graph.initial if graph.keys[n] in by_key}
    wanted = [by_name[old.nodes[n].name] for n in shown]
    return _Work(graph, topology, oracle, wanted, layouts, batched.pipeline_order)


def _placed(
    batched: BuildResult, config: Config, topology: Topology
) -> tuple[list[Section | None], dict[str, str]]:
    """Return the sections of a graph of microbatches, in which a node stays on the device of its
    stage unless its section shards it, and a warning for each section whose devices have no effect.
    """
    nodes, ignored = batched.graph.nodes, {}
    found = sections_of([node.name for node in nodes], config)
    out = [_resolved(section, topology) for section in found]
    for node, device in batched.pinned_devices.items():
        section = out[node]
        if section is None or section.shard is None:
            name = section.name if section else config.source
            out[node] = Section(name, (device,))
            if section is not None and section.devices and device not in section.devices:
                ignored[name] = (
                    f"{where_of(section, config)}: the devices of {name} have no effect: the "
                    f"pipeline puts {nodes[node].name} on {device}, the device of its stage; try "
                    "other devices of the pipeline, or a shard"
                )
    return out, ignored


@dataclass(frozen=True)
class _Work:
    """A graph to shard, with its context."""

    graph: Graph
    topology: Topology
    oracle: CostOracle
    shown: list[int]
    pieces: Pieces
    pipeline_order: Mapping[str, int]

    def seconds(self, node: int, device: str) -> float:
        return self.oracle.seconds(self.graph, node, device)

    def shard(self, sections: list[Section | None]) -> BuildResult:
        return self.built_by(self.sharder(sections))

    def sharder(self, sections: list[Section | None]) -> Sharder:
        return Sharder(self.graph, sections, self.topology, self, self.pieces, self.pipeline_order)

    def built_by(self, sharder: Sharder) -> BuildResult:
        result = sharder.run(self.shown)
        return replace(result, pipeline_order=find_steps(result))


def _resolved(section: Section | None, topology: Topology) -> Section | None:
    """Return a section after checking its devices; by default all devices except the CPU."""
    if section is None:
        return None
    known = [spec.name for spec in topology.devices]
    _check_devices(section.name, section.devices, known)
    if section.devices or section.shard is None:
        return section
    return replace(section, devices=tuple(known[:-1]) or tuple(known))


def _check_devices(name: str, devices: Iterable[str], known: Sequence[str]) -> None:
    for device in devices:
        if device not in known:
            raise PlanError(
                f"[config] {name}: expected devices of {', '.join(known)}, got {device}"
            )


def _choose(work: _Work, sections: list[Section | None]) -> tuple[list[Section | None], list[str]]:
    """Return sections without `auto`, and notes on the choices."""
    open_ = [s.name for s in dict.fromkeys(sections) if s and s.shard and s.shard.auto]
    if not open_:
        return sections, []
    chosen: dict[str, Shard | None] = {}
    groups = [[name] for name in open_] if len(open_) <= MAX_SECTIONS else []
    for group in [open_, *groups]:
        chosen |= dict.fromkeys(group, _best(work, sections, chosen, group))
    notes = [f"shard: auto of {name}: {_describe(shard)}" for name, shard in chosen.items()]
    return _with(sections, chosen), notes


def _best(
    work: _Work, sections: list[Section | None], chosen: dict[str, Shard | None], group: list[str]
) -> Shard | None:
    """Return the best shard of some sections, with others as chosen; None for none."""
    found: list[tuple[float, int]] = []
    for position, shard in enumerate(CANDIDATE_SHARDS):
        try:
            result = work.shard(_with(sections, chosen | dict.fromkeys(group, shard)))
        except PlanError:  # an indivisible axis
            if shard is None:  # the error is of another section
                raise
            continue
        found.append((work.oracle.run_seconds(result), position))
    return CANDIDATE_SHARDS[min(found)[1]]


def _with(
    sections: list[Section | None], chosen: Mapping[str, Shard | None]
) -> list[Section | None]:
    """Return sections with the choices; those without a shard run anywhere."""
    out: list[Section | None] = []
    for section in sections:
        if section is None or section.shard is None or not section.shard.auto:
            out.append(section)
            continue
        shard = chosen.get(section.name)
        out.append(None if shard is None else replace(section, shard=shard))
    return out


def _describe(shard: Shard | None) -> str:
    if shard is None:
        return "not cut"
    return f"weights by {shard.weights}" if shard.weights else f"axis {shard.axis}"
