"""Opening: whether a scheduler is told of, and what begins then. Imports little until it is."""

from __future__ import annotations

from collections.abc import Callable

from ..common.env import is_on
from ..engine.graph_registry import Graphs

SWITCH = "VKSCHED_MONITOR"


def watch(graphs: Graphs, policy: str, wanted: bool | None) -> Callable[[], None]:
    """Has a scheduler told of, where that is wanted; returns what ends that.

    wanted: None leaves it to the variable VKSCHED_MONITOR.

    Raises:
        VkschedError: the variable is neither on nor off.
    """
    if not (is_on(SWITCH) if wanted is None else wanted):
        return lambda: None
    from . import server
    from .watch import Watch

    watched = Watch(graphs, policy)
    server.start(watched)
    return lambda: server.stop(watched)
