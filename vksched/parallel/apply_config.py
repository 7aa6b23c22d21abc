"""A config applied to a graph: what it says of names becomes devices, parts and an order of nodes.

    graph + config --pipeline--> microbatches, stages, turns --shard--> parts on devices

The result computes the same. It is a graph like any other, with a device for each node that the
config speaks of; plans, passes and checks know nothing of it. Examples:
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
from .pipeline.build_pipeline import Arranged, arrange, matching, stage_devices
from .sharding.choose_sharding import Sharder
from .sharding.config_axes import check_axes, idle_shards, where_of
from .sharding.cost_oracle import CostOracle
from .sharding.device_order import find_steps
from .sharding.sharded_values import made_of_parameters
from .sharding.sharding_strategy import Devices, ShardedAxis

TRIED: tuple[Shard | None, ...] = (
    None,
    Shard(axis=0, ratio=AUTO),
    Shard(axis=1, ratio=AUTO),
    Shard(weights="columns", ratio=AUTO),
    Shard(weights="rows", ratio=AUTO),
)
"""What `shard: auto` chooses from."""
FEW = 4
"""Sections that `auto` weighs one by one; of more all take the same."""

Pieces = Mapping[int, tuple[Devices, ShardedAxis] | None]
"""States that have a layout already, by node: None for those that lie whole."""


@dataclass(frozen=True)
class Applied:
    """graph: what is to be planned. overrides: node id to device name. pipeline_order: by node
    name, their position in the order of a pipeline. notes: what was done. warnings: by names of the
    config that have no effect on this graph. all_reduce_nodes: names of nodes that are terms or
    results of sums over devices.
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
) -> Applied:
    """Return a graph of the same results for what a config says.

    topology: where it will run; devices that are out of use still take part. shown: names of nodes
    that somebody wants to see whole, beside the outputs. pieces: layouts of states.

    Raises:
        PlanError: a device that is not there, or an axis that does not divide.
    """
    names = [node.name for node in graph.nodes]
    warnings = unmatched(names, config)
    wanted = [node.id for node in graph.nodes if node.name in shown]
    found = _in_time(graph, config, topology, oracle, wanted)
    notes: list[str] = []
    if found is None:
        work = _Work(graph, topology, oracle, wanted, pieces or {}, {})
        sections = [_resolved(section, topology) for section in sections_of(names, config)]
    else:
        work = _after(found.made, graph, topology, oracle, wanted, pieces or {})
        sections, ignored = _placed(found.made, config, topology)
        warnings |= ignored
        notes.append(found.note)
    check_axes(work.graph, sections, made_of_parameters(work.graph), config)
    chosen, told = _choose(work, sections)
    sharder = work.sharder(chosen)
    made = work.made_by(sharder)
    warnings |= idle_shards(chosen, sharder.shard, config)
    overrides = tuple(made.pinned_devices.items())
    return Applied(
        made.graph, overrides, made.pipeline_order, (*notes, *told), warnings, made.all_reduce_nodes
    )


def _in_time(
    graph: Graph, config: Config, topology: Topology, oracle: CostOracle, shown: list[int]
) -> Arranged | None:
    """Return the graph as a pipeline, if the config has one for it."""
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
    made: BuildResult,
    old: Graph,
    topology: Topology,
    oracle: CostOracle,
    shown: list[int],
    pieces: Pieces,
) -> _Work:
    """Returns what is to be done with a graph of microbatches, in its own ids."""
    graph = made.graph
    by_name = {node.name: node.id for node in graph.nodes} | dict(graph.aliases)
    by_key = {old.keys[node]: layout for node, layout in pieces.items()}
    lie = {n: by_key[graph.keys[n]] for n in graph.initial if graph.keys[n] in by_key}
    wanted = [by_name[old.nodes[n].name] for n in shown]
    return _Work(graph, topology, oracle, wanted, lie, made.pipeline_order)


def _placed(
    made: BuildResult, config: Config, topology: Topology
) -> tuple[list[Section | None], dict[str, str]]:
    """Return the sections of a graph of microbatches: a node stays on the device of its stage,
    unless its section cuts it; and a warning for each section whose devices have no effect so.
    """
    nodes, ignored = made.graph.nodes, {}
    found = sections_of([node.name for node in nodes], config)
    out = [_resolved(section, topology) for section in found]
    for node, device in made.pinned_devices.items():
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
    graph: Graph
    topology: Topology
    oracle: CostOracle
    shown: list[int]
    pieces: Pieces
    pipeline_order: Mapping[str, int]

    def seconds(self, node: int, device: str) -> float:
        return self.oracle.seconds(self.graph, node, device)

    def shard(self, sections: list[Section | None]) -> BuildResult:
        return self.made_by(self.sharder(sections))

    def sharder(self, sections: list[Section | None]) -> Sharder:
        return Sharder(self.graph, sections, self.topology, self, self.pieces, self.pipeline_order)

    def made_by(self, sharder: Sharder) -> BuildResult:
        made = sharder.run(self.shown)
        return replace(made, pipeline_order=find_steps(made))


def _resolved(section: Section | None, topology: Topology) -> Section | None:
    """Return a section whose devices are there; all but the CPU where it names none."""
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
    """Return sections in which nothing is auto, and notes on what was found best."""
    open_ = [s.name for s in dict.fromkeys(sections) if s and s.shard and s.shard.auto]
    if not open_:
        return sections, []
    chosen: dict[str, Shard | None] = {}
    groups = [[name] for name in open_] if len(open_) <= FEW else []
    for group in [open_, *groups]:
        chosen |= dict.fromkeys(group, _best(work, sections, chosen, group))
    notes = [f"shard: auto of {name}: {_describe(shard)}" for name, shard in chosen.items()]
    return _with(sections, chosen), notes


def _best(
    work: _Work, sections: list[Section | None], chosen: dict[str, Shard | None], group: list[str]
) -> Shard | None:
    """Returns what is best for some sections, all others as they are chosen so far."""
    found: list[tuple[float, int]] = []
    for position, shard in enumerate(TRIED):
        try:
            made = work.shard(_with(sections, chosen | dict.fromkeys(group, shard)))
        except PlanError:  # an axis that does not divide
            if shard is None:  # of another section
                raise
            continue
        found.append((work.oracle.run_seconds(made), position))
    return TRIED[min(found)[1]]


def _with(
    sections: list[Section | None], chosen: Mapping[str, Shard | None]
) -> list[Section | None]:
    """Return sections with what was chosen; one that is not cut runs anywhere among its devices,
    and those that nothing was chosen for likewise.
    """
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
