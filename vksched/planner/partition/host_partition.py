"""Host partition: split a plan over several hosts into one subplan for each.

    for each split: a value from another host --> a Send after its split there,
                                                  a Recv before the split here
    for each host: its splits, the values they read, the rest as inputs --> a Plan of its own

The waits of each subplan are computed anew: in the full plan one host waits for all devices, in
subplans each host waits for its own. Complexity: O(hosts * nodes). Examples:
tests/planner/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from ...common.dtypes import INT32, INT64, UINT32
from ...common.errors import PlanError
from ...ir.attrs import Attrs
from ...ir.graph import Graph, Node
from ...ir.tensor import bounds_attrs
from ...ir.value_range import OF_DTYPE
from ...plan.multi_host.host_plan import NOTHING, HostPlan, Recv, Send, blank
from ...plan.plan import Plan
from ...plan.simulation.host_schedules import Turns
from ...plan.types.interval_set import Owners
from ...plan.types.plan_types import HOST, Placement, PlanValue, Span, Split, Upload
from ...topology.device_spec import DeviceSpec
from ...topology.host_names import CPU, DRIVER, device_of, host_of
from ...topology.topology import Topology


def cut(plan: Plan) -> tuple[HostPlan, ...]:
    """Return the subplans of a plan, the driver's first; only the driver's may be without splits.

    Raises
    ------
    PlanError
        The plan is dynamically scheduled.
    """
    if plan.any_order or type(plan) is not Plan:
        raise PlanError(
            "[host plan] expected a static plan, got one that is scheduled dynamically; "
            'try policy="auto"'
        )
    hosts = [host_of(spec.name) for spec in plan.topology.devices]
    working = dict.fromkeys([DRIVER, *(hosts[split.device] for split in plan.splits)])
    order = _Order(plan, hosts)
    return tuple(_Cut(plan, host, hosts, order).host_plan() for host in working)


class _Order:
    """The transfers between hosts, as steps of both hosts.

    `splits` holds the splits of each host; `blanks` and `locations` are shared by all subplans.
    """

    def __init__(self, plan: PlanValue, hosts: list[str]) -> None:
        self._plan = plan
        self._hosts = hosts
        self.splits: dict[str, list[Split]] = {}
        for split in plan.splits:
            self.splits.setdefault(hosts[split.device], []).append(split)
        commits = {split.id for split in plan.commits}
        self.before_commits = {
            host: sum(split.id not in commits for split in splits)
            for host, splits in self.splits.items()
        }
        self.numbers = {
            split.id: number for own in self.splits.values() for number, split in enumerate(own)
        }
        self.blanks = [blank(node.id) for node in plan.graph.nodes]
        self.locations: dict[int, list[tuple[int, Span]]] = {}
        for (device, node), span in plan.locations.items():
            self.locations.setdefault(device, []).append((node, span))
        names = sorted({DRIVER, *self.splits})
        self._numbers_of_hosts = {host: number for number, host in enumerate(names)}
        live_in = [[(copy.node, copy.source) for copy in split.uploads] for split in plan.splits]
        self._turns = Turns(live_in, len(names))
        self._sends: dict[str, dict[int, list[tuple[tuple[int, int], Send]]]] = {}
        self._recvs: dict[str, dict[int, list[Recv]]] = {}
        self._walked: dict[str, int] = {}
        self._sent: set[tuple[int, str]] = set()
        self._walk()

    def _walk(self) -> None:
        plan, root = self._plan, self._plan.graph.view_base
        makers = {copy.node: split.id for split in plan.splits for copy in split.downloads}
        for split in plan.splits:
            host = self._hosts[split.device]
            for copy in split.uploads:
                if copy.source != HOST:
                    self._cross(copy.node, copy.source, host, split.id)
            self._walked[host] = self._walked.get(host, 0) + 1
            shown: dict[int, list[int]] = {}
            downloaded = {copy.node for copy in split.downloads}
            for value in split.observed:
                shown.setdefault(value if value in downloaded else root(value), []).append(value)
            for value, views in shown.items():
                self._cross(value, split.id, DRIVER, HOST, tuple(views))
        for value in (*(node for _, node in plan.graph.outputs), *plan.graph.backed_up_states):
            computed = value if value in makers else root(value)
            if computed in makers:
                self._cross(computed, makers[computed], DRIVER, HOST)

    def _cross(
        self, value: int, split: int, target: str, reader: int, shown: tuple[int, ...] = ()
    ) -> None:
        """Add a send after a split and a receive at the current position of the target host, once
        for each value and host.
        """
        source = self._hosts[self._plan.splits[split].device]
        if source == target or (value, target) in self._sent:
            return
        self._sent.add((value, target))
        send = Send(value, self.numbers[split], target)
        numbers = self._numbers_of_hosts
        turn = self._turns.turn(numbers[source], numbers[target], reader)
        self._sends.setdefault(source, {}).setdefault(send.split + 1, []).append((turn, send))
        at = min(self._walked.get(target, 0), self.before_commits.get(target, 0))
        self._recvs.setdefault(target, {}).setdefault(at, []).append(Recv(value, source, shown))

    def steps_of(self, host: str) -> dict[int, tuple[Send | Recv, ...]]:
        """Return the sends and receives of a host before each of its splits."""
        sends, recvs = self._sends.get(host, {}), self._recvs.get(host, {})
        for pending in sends.values():
            pending.sort(key=lambda sent: sent[0])
        return {
            at: (*(send for _, send in sends.get(at, ())), *recvs.get(at, ()))
            for at in sorted({*sends, *recvs})
        }


class _Cut:
    """Build the subplan of one host."""

    def __init__(self, plan: PlanValue, host: str, hosts: list[str], order: _Order) -> None:
        self._plan = plan
        self._host = host
        self._order = order
        self._splits = order.splits.get(host, [])
        devices = plan.topology.devices
        own = [d for d, of in enumerate(hosts) if of == host]
        self._gpus = [d for d in own if devices[d].kind != "cpu"]
        self._cpu = next((d for d in own if devices[d].kind == "cpu"), None)
        self._devices = {d: number for number, d in enumerate(self._gpus)}
        if self._cpu is not None:
            self._devices[self._cpu] = len(self._gpus)
        self._steps = order.steps_of(host)
        every = [step for each in self._steps.values() for step in each]
        self._sent = tuple(dict.fromkeys(s.value for s in every if isinstance(s, Send)))
        self._recvs = [step for step in every if isinstance(step, Recv)]

    def host_plan(self) -> HostPlan:
        plan, is_caller = self._plan, self._host == DRIVER
        graph, inputs = self._graph(), self._inputs()
        splits = tuple(self._split(split, is_caller) for split in self._splits)
        memory = [plan.memory[d] for d in self._gpus]
        memory.append(NOTHING if self._cpu is None else plan.memory[self._cpu])
        subplan = Plan(
            graph=graph,
            topology=self._topology(),
            policy=plan.policy,
            copies=plan.copies,
            placements=self._placements(graph),
            splits=splits,
            final_waits=(),
            memory=tuple(memory),
            locations=MappingProxyType(
                {
                    (number, node): span
                    for device, number in self._devices.items()
                    for node, span in self._order.locations.get(device, ())
                }
            ),
        )
        steps = MappingProxyType(self._steps)
        results = len(plan.graph.outputs) if is_caller else 0
        numbers = tuple(split.id for split in self._splits)
        every = len(plan.splits)
        return HostPlan(self._host, _with_waits(subplan), numbers, steps, inputs, results, every)

    def _topology(self) -> Topology:
        plan = self._plan
        devices = [plan.topology.devices[d] for d in self._devices]
        names = {spec.name for spec in devices}
        pairs = tuple(
            (device_of(a), device_of(b), link)
            for a, b, link in plan.topology.links.pairs
            if a in names and b in names
        )
        specs = [replace(spec, name=device_of(spec.name)) for spec in devices]
        if self._cpu is None:
            specs.append(DeviceSpec(CPU, "cpu", "numpy"))
        return Topology(tuple(specs), replace(plan.topology.links, pairs=pairs))

    def _inputs(self) -> tuple[int, ...]:
        nodes, copies = self._plan.graph.nodes, (c for s in self._splits for c in s.uploads)
        needed = (c.node for c in copies if c.source == HOST and nodes[c.node].op == "input")
        return tuple(dict.fromkeys(needed))

    def _split(self, split: Split, is_caller: bool) -> Split:
        numbers, hosts = self._order.numbers, self._devices

        def here(copy: Upload) -> Upload:
            if copy.source == HOST:
                return copy
            own = self._plan.splits[copy.source].device in hosts
            return copy._replace(source=numbers[copy.source] if own else HOST)

        return replace(
            split,
            id=numbers[split.id],
            device=hosts[split.device],
            uploads=tuple(map(here, split.uploads)),
            waits=(),
            observed=split.observed if is_caller else (),
        )

    # -- its graph ---------------------------------------------------------------------------------

    def _graph(self) -> Graph:
        whole, is_caller = self._plan.graph, self._host == DRIVER
        own = {node for split in self._splits for node in split.nodes}
        in_place = {state for split in self._splits for _, state in split.in_place}
        own |= {node for node, state in whole.states.items() if state in in_place}
        outputs = whole.outputs if is_caller else ()
        backed_up = whole.backed_up_states if is_caller else ()
        ends = [*own, *self._sent, *backed_up, *(node for _, node in outputs)]
        ends += [node for recv in self._recvs for node in (recv.value, *recv.shown)]
        ends += [copy.node for split in self._splits for copy in split.uploads]
        ends += [node for split in self._splits if is_caller for node in split.observed]
        nodes, needed = list(self._order.blanks), sorted(self._needed(own, ends))
        for node_id in needed:
            node = whole.nodes[node_id]
            there = node_id in own or node_id in whole.views or node.declaration.leaf
            nodes[node_id] = node if there else _as_input(whole, node)
        unchanged = [i for i in needed if nodes[i] is whole.nodes[i]]
        data = {i: whole.data[i] for i in unchanged if i in whole.data}
        initial = {i: whole.initial[i] for i in unchanged if i in whole.initial}
        names = (name for name, _ in outputs)
        return Graph(
            tuple(nodes),
            (*outputs, *_further_outputs(names, whole, self._sent)),
            MappingProxyType(data),
            MappingProxyType({i: whole.keys[i] for i in (*data, *initial)}),
            MappingProxyType(initial),
            backed_up,
        )

    def _needed(self, own: set[int], ends: Iterable[int]) -> set[int]:
        """Return some nodes with everything that they read: own nodes with their operands, views
        with their bases; values from other hosts without their operands.
        """
        graph, found, stack = self._plan.graph, set[int](), list(ends)
        while stack:
            node_id = stack.pop()
            if node_id not in found:
                found.add(node_id)
                if node_id in own or node_id in graph.views:
                    stack += graph.nodes[node_id].inputs
        return found

    def _placements(self, graph: Graph) -> tuple[Placement, ...]:
        """Return the placement of each node: own nodes on their device, leaves on a device that
        reads them, and all others on the CPU.
        """
        cpu, whole = len(self._gpus), self._plan.placements
        outside = Placement(cpu, "made by another host")
        leaf_devices: dict[int, int] = {}
        for number, device in enumerate(self._gpus):
            for leaf in self._plan.memory[device].weights:
                leaf_devices.setdefault(leaf, number)
        out = [outside] * len(graph.nodes)
        for node, own in zip(graph.nodes, self._plan.graph.nodes, strict=True):
            if node is own:
                there = whole[node.id]
                device_number = self._devices.get(there.device, leaf_devices.get(node.id, cpu))
                out[node.id] = Placement(device_number, there.reason)
        return tuple(out)


def _as_input(graph: Graph, node: Node) -> Node:
    """Return an input with the type and value range of a node."""
    dtype = node.type.dtype
    known = graph.bounds[node.id] if dtype in (INT32, UINT32, INT64) else None
    narrow = known is not None and known != OF_DTYPE.get(dtype)
    bounds = bounds_attrs("input", known, node.type) if narrow else {}
    attrs = Attrs({"shape": node.type.shape, "dtype": dtype, **bounds})
    return Node(node.id, "input", (), attrs, node.type, node.name)


def _further_outputs(
    names: Iterable[str], graph: Graph, values: Iterable[int]
) -> list[tuple[str, int]]:
    """Return further outputs, named after their nodes with unique names."""
    taken = set(names)
    out: list[tuple[str, int]] = []
    for value in values:
        name = graph.nodes[value].name
        while name in taken:
            name += "~"
        taken.add(name)
        out.append((name, value))
    return out


def _with_waits(plan: Plan) -> Plan:
    """Return a subplan with the waits of its host: transfers between its devices, splits whose
    staging buffers are refilled, observed values, and everything else before states are written.
    Steps may wait for some of it earlier.
    """
    done: dict[int, int] = {}  # the last completed split of each device
    device_of = [split.device for split in plan.splits]
    first_commit = len(plan.splits) - len(plan.commits)
    splits: list[Split] = []
    shown: list[int] = []
    owners = [Owners() for _ in plan.topology.devices]

    def wait(wanted: Iterable[int]) -> tuple[int, ...]:
        last: dict[int, int] = {}
        for split in wanted:
            last[device_of[split]] = max(split, last.get(device_of[split], -1))
        new = sorted(split for device, split in last.items() if split > done.get(device, -1))
        done.update((device_of[split], split) for split in new)
        return tuple(new)

    for split in plan.splits:
        needed = [*shown[-1:], *(c.source for c in split.uploads if c.source != HOST)]
        for copy in split.uploads if split.refills else ():
            if copy.node in plan.graph.data:
                needed += owners[split.device].take(copy.staging, split.id)
        if split.id >= first_commit:
            needed += range(first_commit)
        splits.append(replace(split, waits=wait(needed)))
        if split.observed:
            shown.append(split.id)
    return replace(plan, splits=tuple(splits), final_waits=wait(range(len(splits))))
