"""Graph shapes with known answers, machines written by hand, and random graphs, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.ir.tensor import Tensor
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import Upload, scratch_of
from vksched.plan.verify.happens_before import check_plan
from vksched.runtime.cpu.evaluate import Values, evaluate_node
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology

SHAPE = (8, 64)
A, B, C, CPU = "null:0", "null:1", "null:2", "cpu"

Placement = Mapping[str, str]
Built = tuple[Sequence[Tensor], Placement]


def make_topology(count: int = 2, memory: Sequence[int] = (), **spec: object) -> Topology:
    """Some null devices and the CPU; memory: bytes of the first devices."""
    devices = [DeviceSpec(f"null:{i}", "null", **spec) for i in range(count)]  # type: ignore[arg-type]
    for i, size in enumerate(memory):
        devices[i] = replace(devices[i], memory_bytes=size)
    return Topology((*devices, DeviceSpec("cpu", "cpu")))


def make_plan(
    outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    placement: Placement | Sequence[tuple[str | Tensor, str]] = (),
    topology: Topology | None = None,
    copies: int = 1,
) -> Plan:
    """The checked plan of some outputs; placement by pattern or Tensor, as for a Scheduler."""
    graph, ids = vs.build_graph(outputs)
    pairs = placement.items() if isinstance(placement, Mapping) else placement
    overrides = [(ids[k] if isinstance(k, Tensor) else k, device) for k, device in pairs]
    plan = vs.plan_graph(graph, topology or make_topology(3), overrides=overrides, copies=copies)
    return check_plan(plan)


def picky(*able: bool) -> Topology:
    """One null device for each flag; those with False cannot gather."""
    limits = [Limits() if ok else Limits(storage_buffers=3) for ok in able]
    devices = [DeviceSpec(f"null:{i}", "null", limits=m) for i, m in enumerate(limits)]
    return Topology((*devices, DeviceSpec("cpu", "cpu")))


def steps(x: Tensor, names: Sequence[str], amount: float = 1.0) -> list[Tensor]:
    """A chain of one add per name."""
    out: list[Tensor] = []
    for name in names:
        out.append(vs.add(out[-1] if out else x, amount, name=name))
    return out


def source() -> Tensor:
    """The input of the named shapes."""
    return vs.input("x", SHAPE)


def chain(devices: Sequence[str]) -> Built:
    """One node per device given, each reading the one before."""
    names = [f"n{i}" for i in range(len(devices))]
    return steps(source(), names)[-1:], dict(zip(names, devices, strict=True))


def diamond(root: str | None, left: str, right: str, join: str) -> Built:
    """Two branches, from one node or from the input, that join."""
    x = source()
    top = x if root is None else vs.exp(x, name="root")
    one, two = vs.mul(top, 2.0, name="left"), vs.mul(top, 3.0, name="right")
    placement = {"left": left, "right": right, "join": join}
    if root is not None:
        placement["root"] = root
    return [vs.add(one, two, name="join")], placement


def fan_out(devices: Sequence[str]) -> Built:
    """A node on the first device, one reader on each device given."""
    a = vs.mul(source(), 2.0, name="a")
    readers = [vs.add(a, float(i), name=f"r{i}") for i in range(len(devices))]
    return readers, {"a": A, **{f"r{i}": d for i, d in enumerate(devices)}}


def independent() -> Built:
    """Two graphs that share nothing."""
    one = vs.exp(vs.input("p", SHAPE), name="one")
    two = vs.exp(vs.input("q", SHAPE), name="two")
    return [one, two], {"one": A, "two": B}


def exchange() -> Built:
    """Two devices that need each other's first value for their second."""
    x = source()
    a, b = vs.mul(x, 2.0, name="a"), vs.mul(x, 3.0, name="b")
    left, right = vs.add(a, b, name="left"), vs.sub(a, b, name="right")
    return [left, right], {"a": A, "b": B, "left": A, "right": B}


def pair() -> Built:
    """Two values that cross to one reader."""
    x = source()
    a, b = vs.mul(x, 2.0, name="a"), vs.mul(x, 3.0, name="b")
    return [vs.add(a, b, name="join")], {"a": A, "b": A, "join": B}


def skip() -> Built:
    """A value that crosses early while its device goes on."""
    a, b, c = steps(source(), ["a", "b", "c"])
    d = vs.mul(a, 2.0, name="d")
    return [vs.add(c, d, name="join")], {"a": A, "b": A, "c": A, "d": B, "join": A}


def mlp(layers: int = 4, width: int = 64, half: int = 2) -> Built:
    """Layers of weight, bias and relu; the weights of the first half on A, the others on B."""
    rng = np.random.default_rng(7)
    h = vs.input("x", (8, width))
    for i in range(layers):
        with vs.name_scope(f"layer.{i}"):
            w = vs.weight(rng.standard_normal((8, width), dtype=np.float32), name="w")
            b = vs.weight(rng.standard_normal(width, dtype=np.float32), name="b")
            h = vs.relu(vs.add(vs.mul(h, w, name="scale"), b, name="shift"), name="relu")
    placement = {f"layer.{i}.[wb]": A if i < half else B for i in range(layers)}
    return [h], placement


def transformer(layers: int = 12, fused: bool = False, half: int | None = None) -> Built:
    """Layers of attention, written out or as one op, and a feed-forward part; from layer `half` on
    the weights are on B.
    """
    rng = np.random.default_rng(7)
    tokens, heads, width = 8, 2, 32

    def weight_of(*shape: int, name: str) -> Tensor:
        return vs.weight(rng.standard_normal(shape, dtype=np.float32) / 8, name=name)

    def linear(value: Tensor, out: int, name: str) -> Tensor:
        weight = weight_of(out, value.shape[-1], name=f"{name}.weight")
        return vs.matmul(value, weight, weight_of(out, name=f"{name}.bias"), transpose_b=True)

    def norm(value: Tensor, name: str) -> Tensor:
        weight, bias = (
            weight_of(width, name=f"{name}.weight"),
            weight_of(width, name=f"{name}.bias"),
        )
        return vs.layer_norm(value, weight, bias)

    def part(value: Tensor, name: str) -> Tensor:
        flat = linear(value, width, name).reshape(1, tokens, heads, width // heads)
        return flat.transpose(0, 2, 1, 3)

    x = vs.input("x", (1, tokens, width))
    for i in range(layers):
        with vs.name_scope(f"layer.{i}"):
            h = norm(x, "norm_1")
            q, k, v = (part(h, name) for name in ("query", "key", "value"))
            if fused:
                seen = vs.attention(q, k, v)
            else:
                seen = vs.softmax(vs.matmul(q, k, transpose_b=True) * 0.25) @ v
            flat = seen.transpose(0, 2, 1, 3).reshape(1, tokens, width)
            x = x + linear(flat, width, "out")
            h = norm(x, "norm_2")
            x = x + linear(vs.gelu(linear(h, 4 * width, "up")), width, "down")
    spread = {} if half is None else {f"layer.{i}.*.weight": B for i in range(half, layers)}
    return [x], spread


@dataclass(frozen=True)
class Named:
    """A graph shape and what its plan must come to.

    transfers: copies from device to device. waits: waits of the host, the end included. fences:
    those waits that are not for the CPU.
    """

    build: Callable[[], Built]
    splits: int
    transfers: int
    waits: int
    fences: int


NAMED: dict[str, Named] = {
    "chain on one device": Named(lambda: chain([A] * 4), 1, 0, 1, 1),
    "chain A B": Named(lambda: chain([A, A, B]), 2, 1, 2, 2),
    "chain A B A": Named(lambda: chain([A, B, A]), 3, 2, 3, 3),
    "chain A cpu A": Named(lambda: chain([A, CPU, A]), 3, 2, 3, 2),
    "chain on the cpu": Named(lambda: chain([CPU] * 3), 1, 0, 1, 0),
    "ladder": Named(lambda: chain([A, B] * 5), 10, 9, 10, 10),
    "ladder of three": Named(lambda: chain([A, B, C] * 3), 9, 8, 9, 9),
    "diamond of inputs": Named(lambda: diamond(None, A, B, A), 3, 1, 2, 2),
    "diamond": Named(lambda: diamond(A, A, B, A), 4, 2, 3, 3),
    "diamond on one device": Named(lambda: diamond(A, A, A, A), 1, 0, 1, 1),
    "diamond over three": Named(lambda: diamond(A, B, C, A), 4, 4, 4, 4),
    "join on a third": Named(lambda: diamond(None, A, B, C), 3, 2, 3, 3),
    "join on the cpu": Named(lambda: diamond(None, A, B, CPU), 3, 2, 3, 2),
    "fan-out to one device": Named(lambda: fan_out([B] * 6), 2, 1, 2, 2),
    "fan-out to two devices": Named(lambda: fan_out([B, C, B, C]), 3, 2, 3, 3),
    "fan-out with own reader": Named(lambda: fan_out([A, B]), 3, 1, 3, 3),
    "independent": Named(independent, 2, 0, 2, 2),
    "exchange": Named(exchange, 4, 2, 4, 4),
    "two values cross": Named(pair, 2, 2, 2, 2),
    "skip": Named(skip, 4, 2, 3, 3),
    "mlp": Named(mlp, 2, 1, 2, 2),
}


def waits_of(plan: Plan) -> list[int]:
    """All splits that the host waits for, the end included."""
    return [w for s in plan.splits for w in s.waits] + list(plan.final_waits)


def fences_of(plan: Plan) -> int:
    """The waits that are for a fence: those for the CPU are not."""
    return sum(plan.topology.devices[plan.splits[w].device].kind != "cpu" for w in waits_of(plan))


def transfers_of(plan: Plan) -> list[Upload]:
    """The copies from device to device."""
    return [c for s in plan.splits for c in s.uploads if c.source >= 0]


def device_of(plan: Plan, name: str) -> str:
    """The name of the device of a node."""
    return plan.topology.devices[plan.placements[node_id(plan, name)].device].name


def rule_of(plan: Plan, name: str) -> str:
    """The rule that placed a node."""
    return plan.placements[node_id(plan, name)].reason


def node_id(plan: Plan, name: str) -> int:
    """The id of a node by name."""
    return plan.find(name)[0]


def random_outputs(
    rng: np.random.Generator, count: int, rows: int = 8, dtype: str = "float32"
) -> list[Tensor]:
    """A random DAG of `count` nodes: element-wise, views, copies, gather; all sinks are outputs."""
    pool = [vs.input(f"x{i}", (rows, 32), dtype) for i in range(int(rng.integers(1, 3)))]
    used: set[Tensor] = set()
    unary = (vs.relu, vs.exp, vs.neg, vs.abs)  # exact, or numpy's own in the native loops
    binary = (vs.add, vs.mul, vs.maximum, vs.sub)
    for _ in range(count):
        a, b = (pool[int(i)] for i in rng.integers(0, len(pool), 2))
        kind = int(rng.integers(0, 10))
        if a.rank != 2 or kind == 0:
            new = vs.reshape(a, (rows, a.size // rows))
        elif kind == 1:
            new = a[: rows // 2] if a.shape[0] == rows else vs.concat([a, a])
        elif kind == 2:
            new = vs.add(a, vs.weight(np.ones(a.shape, dtype)))
        elif kind == 3:
            new = vs.gather(a, rng.integers(0, rows // 2, rows).astype(np.int32))
        elif kind == 4:
            new = vs.transpose(vs.transpose(a))
        elif kind == 5:
            new = vs.reshape(a, (a.size,))
        elif kind < 8 and a.shape == b.shape:
            used.add(b)
            new = binary[int(rng.integers(0, 4))](a, b)
        else:
            new = unary[int(rng.integers(0, 4))](a)
        used.add(a)
        pool.append(new)
    return [t for t in pool if t not in used] or pool[-1:]


def random_plan(seed: int, count: int, devices: int, pinned: float = 0.3, **spec: object) -> Plan:
    """The checked plan of a random graph over some devices and the CPU, some nodes pinned."""
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, count))
    topology = make_topology(devices, **spec)
    overrides = [
        (n.id, topology.devices[int(rng.integers(0, devices + 1))].name)
        for n in graph.ops
        if rng.random() < pinned
    ]
    copies = int(rng.integers(1, 3))
    return check_plan(
        vs.plan_graph(graph, topology, overrides=overrides, copies=copies), copies + 1
    )


def numpy_outputs(graph: Graph, feeds: Mapping[str, NDArray]) -> list[NDArray]:
    """The outputs of a graph without states, node by node in numpy, by no plan at all."""
    values = Values(graph)
    for node in graph.nodes:
        if node.op == "input":
            values[node.id] = feeds[node.name]
        elif node.id not in graph.data:
            values[node.id] = evaluate_node(graph, node.id, tuple(values[i] for i in node.inputs))
    return [values[n] for _, n in graph.outputs]


def lifetimes(plan: Plan, device: int) -> dict[int, tuple[int, int]]:
    """First and last item of each value on a device, scratch memory among them, found anew from
    splits and operands; of states and what is written in their place nothing, as they outlive the
    run.
    """
    apart = plan.graph.states.keys() | plan.in_place.keys()
    values = {v for d, v in plan.locations if d == device and v not in apart}
    found: dict[int, tuple[int, int]] = {}
    time = 0
    for split in (s for s in plan.splits if s.device == device):
        items = [(c.node,) for c in split.uploads]
        items += [(n, scratch_of(n), *plan.graph.nodes[n].inputs) for n in split.nodes]
        items += [(c.node,) for c in split.downloads]
        for touched in items:
            for value in (v if v in values or v < 0 else plan.graph.view_base(v) for v in touched):
                if value in values:
                    found[value] = (found.get(value, (time, time))[0], time)
            time += 1
    return found


def live_words(plan: Plan, device: int) -> int:
    """The words of the largest live set of a device, each value at a multiple of 64 bytes."""
    lives = lifetimes(plan, device)
    words = {v: -(-max(plan.locations[device, v].words, 1) // 16) * 16 for v in lives}
    born, over = dict[int, int](), dict[int, int]()
    for value, (first, last) in lives.items():
        born[first] = born.get(first, 0) + words[value]
        over[last] = over.get(last, 0) + words[value]
    most = live = 0
    for time in range(max(over, default=-1) + 1):
        live += born.get(time, 0)
        most = max(most, live)
        live -= over.get(time, 0)
    return most


def assert_memory(plan: Plan) -> None:
    """Live values share no word, nor a page where each has a buffer of its own, and every operand
    has a place.
    """
    for device, spec in enumerate(plan.topology.devices[:-1]):
        lives = sorted(lifetimes(plan, device).items())
        for i, (one, (first, last)) in enumerate(lives):
            a = plan.locations[device, one]
            assert one < 0 or a.words == plan.graph.nodes[one].type.words
            assert a.offset + a.words <= plan.memory[device].activation_pages[a.page]
            for two, (start, end) in lives[:i]:
                b = plan.locations[device, two]
                apart = a.page != b.page or (
                    not spec.disable_aliasing
                    and (a.offset >= b.offset + b.words or b.offset >= a.offset + a.words)
                )
                assert apart or last < start or end < first, (plan.explain(), one, two)
