"""What-if analysis of `vksched plan`: placement and times on other topologies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..options.policy_options import PlanningOptions
from ..options.topology_options import changes_of

if TYPE_CHECKING:
    from ...engine.request import Request
    from ...ir.graph import Graph
    from ...parallel.config.config_types import Config
    from ...plan.plan import Plan
    from ...plan.types.decision import Tradeoffs
    from ...planner.what_if import Comparison
    from ...topology.topology import Topology

Overrides = tuple[tuple[str | int, str], ...]


class Planner:
    """Plan one graph for any topology, as a scheduler with these options would.

    base: topology with the devices that overrides name. config: devices of signals, as for a
    scheduler; `resolve` maps its device names to those of the topology.
    """

    def __init__(
        self,
        graph: Graph,
        base: Topology,
        overrides: Overrides,
        planning: PlanningOptions,
        copies: int | str | None,
        with_cpu: bool,
        config: Config | None = None,
        resolve: Callable[[str], str] = str,
    ) -> None:
        self.graph = graph
        self.base = base
        self.overrides = overrides
        self._planning = planning
        self._copies = copies
        self._with_cpu = with_cpu
        self._config = config
        self._resolve = resolve
        self._requests: dict[object, Request] = {}
        self._plans: dict[Topology, Plan] = {}

    def __call__(self, topology: Topology) -> Plan:
        from ...engine.request import plan_by_policy

        if topology not in self._plans:
            request = self._request(topology)
            plan = plan_by_policy(
                request,
                topology,
                policy=self._planning.policy,
                objective=self._planning.objective,
                copies=self._copies,
                with_cpu=self._with_cpu,
            )
            self._plans[topology] = replace(plan, notes=(*request.notes, *plan.notes))
        return self._plans[topology]

    def tradeoffs(self) -> Tradeoffs:
        """Return the candidates of all objectives on the base topology."""
        from ...planner.planner import compare_objectives

        request = self._request(self.base)
        return compare_objectives(
            request.graph,
            self.base,
            overrides=request.overrides,
            copies="auto" if self._copies is None else self._copies,
            with_cpu=self._with_cpu,
        )

    def _request(self, topology: Topology) -> Request:
        """Return the rewritten graph for a topology; equal topologies share it."""
        from ...engine.request import Request, least_limits
        from ...planner.what_if import present

        overrides = present(self.overrides, topology, self.base)
        rooms = [spec.memory_bytes for spec in topology.devices if spec.kind != "cpu"]
        key: tuple[object, ...] = least_limits(topology), min(rooms, default=0), overrides
        if self._config is not None:  # shares depend on device costs
            key = (*key, topology)
        if key not in self._requests:
            request = Request(self.graph, overrides, {})
            if self._config is not None:
                request = self._configured(request, topology, self._config)
            self._requests[key] = request.optimized(topology)
        return self._requests[key]

    def _configured(self, request: Request, topology: Topology, config: Config) -> Request:
        from ...engine.apply_config import ConfigApplier

        about = (lambda: topology), self._planning.policy, self._with_cpu
        here = {spec.name for spec in topology.devices}
        gone = {spec.name for spec in self.base.devices if spec.name not in here}
        names = {d for section in config.sections.values() for d in section.devices}
        names.update(config.pipeline.devices if config.pipeline else ())
        left = config.without({name for name in names if self._resolve(name) in gone})
        return ConfigApplier(left, lambda _: None, *about).apply(request, self._resolve)


def compare_topologies(planner: Planner, what_ifs: Sequence[str]) -> Comparison:
    """Return the time of a run on the base topology, without each device, on each alone, and after
    each change.
    """
    from ...planner.what_if import compare

    pinned = [device for _, device in planner.overrides]
    return compare(planner.base, planner, changes_of(planner.base, what_ifs), pinned=pinned)


def predicted_as_text(plan: Plan, found: Comparison) -> str:
    """Return the placement of layers, the time of a run, and the times on other topologies."""
    from ...common.formatting import format_bytes, format_seconds
    from ...plan.explain.layer_table import layer_lines

    first = found.rows[0]
    lines = ["layers:", *(f"  {line}" for line in layer_lines(plan)), ""]
    by = "by simulation"
    if first.estimated:
        by += " of estimates" if not any(d.costs for d in plan.topology.devices) else ""
    lines.append(f"predicted: {format_seconds(first.seconds or 0.0)} for one run, {by}")
    if first.seconds_per_run is not None:
        lines.append(
            f"  in a stream of runs, {plan.copies} at once: {format_seconds(first.seconds_per_run)}"
            " for each"
        )
    sizes = plan.buffers()
    for name, share in first.busy.items():
        held = sizes[name]
        lines.append(
            f"  {name} works {100 * share:.0f} % of the time, and holds "
            f"{format_bytes(held.peak_bytes)} of {format_bytes(held.capacity_bytes)}"
        )
    return "\n".join([*lines, "", "with and without:", found.as_text()])


def predicted_as_dict(plan: Plan, found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    from ...plan.explain.layer_table import find_layers

    return {
        "layers": [layers.as_dict() for layers in find_layers(plan)],
        "prediction": found.rows[0].as_dict(),
        "what_if": found.as_dict(),
    }
