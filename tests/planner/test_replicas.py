"""Replicas: whole runs on each device, where no cut keeps unequal devices busy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import A, B, C

import vksched as vs
from vksched.common.errors import PlanError
from vksched.ir.build_graph import build_graph
from vksched.plan.costs.lower_bound import find_bound
from vksched.plan.plan import Plan
from vksched.plan.simulation.plan_metrics import join_replicas
from vksched.plan.simulation.simulate_plan import simulate
from vksched.schedule import Metrics
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

SIZE = 64
FLOPS = 2 * SIZE**3
LINK = Link(1e9, 1e-5)


def topology(*speeds: float, **more: object) -> Topology:
    """Devices of these speeds, with a CPU that does not compete."""
    names = (A, B, C)[: len(speeds)]
    cards = [
        DeviceSpec(n, "null", flops_per_s=s, bytes_per_s=1e12, submit_s=1e-6, **more)  # type: ignore[arg-type]
        for n, s in zip(names, speeds, strict=True)
    ]
    pairs = tuple((name, "cpu", LINK) for name in names)
    return Topology((*cards, DeviceSpec("cpu", "cpu", flops_per_s=1e6)), Links(pairs))


def one_product() -> vs.Tensor:
    """What no cut can divide."""
    x = vs.input("x", (SIZE, SIZE))
    return vs.matmul(x, vs.weight(np.full((SIZE, SIZE), 1 / SIZE, np.float32), name="w"), name="p")


def two_products() -> vs.Tensor:
    w = vs.weight(np.full((SIZE, SIZE), 1 / SIZE, np.float32), name="v")
    return vs.matmul(one_product(), w, name="q")


def plan(output: vs.Tensor, where: Topology, **more: object) -> Plan:
    graph, _ = build_graph(output)
    asked = {"policy": "auto", "objective": "throughput", **more}
    return vs.plan_graph(graph, where, **asked)  # type: ignore[arg-type]


def devices(plan: Plan) -> list[str]:
    return [plan.topology.devices[own.splits[0].device].name for own in (plan, *plan.replicas)]


@pytest.mark.parametrize(
    ("speeds", "order"),
    [
        ((1e9, 1e9), [A, B]),
        ((1e9, 5e8), [A, B]),
        ((5e8, 1e9), [B, A]),
        ((2.5e8, 1e9), [B, A]),
        ((1e9, 1e9, 1e9), [A, B, C]),
        ((1e9, 1e7), [A]),  # it would add 1 %
    ],
)
def test_rates_of_devices_add_up(speeds: tuple[float, ...], order: list[str]) -> None:
    built = plan(one_product(), topology(*speeds))
    assert devices(built) == order
    rate = sum(each for each in speeds if each > 0.05 * max(speeds)) / FLOPS
    assert 1 / built.metrics.period_s == pytest.approx(rate, rel=0.03)
    assert built.metrics.latency_s == simulate(built).seconds  # one run alone is on the fastest
    assert built.decision is not None and built.decision.chosen.name in (
        "replicas",
        f"single:{order[0]}",
    )
    assert find_bound(built).period_s <= built.metrics.period_s


def test_stages_win_where_they_are_as_good() -> None:
    """Each weight lies on one device then."""
    built = plan(two_products(), topology(1e9, 1e9))
    assert not built.replicas and len({s.device for s in built.splits}) == 2
    assert plan(two_products(), topology(1e9, 7e8)).replicas  # 1.4 of 1.7 by stages


@pytest.mark.parametrize(
    ("more", "spec"),
    [
        ({"copies": 2}, {}),
        ({"overrides": [("p", A)]}, {}),
        ({"objective": "latency"}, {}),
        ({"objective": "memory"}, {}),
        ({}, {"memory_node": "card"}),
        ({}, {"memory_bytes": SIZE * SIZE * 4}),  # room for the weight alone
    ],
)
def test_who_has_no_replicas(more: dict[str, object], spec: dict[str, object]) -> None:
    assert not plan(one_product(), topology(1e9, 1e9, **spec), **more).replicas


def test_a_graph_with_states_has_none() -> None:
    state = vs.state(np.zeros((SIZE, SIZE), np.float32), name="s")
    output = one_product() + state
    graph, _ = build_graph(output, {state: output})
    plan = vs.plan_graph(graph, topology(1e9, 1e9), policy="auto", objective="throughput")
    assert not plan.replicas


def test_a_plan_tells_of_its_replicas() -> None:
    built = plan(one_product(), topology(1e9, 5e8))
    text = built.explain()
    assert f"chosen     replicas on {A}, {B}" in text and "each in a stream over 2 devices" in text
    assert "each run goes whole to the splits below, or to those of:" in text
    assert f"  {B}: 1 node in 1 split" in text
    assert [own["device"] for own in built.as_dict()["replicas"]] == [B]
    sizes = built.buffers()
    assert sizes[A].weight_bytes == sizes[B].weight_bytes == SIZE * SIZE * 4
    assert built.working == (0, 1)


def test_replicas_on_one_memory_or_of_another_graph_are_refused() -> None:
    built = plan(one_product(), topology(1e9, 5e8))
    (other,) = built.replicas
    with pytest.raises(PlanError, match="a replica on devices"):
        replace(built, replicas=(other, other)).verify()
    with pytest.raises(PlanError, match="a replica on devices"):
        replace(built, replicas=(plan(one_product(), topology(1e9)),)).verify()
    pool = topology(1e9, 5e8, memory_node="card")
    with pytest.raises(PlanError, match="a replica on devices"):
        replace(built, topology=pool, replicas=(replace(other, topology=pool),)).verify()
    broken = replace(other, splits=())
    with pytest.raises(PlanError):
        replace(built, replicas=(broken,)).verify()


def test_what_replicas_take_together() -> None:
    one, other = Metrics(3.0, 2.0, 10.0, 5.0), Metrics(9.0, 6.0, 30.0, 1.0)
    both = join_replicas([one, other])
    assert both == Metrics(3.0, pytest.approx(1.5), 30.0, 4.0)  # type: ignore[arg-type]
    assert join_replicas([one]) is one
