"""Perf model: what was measured of a device changes the seconds of its nodes, and says so."""

from __future__ import annotations

import gc
import json
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.errors import PlanError
from vksched.engine.request import Request
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.ir.op import Call, Op, computing_ops, get_op
from vksched.ops.lowering.lower import Lowering
from vksched.plan.costs import node_cost as node_cost_module
from vksched.plan.costs.node_cost import (
    Cost,
    family_of,
    first_cost,
    longest_seconds,
    lower_node,
    node_cost,
    node_seconds,
    split_seconds,
    submission_seconds,
)
from vksched.plan.explain.node_info import describe_node
from vksched.planner.planner import plan_graph
from vksched.planner.search.select import known
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link, Links
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.topology import Topology

SPEC = DeviceSpec("null:0", "null", flops_per_s=1e12, bytes_per_s=1e10, submit_s=1e-4)


def one(op: str = "softmax", rows: int = 1000) -> Graph:
    x = vs.input("x", shape=(rows, 1000))
    return build_graph(getattr(vs, op)(x))[0]


def estimated(graph: Graph) -> float:
    return node_seconds(SPEC, graph, graph.nodes[-1])


def with_costs(**options: Any) -> DeviceSpec:
    return replace(SPEC, costs=PerfModel(**options))


def test_a_machine_without_costs_estimates_by_work_and_rough_speeds() -> None:
    graph = one("relu")
    found = node_cost(SPEC, graph, graph.nodes[-1])
    assert found.seconds == 8e6 / 1e10 and not found.measured
    assert submission_seconds(SPEC) == 1e-4
    slow = replace(SPEC, slowdown=8.0)
    assert node_seconds(slow, graph, graph.nodes[-1]) == 8 * found.seconds
    assert split_seconds(slow, graph, [graph.nodes[-1].id]) == 1e-4 + 8 * found.seconds


def test_the_factor_of_an_op_is_measured() -> None:
    graph = one("relu")
    spec = with_costs(curves=(Curve("relu/bytes", ((-10.0, 3.0),)),), launch_s=5e-6, calls=1)
    found = node_cost(spec, graph, graph.nodes[-1])
    assert found.measured
    assert found.seconds == pytest.approx(5e-6 + 3 * estimated(graph))


def test_an_op_that_was_not_measured_takes_the_factor_of_its_family() -> None:
    graph = one("relu")
    curves = (Curve("elementwise/bytes", ((-10.0, 3.0),)), Curve("*/bytes", ((-10.0, 9.0),)))
    found = node_cost(with_costs(curves=curves, calls=1), graph, graph.nodes[-1])
    assert found.seconds == pytest.approx(3 * estimated(graph)) and found.measured


def test_an_op_of_an_unknown_family_is_estimated_by_what_all_ops_took() -> None:
    graph = one("softmax")
    spec = with_costs(curves=(Curve("*/bytes", ((-10.0, 9.0),)),), calls=1)
    found = node_cost(spec, graph, graph.nodes[-1])
    assert found.seconds == pytest.approx(9 * estimated(graph)) and not found.measured


def test_factors_go_in_a_line_between_sizes_and_stay_beyond_them() -> None:
    curve = Curve("relu/bytes", ((-20.0, 6.0), (-14.0, 1.5)))
    assert curve.at(2.0**-20) == pytest.approx(6.0)
    assert curve.at(2.0**-17) == pytest.approx(3.0)  # the middle, in logarithms
    assert curve.at(2.0**-14) == pytest.approx(1.5)
    assert curve.at(2.0**-40) == 6.0 and curve.at(0.0) == 6.0
    assert curve.at(1.0) == 1.5
    between = [curve.at(2.0**e) for e in (-19, -18, -17, -16, -15)]
    assert between == sorted(between, reverse=True)


def test_a_submission_costs_what_was_measured() -> None:
    graph = one("relu")
    spec = with_costs(start_s=1e-6, submit_s=20e-6, fence_s=9e-6, calls=1)
    assert submission_seconds(spec) == pytest.approx(30e-6)
    assert split_seconds(spec, graph, [graph.nodes[-1].id]) == pytest.approx(
        30e-6 + estimated(graph)
    )


def test_what_runs_showed_counts_before_the_slowdown_of_submissions() -> None:
    graph = one("relu")
    node, first_s = graph.nodes[-1], estimated(graph)
    spec = replace(with_costs(paces=(("*", 2.0), ("relu", 4.0))), slowdown=8.0)
    assert node_seconds(spec, graph, node) == pytest.approx(4 * first_s)
    assert node_cost(spec, graph, node).measured
    assert longest_seconds(spec, graph, node) == pytest.approx(8 * first_s)
    assert longest_seconds(replace(spec, slowdown=1.0), graph, node) == pytest.approx(4 * first_s)
    assert first_cost(spec, graph, node).seconds == first_s
    other = one("softmax")
    found = node_cost(spec, other, other.nodes[-1])
    assert found.seconds == pytest.approx(2 * estimated(other)) and not found.measured


def test_plans_say_what_was_measured() -> None:
    graph = one("relu")
    curves = (Curve("relu/bytes", ((-10.0, 3.0),)),)
    known = replace(SPEC, costs=PerfModel(curves, calls=1))
    plan = plan_graph(graph, Topology((known, DeviceSpec("cpu", "cpu", "numpy"))))
    text = plan.explain(graph.nodes[-1].name)
    assert "null:0  can, 2.4 ms as measured" in text
    assert "cpu     can, about " in text
    about = describe_node(plan, graph.nodes[-1].id)
    assert [v.measured for v in about.devices] == [True, False]


def test_costs_are_values() -> None:
    costs = PerfModel(
        (Curve("relu/bytes", ((-20.0, 6.0), (-14.5, 1.5))),),
        launch_s=1e-6,
        submit_s=2e-5,
        calls=7,
        when="2026-07-01",
        paces=(("relu", 2.0),),
    )
    again = PerfModel.from_dict(json.loads(json.dumps(costs.as_dict())))
    assert again == costs and hash(again) == hash(costs)
    assert again.factor(["relu/bytes"], 1.0) == (1.5, "relu/bytes")
    assert again.pace("relu") == 2.0 and again.pace("exp") is None
    assert not PerfModel() and PerfModel() == PerfModel.from_dict({})
    assert costs.at_pace({"exp": 3.0}).pace("relu") is None


def test_a_pace_alone_makes_no_device_measured() -> None:
    paced = PerfModel().at_pace({"relu": 2.0})
    assert not paced and PerfModel(calls=1).at_pace({"relu": 2.0})
    topology = Topology((with_costs(paces=paced.paces), DeviceSpec("cpu", "cpu")))
    assert Topology.from_dict(json.loads(json.dumps(topology.as_dict()))) == topology
    real = tuple(replace(spec, kind="vulkan") for spec in topology.devices[:1])
    assert not known(Topology((*real, topology.devices[1])), [0])


def test_a_machine_keeps_its_costs_as_json() -> None:
    topology = Topology(
        (
            with_costs(curves=(Curve("relu/bytes", ((-20.0, 6.0),)),), calls=1),
            DeviceSpec("cpu", "cpu", "numpy"),
        )
    )
    data = json.loads(json.dumps(topology.as_dict()))
    assert "costs" in data["devices"][0] and "costs" not in data["devices"][1]
    assert Topology.from_dict(data) == topology


@pytest.mark.parametrize(
    "data",
    [
        3,
        {"speed": 1.0},
        {"launch_s": -1.0},
        {"launch_s": math.nan},
        {"calls": True},
        {"curves": {"relu/bytes": []}},
        {"curves": {"relu/bytes": [[1, 0]]}},
        {"curves": {"relu/bytes": [[1, 2], [1, 3]]}},
        {"curves": {"relu/bytes": [[math.inf, 3]]}},
        {"curves": [1]},
        {"paces": {"relu": 0}},
        {"launch_s": 1.0},
        {"curves": {"relu/bytes": [[1, 2]]}},
        {"curves": {"relu/bytes": [[1, 2]]}, "calls": 0},
    ],
)
def test_costs_that_say_nothing_sensible_are_refused(data: object) -> None:
    spec = {"name": "null:0", "kind": "null", "costs": data}
    with pytest.raises(PlanError, match=r"\[topology\] expected .*the costs of device 0"):
        Topology.from_dict({"devices": [spec]})


def test_every_op_that_computes_has_a_family() -> None:
    families = {name: family_of(get_op(name)) for name in computing_ops()}
    assert set(families.values()) == {
        *("attention", "conv", "creation", "elementwise", "layout", "linalg"),
        *("quantized", "reduction", "rnn"),
    }
    assert families["matmul"] == "linalg" and families["conv"] == "conv"
    assert families["relu"] == "elementwise" and families["transpose"] == "layout"


def test_links_are_found_both_ways_and_the_first_named_way_wins() -> None:
    one_way, back = Link(1e9, 1e-6), Link(2e9, 2e-6)
    links = Links((("a", "b", one_way), ("b", "a", back), ("b", "c", one_way)))
    assert links.between("a", "b") == one_way and links.between("b", "a") == back
    assert links.between("c", "b") == one_way and links.between("a", "c") == Link()
    assert links == Links(links.pairs) and hash(links) == hash(Links(links.pairs))


def test_numpy_takes_a_pass_for_an_epilogue_and_devices_do_not() -> None:
    """So a graph that is fused for cards does not seem faster on the CPU than it is."""
    x, w = vs.input("x", (256, 256)), vs.weight(np.zeros((256, 256), np.float32))
    written = vs.build_graph(vs.gelu(x @ w))[0]
    kinds = ("*/flops", "*/bytes", "elementwise/bytes")
    costs = PerfModel(tuple(Curve(kind, ((-10.0, 2.0),)) for kind in kinds), calls=1)
    for kind in ("cpu", "null"):
        spec = DeviceSpec("a", kind, flops_per_s=1e10, bytes_per_s=1e9, costs=costs)
        card = DeviceSpec("card", "null")
        fused = Request(written, (), {}).optimized(Topology((card, DeviceSpec("cpu", "cpu")))).graph
        assert len(fused.ops) == 1 and len(written.ops) == 2
        apart, whole = (
            sum(node_seconds(spec, graph, node) for node in graph.ops) for graph in (written, fused)
        )
        if kind == "cpu":
            assert whole == pytest.approx(apart)
        else:
            assert whole < 0.9 * apart


@pytest.mark.parametrize("devices", [1, 8, 40])
def test_each_distinct_call_is_computed_once_on_any_number_of_devices(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[str] = []
    estimates: list[str] = []

    def lower(op: Op, call: Call) -> Lowering:
        lowered.append(op.name)
        return real_lower(op, call)

    def call_cost(spec: DeviceSpec, *args: Any) -> Cost:
        estimates.append(spec.name)
        return real_cost(spec, *args)

    real_lower, real_cost = node_cost_module.lower, node_cost_module.call_cost
    monkeypatch.setattr(node_cost_module, "lower", lower)
    monkeypatch.setattr(node_cost_module, "call_cost", call_cost)
    x = vs.input("x", (16, 16))
    for _ in range(3):
        x = vs.tanh(vs.relu(x))
    graph = build_graph(x)[0]
    specs = [replace(SPEC, name=f"null:{n}", limits=Limits()) for n in range(devices)]
    for node in graph.ops:
        for spec in specs:
            lower_node(spec, graph, node)
            first_cost(spec, graph, node)
    assert lowered == ["relu", "tanh"], "equal limits share kernels"
    assert len(estimates) == 2 * devices
    weaker = replace(SPEC, limits=Limits(max_invocations=64))
    lower_node(weaker, graph, graph.ops[0])
    assert lowered == ["relu", "tanh", "relu"]


def test_results_of_a_device_end_with_it() -> None:
    graph, spec = one(), replace(SPEC, name="null:1")
    first_cost(spec, graph, graph.nodes[-1])
    there = weakref.ref(spec)
    del spec
    gc.collect()
    assert there() is None
