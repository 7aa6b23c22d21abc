"""Request: a validated compilation request, and the selection of its graph version.

Problem: passes optimize a graph as far as the devices' limits allow. A device with low limits makes
the graph slower for all others, and a plan over several devices may leave some of them idle.
Method: passes first optimize the graph for the limits of all devices, so that each device can run
each node. If the plan of that graph leaves devices idle, passes optimize the graph again for the
used devices, and it is planned again. The second plan is used if it uses no further device.

    source --passes: all devices--> version 1 --plan--> gpu:1 is used
       `-----passes: gpu:1 alone---> version 2 --plan--> gpu:1 is used: taken

For devices with higher limits than the common ones, there is a version for each distinct set of
limits. The version with the best plan by the objective is used, with the margins of
planner/search/select.py.

    source --passes: all devices--> version 1 --plan--> 4.2 ms on the slower card
       `-----passes: better cards--> version 2 --plan--> 3.5 ms on the better card: taken

A plan with an idle device therefore equals the plan without that device, and an additional slow
device makes no plan slower. Complexity: that of passes and plans, repeated for each time that
devices fall idle and for each version. Examples: tests/engine/test_idle.py,
tests/scheduler/test_versions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..common.dtypes import NDArray
from ..common.errors import GraphError, PlanError
from ..ir.graph import Graph
from ..ir.tensor import Tensor
from ..passes import RewriteConstraints, optimize
from ..plan.plan import Plan
from ..plan.types.decision import Decision
from ..plan.types.node_names import NameIndex
from ..plan.types.placement_overrides import resolve_overrides
from ..planner.plan_cache import CachedPlan
from ..planner.planner import plan_graph
from ..planner.search.select import is_better
from ..runtime.executors.run_record import Observers
from ..topology.device_spec import DeviceSpec
from ..topology.limits import Limits
from ..topology.topology import Topology
from ..topology.tuned_variants import TunedVariants
from .compile_options import Observe

DeviceProfile = tuple[frozenset[str], Limits | None]
"""The names of enabled devices without the CPU, and their common kernel limits."""
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Request:
    """A validated compilation request.

    source: the request from which passes created this one; None for an original. device_profile:
    the devices that passes optimized it for. id_map: for another version of `source`: maps the
    callers' ids of inputs and observed values to the ids of this graph. pipeline_order: node names
    to their positions in a pipeline's order. notes: notes of the config. all_reduce_nodes: names of
    nodes that are terms or results of an all-reduce. cached_plan: a plan from the disk cache.
    is_ahead: runs may be submitted ahead; see `CompiledGraph.run_ahead`.
    """

    graph: Graph
    overrides: tuple[tuple[str | int, str], ...]
    observers: Observers
    source: Request | None = None
    device_profile: DeviceProfile = (frozenset(), None)
    id_map: Mapping[int, int] = field(default_factory=dict)
    pipeline_order: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    all_reduce_nodes: frozenset[str] = frozenset()
    cached_plan: CachedPlan | None = None
    is_ahead: bool = False
    _versions: dict[DeviceProfile, Request] = field(default_factory=dict, repr=False)

    def key(self) -> object:
        """Return the key by which requests share one compiled graph."""
        pipeline_order = tuple(self.pipeline_order.items())
        observed = frozenset(self.observers)
        return (self.graph.key, self.overrides, observed, pipeline_order, self.is_ahead)

    def optimized(
        self,
        topology: Topology,
        working: Collection[int] | None = None,
        cached: CachedPlan | None = None,
    ) -> Request:
        """Return an equivalent request with an optimized graph. working: the devices whose limits
        count; all by default. cached: the optimized graph and its plan from the disk cache.
        """
        if cached is None:
            built = self.of_graph(optimize(self.graph, self.constraints(topology, working)))
        else:
            built = replace(self.of_graph(cached.graph), cached_plan=cached)
        profile = _device_profile(_subset(topology, working))
        return replace(built, source=self, device_profile=profile, _versions={})

    def constraints(
        self, topology: Topology, working: Collection[int] | None = None
    ) -> RewriteConstraints:
        """Return the constraints of passes. working: the devices whose limits count; all by
        default.
        """
        graph, devices = self.graph, topology.devices
        homes = resolve_overrides(graph, topology, self.overrides) if self.overrides else {}
        chosen = _subset(topology, working)
        placed = {graph.nodes[n].name: devices[device].name for n, (device, _) in homes.items()}
        # nodes of different pipeline positions are not fused, like nodes of different devices
        apart = {
            name: f"{placed.get(name, '')} {turn}" for name, turn in self.pipeline_order.items()
        }
        return RewriteConstraints(
            # a view is retained with its base
            frozenset(graph.nodes[n].name for v in self.observers for n in (v, graph.view_base(v))),
            placed | apart,
            least_limits(chosen),
            _rounded_down(min((d.memory_bytes for d in _in_use(chosen)), default=0)),
        )

    def for_devices(self, topology: Topology, working: Collection[int]) -> Request:
        """Return the version of this request for the limits of some devices; itself if its graph is
        equal.
        """
        device_profile = _device_profile(_subset(topology, working))
        if self.source is None or device_profile[0] == self.device_profile[0]:
            return self
        if device_profile not in self._versions:
            built = self.source.optimized(topology, working)
            at = {**built.graph.aliases, **{node.name: node.id for node in built.graph.nodes}}
            ids = {*(node.id for node in self.graph.inputs), *self.observers}
            id_map = {n: at[self.graph.nodes[n].name] for n in ids}
            self._versions[device_profile] = replace(built, id_map=id_map)
        found = self._versions[device_profile]
        return self if found.graph.key == self.graph.key else found

    def version(self, graph: Graph) -> Request:
        """Return the version of this request with a given graph; itself by default."""
        if graph is self.graph:
            return self
        return next((v for v in [*self._versions.values()] if v.graph is graph), self)

    def by_own_ids(self, values: Mapping[int, V]) -> Mapping[int, V]:
        """Return values by this version's ids instead of the callers'."""
        return {self.id_map[n]: value for n, value in values.items()} if self.id_map else values

    def values_by_id(
        self, graph: Graph, feeds: Mapping[int, NDArray], observers: Observers
    ) -> tuple[Mapping[int, NDArray], Observers]:
        """Return inputs and observers by the ids of the version with a given graph."""
        if graph is self.graph and not self.id_map:
            return feeds, observers
        version = self.version(graph)
        return version.by_own_ids(feeds), version.by_own_ids(observers)

    def of_graph(self, graph: Graph) -> Request:
        """Return this request with the graph that a pass created."""
        if graph is self.graph:
            return self
        at = {**graph.aliases, **{node.name: node.id for node in graph.nodes}}
        id_map = {n: at[self.graph.nodes[n].name] for n in self._named()}
        overrides = tuple(
            (id_map[k] if isinstance(k, int) else k, device) for k, device in self.overrides
        )
        observers: dict[int, tuple[Callable[[str, NDArray], object], ...]] = {}
        for n, functions in self.observers.items():
            observers[id_map[n]] = (*observers.get(id_map[n], ()), *functions)
        observed = dict(sorted(observers.items()))
        built = Request(graph, overrides, observed, pipeline_order=self.pipeline_order)
        return replace(
            built,
            notes=self.notes,
            all_reduce_nodes=self.all_reduce_nodes,
            is_ahead=self.is_ahead,
        )

    def require_ends(self, graph: Graph) -> None:
        """Raise GraphError unless a graph from a file has the inputs and outputs of this request,
        and all nodes that it names.
        """
        found, expected = _ends(graph), _ends(self.graph)
        if found != expected:
            raise GraphError(f"[graph] expected inputs and outputs {expected}, got {found}")
        at = {**graph.aliases, **{node.name: node.id for node in graph.nodes}}
        names = {*self.graph.aliases, *(node.name for node in self.graph.nodes)}
        for node in (self.graph.nodes[n] for n in self._named()):
            if node.name not in at or graph.nodes[at[node.name]].name not in names:
                raise GraphError(f"[graph] expected the named node {node.name}, got none")

    def _named(self) -> set[int]:
        """The nodes that the request names directly, not by a pattern."""
        return {*self.observers, *(key for key, _ in self.overrides if isinstance(key, int))}


def _ends(graph: Graph) -> tuple[dict[str, str], dict[str, str]]:
    """Return the types of inputs and outputs by name."""
    inputs = {node.name: str(node.type) for node in graph.inputs}
    return inputs, {name: str(graph.nodes[n].type) for name, n in graph.outputs}


def plan_request(request: Request, topology: Topology, planned: Callable[[Request], Plan]) -> Plan:
    """Return the plan of the best version of a request.

    planned: plans a version on the machine.
    """
    plan = _plan_for_working(request, request, topology, planned)
    tried = {request.graph.key, plan.graph.key}
    decision = plan.decision
    for working in (*_higher_limits(topology, decision), *_cpu_alone(topology, decision)):
        version = request.for_devices(topology, working)
        if version.graph.key not in tried:
            tried.add(version.graph.key)
            plan = _better_of(plan, _plan_for_working(request, version, topology, planned))
    return plan


def plan_by_policy(
    request: Request,
    topology: Topology,
    *,
    policy: str = "auto",
    objective: str = "latency",
    copies: int | str | None = "auto",
    with_cpu: bool = False,
) -> Plan:
    """Return the plan that a scheduler with these options makes of a request; see `plan_graph`."""

    def planned(version: Request) -> Plan:
        return plan_graph(
            version.graph,
            topology,
            policy=policy,
            objective=objective,
            overrides=version.overrides,
            copies=copies,
            with_cpu=with_cpu,
            pipeline_order=version.pipeline_order,
        )

    return plan_request(request, topology, planned) if policy == "auto" else planned(request)


def _plan_for_working(
    request: Request, version: Request, topology: Topology, planned: Callable[[Request], Plan]
) -> Plan:
    """Return the plan of a version, or of the version for the devices that it uses."""
    plan, at_work = planned(version), set(range(len(topology.devices)))
    while (working := set(plan.working)) < at_work:
        at_work = working
        lighter = request.for_devices(topology, working)
        if lighter.graph.key == version.graph.key:
            break
        other = planned(lighter)
        if not set(other.working) <= working or _is_clearly_better(plan, other):
            break
        names = ", ".join(topology.devices[device].name for device in sorted(working))
        note = f"passes: for what {names} allows, as no other device has work"
        plan, version = replace(other, notes=(*other.notes, note)), lighter
    return plan


def _higher_limits(topology: Topology, decision: Decision | None) -> list[set[int]]:
    """Return sets of devices with higher limits than the common ones: for each competing device the
    devices with at least its limits, and all CPUs. Empty if there was no choice.
    """
    if decision is None:
        return []
    in_use = {spec.name for spec in _in_use(topology)}
    cpus = {d for d in topology.order if topology.is_cpu(d)}

    def allowed(*devices: int) -> Limits | None:
        return _device_profile(_subset(topology, devices))[1]

    alike: dict[Limits | None, list[int]] = {}
    for device, spec in enumerate(topology.devices):
        if spec.name in in_use:
            alike.setdefault(allowed(device), []).append(device)
    together = _device_profile(topology)[1]
    found: list[set[int]] = []
    for own, (first, *more) in alike.items():
        competes = any(topology.devices[d].name in decision.devices for d in (first, *more))
        if competes and own != together:
            able = (same for same in alike.values() if allowed(first, same[0]) == own)
            working = cpus.union(*able)
            if working not in found:
                found.append(working)
    return found


def _cpu_alone(topology: Topology, decision: Decision | None) -> list[set[int]]:
    """Return the CPUs if they compete with cards and are not far slower than the chosen plan: numpy
    runs some ops faster in their original form than in the form for cards.
    """
    cpu = topology.devices[topology.cpu].name
    if decision is None or cpu not in decision.devices or not _in_use(topology):
        return []
    most_s = MAX_CPU_SLOWDOWN * decision.chosen.metrics.latency_s
    near = any(c.single == cpu and c.metrics.latency_s <= most_s for c in decision.candidates)
    return [{d for d in topology.order if topology.is_cpu(d)}] if near else []


def _is_clearly_better(plan: Plan, other: Plan) -> bool:
    """Return True if one plan is better than another by more than the margin."""
    new, decision = plan.decision, other.decision
    return decision is not None and new is not None and is_better(new, decision, clearly=True)


def _better_of(plan: Plan, other: Plan) -> Plan:
    """Return the better plan of two versions; its decision names the best single device of both."""
    decision, new = plan.decision, other.decision
    if decision is None or new is None:
        return plan
    if not set(new.chosen.devices) & set(new.devices):
        return plan  # numpy ran unsupported ops: other devices would have a version of their own
    if is_better(new, decision):
        note = "passes: the graph for what all devices allow has a worse plan"
        plan, decision, new = replace(other, notes=(*other.notes, note)), new, decision
    if decision.objective.word and new.best_single_device_value < decision.best_single_device_value:
        decision = replace(
            decision,
            best_single_device=new.best_single_device,
            best_single_device_value=new.best_single_device_value,
        )
        plan = replace(plan, decision=decision)
    return plan


def least_limits(topology: Topology) -> Limits | None:
    """Return the common kernel limits of all enabled devices; None if there is only numpy."""
    limits = [d.limits for d in _in_use(topology)]
    if not limits:
        return None
    min_limits = {name: min(getattr(each, name) for each in limits) for name in _SIZES}
    # independent of the order of devices; the subgroup sizes of CPU drivers select kernels
    software = [each for each in limits if each.software]
    lanes = min((each for each in software or limits), key=lambda each: each.subgroup_size)
    shared = tuple(m for m in lanes.matrices if all(m in each.matrices for each in limits))
    checked = all(each.coopmat_checked for each in limits)
    return replace(lanes, **min_limits, matrices=shared, coopmat_checked=checked)


def _subset(topology: Topology, working: Collection[int] | None) -> Topology:
    """Return a topology of some of its devices."""
    if working is None:
        return topology
    return replace(topology, devices=tuple(topology.devices[device] for device in sorted(working)))


def _rounded_down(memory_bytes: int) -> int:
    """Return free memory rounded down by at most an eighth: cached graphs stay valid while it
    changes a little.
    """
    unit = 1 << max(0, memory_bytes.bit_length() - 4)
    return memory_bytes // unit * unit


def _device_profile(topology: Topology) -> DeviceProfile:
    """Return the profile of the devices that passes optimize for, without free memory and kernel
    variants.
    """
    limits = least_limits(topology)
    names = frozenset(d.name for d in _in_use(topology))
    return names, None if limits is None else replace(limits, tuned=TunedVariants())


MAX_CPU_SLOWDOWN = 30.0
"""The slowdown of a CPU relative to the plan from which on a graph version for it is not tried."""
_SIZES = ("max_invocations", "shared_bytes", "storage_buffers", "max_buffer_bytes", "cores")


def _in_use(topology: Topology) -> list[DeviceSpec]:
    return [d for d in topology.devices if d.kind != "cpu" and not d.disabled_reason]


def find_pipeline_order(graph: Graph, ids: Mapping[Tensor, int]) -> dict[str, int]:
    """Return the pipeline positions of nodes by name, if they were set. ids: the node ids of
    tensors.
    """
    return {graph.nodes[i].name: t.turn for t, i in ids.items() if t.turn is not None}


def find_observers(graph: Graph, ids: Mapping[Tensor, int], observe: Observe) -> Observers:
    """Return the observer functions by node id."""
    if not isinstance(observe, Mapping):
        raise PlanError(f"[observe] expected a dict of tensors to functions, got {observe!r}")
    names = NameIndex(graph, "observe")
    found: dict[int, list[Callable[[str, NDArray], object]]] = {}
    for key, function in observe.items():
        if not callable(function) or not isinstance(key, (str, Tensor)):
            raise PlanError(
                f"[observe] expected tensors or name patterns to functions, got {key!r}: "
                f"{function!r}"
            )
        if isinstance(key, Tensor) and key not in ids:
            raise PlanError(f"[observe] {key!r} is not part of this graph")
        matched = (ids[key],) if isinstance(key, Tensor) else names.find(key)
        computed = [n for n in matched if _is_computed(graph, n)]
        if not computed:
            raise PlanError(
                f"[observe] expected a computed value, got the leaf "
                f"{graph.nodes[matched[0]].name!r}"
            )
        for node_id in computed:
            found.setdefault(node_id, []).append(function)
    return {node_id: tuple(functions) for node_id, functions in sorted(found.items())}


def _is_computed(graph: Graph, node_id: int) -> bool:
    root = graph.nodes[graph.view_base(node_id)]
    return not root.declaration.leaf and root.op != "assign"
