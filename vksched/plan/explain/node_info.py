"""Node info: all facts of a plan about one node, as data and as text.

    type and op -> device, split, rule and variant -> operands and readers with their devices
    -> transfers -> every device: support, reason if unsupported, expected time

Complexity: O(nodes) for the first node. Examples: tests/plan/test_explain.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...common.dtypes import TensorType
from ...common.formatting import count_of, format_bytes, format_seconds
from ...ir.graph import Node
from ...ops.elementwise.epilogue import attrs_text
from ...ops.lowering.variants import Choice
from ...storage.weak_map import WeakIdMap
from ..costs import node_cost
from ..costs.op_support import OpSupport
from ..types.plan_types import HOST, PlanValue
from ..types.query import split_of
from .move_costs import find_moves

MAX_PAGES = 8
"""A pattern with more matches than this gets a line for each node instead of a page."""
MAX_LISTED = 12
"""Maximum number of operands or readers in a text."""


@dataclass(frozen=True, slots=True)
class NodeNeighbor:
    """An operand or a reader.

    device: its device, "caller" for an input. via: the view through which it is read, or "".
    crosses: True if it is on another device.
    """

    name: str
    device: str
    bytes: int
    via: str
    crosses: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy between devices, or from the caller, that this node needs or causes."""

    name: str
    source: str
    target: str
    bytes: int
    split: int


@dataclass(frozen=True, slots=True)
class DeviceEligibility:
    """The eligibility of one device for a node.

    unsupported_reason: "" if the device supports the node. seconds: None if it does not. note: the
    reason that the node is elsewhere although the device supports it. measured: True if the seconds
    rest on measurements rather than on work and rough speeds. in_s, out_s: seconds of the copies in
    each run, of operands to this device and of the result to its readers, if only this node ran
    there; see move_costs.py. in_measured, out_measured: True if the topology names the links.
    """

    device: str
    supports: bool
    unsupported_reason: str
    seconds: float | None
    note: str = ""
    measured: bool = False
    in_s: float | None = None
    in_measured: bool = False
    out_s: float | None = None
    out_measured: bool = False

    @property
    def total_s(self) -> float | None:
        """The seconds of the node on this device with its copies; None if it is unsupported."""
        if self.seconds is None:
            return None
        return self.seconds + (self.in_s or 0.0) + (self.out_s or 0.0)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node in its plan.

    split: None for a node that never runs. view_of: the node that a view refers to; views: the
    views of this node. variant: the kernel variant, "" without a choice; why_variant: tuned or a
    guess; variants: all variants that the device supports. copies: for a weight or a state, the
    devices that hold it, with bytes; a device that gets an input only at the start of a run is
    among the transfers. stands_for: names of the caller's nodes that passes have fused into it.
    """

    id: int
    name: str
    op: str
    type: str
    bytes: int
    attrs: str
    device: str
    split: int | None
    reason: str
    view_of: str
    output: bool
    operands: tuple[NodeNeighbor, ...]
    readers: tuple[NodeNeighbor, ...]
    views: tuple[str, ...]
    copies: tuple[tuple[str, int], ...]
    transfers: tuple[Transfer, ...]
    devices: tuple[DeviceEligibility, ...]
    variant: str = ""
    why_variant: str = ""
    variants: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()


@dataclass(slots=True)
class _NodeCache:
    """Cached answers about a plan. Plans do not change."""

    support: OpSupport
    nodes: dict[int, NodeInfo] = field(default_factory=dict)


_KNOWN: WeakIdMap[_NodeCache] = WeakIdMap()


def describe_node(plan: PlanValue, node_id: int) -> NodeInfo:
    """Return all facts of the plan about one node, cached with the plan."""
    known = _KNOWN.get(plan)
    if known is None:
        known = _NodeCache(OpSupport(plan.graph, plan.topology))
        _KNOWN.set(plan, known)
    if node_id not in known.nodes:
        known.nodes[node_id] = _describe(plan, node_id, known.support)
    return known.nodes[node_id]


def _describe(plan: PlanValue, node_id: int, support: OpSupport) -> NodeInfo:
    graph, devices = plan.graph, plan.topology.devices
    node = graph.nodes[node_id]
    root = graph.nodes[graph.view_base(node_id)]
    placement = plan.placements[node_id]
    runs = not node.declaration.leaf and node_id not in graph.views
    spec = devices[placement.device]
    choice = node_cost.variant_of(spec, graph, node) if runs and spec.kind != "cpu" else Choice()
    return NodeInfo(
        id=node_id,
        name=node.name,
        op=node.op,
        type=str(node.type),
        bytes=node.type.device_bytes,
        attrs="" if node.declaration.leaf else attrs_text(node.attrs),
        device="caller" if node.op == "input" else devices[placement.device].name,
        split=split_of(plan).get(root.id),
        reason=placement.reason,
        view_of="" if root is node else root.name,
        output=any(graph.view_base(o) == root.id for _, o in graph.outputs),
        operands=tuple(_operand(plan, node, i) for i in dict.fromkeys(node.inputs)),
        readers=_readers(plan, root, node),
        views=tuple(graph.nodes[v].name for v in graph.views if _views(plan, v, node_id)),
        copies=_copies(plan, root),
        transfers=_transfers(plan, node, root),
        devices=_eligibility(plan, node, support) if runs else (),
        variant=choice.variant,
        why_variant=choice.why if choice.variant else "",
        variants=choice.of,
        stands_for=graph.stands_for.get(node_id, ()),
    )


def about_as_dict(about: NodeInfo) -> dict[str, Any]:
    """Return the node as plain data for `json.dumps`."""
    out = asdict(about)
    for key, value in out.items():
        if isinstance(value, tuple):
            out[key] = list(value)
    for entry, verdict in zip(out["devices"], about.devices, strict=True):
        entry["total_s"] = verdict.total_s
    out["copies"] = [{"device": name, "bytes": count} for name, count in about.copies]
    return out


def _device_name(plan: PlanValue, node: Node) -> str:
    """Return the name of a node's device. Inputs come from the caller."""
    return "caller" if node.op == "input" else plan.topology.devices[_device(plan, node)].name


def _device(plan: PlanValue, node: Node) -> int:
    return plan.placements[node.id].device


def _operand(plan: PlanValue, node: Node, operand: int) -> NodeNeighbor:
    graph = plan.graph
    root = graph.nodes[graph.view_base(operand)]
    here = _device(plan, node)
    via = "" if root.id == operand else graph.nodes[operand].name
    if root.declaration.leaf:
        held = root.id in plan.memory[here].weights
        where = plan.topology.devices[here].name if held else _device_name(plan, root)
        crosses = root.op == "input" and plan.topology.devices[here].kind != "cpu"
    else:
        where, crosses = _device_name(plan, root), _device(plan, root) != here
    return NodeNeighbor(
        root.name, where, _bytes(plan, here, graph.nodes[operand].type), via, crosses
    )


def _readers(plan: PlanValue, root: Node, node: Node) -> tuple[NodeNeighbor, ...]:
    """Return the nodes that run and read the node, directly or through its views."""
    graph = plan.graph
    out: dict[int, NodeNeighbor] = {}
    for split in plan.splits:
        for reader in split.nodes:
            for operand in graph.nodes[reader].inputs:
                if not _is_view_of(plan, operand, node.id) or reader in out:
                    continue
                crosses = not root.declaration.leaf and split.device != _device(plan, root)
                via = "" if operand == node.id else graph.nodes[operand].name
                size = _bytes(plan, split.device, graph.nodes[operand].type)
                name = plan.topology.devices[split.device].name
                out[reader] = NodeNeighbor(graph.nodes[reader].name, name, size, via, crosses)
    return tuple(out.values())


def _is_view_of(plan: PlanValue, value: int, of: int) -> bool:
    """Return True if a value is a node or a view of it, over any number of views."""
    while value != of and value in plan.graph.views:
        value = plan.graph.nodes[value].inputs[0]
    return value == of


def _views(plan: PlanValue, value: int, of: int) -> bool:
    return value != of and _is_view_of(plan, value, of)


def _bytes(plan: PlanValue, device: int, type_: TensorType) -> int:
    on_host = plan.topology.devices[device].kind == "cpu"
    return type_.host_bytes if on_host else type_.device_bytes


def _copies(plan: PlanValue, root: Node) -> tuple[tuple[str, int], ...]:
    return tuple(
        (spec.name, _bytes(plan, device, root.type))
        for device, (spec, memory) in enumerate(
            zip(plan.topology.devices, plan.memory, strict=True)
        )
        if root.id in (*memory.weights, *memory.states)
    )


def _transfers(plan: PlanValue, node: Node, root: Node) -> tuple[Transfer, ...]:
    """Return the copies into the node's split that it reads, and the copies of its result to other
    devices.
    """
    graph, devices = plan.graph, plan.topology.devices
    runs = root is node and not node.declaration.leaf
    wanted = {r for i in node.inputs for r in (i, graph.view_base(i))} if runs else set()
    out: list[Transfer] = []
    for split in plan.splits:
        for copy in split.uploads:
            arrives = copy.node in wanted and split.device == _device(plan, node)
            if not arrives and graph.view_base(copy.node) != root.id:
                continue
            host = copy.source == HOST
            if host and devices[split.device].kind == "cpu":
                continue
            origin = "host memory" if copy.node in graph.data else "caller"
            source = origin if host else devices[plan.splits[copy.source].device].name
            value = graph.nodes[copy.node]
            target = devices[split.device].name
            out.append(Transfer(value.name, source, target, value.type.device_bytes, split.id))
    return tuple(out)


def _eligibility(plan: PlanValue, node: Node, support: OpSupport) -> tuple[DeviceEligibility, ...]:
    """Return the eligibility of every device, computed anew: a plan stores reasons only for the
    chosen device.
    """
    runs_on = {n: s.device for s in plan.splits for n in s.nodes}
    readers = [runs_on[reader] for reader in support.readers[node.id] if reader in runs_on]
    out: list[DeviceEligibility] = []
    for device, spec in enumerate(plan.topology.devices):
        why = support.unsupported_reason(node, device)
        found = node_cost.node_cost(spec, plan.graph, node) if why is None else None
        seconds, measured = (found.seconds, found.measured) if found is not None else (None, False)
        full = [n for n in plan.notes if spec.name in n.partition(" is full")[0].split(", ")]
        note = full[0] if full and why is None and device != _device(plan, node) else ""
        verdict = DeviceEligibility(spec.name, why is None, why or "", seconds, note, measured)
        if found is not None:
            verdict = replace(verdict, **asdict(find_moves(plan, node, device, readers)))
        out.append(verdict)
    return tuple(out)


# -- text ------------------------------------------------------------------------------------------


def explain_nodes(plan: PlanValue, ids: tuple[int, ...]) -> str:
    """Return nodes as text: a page for each of a few, or a line for each of many."""
    if len(ids) <= MAX_PAGES:
        return "\n\n".join(about_as_text(describe_node(plan, i)) for i in ids)
    lines = [f"{len(ids)} nodes; a name or a narrower pattern tells more of one"]
    for i in ids:
        node, placement = plan.graph.nodes[i], plan.placements[i]
        lines.append(
            f"  {node.name}: {node.op} {node.type}, {_device_name(plan, node)}, {placement.reason}"
        )
    return "\n".join(lines)


def about_as_text(about: NodeInfo) -> str:
    """Return one node as text."""
    lines = [f"{about.name}: {about.op} -> {about.type} ({format_bytes(about.bytes)}), %{about.id}"]
    if about.attrs:
        lines.append(f"  with {about.attrs}")
    if about.stands_for:
        more = ", ..." if len(about.stands_for) > MAX_LISTED else ""
        lines.append(f"  stands for {', '.join(about.stands_for[:MAX_LISTED])}{more} too")
    if about.view_of:
        lines.append(
            f"  is a view of {about.view_of}: it never runs, and is where that is, on "
            f"{about.device}"
        )
    elif about.split is not None:
        lines.append(f"  runs on {about.device} in split {about.split}")
    if not about.view_of:
        lines.append(f"  reason: {about.reason}")
    if about.variant:
        of = f" of {', '.join(about.variants)}" if len(about.variants) > 1 else ""
        lines.append(f"  variant: {about.variant}, {about.why_variant}{of}")
    if about.copies:
        held = ", ".join(f"{name} ({format_bytes(size)})" for name, size in about.copies)
        lines.append(f"  lives on: {held}")
    lines += _listed("reads", about.operands)
    if about.views:
        noun = "a view of it" if len(about.views) == 1 else "views of it"
        more = ", ..." if len(about.views) > MAX_LISTED else ""
        lines.append(f"  read by {', '.join(about.views[:MAX_LISTED])}{more}, {noun}")
    lines += _listed("read by", about.readers)
    if about.output:
        lines.append("  goes to the caller")
    lines += [
        f"  crosses: {c.name}, {format_bytes(c.bytes)}, {c.source} -> {c.target} (split {c.split})"
        for c in about.transfers
    ]
    if about.devices:
        lines.append("  devices:")
        wide = max(len(v.device) for v in about.devices)
        for v in about.devices:
            mark = "*" if v.device == about.device else " "
            eligibility = (
                f"cannot: {v.unsupported_reason}" if v.seconds is None else _format_eligibility(v)
            )
            lines.append(f"  {mark} {v.device:{wide}}  {eligibility}")
    return "\n".join(lines)


def _format_eligibility(verdict: DeviceEligibility) -> str:
    note = f"; {verdict.note}" if verdict.note else ""
    text = f"can, {_time(verdict.seconds or 0.0, verdict.measured)}"
    ways = (
        ("in", verdict.in_s, verdict.in_measured),
        ("out", verdict.out_s, verdict.out_measured),
    )
    copies = [f"{_time(seconds, known)} {way}" for way, seconds, known in ways if seconds]
    if copies:
        text += f", copies {', '.join(copies)}: {format_seconds(verdict.total_s or 0.0)}"
    return f"{text}{note}"


def _time(seconds: float, measured: bool) -> str:
    text = format_seconds(seconds)
    return f"{text} as measured" if measured else f"about {text}"


def _listed(title: str, neighbours: tuple[NodeNeighbor, ...]) -> list[str]:
    lines = []
    for n in neighbours[:MAX_LISTED]:
        via = f" through {n.via}" if n.via else ""
        crosses = ", crosses" if n.crosses else ""
        place = "from the caller" if n.device == "caller" else f"on {n.device}"
        lines.append(f"  {title} {n.name}{via} ({format_bytes(n.bytes)}) {place}{crosses}")
    left = len(neighbours) - MAX_LISTED
    return [*lines, f"  {title} {count_of(left, 'more node')}"] if left > 0 else lines
