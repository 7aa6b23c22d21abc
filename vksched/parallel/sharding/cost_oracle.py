"""Cost oracle: what the passes of this package ask about costs. `engine/apply_config.py` has one by
plans.
"""

from __future__ import annotations

from typing import Protocol

from ...ir.graph import Graph
from ...ir.graph_builder import BuildResult


class CostOracle(Protocol):
    """What plans of a machine cost."""

    def seconds(self, graph: Graph, node: int, device: str) -> float:
        """Return the expected seconds of a node on a device."""

    def run_seconds(self, made: BuildResult) -> float:
        """Return the expected seconds of a run of a graph; infinite where it cannot run."""
