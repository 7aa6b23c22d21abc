"""Plans that are kept: the same that the planner would make now, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_plans import draw_case
from selection import draws

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.plan.plan import Plan
from vksched.plan.serialize.plan_codec import encode_plan
from vksched.plan.serialize.plan_request import PlanRequest
from vksched.planner.plan_cache import CachedPlan, DamagedPlan, serialize_cached_plan
from vksched.planner.planner import STATIC, answer
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.perf_model import BOUNDS, Curve, PerfModel
from vksched.topology.topology import Topology

SOME = 40
SEEDS = draws(SOME, 200)


def with_memory(topology: Topology, factor: float) -> Topology:
    """Return a machine with so many times as much free memory."""
    devices = [replace(s, memory_bytes=int(factor * s.memory_bytes)) for s in topology.devices]
    return replace(topology, devices=tuple(devices))


def drawn(seed: int) -> tuple[Graph, PlanRequest, Topology]:
    """Return a graph with what is asked of it, mostly of one device beside the CPU."""
    case, policy = draw_case(seed), STATIC[seed % len(STATIC)]
    first, *others = case.topology.devices
    few = (first, others[-1]) if seed % 5 else case.topology.devices
    topology = Topology(few[1:] if seed % 4 == 3 else few)
    request = PlanRequest(policy, "latency", (), case.copies, {}, {}, seed % 7 == 0)
    return case.graph, request, topology


def explained(plan: Plan) -> str:
    """Return all of a plan but why the nodes of a graph with states are where they are: a resident
    state is there already, and others follow it.
    """
    if plan.graph.states:
        placements = [replace(each, reason="") for each in plan.placements]
        plan = replace(plan, placements=tuple(placements))
    return json.dumps(encode_plan(plan)) + plan.explain()


def through_json(plan: Plan, request: PlanRequest) -> dict[str, Any] | None:
    stored: dict[str, Any] | None = json.loads(json.dumps(serialize_cached_plan(plan, request)))
    return stored


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_back_is_what_would_be_planned(seed: int) -> None:
    """Whatever is free and lies on devices by then."""
    graph, request, drawn_topology = drawn(seed)
    rng = np.random.default_rng(seed)
    topology = with_memory(drawn_topology, 1 + 20 * rng.random())
    try:
        document = through_json(answer(request, graph, topology), request)
    except vs.VkschedError:
        pytest.skip("there is no plan")
    if document is None:
        pytest.skip("it is not kept")
    for _ in range(5):
        held, some = (*graph.data, *graph.initial), rng.choice([0.5, 0.9, 1.0])
        there = {d: frozenset(n for n in held if rng.random() < some) for d in range(2)}
        now = replace(request, resident=there if rng.random() < 0.3 else {0: there[0]})
        later = with_memory(topology, 0.3 + 1.4 * rng.random())
        plan = CachedPlan(graph, document)
        found = plan.answer(now, later)
        assert plan.taken is (found is not None)
        if found is not None:
            assert explained(found.verify()) == explained(answer(now, graph, later))


def test_most_plans_of_one_device_are_retained() -> None:
    """So the test above tests something."""
    stored = 0
    for seed in range(SOME):
        graph, request, topology = drawn(seed)
        plan = answer(request, graph, with_memory(topology, 1000))
        stored += serialize_cached_plan(plan, request) is not None
    assert stored > SOME / 3


def spec(name: str) -> DeviceSpec:
    return DeviceSpec(name, name.partition(":")[0], memory_bytes=1 << 30)


def chain() -> tuple[Plan, PlanRequest, Topology]:
    x = vs.input("x", (64, 64))
    for number in range(3):
        x = vs.tanh(x @ vs.weight(np.eye(64, dtype=np.float32), f"w{number}"))
    graph = build_graph(x)[0]
    topology = Topology((spec("null:0"), spec("cpu")))
    request = PlanRequest("priority", "latency")
    return answer(request, graph, topology), request, topology


def test_the_same_again_is_taken() -> None:
    plan, request, topology = chain()
    stored = CachedPlan(plan.graph, through_json(plan, request))
    found = stored.answer(request, topology)
    assert found is not None and stored.taken and explained(found) == explained(plan)


OTHERWISE: dict[str, Callable[[PlanRequest, Topology], tuple[PlanRequest, Topology]]] = {
    "copies": lambda q, m: (replace(q, copies=2), m),
    "objective": lambda q, m: (replace(q, policy="auto"), m),
    "overrides": lambda q, m: (replace(q, overrides=(("*", "cpu"),)), m),
    "observed": lambda q, m: (replace(q, observed={4: 1}), m),
    "full": lambda q, m: (q, with_memory(m, 1e-5)),
    "weights on another device": lambda q, m: (replace(q, resident={1: frozenset({1})}), m),
    "the CPU may": lambda q, m: (replace(q, with_cpu=True), m),
    "decided later": lambda q, m: (replace(q, policy="earliest-finish"), m),
    "a slower device": lambda q, m: (
        q,
        replace(m, devices=(replace(m.devices[0], slowdown=3.0), *m.devices[1:])),
    ),
    "another link": lambda q, m: (
        q,
        replace(m, links=replace(m.links, default=replace(m.links.default, latency_s=1.0))),
    ),
    "fewer devices": lambda q, m: (q, replace(m, devices=m.devices[1:])),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_is_asked_otherwise_is_planned(what: str) -> None:
    plan, request, topology = chain()
    stored = CachedPlan(plan.graph, through_json(plan, request))
    assert stored.answer(request, topology) is not None
    assert stored.answer(*OTHERWISE[what](request, topology)) is None and not stored.taken


def test_documents_of_another_kind_are_no_plans() -> None:
    plan, request, topology = chain()
    document = through_json(plan, request)
    assert document is not None
    for key in document:
        for value in (None, [], {}, [[0]], "x"):
            with suppress(DamagedPlan):
                found = CachedPlan(plan.graph, {**document, key: value}).answer(request, topology)
                assert found is None or found.verify()
        less = CachedPlan(plan.graph, {k: each for k, each in document.items() if k != key})
        with pytest.raises(DamagedPlan, match=key):
            less.answer(request, topology)
        assert less.answer(request, topology) is None and not less.taken, "it is told once"
    assert CachedPlan(plan.graph, None).answer(request, topology) is None


@pytest.mark.parametrize("seed", range(8))
def test_the_plan_of_a_cpu_alone_stays_as_runs_teach_its_costs(seed: int) -> None:
    case = draw_case(seed)
    cpu = case.topology.devices[-1]
    request = PlanRequest("auto", "latency", (), 1, {}, {}, True)
    before = Topology((replace(cpu, memory_bytes=1 << 40),))
    curves = tuple(Curve(f"*/{bound}", ((-10.0, 2.0**seed),)) for bound in BOUNDS)
    learned = replace(before.devices[0], costs=PerfModel(curves, launch_s=1e-3, calls=2))
    after = Topology((learned,))
    document = through_json(answer(request, case.graph, before), request)
    assert document is not None and document["decision"] is None, "its seconds would be outdated"
    found = CachedPlan(case.graph, document).answer(request, after)
    assert found is not None and found.topology is after
    assert explained(found) == explained(answer(request, case.graph, after))
    stream = replace(request, objective="throughput")
    stored = through_json(answer(stream, case.graph, before), stream)
    assert stored is None or CachedPlan(case.graph, stored).answer(stream, after) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plan_of_one_device_stays_as_runs_teach_the_costs_of_all(seed: int) -> None:
    case, rng = draw_case(seed), np.random.default_rng(seed)
    first, cpu = (case.topology.devices[at] for at in (0, -1))
    before = with_memory(Topology((first, cpu)), 1000)
    request = PlanRequest(STATIC[seed % len(STATIC)], "latency", (), 1, {}, {}, False)
    try:
        document = through_json(answer(request, case.graph, before), request)
    except vs.VkschedError:
        pytest.skip("there is no plan")
    if document is None or len(document["splits"]) != 1:
        pytest.skip("it is not kept")
    assert document["decision"] is None, "its seconds would be outdated"
    costs = [
        PerfModel(
            tuple(
                Curve(f"*/{bound}", ((-10.0, float(2.0 ** rng.uniform(-8, 8))),))
                for bound in BOUNDS
            ),
            launch_s=float(10.0 ** rng.uniform(-7, -2)),
            calls=2,
        )
        for _ in before.devices
    ]
    devices = [
        replace(spec, costs=learned) for spec, learned in zip(before.devices, costs, strict=True)
    ]
    after = replace(before, devices=tuple(devices))
    found = CachedPlan(case.graph, document).answer(request, after)
    right = answer(request, case.graph, after)
    assert (found is not None) is (len(right.splits) == 1), "more if a submission were too long"
    assert found is None or (found.topology is after and explained(found) == explained(right))
