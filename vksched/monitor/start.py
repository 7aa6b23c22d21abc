"""Start of monitoring. Imports little unless it is enabled."""

from __future__ import annotations

from collections.abc import Callable

from ..common.env import is_on
from ..engine.graph_registry import GraphRegistry

SWITCH = "VKSCHED_MONITOR"


def watch(graphs: GraphRegistry, policy: str, wanted: bool | None) -> Callable[[], None]:
    """Publish a scheduler if enabled; return a function that stops it.

    wanted: None uses the variable VKSCHED_MONITOR. Raise VkschedError if the variable is neither on
    nor off.
    """
    if not (is_on(SWITCH) if wanted is None else wanted):
        return lambda: None
    from . import server
    from .watch import Watch

    watched = Watch(graphs, policy)
    server.start(watched)
    return lambda: server.stop(watched)
