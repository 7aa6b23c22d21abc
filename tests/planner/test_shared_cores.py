"""Devices that compute on the cores of one host: together they are as fast as one of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, C

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

X = np.ones((64, 64), np.float32)
PRODUCT_S = 2 * 64**3 / 1e8
LINK = Link(1e10, 1e-6)


def device(name: str, software: bool, speed: float = 1e8) -> DeviceSpec:
    kind = "cpu" if name == CPU else "null"
    limits = Limits(software=software)
    return DeviceSpec(name, kind, limits=limits, flops_per_s=speed, bytes_per_s=1e12, submit_s=1e-6)


def topology(*devices: DeviceSpec) -> Topology:
    host = () if devices[-1].name == CPU else (device(CPU, False, 1e6),)
    pairs = tuple((d.name, CPU, LINK) for d in devices if d.name != CPU)
    return Topology((*devices, *host), Links(pairs))


def branches(count: int = 2, length: int = 4) -> list[vs.Tensor]:
    x, out = vs.input("x", X.shape), list[vs.Tensor]()
    for branch in range(count):
        h = x
        for i in range(length):
            w = vs.weight(np.full((64, 64), 1 / 64, np.float32))
            h = vs.matmul(h, w, name=f"b{branch}.{i}")
        out.append(h)
    return out


def plan(where: Topology, **more: object) -> Plan:
    graph, _ = build_graph(branches())
    return vs.plan_graph(graph, where, **{"policy": "auto", **more})  # type: ignore[arg-type]


PLACED = [("b0.*", A), ("b1.*", B)]


def test_devices_on_cores_take_turns() -> None:
    card, soft = device(A, False), device(B, True)
    far = [replace(soft, name="node1/null:0"), replace(device(CPU, False), name="node1/cpu")]
    where = Topology((card, soft, device(C, True), *far, device(CPU, False)))
    assert where.queues == (0, 1, 1, 3, 3, 1)
    assert topology(card, device(B, False)).queues == (0, 1, 2)


@pytest.mark.parametrize(
    ("software", "longest"), [((False, False), 4), ((True, False), 4), ((True, True), 8)]
)
def test_branches_on_shared_cores_take_their_sum(software: tuple[bool, bool], longest: int) -> None:
    where = topology(device(A, software[0]), device(B, software[1]))
    built = plan(where, policy="priority", overrides=PLACED)
    assert simulate(built).seconds == pytest.approx(longest * PRODUCT_S, rel=0.01)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_second_device_on_the_same_cores_gets_no_work(objective: str) -> None:
    """Nor as a replica; a card next to it does."""
    shared = plan(topology(device(A, True), device(B, True)), objective=objective)
    assert len(shared.working) == 1 and not shared.replicas
    with_cpu = topology(device(A, True), device(CPU, False, 1e8))
    assert len(plan(with_cpu, objective=objective, with_cpu=True).working) == 1
    apart = plan(topology(device(A, True), device(B, False)), objective=objective)
    assert len(apart.working) == 2
    assert apart.metrics.period_s == pytest.approx(shared.metrics.period_s / 2, rel=0.03)


@pytest.mark.parametrize("copies", [1, 2])
def test_null_devices_take_turns_as_the_simulator_says(copies: int) -> None:
    clock = vs.SimulatedClock()
    specs = [device(A, True), device(B, True, 5e7), device(CPU, False, 2e7)]
    devices = [vs.SimulatedDevice(spec, clock, LINK) for spec in specs]
    output = branches(3)
    with vs.Scheduler(devices, "priority", copies, trace=vs.Trace(clock)) as sched:
        run = sched.compile(output, {"b0.*": A, "b1.*": B, "b2.*": CPU})
        assert len(run.plan.working) == 3
        start = clock.now()
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(6)]
        for future in futures:
            future.result()
        assert clock.now() - start == pytest.approx(simulate(run.plan, 6).seconds, rel=1e-9)
        assert clock.now() - start >= 6 * 4 * PRODUCT_S * (1 + 2 + 5)


def test_a_run_that_decides_knows_of_shared_cores() -> None:
    graph, _ = build_graph(branches())
    shared, apart = (
        vs.plan_graph(graph, topology(device(A, soft), device(B, soft)), policy="earliest-finish")
        for soft in (True, False)
    )
    took = [float(p.notes[0].rpartition("takes about ")[2].split()[0]) for p in (shared, apart)]
    assert took[0] == pytest.approx(2 * took[1], rel=0.1)
