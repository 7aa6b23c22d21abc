"""Plans by cost: the fastest device, several where that pays, what holds nodes where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, numpy_outputs

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.plan.costs.op_support import OpSupport
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.verify.happens_before import check_plan
from vksched.planner.placement.node_groups import MOST, find_node_groups
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.edit import alone
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

FAST, SLOW = 2e10, 1e9
WIDTH = 128
BUS = Link(1e10, 1e-5)


def topology(*speeds: float, cpu: float = 1e8, link: Link = BUS, **spec: float) -> Topology:
    """Null devices of these speeds in flops and bytes a second, and a CPU."""
    devices = [
        DeviceSpec(f"null:{i}", "null", flops_per_s=s, bytes_per_s=s, **spec)  # type: ignore[arg-type]
        for i, s in enumerate(speeds)
    ]
    devices.append(DeviceSpec(CPU, "cpu", flops_per_s=cpu, bytes_per_s=cpu, submit_s=1e-6))
    return Topology(tuple(devices), Links((), link))


def layers(count: int, x: vs.Tensor, name: str = "") -> vs.Tensor:
    for i in range(count):
        values = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
        x = vs.relu(vs.matmul(x, vs.weight(values, name=f"{name}w{i}"), name=f"{name}p{i}"))
    return x


def branches(count: int, depth: int) -> vs.Tensor:
    """Parts that know nothing of each other until their ends are added."""
    x = vs.input("x", (WIDTH, WIDTH))
    ends = [layers(depth, x, f"b{i}.") for i in range(count)]
    total = ends[0]
    for end in ends[1:]:
        total = vs.add(total, end)
    return total


def plan(
    output: vs.Tensor, where: Topology, policy: str = "auto", with_cpu: bool = False, **more: object
) -> Plan:
    graph, _ = build_graph(output)
    return check_plan(vs.plan_graph(graph, where, policy=policy, with_cpu=with_cpu, **more))  # type: ignore[arg-type]


def used(plan: Plan) -> set[str]:
    return {plan.topology.devices[s.device].name for s in plan.splits}


@pytest.mark.parametrize("speeds", [(FAST, SLOW), (SLOW, FAST)])
def test_the_faster_device_takes_a_chain_wherever_it_stands(speeds: Sequence[float]) -> None:
    output = layers(6, vs.input("x", (WIDTH, WIDTH)))
    built = plan(output, topology(*speeds))
    assert used(built) == {A if speeds[0] == FAST else B}
    assert built.placements[0].reason and "auto: single:" in built.notes[0]
    assert plan(output, topology(*speeds), "priority").policy == "priority"
    assert used(plan(output, topology(*speeds), "priority")) == {A}


def test_equal_devices_share_branches_and_a_run_takes_less_time() -> None:
    built = plan(branches(4, 4), topology(SLOW, SLOW))
    assert used(built) == {A, B}
    alone = plan(branches(4, 4), topology(SLOW))
    assert simulate(built).seconds < 0.7 * simulate(alone).seconds
    assert "times as fast as null:0 alone" in built.notes[0]


def test_small_ops_are_not_scattered() -> None:
    assert used(plan(branches(4, 4), topology(SLOW, SLOW, submit_s=1.0))) == {A}
    slow_link = topology(SLOW, SLOW, link=Link(1e5, 1e-3))
    assert used(plan(branches(4, 4), slow_link)) == {A}


@pytest.mark.parametrize(("with_cpu", "wanted"), [(True, CPU), (False, A)])
def test_the_cpu_competes_where_it_is_asked_to(with_cpu: bool, wanted: str) -> None:
    output = layers(6, vs.input("x", (WIDTH, WIDTH)))
    assert used(plan(output, topology(SLOW, cpu=FAST), with_cpu=with_cpu)) == {wanted}


@pytest.mark.parametrize("seed", range(40))
def test_no_plan_is_slower_than_the_best_device_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = vs.input("x", (WIDTH, WIDTH))
    pool = [x]
    for i in range(int(rng.integers(4, 40))):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 6), len(pool)))] for _ in range(2))
        pool.append(layers(1, a, f"{i}.") if rng.random() < 0.5 else vs.add(a, b))
    speeds = 10 ** rng.uniform(8, 10, int(rng.integers(2, 4)))
    link = Link(10 ** rng.uniform(7, 10), 10 ** rng.uniform(-6, -3))
    where = topology(*speeds, cpu=10 ** rng.uniform(8, 10), link=link)
    output = vs.add(pool[-1], pool[-2])
    built = plan(output, where, with_cpu=True)
    took_s = simulate(built).seconds
    for spec in where.devices:
        single = plan(output, where, "priority", overrides=[("*", spec.name)])
        # one device is left for another only where that is faster by a margin
        assert took_s <= simulate(single).seconds * 1.06, (spec.name, built.notes)


@pytest.mark.parametrize("sizes", [(1 << 30, 0), (0, 1 << 30), (1 << 30, 100_000)])
def test_a_device_that_has_no_room_in_a_shared_memory_costs_the_others_nothing(
    sizes: tuple[int, int],
) -> None:
    where = topology(FAST, FAST)
    specs = zip(where.devices, sizes, strict=False)
    odd = [replace(spec, memory_bytes=size, memory_node="p") for spec, size in specs]
    where = replace(where, devices=(*odd, where.devices[-1]))
    output = layers(4, vs.input("x", (WIDTH, WIDTH)))
    took_s = simulate(plan(output, where)).seconds
    for name in (A, B):
        assert took_s <= simulate(plan(output, alone(where, name))).seconds


def test_devices_that_take_longer_than_schedules_count_are_planned() -> None:
    for where in (
        topology(FAST, SLOW, slowdown=1e300),
        topology(FAST, SLOW, link=Link(1e9, 1e300)),
    ):
        assert plan(branches(3, 2), where).explain()


def test_what_is_placed_stays_and_numbers_are_numpys() -> None:
    output = branches(3, 2)
    graph, _ = build_graph(output)
    pins = [("b1.p0", B), ("b2.w0", A)]
    plan = check_plan(vs.plan_graph(graph, topology(FAST, SLOW), policy="auto", overrides=pins))
    assert plan.device_of("b1.p0") == B and plan.device_of("b2.p0") == A
    feeds = {"x": np.random.default_rng(0).random((WIDTH, WIDTH), np.float32)}
    clock = vs.SimulatedClock()
    null = [vs.SimulatedDevice(spec, clock) for spec in topology(SLOW, SLOW).devices[:-1]]
    with vs.Scheduler(null) as sched:
        run = sched.compile(output)
        assert len(used(run.plan)) == 2
        assert np.array_equal(run(**feeds), numpy_outputs(graph, feeds)[0])


def test_a_placed_weight_pulls_the_ops_that_read_it() -> None:
    x = layers(4, vs.input("x", (WIDTH, WIDTH)))
    built = plan(x, topology(FAST, SLOW), overrides=[("w2", B)])
    assert built.device_of("p2") == B == built.device_of("w2")
    assert built.device_of("p0") == A == built.device_of("p1")


def test_memory_is_retained() -> None:
    where = topology(FAST, SLOW)
    size = 4 * WIDTH * WIDTH
    small = replace(where.devices[0], memory_bytes=10 * size, max_buffer_bytes=2 * size)
    for offload, devices in ((math.inf, {A, B}), (16.0, {A})):  # streamed, it is faster than B
        card = replace(small, offload_flops_per_byte=offload)
        built = plan(
            layers(12, vs.input("x", (WIDTH, WIDTH))),
            Topology((card, *where.devices[1:]), where.links),
        )
        assert built.memory[0].peak_bytes <= 10 * size and used(built) == devices


def test_bundles_are_few_and_free_of_cycles() -> None:
    x = vs.input("x", (8, 8))
    pool, rng = [x], np.random.default_rng(3)
    for _ in range(3000):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 40), len(pool)))] for _ in range(2))
        pool.append(vs.add(a, b))
    graph, _ = build_graph(pool[-30:])
    support = OpSupport(graph, topology(FAST, SLOW))
    seconds = dict.fromkeys((n.id for n in support.computed), 1.0)
    node_groups = find_node_groups(support, lambda node: (0, 1), seconds, 20.0)
    assert sorted(n for b in node_groups for n in b.nodes) == sorted(seconds)
    assert len(node_groups) <= 3 * MOST
    number = {n: i for i, node_group in enumerate(node_groups) for n in node_group.nodes}
    for node in support.computed:
        assert all(number[p] <= number[node.id] for p in support.operands[node.id] if p in number)


def test_a_node_that_one_device_cannot_run_is_in_no_bundle_with_others() -> None:
    support = OpSupport(
        build_graph(layers(3, vs.input("x", (WIDTH, WIDTH))))[0], topology(1e9, 1e9)
    )
    ids = [n.id for n in support.computed]
    candidate_devices = {n: (0,) if n == ids[2] else (0, 1) for n in ids}
    node_groups = find_node_groups(
        support, candidate_devices.__getitem__, dict.fromkeys(ids, 1.0), 100.0
    )
    assert [b.candidate_devices for b in node_groups if ids[2] in b.nodes] == [(0,)]
    assert all(len({candidate_devices[n] for n in b.nodes}) == 1 for b in node_groups)
