"""Explain: a plan as text for people and as plain data for programs.

    plan: header -> one block per split (what comes in, runs, goes out) -> the rule behind every
    placement

Runs of nodes with the same device and rule share a line; the plain data has every node. Example:
tests/test_plan.py.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from .plan import HOST, CopyIn, Plan, Split


def explain_plan(plan: Plan) -> str:
    """Returns the plan as text."""
    lines = [*_header(plan), ""]
    for split in plan.splits:
        lines += _split_lines(plan, split)
    lines.append(f"end: wait for {_splits(plan.final_waits)}")
    lines += ["", "placement:"]
    lines += [f"  {line}" for line in _placement_lines(plan)]
    if plan.notes:
        lines += ["", "notes:", *(f"  {note}" for note in plan.notes)]
    return "\n".join(lines)


def format_bytes(count: int) -> str:
    """Returns a number of bytes in the unit that suits it."""
    if count < 1024:
        return f"{count} B"
    for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if count < size * 1024 or unit == "GiB":
            return f"{count / size:.1f} {unit}"
    raise AssertionError(count)


def crossings(plan: Plan) -> tuple[CopyIn, ...]:
    """Returns the copies from one device to another."""
    return tuple(c for s in plan.splits for c in s.copies_in if c.source != HOST)


def _header(plan: Plan) -> list[str]:
    crossing = crossings(plan)
    moved = sum(plan.graph.nodes[c.node].type.device_bytes for c in crossing)
    waits = [w for s in plan.splits for w in s.waits] + list(plan.final_waits)
    fences = sum(plan.machine.devices[plan.splits[w].device].kind != "cpu" for w in waits)
    barriers = sum(len(s.barriers) for s in plan.splits)
    nodes = sum(len(s.nodes) for s in plan.splits)
    lines = [
        f"plan: policy {plan.policy}, {nodes} nodes in {len(plan.splits)} splits, "
        f"{len(crossing)} crossings ({format_bytes(moved)}), {fences} fences to wait for, "
        f"{barriers} barriers, copies {plan.copies}"
    ]
    for spec, memory in zip(plan.machine.devices, plan.memory, strict=True):
        label = f" ({spec.label})" if spec.label else ""
        if spec.out_of_use:
            lines.append(f"  {spec.name}{label}: out of use, {spec.out_of_use}")
        elif spec.kind == "cpu":
            lines.append(f"  {spec.name}{label}: weights {format_bytes(memory.weight_bytes)}")
        else:
            lines.append(
                f"  {spec.name}{label}: peak {format_bytes(memory.peak_bytes)} "
                f"of {format_bytes(spec.memory_bytes)}, weights {format_bytes(memory.weight_bytes)}"
                + ("" if spec.sync == "split" else f", a wait after each {spec.sync}")
            )
    return lines


def _split_lines(plan: Plan, split: Split) -> list[str]:
    graph = plan.graph
    on_host = plan.machine.devices[split.device].kind == "cpu"

    def name(node_id: int) -> str:
        node = graph.nodes[node_id]
        size_bytes = node.type.host_bytes if on_host else node.type.device_bytes
        return f"{node.name} ({format_bytes(size_bytes)})"

    wait = f", after waiting for {_splits(split.waits)}" if split.waits else ""
    lines = [f"split {split.id} on {plan.machine.devices[split.device].name}{wait}"]
    for copy in split.copies_in:
        source = "the caller" if copy.source == HOST else f"split {copy.source}"
        if copy.node in graph.data:
            source = "host memory"
        lines.append(f"  in   {name(copy.node)} from {source}")
    ops = [graph.nodes[n].op for n in split.nodes]
    counts = {op: ops.count(op) for op in dict.fromkeys(ops)}
    text = ", ".join(f"{op} x{count}" if count > 1 else op for op, count in counts.items())
    lines.append(f"  run  {len(ops)} nodes with {len(split.barriers)} barriers: {text}")
    lines += [f"  out  {name(copy.node)}" for copy in split.copies_out]
    return lines


def _splits(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "nothing"
    return f"split{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _placement_lines(plan: Plan) -> list[str]:
    nodes = [n for s in plan.splits for n in s.nodes]
    nodes += [n.id for n in plan.graph.weights]
    lines: list[str] = []

    def key(node_id: int) -> tuple[int, str]:
        return plan.placements[node_id].device, plan.placements[node_id].rule

    for (device, rule), group in groupby(nodes, key):
        names = [plan.graph.nodes[n].name for n in group]
        text = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)} nodes)"
        if len(names) == 2:
            text = ", ".join(names)
        lines.append(f"{text}: {plan.machine.devices[device].name}, {rule}")
    return lines


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Returns the plan as plain data that json.dumps takes."""
    graph, devices = plan.graph, plan.machine.devices
    splits = [
        {
            "id": split.id,
            "device": devices[split.device].name,
            "nodes": [graph.nodes[n].name for n in split.nodes],
            "copies_in": [
                {
                    "name": graph.nodes[c.node].name,
                    "bytes": graph.nodes[c.node].type.device_bytes,
                    "source": None if c.source == HOST else c.source,
                }
                for c in split.copies_in
            ],
            "copies_out": [
                {
                    "name": graph.nodes[c.node].name,
                    "bytes": graph.nodes[c.node].type.device_bytes,
                }
                for c in split.copies_out
            ],
            "waits": list(split.waits),
            "barriers": len(split.barriers),
        }
        for split in plan.splits
    ]
    return {
        "policy": plan.policy,
        "copies": plan.copies,
        "devices": [
            {
                "name": spec.name,
                "label": spec.label,
                "sync": spec.sync,
                "out_of_use": spec.out_of_use,
                "memory_bytes": spec.memory_bytes,
                "peak_bytes": memory.peak_bytes,
                "weight_bytes": memory.weight_bytes,
            }
            for spec, memory in zip(devices, plan.memory, strict=True)
        ],
        "splits": splits,
        "final_waits": list(plan.final_waits),
        "placements": [
            {
                "name": node.name,
                "op": node.op,
                "type": str(node.type),
                "device": devices[placement.device].name,
                "rule": placement.rule,
            }
            for node, placement in zip(graph.nodes, plan.placements, strict=True)
        ],
        "notes": list(plan.notes),
    }
