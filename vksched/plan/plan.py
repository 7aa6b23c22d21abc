"""Plan: the device and the order of every node of a graph, with the queries on it.

The frozen fields are in types/plan_types.py, for functions that need no more. This module adds
text, picture and checks, whose modules are imported on demand, because few programs use them.

Examples: tests/plan/test_plan.py, tests/plan/test_explain.py.
"""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..common.errors import PlanError
from ..schedule import Metrics
from .costs.lower_bound import Bound, find_bound
from .simulation.plan_metrics import plan_metrics
from .types.node_names import NameIndex
from .types.plan_types import PlanValue, Upload
from .types.query import BufferSizes, buffers, copied_bytes, fences, transfers
from .verify.verify_plan import verify_plan

if TYPE_CHECKING:
    from ..viz.timeline.timeline import Timeline


class Plan(PlanValue):
    """The placement, order and memory of a graph on a set of devices."""

    replicas: tuple[Plan, ...]

    def verify(self) -> Plan:
        """Return the plan after checking it; see `plan.verify.verify_plan`.

        Raises
        ------
        PlanError
            The plan breaks an invariant.
        """
        return verify_plan(self)

    def explain(self, key: str | int | None = None) -> str:
        """Return the plan as text: devices, splits, copies, and the rule of each placement.

        Parameters
        ----------
        key
            A name, a pattern or a node id. The text then covers only the nodes that it matches:
            their device, rule and transfers, and the eligibility of every device.

        Raises
        ------
        PlanError
            The key matches no node.
        """
        from .explain.explain_plan import explain_plan
        from .explain.node_info import explain_nodes

        return explain_plan(self) if key is None else explain_nodes(self, self.find(key))

    def draw(self, path: str | PathLike[str]) -> None:
        """Write the plan as a picture, an SVG file with devices in columns and time downwards.

        Raises
        ------
        PlanError
            The name does not end in .svg, or the file cannot be written.
        """
        from .drawing.render import save_drawing

        save_drawing(self, path)

    def timeline(self) -> Timeline:
        """Return the timeline of one expected run; its `save` writes a page or a picture."""
        from .explain.timeline import timeline_of

        return timeline_of(self)

    def _repr_svg_(self) -> str:
        from .drawing.render import draw_plan

        return draw_plan(self)

    def _repr_html_(self) -> str:
        from ..viz.svg import framed

        return framed(self._repr_svg_(), "explain()", self.explain())

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        from .explain.explain_plan import plan_as_dict

        return plan_as_dict(self)

    def node_as_dict(self, key: str | int) -> dict[str, Any]:
        """Return the content of `explain(key)` for one node as plain data.

        Raises
        ------
        PlanError
            The key matches no node, or more than one.
        """
        from .explain.node_info import about_as_dict, describe_node

        return about_as_dict(describe_node(self, self._one(key)))

    # -- queries -----------------------------------------------------------------------------------

    def find(self, key: str | int) -> tuple[int, ...]:
        """Return the ids of the nodes that match a name, a pattern or an id, at least one.

        Raises
        ------
        PlanError
            The key matches no node; the text suggests similar names.
        """
        return NameIndex(self.graph, "plan").find(key)

    def device_of(self, key: str | int) -> str:
        """Return the device of a node: the device that holds a weight, the device of a view's base,
        and "cpu" for an input.
        """
        return self.topology.devices[self.placements[self._one(key)].device].name

    @property
    def transfers(self) -> tuple[Upload, ...]:
        """The copies from one device to another."""
        return transfers(self)

    @property
    def transfer_bytes(self) -> int:
        """The bytes that are copied from one device to another in a run."""
        return copied_bytes(self, self.transfers)

    @property
    def fences(self) -> int:
        """The number of waits for devices in a run, the end included. The CPU needs no fence."""
        return fences(self)

    def buffers(self) -> dict[str, BufferSizes]:
        """Return the sizes of all buffers by device name, without allocating any."""
        return buffers(self)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of the plan by simulation, in the units of all objectives."""
        return plan_metrics(self)

    @cached_property
    def bound(self) -> Bound:
        """The lower bound on any placement of its nodes on its devices."""
        return find_bound(self)

    def _one(self, key: str | int) -> int:
        found = self.find(key)
        if len(found) > 1:
            raise PlanError(
                f"[plan] expected one node, got {len(found)} that match {key!r}; try one of "
                f"{', '.join(self.graph.nodes[i].name for i in found[:8])}"
            )
        return found[0]

    def __str__(self) -> str:
        return self.explain()
