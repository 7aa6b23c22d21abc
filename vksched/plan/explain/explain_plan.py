"""Explain: a plan as text for people and as plain data for programs.

    plan: totals -> one row per device -> reason of the choice -> CPU fallbacks, and notes ->
    one block per split (uploads, nodes, downloads) -> the rule of every placement

The text of a large plan stays a screen or two: longer lists of values, splits and placements are
summed up. The plain data is complete. `plan.explain("name")` is in node_info.py.
Complexity: O(nodes). Examples: tests/plan/test_plan.py, tests/plan/test_explain.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from ...common.formatting import count_of, format_bytes
from ...storage.weak_map import WeakIdMap
from ...topology.device_spec import DeviceSpec
from ..types.plan_types import COMPUTE, DOWNLOAD, HOST, UPLOAD, PlanValue, Span, Split, Upload
from ..types.query import (
    buffers,
    copied_bytes,
    fences,
    split_of,
    transfers,
    without_work,
)
from .cpu_fallback import fallback_lines
from .decision_text import choice_as_dict, choice_lines
from .precision_text import precision_lines

MAX_VALUES = 6
"""Maximum number of uploads or downloads of a split in the text."""
MAX_SPLITS = 12
"""Maximum number of splits in the text, the first and the last ones."""
MAX_RULES = 24
"""Maximum number of placements in the text; beyond it, nodes of a device are grouped."""
MAX_RULE_KINDS = 6
"""Kinds of rules for grouped nodes."""
ROWS = 32
"""Maximum number of devices with a row each. With more, each host has two rows: its working
devices, and the others.
"""
NAMES = 8
"""Maximum number of device names in one line."""


@dataclass(frozen=True, slots=True)
class DetailHints:
    """The calls by which the reader gets more text. node: the call for one node. place: the call
    that moves nodes to a device.
    """

    node: str
    place: str


PYTHON = DetailHints('plan.explain("name")', 'placement={"PATTERN": "DEVICE"}')
COMMAND = DetailHints("--node NAME", "--place PATTERN=DEVICE")


_TEXTS: WeakIdMap[dict[DetailHints, str]] = WeakIdMap()


def explain_plan(plan: PlanValue, asking: DetailHints = PYTHON) -> str:
    """Return the plan as text, which is computed once per plan."""
    known = _TEXTS.get(plan)
    if known is None:
        known = {}
        _TEXTS.set(plan, known)
    if asking not in known:
        known[asking] = _explain(plan, asking)
    return known[asking]


def _explain(plan: PlanValue, asking: DetailHints) -> str:
    lines = [_totals(plan), "", *_device_rows(plan)]
    choice = choice_lines(plan)
    if choice:
        lines += ["", *choice]
    remarks = [*fallback_lines(plan), *precision_lines(plan), *plan.notes]
    decision = plan.decision
    if not (decision and decision.chosen.single and len(decision.devices) > 1):
        remarks += idle_lines([plan], asking)  # otherwise a note states the effect of other devices
    if remarks:
        lines += ["", "notes:", *(f"  {remark}" for remark in remarks)]
    lines += ["", *_replica_lines(plan), *_splits_lines(plan)]
    lines.append(f"end: wait for {_splits(plan.final_waits)}")
    lines += ["", "placement:"]
    lines += [f"  {line}" for line in _placement_lines(plan, asking)]
    return "\n".join(lines)


def _replica_lines(plan: PlanValue) -> list[str]:
    """Return lines for the devices that also take whole runs, before the splits of the first
    device.
    """
    lines: list[str] = []
    for own in plan.replicas:
        device = plan.topology.devices[own.working[0]].name
        nodes = sum(len(split.nodes) for split in own.splits)
        lines.append(
            f"  {device}: {count_of(nodes, 'node')} in {count_of(len(own.splits), 'split')}, "
            f"copies {own.copies}"
        )
    return ["each run goes whole to the splits below, or to those of:", *lines, ""] if lines else []


def idle_lines(plans: Sequence[PlanValue], asking: DetailHints = PYTHON) -> list[str]:
    """Return a line on the idle GPUs if other GPUs have work; [] if all have work."""
    idle, working = without_work(plans)
    if not idle:
        return []
    verb = "has" if len(idle) == 1 else "have"
    why = f"what GPUs can run fits {_abbreviated(working)}"
    if any(plan.policy in ("earliest-finish", "work-stealing") for plan in plans):
        why = "each run decides again, and this is how that ends"
    elif all(plan.decision for plan in plans):
        why = "no plan over more devices won by enough, by simulation"
    return [f"{_abbreviated(idle)} {verb} no work: {why}; try {asking.place}"]


def _totals(plan: PlanValue) -> str:
    transfer = transfers(plan)
    nodes = sum(len(s.nodes) for s in plan.splits)
    return (
        f"plan: policy {plan.policy}, {count_of(nodes, 'node')} in "
        f"{count_of(len(plan.splits), 'split')}, {count_of(len(transfer), 'transfer')} "
        f"({format_bytes(copied_bytes(plan, transfer))}), {count_of(fences(plan), 'fence')} to "
        f"wait for, {count_of(plan.barriers, 'barrier')} for "
        f"{count_of(plan.depth, 'dependent level')}, "
        f"copies {plan.copies}"
    )


_HELD = {
    "weights": ("weight_bytes",),
    "states": ("state_bytes",),
    "activations": ("activation_bytes",),
    "in, out": ("upload_bytes", "download_bytes"),
    "peak": ("peak_bytes",),
    "may use": ("capacity_bytes",),
}
"""Columns of bytes and their attributes of `BufferSizes`."""


def _device_rows(plan: PlanValue) -> list[str]:
    """Return a table of at most 80 columns: the work and memory of each device, with the peak of
    all copies; then descriptions of the devices.
    """
    groups = _groups(plan)
    rows = [["device" if len(plan.topology.devices) <= ROWS else "computer", "nodes", *_HELD]]
    sizes, nodes = buffers(plan), Counter[int]()
    for split in (split for own in (plan, *plan.replicas) for split in own.splits):
        nodes[split.device] += len(split.nodes)
    for name, devices in groups:
        here = [sizes[plan.topology.devices[device].name] for device in devices]
        held = (sum(getattr(s, n) for s in here for n in names) for names in _HELD.values())
        count = sum(nodes[device] for device in devices)
        rows.append([name, str(count), *map(format_bytes, held)])
    if not any(memory.states for memory in plan.memory):
        at = rows[0].index("states")
        rows = [row[:at] + row[at + 1 :] for row in rows]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out: list[str] = []
    for row in rows:
        cells = [
            row[0].ljust(wide[0]),
            *(c.rjust(w) for c, w in zip(row[1:], wide[1:], strict=True)),
        ]
        out.append(f"  {'  '.join(cells)}".rstrip())
    labels = [(spec.name, _label(spec)) for spec in plan.topology.devices]
    if len(labels) > ROWS:
        alike: dict[str, list[str]] = {}
        for name, label in labels:
            alike.setdefault(label, []).append(name)
        labels = [(_abbreviated(names), label) for label, names in alike.items()]
    return [*out, *(f"  {name}: {label}" for name, label in labels if label)]


def _groups(plan: PlanValue) -> list[tuple[str, list[int]]]:
    """Return the rows of the table, with the devices of each."""
    topology = plan.topology
    if len(topology.devices) <= ROWS:
        return [(spec.name, [device]) for device, spec in enumerate(topology.devices)]
    of: dict[str, list[int]] = {}
    for device in range(len(topology.devices)):
        of.setdefault(topology.host_of(device) or "here", []).append(device)
    working = {topology.host_of(split.device) or "here" for split in plan.splits}
    shown = sorted(of.items(), key=lambda group: group[0] not in working)
    if len(shown) > ROWS:
        rest = [device for _, devices in shown[ROWS - 1 :] for device in devices]
        shown = [*shown[: ROWS - 1], (f"{len(shown) - ROWS + 1:,} more", rest)]
    return shown


def _abbreviated(names: Sequence[str]) -> str:
    """Return names, or the first of many."""
    if len(names) <= NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:NAMES])} and {len(names) - NAMES:,} more"


def _label(spec: DeviceSpec) -> str:
    gone = f"out of use: {spec.disabled_reason}" if spec.disabled_reason else ""
    waits = (
        "" if spec.submit_granularity == "split" else f"a wait after each {spec.submit_granularity}"
    )
    return "; ".join(filter(None, (spec.label, gone, waits)))


def _splits_lines(plan: PlanValue) -> list[str]:
    shown, left = plan.splits, len(plan.splits) - MAX_SPLITS
    if left <= 0:
        return [line for split in shown for line in _split_lines(plan, split)]
    first, last = MAX_SPLITS - MAX_SPLITS // 4, MAX_SPLITS // 4
    middle = plan.splits[first : len(plan.splits) - last]
    nodes = sum(len(s.nodes) for s in middle)
    lines = [line for split in plan.splits[:first] for line in _split_lines(plan, split)]
    lines.append(f"... {len(middle)} splits more, of {count_of(nodes, 'node')}")
    return lines + [
        line
        for split in plan.splits[len(plan.splits) - last :]
        for line in _split_lines(plan, split)
    ]


def _split_lines(plan: PlanValue, split: Split) -> list[str]:
    graph = plan.graph
    on_host = plan.topology.devices[split.device].kind == "cpu"

    def size_of(node_id: int) -> int:
        type_ = graph.nodes[node_id].type
        return type_.host_bytes if on_host else type_.device_bytes

    def listed(word: str, values: Sequence[tuple[int, str]]) -> list[str]:
        lines = [
            f"  {word:<4} {graph.nodes[v].name} ({format_bytes(size_of(v))}){tail}"
            for v, tail in values[:MAX_VALUES]
        ]
        if len(values) > MAX_VALUES:
            rest = sum(size_of(v) for v, _ in values[MAX_VALUES:])
            lines.append(f"  {word:<4} {len(values) - MAX_VALUES} more ({format_bytes(rest)})")
        return lines

    wait = f", after waiting for {_splits(split.waits)}" if split.waits else ""
    lines = [f"split {split.id} on {plan.topology.devices[split.device].name}{wait}"]
    comes = _async_text(split, UPLOAD)
    live_in = [(c.node, f" from {_source(plan, split, c)}{comes}") for c in split.uploads]
    lines += listed("in", live_in)
    counts = Counter(graph.nodes[n].op for n in split.nodes)
    text = ", ".join(f"{op} x{count}" if count > 1 else op for op, count in counts.items())
    run = f"{count_of(len(split.nodes), 'node')} with {count_of(len(split.barriers), 'barrier')}"
    lines.append(f"  run  {run}: {text}")
    written = [(v, f" in place of {graph.nodes[s].name}") for v, s in split.in_place]
    lines += listed("over", written)
    leaves = _async_text(split, DOWNLOAD)
    lines += listed("out", [(c.node, leaves) for c in split.downloads])
    return lines + listed("seen", [(v, " by an observer") for v in split.observed])


def _async_text(split: Split, stage: str) -> str:
    """Return a text for uploads or downloads: whether the copy queue runs them, and their earliest
    start.
    """
    if stage not in split.async_transfers:
        return ""
    after = [number for of, number in split.after(stage) if of == COMPUTE and number != split.id]
    once = f", once the work of {_splits(tuple(after))} is complete" if after else ""
    return f", beside the work{once}"


def _source(plan: PlanValue, split: Split, copy: Upload) -> str:
    if copy.source != HOST:
        return f"split {copy.source}"
    if copy.node not in plan.graph.data:
        return "the caller"
    return f"host memory{', written in each run' if split.refills else ''}"


def _splits(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "nothing"
    return f"split{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _placement_lines(plan: PlanValue, asking: DetailHints) -> list[str]:
    nodes = [n for s in plan.splits for n in s.nodes]
    nodes += [n.id for n in plan.graph.nodes if n.declaration.leaf and _has_device(n.op)]
    names = [spec.name for spec in plan.topology.devices]

    def key(node_id: int) -> tuple[int, str]:
        return plan.placements[node_id].device, plan.placements[node_id].reason

    lines = [
        f"{_names(plan, list(group))}: {names[device]}, {rule}"
        for (device, rule), group in groupby(nodes, key)
    ]
    if len(lines) <= MAX_RULES:
        return lines
    by_device: dict[int, list[int]] = {}
    for node_id in nodes:
        by_device.setdefault(plan.placements[node_id].device, []).append(node_id)
    lines, last = [], min(len(by_device), ROWS)
    for device in sorted(by_device)[:last]:
        kinds = Counter(_rule_kind(plan.placements[n].reason) for n in by_device[device])
        lines.append(f"{names[device]}: {len(by_device[device])} nodes and weights")
        lines += [f"  {count} x {kind}" for kind, count in kinds.most_common(MAX_RULE_KINDS)]
        if len(kinds) > MAX_RULE_KINDS:
            rest = sum(count for _, count in kinds.most_common()[MAX_RULE_KINDS:])
            lines.append(f"  {rest} x {len(kinds) - MAX_RULE_KINDS} other rules")
    if len(by_device) > last:
        lines.append(f"{len(by_device) - last:,} devices more")
    return [*lines, f"{asking.node} tells more of one, a pattern of several"]


def _has_device(op: str) -> bool:
    """Return True for leaves that have a device. An input is wherever it is read, and constants are
    small.
    """
    return op not in ("input", "constant")


def _names(plan: PlanValue, ids: Sequence[int]) -> str:
    names = [plan.graph.nodes[n].name for n in ids]
    if len(names) > 2:
        return f"{names[0]} .. {names[-1]} ({len(names)} nodes)"
    return ", ".join(names)


def _rule_kind(rule: str) -> str:
    """Return a rule without the names and numbers of a particular node."""
    for pattern, kind in _KINDS:
        rule = pattern.sub(kind, rule)
    return rule


_KINDS = (
    (
        re.compile(
            r"^(weight|state|view of|next to|moved next to|writes) .+?"
            r"(?=$| lives here|: \d|, (?:as|because) )"
        ),
        r"\1 ...",
    ),
    (re.compile(r"\b\d+(?= bytes)"), "..."),
    (re.compile(r"(?<=is full: ).+? alone takes .+"), "one alone takes more"),
)
"""Patterns that are removed from the rules of placement; an unknown rule stays as it is."""


def plan_as_dict(plan: PlanValue) -> dict[str, Any]:
    """Return the plan as plain data for `json.dumps`."""
    graph, devices = plan.graph, plan.topology.devices
    in_split = split_of(plan)
    transfer = transfers(plan)
    sizes = buffers(plan)
    return {
        "policy": plan.policy,
        "copies": plan.copies,
        "replicas": [
            {"device": devices[own.working[0]].name, "copies": own.copies} for own in plan.replicas
        ],
        "nodes": sum(len(s.nodes) for s in plan.splits),
        "transfers": len(transfer),
        "transfer_bytes": copied_bytes(plan, transfer),
        "fences": fences(plan),
        "barriers": plan.barriers,
        "inner_barriers": plan.inner_barriers,
        "depth": plan.depth,
        "outputs": [{"name": name, "node": graph.nodes[n].name} for name, n in graph.outputs],
        "devices": [
            {
                "name": spec.name,
                "label": spec.label,
                "submit_granularity": spec.submit_granularity,
                "kind": spec.kind,
                "disabled_reason": spec.disabled_reason,
                **asdict(sizes[spec.name]),
                "nodes": sum(len(s.nodes) for s in plan.splits if s.device == device),
                "splits": sum(s.device == device for s in plan.splits),
                "weights": _node_names(plan, memory.weights),
                "states": _node_names(plan, memory.states),
                "pages": {
                    "activation": list(memory.activation_pages),
                    "upload_pages": list(memory.upload_pages),
                    "download_pages": list(memory.download_pages),
                },
            }
            for device, (spec, memory) in enumerate(zip(devices, plan.memory, strict=True))
        ],
        "splits": [_split_as_dict(plan, split) for split in plan.splits],
        "final_waits": list(plan.final_waits),
        "placements": [
            {
                "id": node.id,
                "name": node.name,
                "op": node.op,
                "type": str(node.type),
                "inputs": [graph.nodes[i].name for i in node.inputs],
                "view_of": graph.nodes[graph.view_base(node.id)].name
                if node.id in graph.views
                else None,
                "device": devices[placement.device].name,
                "split": in_split.get(node.id),
                "reason": placement.reason,
            }
            for node, placement in zip(graph.nodes, plan.placements, strict=True)
        ],
        "locations": [
            # the scratch memory of node n has the number -1 - n
            {
                "device": devices[device].name,
                "node": graph.nodes[value if value >= 0 else -1 - value].name,
                "scratch": value < 0,
                **_span(span),
            }
            for (device, value), span in plan.locations.items()
        ],
        "notes": list(plan.notes),
        "by_cost": choice_as_dict(plan),
        "topology": plan.topology.as_dict(),
    }


def _split_as_dict(plan: PlanValue, split: Split) -> dict[str, Any]:
    nodes = plan.graph.nodes
    return {
        "id": split.id,
        "device": plan.topology.devices[split.device].name,
        "nodes": _node_names(plan, split.nodes),
        "uploads": [
            {
                "name": nodes[c.node].name,
                "bytes": nodes[c.node].type.device_bytes,
                "source": None if c.source == HOST else c.source,
                "staging": _span(c.staging),
                "target": _span(c.target),
            }
            for c in split.uploads
        ],
        "downloads": [
            {
                "name": nodes[c.node].name,
                "bytes": nodes[c.node].type.device_bytes,
                "staging": _span(c.staging),
            }
            for c in split.downloads
        ],
        "waits": list(split.waits),
        "barriers": list(split.barriers),
        "inner_barriers": split.inner_barriers,
        "depth": split.depth,
        "observed": _node_names(plan, split.observed),
        "in_place": _node_names(plan, [value for value, _ in split.in_place]),
        "async_transfers": list(split.async_transfers),
        "stage_deps": [order._asdict() for order in split.stage_deps],
        "deferred_downloads": list(split.deferred_downloads),
        "refills": split.refills,
    }


def _node_names(plan: PlanValue, ids: Iterable[int]) -> list[str]:
    return [plan.graph.nodes[n].name for n in ids]


def _span(span: Span) -> dict[str, int]:
    return span._asdict()
