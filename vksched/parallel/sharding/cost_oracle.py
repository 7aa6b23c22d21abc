"""Cost oracle: the interface by which config passes query costs. engine/apply_config.py implements
it with plans.
"""

from __future__ import annotations

from typing import Protocol

from ...ir.graph import Graph
from ...ir.graph_builder import BuildResult


class CostOracle(Protocol):
    """The costs of plans on a machine."""

    def seconds(self, graph: Graph, node: int, device: str) -> float:
        """Return the expected seconds of a node on a device."""

    def run_seconds(self, result: BuildResult) -> float:
        """Return the expected seconds of a run of a graph; infinity if it cannot run."""
