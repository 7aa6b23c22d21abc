"""The report of `vksched info`: inputs, outputs, ops and devices of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import DeviceError, VkschedError
from ..options import inputs
from ..options.policy_options import DEFAULT, PlanningOptions

if TYPE_CHECKING:
    from onnx import NodeProto

    from ...importers.onnx.lower.frame import LoweredSegment
    from ...importers.onnx.model import Model, ModelValue
    from ...ir.graph import Graph
    from ...plan.plan import Plan
    from ...topology.topology import Topology


FUSED, VIEW, FOLDED, IDLE = "(fused)", "view", "folded", "no work"


LATER, BETWEEN = "later", "between stages"


LEGEND = {
    FUSED: "fused with another node, or a duplicate of one",
    VIEW: "a view of the operand's memory",
    FOLDED: "constant, computed once on the host",
    IDLE: "an identity, or dead code",
    LATER: "in a later stage",
    BETWEEN: "on the host, after the first stage",
}
"""Labels of nodes without a kernel of their own."""


MAX_BODIES, MAX_OPS = 40, 6
"""Maximum number of subgraphs and functions shown, and of ops in each."""


def describe(
    model: Model,
    topology: Topology,
    places: Mapping[str, str],
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Any],
    with_cpu: bool = False,
    planning: PlanningOptions = DEFAULT,
) -> dict[str, Any]:
    """Return the report of a model on a topology as plain data.

    places: devices by pattern, which may match in later stages only. with_cpu: the CPU competes
    with the other devices. planning: policy and objective of the plan.
    """
    from ...engine.request import Request, plan_by_policy
    from ...importers.onnx.example_inputs import choose_shapes
    from ...ir.build_graph import build_graph
    from ...plan.explain.explain_plan import COMMAND, idle_lines
    from ...plan.types.node_names import NameIndex

    sizes = choose_shapes(model, arrays, dims, shapes)
    options = inputs.size_options(model, sizes)
    with hint_at(sizes.assumed, options):
        lowered, notes = lower_model(model, sizes.shapes, arrays)
    written = plan = None
    if lowered.outputs:
        written, _ = build_graph(lowered.outputs)
        names = NameIndex(written, "place")
        here = [p for p in places if names.matches(p) or (lowered.then is None and names.find(p))]
        overrides = tuple((pattern, places[pattern]) for pattern in here)
        plan = plan_by_policy(
            Request(written, overrides, {}).optimized(topology),
            topology,
            policy=planning.policy,
            objective=planning.objective,
            with_cpu=with_cpu,
        )
        notes += [*plan.notes, *idle_lines([plan], COMMAND)]
    return {
        **describe_model(model),
        "shapes": {name: list(shape) for name, shape in sizes.shapes.items()},
        "assumed": sizes.assumed,
        "size_options": options,
        **planning.as_dict(),
        "ops": _ops(model.nodes, lowered, written, plan),
        "devices": _devices(topology, plan),
        "by_numpy": _by_numpy(plan) if plan else [],
        "cut": _cut(lowered),
        "notes": notes,
    }


def lower_model(
    model: Model, shapes: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[LoweredSegment, list[str]]:
    """Return the lowered first stage of a model for some shapes and arrays, with notes."""
    from ...importers.onnx.example_inputs import example_inputs
    from ...importers.onnx.lower.frame import NeedsInputs

    if arrays:
        inputs = {**example_inputs(model, shapes, 0, tuple(arrays)), **arrays}
        return model.lower(model.check_inputs(inputs)), []
    try:
        return model.lower(model.input_types(shapes)), []
    except NeedsInputs:
        note = "shapes depend on the elements of inputs: planned for made-up ones"
        return model.lower(example_inputs(model, shapes, 0)), [note]


def describe_model(model: Model) -> dict[str, Any]:
    """Return the contents of the file as plain data."""
    from ...importers.onnx.nodes.subgraphs import find_bodies

    proto = model.file.model
    return {
        "model": model.name,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "nodes": len(model.nodes),
        "parameters": model.parameters,
        "parameter_bytes": model.parameter_bytes,
        "bodies": [asdict(body) for body in find_bodies(model.nodes)],
        "functions": [asdict(function) for function in model.file.functions],
        "inputs": [_value(value) for value in model.inputs],
        "outputs": [_value(value) for value in model.outputs],
    }


def _value(value: ModelValue) -> dict[str, Any]:
    dims = None if value.dims is None else list(value.dims)
    return {"name": value.name, "kind": value.kind, "dtype": value.dtype, "dims": dims}


def _ops(
    nodes: Sequence[NodeProto], lowered: LoweredSegment, written: Graph | None, plan: Plan | None
) -> list[dict[str, Any]]:
    """Return for each op of the file the number of its nodes per device. written: graph of the
    first stage before the plan's rewrites.
    """
    from ...importers.onnx.lower.frame_lowering import scope_name
    from ...importers.onnx.nodes.subgraphs import op_name

    found = _places(written, plan, nodes) if written and plan else {}
    step = lowered.step.node.output if lowered.step else ()
    later = {tuple(node.output) for node in lowered.then.nodes} if lowered.then else set()
    ops: dict[str, Counter[str]] = {}
    for proto in nodes:
        places = found.get(scope_name(proto), set())
        if list(proto.output) == list(step):
            where = BETWEEN
        elif tuple(proto.output) in later:
            where = LATER
        elif places:
            where = _sum_up(places)
        else:
            where = FOLDED if lowered.known.issuperset(filter(None, proto.output)) else IDLE
        ops.setdefault(op_name(proto), Counter())[where] += 1
    rows = [{"op": op, "nodes": sum(n.values()), "where": dict(n)} for op, n in ops.items()]
    return sorted(rows, key=lambda row: (-int(str(row["nodes"])), str(row["op"])))


def _places(written: Graph, plan: Plan, nodes: Sequence[NodeProto]) -> dict[str, set[str]]:
    """Return the placement of each node of the file by name."""
    from ...importers.onnx.lower.frame_lowering import scope_name
    from ...importers.onnx.nodes.names import JOINT

    graph, devices = plan.graph, plan.topology.devices
    stands = {**graph.aliases, **{node.name: node.id for node in graph.nodes}}
    names = {scope_name(node) for node in nodes}
    results = {name: scope_name(node) for node in nodes for name in node.output if name}

    def owner(name: str) -> str:
        found = next((each for each in _prefixes(name, ".") if each in names), "")
        if not found:  # from a branch, loop body or function, named after its result
            found = next((results[e] for e in _prefixes(name, JOINT) if e in results), "")
        return found

    found: dict[str, set[str]] = {}
    for node in written.ops:
        at, mine = graph.nodes[stands[node.name]], owner(node.name)
        if at.declaration.leaf:
            where = IDLE if at.op == "input" else FOLDED
        elif at.id in graph.views:
            where = VIEW
        else:
            where = devices[plan.placements[at.id].device].name
            where += "" if owner(at.name) == mine else f" {FUSED}"
        found.setdefault(mine, set()).add(where)
    return found


def _prefixes(name: str, joint: str) -> Iterator[str]:
    """Yield a name, then its prefixes without the last component."""
    parts = name.split(joint)
    return (joint.join(parts[:end]) for end in range(len(parts), 0, -1))


def _sum_up(places: Set[str]) -> str:
    """Return the kernels of one node, else the reason why it has none."""
    kernels = {p for p in places if p not in LEGEND and not p.endswith(FUSED)}
    fused = {p for p in places if p.endswith(FUSED)}
    return "+".join(sorted(kernels or fused)) or next(p for p in LEGEND if p in places)


def _devices(topology: Topology, plan: Plan | None) -> list[dict[str, Any]]:
    sizes = plan.buffers() if plan else {}
    out = []
    for index, spec in enumerate(topology.devices):
        here = [s for s in plan.splits if s.device == index] if plan else []
        held = asdict(sizes[spec.name]) if plan else {}
        nodes = sum(len(s.nodes) for s in here)
        out.append({"name": spec.name, "label": spec.label, "nodes": nodes, **held})
    return out


def _by_numpy(plan: Plan) -> list[dict[str, Any]]:
    """Return the ops that only the CPU can run, with reasons, including ops with few elements
    because sizes may be assumed. doubtful: a run may refuse the op.
    """
    from ...importers.onnx.lower.frame_lowering import MISFIT
    from ...plan.explain.cpu_fallback import find_fallbacks, join_reasons

    rows: dict[tuple[str, str], list[str]] = {}
    for node in plan.graph.ops:
        if "reason" in node.attrs and node.op.startswith("onnx."):
            key = node.op.removeprefix("onnx."), node.attrs.as_str("reason")
            rows.setdefault(key, []).append(node.name)
    for fallback in find_fallbacks(plan, few=True):
        if not fallback.op.startswith("onnx."):
            rows[fallback.op, join_reasons(fallback.reasons)] = list(fallback.nodes)
    return [
        {"op": op, "nodes": names, "reason": why, "doubtful": why.startswith(MISFIT)}
        for (op, why), names in rows.items()
    ]


def _cut(lowered: LoweredSegment) -> dict[str, Any] | None:
    """Return the node that ends the first stage, or None at the end of the model. by_host: the CPU
    runs that node. doubtful: the CPU may refuse it.
    """
    from ...importers.onnx.lower.frame_lowering import MISFIT
    from ...importers.onnx.nodes.cpu_node import describe

    if lowered.then is None:
        return None
    rest, step = lowered.then.nodes, lowered.step
    why = step.reason if step else "it needs values that are computed first"
    return {
        "node": describe(step.node if step else rest[0]),
        "by_host": step is not None,
        "reason": why,
        "doubtful": why.startswith(MISFIT),
        "nodes_left": len(rest),
    }


def show_model(report: Mapping[str, Any]) -> None:
    """Print the contents of the file."""
    from ...common.formatting import count_of, format_bytes

    opsets = ", ".join(f"{domain} {version}" for domain, version in report["opsets"].items())
    producer = f", made by {report['producer']}" if report["producer"] else ""
    click.echo(
        f"{report['model']}: {count_of(report['nodes'], 'node')}, opsets {opsets}{producer}\n"
        f"parameters: {report['parameters']:,} ({format_bytes(report['parameter_bytes'])})"
    )


def show_assumed(report: Mapping[str, Any]) -> None:
    """Print the dimensions that are assumed to be 1, and the options that set them."""
    if report["assumed"]:
        assumed = ", ".join(report["assumed"])
        click.echo(f"size 1 is assumed for {assumed}; try {report['size_options']}")


@contextmanager
def hint_at(assumed: Sequence[str], options: str) -> Iterator[None]:
    """Add a hint to an error that assumed sizes may be its cause. options: options that set
    them.
    """
    try:
        yield
    except VkschedError as error:
        if not assumed or isinstance(error, DeviceError):
            raise
        raise VkschedError(
            f"{error}; size 1 was assumed for {', '.join(assumed)}: try {options}"
        ) from error


def _show_bodies(report: Mapping[str, Any]) -> None:
    """Print the subgraphs of nodes, and the functions of the model."""
    bodies = report["bodies"]
    for body in bodies[:MAX_BODIES]:
        where = f"{body['op']} {body['node']!r}, {body['attribute']}"
        click.echo(f"{'  ' * body['depth']}inside {where}: {_counted(body['ops'])}")
    if len(bodies) > MAX_BODIES:
        click.echo(f"and {len(bodies) - MAX_BODIES} more, which --json shows")
    for function in report["functions"]:
        calls = f"{function['calls']} times" if function["calls"] != 1 else "once"
        click.echo(f"function {function['name']}, called {calls}: {_counted(function['ops'])}")
    if bodies or report["functions"]:
        click.echo()


def _counted(ops: Mapping[str, int]) -> str:
    """Return the number of nodes and their ops."""
    from ...common.formatting import count_of

    shown = [f"{op} {count}" if count > 1 else op for op, count in ops.items()]
    more = [f"{len(shown) - MAX_OPS} other ops"] if len(shown) > MAX_OPS + 1 else []
    listing = ", ".join(shown[:MAX_OPS] + more if more else shown)
    return f"{count_of(sum(ops.values()), 'node')} ({listing})"


def _show(report: Mapping[str, Any], model: Model) -> None:
    from ...common.formatting import count_of, format_bytes

    show_model(report)
    for value in model.inputs:
        click.echo(f"input   {value}")
    for value in model.outputs:
        click.echo(f"output  {value}")
    shapes = (f"{n}=({','.join(map(str, s))})" for n, s in report["shapes"].items())
    click.echo(f"planned for {' '.join(shapes) or 'no inputs'}")
    show_assumed(report)
    click.echo()
    ops = inputs.table("op", "nodes", "where", left=1)
    ops.columns[2].justify = "left"
    for row in report["ops"]:
        where = ", ".join(f"{place} {count}" for place, count in row["where"].items())
        ops.add_row(row["op"], str(row["nodes"]), where)
    inputs.print_table(ops)
    places = " ".join(place for row in report["ops"] for place in row["where"])
    for word in (word for word in LEGEND if word in places):
        click.echo(f"{word}: {LEGEND[word]}")
    if any(word in places for word in LEGEND):
        click.echo()
    _show_bodies(report)
    rows = inputs.table("device", "nodes", "weights", "activations", "in, out", "peak", "may use")
    for device in report["devices"]:
        held = [device.get(f"{name}_bytes", 0) for name in ("weight", "activation")]
        held.append(device.get("upload_bytes", 0) + device.get("download_bytes", 0))
        held += [device.get(f"{name}_bytes", 0) for name in ("peak", "capacity")]
        rows.add_row(device["name"], str(device["nodes"]), *map(format_bytes, held))
    inputs.print_table(rows)
    for row in report["by_numpy"]:
        nodes = count_of(len(row["nodes"]), "node")
        nodes += f", {row['nodes'][0]!r}, which a run may refuse" if row["doubtful"] else ""
        click.echo(f"on the CPU: {row['op']} ({nodes}): {row['reason']}")
    if report["cut"]:
        cut = report["cut"]
        how = ", which the host runs" if cut["by_host"] else ""
        how += ", or refuses" if cut["doubtful"] else ""
        click.echo(
            f"the first stage ends before {cut['node']}{how}: {cut['reason']}; the rest, "
            f"{count_of(cut['nodes_left'], 'node')}, is planned when it has run, with memory of "
            "its own"
        )
    for note in report["notes"]:
        click.echo(f"note: {note}")
