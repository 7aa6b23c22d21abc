"""Config axes: reject axes that no value of their section has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...common.dtypes import Shape
from ...common.errors import PlanError
from ...ir.graph import Graph
from ..config.config_types import Config, Section

MAX_SHOWN = 4
"""Maximum number of values that an error lists."""


def check_axes(
    graph: Graph, sections: Sequence[Section | None], lazy: Collection[int], config: Config
) -> None:
    """Raise PlanError for a shard along an axis that no value or input of its section has.

    Parameters
    ----------
    graph
        The graph.
    sections
        The section of each node.
    lazy
        Nodes that depend only on weights, constants and states; an axis does not shard these.
    config
        The config, for messages.

    Raises
    ------
    PlanError
        It lists values with their shapes.
    """
    values: dict[Section, dict[str, Shape]] = {}
    for node, section in zip(graph.nodes, sections, strict=True):
        if section is None or section.shard is None or section.shard.axis is None:
            continue
        if node.id not in lazy:
            seen = (graph.nodes[i] for i in (*node.inputs, node.id) if i not in lazy)
            values.setdefault(section, {}).update({each.name: each.type.shape for each in seen})
    for section, shapes in values.items():
        assert section.shard is not None and section.shard.axis is not None
        axis, ranks = section.shard.axis, {len(shape) for shape in shapes.values()}
        if any(-rank <= axis < rank for rank in ranks):
            continue
        shown = [f"{name} of rank {len(shape)}" for name, shape in shapes.items()][:MAX_SHOWN]
        more = ", ..." if len(shapes) > MAX_SHOWN else ""
        raise PlanError(
            f"[config] {where_of(section, config)}: expected an axis of {section.name}.shard that "
            f"a value there has, got {axis} for {', '.join(shown)}{more}; try axis: 0"
        )


def idle_shards(
    sections: Sequence[Section | None], shard: Collection[str], config: Config
) -> dict[str, str]:
    """Return a warning for each section that should shard over several devices but does not.

    Parameters
    ----------
    sections
        The section of each node.
    shard
        The names of sections with a sharded node.
    config
        The config, for messages.
    """
    out: dict[str, str] = {}
    for section in dict.fromkeys(sections):
        if section is None or section.shard is None or len(section.devices) < 2:
            continue
        if section.name not in shard:
            by = section.shard.weights and f"weights by {section.shard.weights}"
            out[section.name] = (
                f"{where_of(section, config)}: the shard of {section.name} cuts nothing in this "
                f"graph: no op there can be computed in parts by its "
                f"{by or f'axis {section.shard.axis}'}; try shard: auto"
            )
    return out


def where_of(section: Section, config: Config) -> str:
    """Return the file of a config, and the line of a section if there is one."""
    return f"{config.source}, line {section.line}" if section.line else config.source
