"""Request: what a caller wants compiled, checked, and what two requests have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..errors import PlanError
from ..graph import Graph
from ..machine.limits import Limits
from ..machine.spec import DeviceSpec, Machine
from ..ops.core.tensor import Tensor
from ..passes import Wishes, optimize
from ..plan.make.placement import resolve_overrides
from ..plan.names import NameIndex
from ..runtime.record import Observers
from ..types import NDArray

Placements = Mapping[Tensor | str, str] | Mapping[str, str]
"""Tensors or name patterns to device names."""
Observe = Mapping[Tensor | str, Callable[[str, NDArray], object]]
"""Tensors or name patterns to functions that are called with name and value."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be compiled."""

    graph: Graph
    overrides: tuple[tuple[str | int, str], ...]
    observers: Observers

    def key(self) -> object:
        """Returns a key; two requests with the same key share one compiled graph."""
        return (self.graph.key, self.overrides, frozenset(self.observers))

    def optimized(self, machine: Machine) -> Request:
        """Returns a request that takes less work on a machine and shows the same values."""
        graph, devices = self.graph, machine.devices
        homes = resolve_overrides(graph, machine, self.overrides) if self.overrides else {}
        wishes = Wishes(
            # a view stays as long as its root stays
            frozenset(graph.nodes[n].name for v in self.observers for n in (v, graph.root(v))),
            {graph.nodes[n].name: devices[device].name for n, (device, _) in homes.items()},
            least_limits(machine),
            min((d.memory_bytes for d in _in_use(machine)), default=0),
        )
        return self.of_graph(optimize(graph, wishes))

    def of_graph(self, graph: Graph) -> Request:
        """Returns the same request for what a pass has made of its graph."""
        if graph is self.graph:
            return self
        at = {**graph.merged, **{node.name: node.id for node in graph.nodes}}
        moved = {n: at[self.graph.nodes[n].name] for n in self._named()}
        overrides = tuple(
            (moved[k] if isinstance(k, int) else k, device) for k, device in self.overrides
        )
        observers: dict[int, tuple[Callable[[str, NDArray], object], ...]] = {}
        for n, functions in self.observers.items():
            observers[moved[n]] = (*observers.get(moved[n], ()), *functions)
        return Request(graph, overrides, dict(sorted(observers.items())))

    def _named(self) -> set[int]:
        """The nodes that the request means by themselves, not by a pattern."""
        return {*self.observers, *(key for key, _ in self.overrides if isinstance(key, int))}


def least_limits(machine: Machine) -> Limits | None:
    """Returns what all devices in use allow a kernel; None where there is only numpy."""
    limits = [d.limits for d in _in_use(machine)]
    if not limits:
        return None
    least = {name: min(getattr(each, name) for each in limits) for name in _SIZES}
    # the same for any order of devices; of subgroups those of CPU drivers choose kernels
    software = [each for each in limits if each.software]
    lanes = min((each for each in software or limits), key=lambda each: each.subgroup_size)
    return replace(lanes, **least)


_SIZES = ("max_invocations", "shared_bytes", "storage_buffers", "max_buffer_bytes")


def _in_use(machine: Machine) -> list[DeviceSpec]:
    return [d for d in machine.devices if d.kind != "cpu" and not d.out_of_use]


def find_observers(graph: Graph, ids: Mapping[Tensor, int], observe: Observe) -> Observers:
    """Returns the functions to call, by the id of the node that the caller wants to see."""
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
                f"[observe] expected a computed value, got {graph.nodes[matched[0]].name!r}, which "
                "the caller gave"
            )
        for node_id in computed:
            found.setdefault(node_id, []).append(function)
    return {node_id: tuple(functions) for node_id, functions in sorted(found.items())}


def _is_computed(graph: Graph, node_id: int) -> bool:
    root = graph.nodes[graph.root(node_id)]
    return not root.declaration.leaf and root.op != "assign"
