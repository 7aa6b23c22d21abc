"""Homes of states: with their readers, where the least crosses in each run, in the memory there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, C, device_of, node_id, rule_of, transfers_of

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.ir.tensor import Tensor
from vksched.plan.costs.op_support import OpSupport
from vksched.plan.plan import Plan
from vksched.plan.verify.happens_before import check_plan
from vksched.planner.placement.node_groups import find_node_groups
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

WIDTH = 512
MIB = 1 << 20
KINDS = ("weight", "state")


def topology(*memory: int, speeds: Sequence[float] = (1e12, 1e12, 1e12)) -> Topology:
    """Null devices with so many MiB, and a slow CPU."""
    cards = [
        DeviceSpec(
            f"null:{i}", "null", flops_per_s=speeds[i], bytes_per_s=2e11, memory_bytes=size * MIB
        )
        for i, size in enumerate(memory)
    ]
    return Topology((*cards, DeviceSpec(CPU, "cpu", flops_per_s=5e10)))


def parameter(kind: str, name: str) -> Tensor:
    array = np.zeros((WIDTH, WIDTH), np.float32)
    return vs.state(array, name, backup=False) if kind == "state" else vs.weight(array, name=name)


def branches(kind: str, depth: int = 6) -> Graph:
    """Two branches that have only the input in common, each with parameters of its own."""
    x = vs.input("x", (256, WIDTH))
    ends: list[Tensor] = []
    for b in range(2):
        h = x
        for i in range(depth):
            h = vs.matmul(h, parameter(kind, f"w{b}{i}"), name=f"n{b}{i}")
        ends.append(h)
    return build_graph(ends)[0]


def layers(kind: str, count: int = 12) -> Graph:
    """A chain of layers with a parameter of 1 MiB each."""
    h = vs.input("x", (WIDTH, WIDTH))
    for i in range(count):
        h = vs.tanh(vs.matmul(h, parameter(kind, f"w{i}"), name=f"n{i}"), name=f"h{i}")
    return build_graph(h)[0]


def plan(graph: Graph, where: Topology, **more: object) -> Plan:
    return check_plan(vs.plan_graph(graph, where, **more))  # type: ignore[arg-type]


def apart(plan: Plan, count: int) -> list[int]:
    """Return the layers whose parameter is not where its reader is."""
    return [i for i in range(count) if device_of(plan, f"w{i}") != device_of(plan, f"n{i}")]


@pytest.mark.parametrize("kind", KINDS)
def test_auto_spreads_branches(kind: str) -> None:
    built = plan(branches(kind), topology(4096, 4096), policy="auto")
    homes = [{device_of(built, f"{n}{b}{i}") for n in "nw" for i in range(6)} for b in range(2)]
    assert sorted(map(sorted, homes)) == [[A], [B]] and not transfers_of(built)
    weights = plan(branches("weight"), topology(4096, 4096), policy="auto")
    assert built.metrics.latency_s == pytest.approx(weights.metrics.latency_s, rel=1e-9)


@pytest.mark.parametrize("policy", ["priority", "auto"])
def test_states_follow_ops_that_are_placed_by_hand(policy: str) -> None:
    built = plan(branches("state"), topology(64, 64), overrides=[("n1*", B)], policy=policy)
    assert {device_of(built, f"w1{i}") for i in range(6)} == {B}
    assert not transfers_of(built) and [m.state_bytes for m in built.memory[:2]] == [6 * MIB] * 2


def test_a_cache_lives_where_its_only_readers_are() -> None:
    cache = vs.state(np.zeros((2048, 128), np.float32), "cache", backup=False)
    row, at = vs.input("row", (1, 128)), vs.input("at", (), "int32")
    new = vs.dynamic_update_slice(cache, row, at, name="late.write")
    graph, _ = build_graph(vs.reduce_sum(new, name="late.sum"), {cache: new})
    built = plan(graph, topology(64, 64), overrides=[("late.*", B)])
    assert device_of(built, "cache") == B and rule_of(built, "cache") == "state"
    assert built.transfer_bytes == 0
    inputs = [copy.node for split in built.splits for copy in split.uploads]
    assert sorted(graph.nodes[node].name for node in inputs) == ["at", "row"]


CASES: dict[str, tuple[str, str, str]] = {
    "one reader": (B, "", B),
    "the writer alone": ("", C, C),
    "a writer beside one of two readers": (B + " " + C, C, C),
    "readers everywhere": (A + " " + B + " " + C, B, B),
    "of equal ones the preferred device": (B + " " + C, "", B),
    "a reader and a writer apart": (C, B, B),
}
"""Where a state is read, where its next value is made, and its home."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", ["priority", "auto"])
def test_the_home_is_where_the_least_crosses(case: str, policy: str) -> None:
    readers, writer, home = CASES[case]
    state = vs.state(np.zeros((WIDTH, WIDTH), np.float32), "s", backup=False)
    x = vs.input("x", (WIDTH, WIDTH))
    outs = [vs.reduce_sum(x * state, name=f"r{i}") for i in range(len(readers.split()))]
    pins = [(f"r{i}", device) for i, device in enumerate(readers.split())]
    next_value = vs.sqrt(x, name="next")
    if writer:
        pins.append(("next", writer))
    graph, _ = build_graph([*outs, vs.relu(x)], {state: next_value} if writer else None)
    muls = [node.name for node in graph.nodes if node.op == "mul"]
    pins += [(name, device) for name, device in zip(muls, readers.split(), strict=True)]
    if not readers:
        pins.append(("relu", A))
    built = plan(graph, topology(64, 64, 64), overrides=pins, policy=policy)
    found = built.device_of("s") if readers or not writer else built.device_of("s.next")
    assert found == home
    elsewhere = len(set(readers.split()) - {home}) + (writer not in ("", home))
    assert built.transfer_bytes == 4 * WIDTH * WIDTH * elsewhere


def test_a_reader_of_a_part_counts_with_that_part() -> None:
    state = vs.state(np.zeros((WIDTH, WIDTH), np.float32), "s")
    part = vs.relu(vs.slice(state, [0, 0], [8, WIDTH]), name="part")
    graph, _ = build_graph([part, vs.relu(state, name="whole")])
    built = plan(graph, topology(64, 64), overrides=[("part", A), ("whole", B)])
    assert device_of(built, "s") == B and built.transfer_bytes == 4 * 8 * WIDTH


def descent(h: Tensor, sizes: Sequence[int], name: str = "") -> tuple[Tensor, dict[Tensor, Tensor]]:
    """A loss, and a step of gradient descent with momentum; all parameters are states."""
    params: list[Tensor] = []
    for i, size in enumerate(sizes):
        array = np.zeros((h.shape[1], size), np.float32)
        params.append(vs.state(array, f"{name}w{i}", backup=False))
        h = vs.relu(vs.matmul(h, params[-1], name=f"{name}n{i}"))
    loss, updates = vs.reduce_sum(h * h), dict[Tensor, Tensor]()
    for i, (w, slope) in enumerate(zip(params, vs.grad(loss, params), strict=True)):
        moment = vs.state(np.zeros(w.shape, np.float32), f"{name}m{i}", backup=False)
        updates[moment] = moment * 0.9 + slope
        updates[w] = w - updates[moment] * 0.1
    return loss, updates


def test_moments_follow_their_parameters() -> None:
    graph, _ = build_graph(*descent(vs.input("x", (64, WIDTH)), (WIDTH, 2 * WIDTH)))
    built = plan(graph, topology(64, 64), overrides=[("w0", A), ("w1", B)])
    assert [device_of(built, f"{name}{i}") for i in range(2) for name in "wmn"] == [A] * 3 + [B] * 3
    by_hand = plan(graph, topology(64, 64), overrides=[("?0", A), ("?1", B)])
    assert built.transfer_bytes == by_hand.transfer_bytes < 4 * WIDTH * WIDTH


def test_a_training_of_two_branches_is_spread() -> None:
    x, losses, updates = vs.input("x", (2048, WIDTH)), list[Tensor](), dict[Tensor, Tensor]()
    for b in range(2):
        loss, own = descent(x, (WIDTH,) * 3, f"b{b}.")
        losses.append(loss)
        updates |= own
    graph, _ = build_graph(losses, updates)
    built, alone = (plan(graph, topology(*[4096] * count), policy="auto") for count in (2, 1))
    assert built.metrics.latency_s < 0.6 * alone.metrics.latency_s
    assert [memory.state_bytes for memory in built.memory[:2]] == [6 * MIB] * 2


def test_memory_spreads_states_as_weights() -> None:
    peaks = {
        kind: [
            memory.peak_bytes
            for memory in plan(
                layers(kind), topology(64, 64), policy="auto", objective="memory"
            ).memory
        ]
        for kind in KINDS
    }
    assert peaks["state"] == peaks["weight"] and max(peaks["state"]) == 10 * MIB


@pytest.mark.parametrize("memory", [(14, 64), (9, 9), (3, 3)])
@pytest.mark.parametrize("policy", ["priority", "auto"])
def test_states_that_do_not_fit_go_on_with_their_readers(
    memory: tuple[int, int], policy: str
) -> None:
    found = topology(*memory, speeds=(1e12, 2e11))
    devices = (replace(spec, offload_flops_per_byte=math.inf) for spec in found.devices)
    where = Topology(tuple(devices))  # weights may be streamed, states may not
    built, weights = (plan(layers(kind), where, policy=policy) for kind in ("state", "weight"))
    assert not apart(built, 12)
    if policy == "auto":
        assert built.metrics.latency_s == pytest.approx(weights.metrics.latency_s, rel=1e-9)


def test_a_state_that_is_somewhere_keeps_its_readers_there() -> None:
    graph = layers("state", 4)
    there = frozenset(n.id for n in graph.nodes if n.op == "state")
    built = plan(graph, topology(64, 64), policy="auto", resident={1: there})
    assert {device_of(built, f"{n}{i}") for n in "wn" for i in range(4)} == {B}
    assert not transfers_of(built)


def test_an_op_for_numpy_draws_no_state_off_its_other_readers() -> None:
    state = vs.state(np.zeros((WIDTH, WIDTH), np.float32), "s")
    x = vs.input("x", (WIDTH, WIDTH))
    first = vs.cast(vs.cast(state, "int64", name="wide"), "float32")
    graph, _ = build_graph([vs.reduce_sum(first), vs.matmul(x, state, name="product")])
    built = plan(graph, topology(64, 64))
    assert device_of(built, "product") == A == device_of(built, "s")
    assert device_of(built, "wide") == CPU


@pytest.mark.parametrize("policy", ["priority", "auto"])
def test_products_do_not_follow_a_neighbour_that_is_placed_by_hand(policy: str) -> None:
    """They go to the preferred device, as those with weights do."""
    pins = [("n1", A if policy == "auto" else B)]
    built, weights = (
        plan(layers(kind), topology(64, 64, speeds=(2e11, 1e12)), overrides=pins, policy=policy)
        for kind in ("state", "weight")
    )
    homes = [[device_of(each, f"n{i}") for i in range(12)] for each in (built, weights)]
    assert homes[0] == homes[1] and len(set(homes[0])) == 2 and not apart(built, 12)
    assert built.metrics.latency_s == pytest.approx(weights.metrics.latency_s, rel=1e-9)


@pytest.mark.parametrize("rows", [1, 512])
def test_a_state_in_host_memory_is_streamed_where_that_pays(rows: int) -> None:
    """As a weight is: else its reader runs on numpy."""
    x, state = vs.input("x", (rows, WIDTH)), parameter("state", "s")
    graph, _ = build_graph(vs.matmul(x, state, name="product"))
    built = plan(graph, topology(64), overrides=[("s", CPU)])
    assert device_of(built, "s") == CPU
    assert device_of(built, "product") == (A if rows > 1 else CPU)
    streams = rule_of(built, "product").startswith("state s stays in host memory; streamed")
    assert streams == (rows > 1)


def test_a_home_that_cannot_hold_a_state_is_reported() -> None:
    state = vs.state(np.zeros((WIDTH, WIDTH), np.float32), "s")
    graph, _ = build_graph(vs.reduce_sum(state, name="r"))
    first, second, cpu = topology(64, 64).devices
    small = Topology((first, replace(second, max_buffer_bytes=4096), cpu))
    built = plan(graph, small, overrides=[("s", B)])
    assert device_of(built, "s") == A == device_of(built, "r")
    assert any("s: override: s on null:1, which cannot" in note for note in built.notes)


def test_a_state_is_in_the_bundle_of_its_first_reader() -> None:
    """A later reader in another bundle comes behind it, so that there is no cycle."""
    state = vs.state(np.zeros((8, 64), np.float32), "s")
    x = vs.input("x", (8, 64))
    early, late = vs.relu(x * state, name="early"), vs.exp(x, name="late")
    end = vs.add(early, vs.mul(late, state, name="again"))
    graph, _ = build_graph(end)
    support = OpSupport(graph, topology(64, 64))
    sizes = {n.id: 0.0 if n.op == "state" else 1.0 for n in support.computed}
    node_groups = find_node_groups(support, lambda node: (0, 1), sizes, 2.0)
    number = {node: i for i, node_group in enumerate(node_groups) for node in node_group.nodes}
    mul = next(n.id for n in graph.nodes if n.op == "mul")
    assert sorted(number) == sorted(sizes) and number[graph.nodes[mul].inputs[1]] == number[mul]
    for node in support.computed:
        assert all(number[i] <= number[node.id] for i in support.operands[node.id] if i in number)


def test_a_next_value_may_be_built_before_anything_reads_the_state() -> None:
    """The bytes that go back are an edge in the order of the node groups."""
    state = parameter("state", "s")
    x = vs.input("x", (2048, WIDTH))
    first = vs.matmul(x, parameter("weight", "w0"))
    output = vs.matmul(vs.transpose(first), x, name="next")
    last = vs.matmul(vs.matmul(x, output), state)
    graph, _ = build_graph(last, {state: output})
    for objective in ("latency", "throughput", "memory", "energy"):
        found = plan(graph, topology(64, 64), policy="auto", objective=objective)
        home = found.placements[node_id(found, "s")].device
        assert found.placements[node_id(found, "s.next")].device == home
