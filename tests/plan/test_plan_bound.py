"""Bounds of plans: by hand, and no simulated plan of any placement is under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, random_plan

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.plan.costs.lower_bound import find_bound
from vksched.plan.costs.node_cost import node_seconds
from vksched.plan.plan import Plan
from vksched.plan.simulation.plan_metrics import plan_metrics
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.topology import Topology

SHAPE = (64, 64)


def topology(*speeds: float, link: Link | None = None) -> Topology:
    devices = [
        DeviceSpec(
            f"null:{i}",
            "null",
            flops_per_s=speed,
            bytes_per_s=speed,
            submit_s=0.0,
            busy_watts=10.0 * (i + 1),
            idle_watts=1.0,
        )
        for i, speed in enumerate(speeds)
    ]
    host = DeviceSpec(CPU, "cpu", flops_per_s=1e3, bytes_per_s=1e3, busy_watts=0.0, idle_watts=0.0)
    return Topology((*devices, host), Links((), link or Link(1e9)))


def chain(count: int) -> vs.Tensor:
    x = vs.input("x", SHAPE)
    for i in range(count):
        x = vs.exp(x, name=f"e{i}")
    return x


def plan(output: vs.Tensor, where: Topology, **more: object) -> Plan:
    return vs.plan_graph(build_graph(output)[0], where, policy="auto", **more)  # type: ignore[arg-type]


def seconds(plan: Plan, device: int) -> float:
    """Of one node of the plan's graph, which are all alike."""
    node = next(n for n in plan.graph.ops if n.op == "exp")
    return node_seconds(plan.topology.devices[device], plan.graph, node)


def test_a_chain_is_bound_by_its_path_on_the_faster_device() -> None:
    built = plan(chain(5), topology(2e9, 1e9))
    each = seconds(built, 0)
    assert built.bound.latency_s == pytest.approx(5 * each) and built.bound.by == "path"
    # in a stream the slower one does half as much beside it
    assert built.bound.period_s == pytest.approx(5 * each * 2 / 3)
    # 9 W more than idle of the first device are less than 19 W for twice the time
    idle_j = (1.0 + 1.0) * built.bound.latency_s
    assert built.bound.energy_j == pytest.approx(9.0 * 5 * each + idle_j)
    # the run has to give and take values, too
    assert built.metrics.latency_s > built.bound.latency_s
    assert built.bound.of("memory") is None and built.bound.of("") is None


def test_what_must_cross_is_on_the_path() -> None:
    link = Link(1e6, 0.5)
    built = plan(chain(2), topology(2e9, 2e9, link=link), overrides=[("e0", A), ("e1", B)])
    # pins are the user's: the bound is that of any placement, and here no transfer is needed
    assert built.bound.latency_s == pytest.approx(2 * seconds(built, 0))
    picky = replace(built.topology.devices[1], disabled_reason="it is gone")
    alone = Topology(
        (built.topology.devices[0], picky, built.topology.devices[2]), built.topology.links
    )
    assert plan(chain(2), alone).bound.latency_s == pytest.approx(2 * seconds(built, 0))


def test_branches_are_bound_by_the_area() -> None:
    x = vs.input("x", SHAPE)
    graph, _ = build_graph([vs.exp(x, name=f"e{i}") for i in range(8)])
    plan = vs.plan_graph(graph, topology(1e9, 1e9), policy="auto")
    assert plan.bound.by == "area"
    whole = 4 * seconds(plan, 0)
    assert 0.95 * whole < plan.bound.latency_s <= whole
    pytest.importorskip("scipy")  # without it weights of devices give a bound that may be lower
    assert plan.bound.latency_s == pytest.approx(whole)


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_is_under_its_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = random_plan(seed, int(rng.integers(2, 30)), 3)
    factors = ((-30.0, float(rng.uniform(0.5, 3))),)
    costs = PerfModel(
        tuple(Curve(kind, factors) for kind in ("*/bytes", "copy in/bytes", "copy out/bytes")),
        launch_s=1e-6,
        start_s=1e-5,
        submit_s=2e-6,
        fence_s=1e-6,
        calls=9,
    )
    specs = [
        replace(
            spec,
            flops_per_s=float(10 ** rng.uniform(8, 11)),
            bytes_per_s=float(10 ** rng.uniform(7, 10)),
            costs=costs if rng.random() < 0.5 else PerfModel(),
        )
        for spec in plan.topology.devices
    ]
    links = Links((), Link(float(10 ** rng.uniform(6, 10)), float(rng.uniform(0, 1e-4))))
    where = Topology(tuple(specs), links)
    pins = [
        (n.id, specs[int(rng.integers(0, 4))].name) for n in plan.graph.ops if rng.random() < 0.3
    ]
    for policy in ("priority", "auto"):
        output = vs.plan_graph(
            plan.graph, where, policy=policy, overrides=pins, copies=1 + seed % 3, with_cpu=True
        )
        found, bound = plan_metrics(output), find_bound(output)
        assert found.latency_s >= bound.latency_s * (1 - 1e-9)
        assert found.period_s >= bound.period_s * (1 - 1e-9)
        assert found.energy_j is not None and found.energy_j >= bound.energy_j * (1 - 1e-9)
        assert min(bound.latency_s, bound.period_s, bound.energy_j) >= 0
