"""What a plan by cost tells of its choice: who won, against what, the bound, what was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, C

import vksched as vs
from vksched.common.formatting import format_seconds
from vksched.ir.build_graph import build_graph
from vksched.plan.explain.decision_text import comparison_as_text, measured_share
from vksched.plan.plan import Plan
from vksched.plan.types.decision import times_text, value_text
from vksched.planner.planner import compare_objectives
from vksched.schedule import Objective
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.topology import Topology

SHAPE = (128, 128)
MEASURED = PerfModel(
    (Curve("*/flops", ((-20.0, 1.0),)), Curve("matmul/flops", ((-20.0, 1.0),))), calls=9
)


def topology(
    *speeds: float, kind: str = "null", costs: PerfModel = MEASURED, **more: object
) -> Topology:
    devices = [
        DeviceSpec(  # type: ignore[arg-type]
            f"null:{i}", kind, flops_per_s=speed, bytes_per_s=1e12, costs=costs, **more
        )
        for i, speed in enumerate(speeds)
    ]
    return Topology(
        (*devices, DeviceSpec(CPU, "cpu", flops_per_s=1e8)), Links((), Link(1e10, 1e-6))
    )


def branches(count: int = 4, depth: int = 3) -> vs.Tensor:
    x = vs.input("x", SHAPE)
    ends = []
    for i in range(count):
        end = x
        for j in range(depth):
            weight = vs.weight(np.full(SHAPE, 1 / 128, np.float32), name=f"w{i}.{j}")
            end = vs.matmul(end, weight, name=f"p{i}.{j}")
        ends.append(end)
    total = ends[0]
    for end in ends[1:]:
        total = vs.add(total, end)
    return total


def plan(output: vs.Tensor, where: Topology, **more: object) -> Plan:
    return vs.plan_graph(build_graph(output)[0], where, policy="auto", **more)  # type: ignore[arg-type]


def rows(plan: Plan) -> dict[str, str]:
    """The lines below "by cost", by their first word."""
    lines = plan.explain().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("by cost"))
    block = lines[at + 1 : lines.index("", at)]
    return {line.split()[0]: line.strip().partition(" ")[2].strip() for line in block}


def test_what_the_caller_placed_is_reported_as_placed() -> None:
    built = plan(branches(), topology(1e9, 1e9), overrides=(("*", B),), objective="energy")
    chosen = rows(built)["chosen"]
    assert chosen.startswith(f"as placed on {B}: ") and "single:" not in chosen
    assert built.notes[0].startswith("auto: as placed for energy takes about ")
    assert built.decision is not None and built.decision.chosen.name == f"single:{A}"
    half = plan(branches(), topology(1e9, 1e9), overrides=(("p0*", B),))
    assert half.decision is not None and half.decision.chosen.label == half.decision.chosen.name


def test_once_is_no_number_of_times() -> None:
    assert times_text(1.0) == times_text(1.0004) == "as much"
    assert times_text(1.01) == "1.01 times as much" and times_text(0.5) == "0.5 times as much"
    mix = Objective.of("latency=1,memory=1")
    assert value_text(mix, 1.0) == "the best of each metric"
    assert value_text(mix, 1.25) == "1.25 times the best of each metric"


def test_two_devices_beat_one_by_what_is_reported() -> None:
    built = plan(branches(), topology(1e9, 1e9))
    reported, decision = rows(built), built.decision
    assert (
        decision is not None and decision.gain > 1.5 and "by cost, for latency:" in built.explain()
    )
    assert reported["chosen"].startswith(f"{decision.chosen.name} on null:0, null:1: ")
    assert reported["runner-up"].startswith("null:0, the best single device, takes ")
    assert reported["runner-up"].endswith(f": {decision.gain:.3g} times as much; 5 % were needed")
    assert reported["cost"].startswith("one run ") and reported["cost"].endswith("by simulation")
    assert reported["energy"].endswith("a run, watts assumed by kind of device")
    share = 100 * built.bound.latency_s / built.metrics.latency_s
    assert f"{round(share, 1):.3g} % of what this plan takes" in reported["bound"]
    assert "no placement on null:0, null:1 takes less" in reported["bound"]
    assert 50 < share <= 100


def test_one_device_that_wins_tells_what_several_would_take() -> None:
    built = plan(branches(1), topology(1e9, 1e10))
    reported = rows(built)
    assert reported["chosen"].startswith("single:null:1 on null:1: ")
    assert reported["chosen"].endswith("; no single device is better")
    assert "over several devices" in reported["runner-up"]


def test_the_best_over_several_devices_is_reported_whatever_its_copies() -> None:
    built = plan(branches(), topology(1e9, 2e10), objective="throughput")
    assert built.decision is not None and built.decision.chosen.single == "null:1"
    several = [c for c in built.decision.candidates if not c.single]
    periods = {c.metrics.period_s for c in several}
    assert len({c.copies for c in several}) > 1 and len(periods) > 1
    assert f", takes {format_seconds(min(periods))}; " in rows(built)["runner-up"]


def test_a_first_device_that_estimates_do_not_beat_stays() -> None:
    # 10 % slower than the other one, by estimates of hardware
    built = plan(branches(1), topology(1e9, 1.1e9, kind="vulkan", costs=PerfModel()))
    reported, decision = rows(built), built.decision
    assert (
        decision is not None
        and decision.chosen.single == A
        and decision.best_single_device.single == B
    )
    assert not decision.measured and decision.required_gain == 0.25 and decision.gain < 1
    assert built.notes[0].endswith("; 1 other device would not make it faster by 25 %")
    assert "has no work" not in built.explain()  # the note says it already
    assert reported["runner-up"].endswith("25 % were needed to leave the first device")
    assert reported["costs"] == "estimated, by work and rough speeds of devices"


def test_a_plan_with_nothing_to_weigh_has_its_bound_all_the_same() -> None:
    built = plan(branches(2), topology(1e9))
    assert built.decision is None
    assert rows(built)["chosen"] == "nothing to weigh: each node has one device"
    assert "no placement" in rows(built)["bound"]
    graph, _ = build_graph(branches(2))
    in_runs = vs.plan_graph(graph, topology(1e9, 1e9), policy="earliest-finish")
    assert rows(in_runs)["chosen"] == "no plan: each run decides again where its pieces go"
    stored = vs.plan_graph(graph, topology(1e9, 1e9), policy="priority")
    assert "by cost" not in stored.explain() and stored.as_dict()["by_cost"] is None


def test_how_much_was_measured_is_reported() -> None:
    built = plan(branches(2), topology(1e9, costs=MEASURED))
    # products were measured, sums go by what any op takes
    assert 0.5 < measured_share(built) < 1.0
    assert rows(built)["costs"].endswith("% of the devices' seconds measured, the rest estimated")
    assert measured_share(plan(branches(2), topology(1e9, costs=PerfModel()))) == 0.0


def test_other_objectives_tell_their_own_numbers() -> None:
    where = topology(1e9, 1e9, busy_watts=50.0, idle_watts=5.0)
    where = replace(
        where,
        devices=(*where.devices[:-1], replace(where.devices[-1], busy_watts=9.0, idle_watts=1.0)),
    )
    reported = rows(plan(branches(), where, objective="energy"))
    assert reported["energy"].endswith("J a run") and " by work: " in reported["bound"]
    reported = rows(plan(branches(), where, objective="memory"))
    assert reported["bound"].startswith("none is known for memory; one run is at least ")
    reported = rows(plan(branches(), where, objective="throughput"))
    assert " each in a stream of " in reported["cost"] and " by area: " in reported["bound"]
    reported = rows(plan(branches(), where, objective={"latency": 1, "energy": 1}))
    assert reported["chosen"].endswith("the best of each metric")


def test_a_single_device_that_is_too_small_names_who_has_the_rest() -> None:
    small = replace(topology(1e9, 9e8, memory_bytes=30 * 65536), links=Links((), Link(1e12)))
    reported = rows(plan(branches(6, 4), small))
    assert "null:0, the best single device with the rest on null:1" in reported["runner-up"]


def test_the_plain_data_says_the_same() -> None:
    built = plan(branches(), topology(1e9, 1e9))
    found = json.loads(json.dumps(built.as_dict()))["by_cost"]
    assert found["objective"] == "latency"
    assert found["metrics"]["latency_s"] == built.metrics.latency_s
    assert found["lower_bound"] == built.bound.latency_s
    assert found["share_of_bound"] == built.bound.latency_s / built.metrics.latency_s
    decision = found["decision"]
    assert (
        decision["best_single_device"]["name"] == "single:null:0"
        and decision["required_gain"] == 0.05
    )
    assert decision["chosen"]["devices"] == [A, B] and len(decision["candidates"]) >= 3
    assert decision["gain"] == pytest.approx(
        decision["best_single_device"]["latency_s"] / decision["chosen"]["latency_s"]
    )
    assert found["watts_assumed"] and found["measured_share"] == measured_share(built)


@pytest.mark.parametrize(
    ("kind", "costs", "text"),
    [
        ("vulkan", PerfModel(), "estimated, by work and rough speeds of devices"),
        ("null", PerfModel(), "estimated, by work and the speeds written down"),
    ],
)
def test_the_table_and_the_plan_say_the_same_of_costs(
    kind: str, costs: PerfModel, text: str
) -> None:
    where = topology(1e9, 9e8, kind=kind, costs=costs)
    graph, _ = build_graph(branches())
    assert f"\nCosts are {text}; what is" in comparison_as_text(compare_objectives(graph, where))
    assert rows(plan(branches(), where))["costs"] == text


def test_the_table_tells_what_was_measured() -> None:
    where, (graph, _) = topology(1e9, 9e8, costs=MEASURED), build_graph(branches())
    assert "\nCosts are measured of every device; what" in comparison_as_text(
        compare_objectives(graph, where)
    )
    first = replace(where.devices[0], costs=PerfModel())
    some = replace(where, devices=(first, *where.devices[1:]))
    text = comparison_as_text(compare_objectives(graph, some))
    assert "\nCosts are measured of 1 device, else estimated, by work and the speeds" in text


def test_the_table_of_objectives() -> None:
    graph, _ = build_graph(branches())
    text = comparison_as_text(compare_objectives(graph, topology(1e9, 9e8)))
    head, *lines = text.splitlines()
    assert head.split() == [
        *("candidate", "works", "on", "copies", "one", "run", "stream", "peak", "energy*"),
        *("best", "for"),
    ]
    picked = [w for line in lines for w in ("latency", "throughput") if line.endswith(w)]
    assert picked and "* watts assumed by kind of device" in lines[-1]


# -- a node on each device -------------------------------------------------------------------------


def elsewhere() -> Plan:
    """a -> b -> c on the first device; b is what is asked about."""
    x = vs.input("x", SHAPE)
    a = vs.exp(x, name="a")
    b = vs.exp(a, name="b")
    links = Links(((B, CPU, Link(1e9, 1e-3)), (C, CPU, Link(1e9, 1e-3))), Link(2e9, 5e-4))
    specs = tuple(DeviceSpec(n, "null", bytes_per_s=1e9) for n in (A, B, C))
    host = DeviceSpec(CPU, "cpu", bytes_per_s=1e9)
    graph, _ = build_graph([vs.exp(b, name="c"), vs.neg(b, name="d")])
    return vs.plan_graph(
        graph, Topology((*specs, host), links), overrides=[("*", A), ("d", B)], policy="priority"
    )


def test_a_node_tells_what_it_would_copy_on_each_device() -> None:
    built = elsewhere()
    size = 4 * 128 * 128
    first, second, third, host = built.node_as_dict("b")["devices"]
    fast, slow = size / 2e9 + 5e-4, size / 1e9 + 1e-3
    # where it is: nothing in; to the reader on the second device by the host
    assert (first["in_s"], first["out_s"]) == (0.0, pytest.approx(fast + slow))
    assert first["in_measured"] and not first["out_measured"]
    # beside that reader: its operand comes from the first one, its result goes back there
    assert second["in_s"] == pytest.approx(fast + slow)
    assert second["out_s"] == pytest.approx(fast + slow)
    # on the third: the result goes to the host once, and to both readers
    assert third["out_s"] == pytest.approx(slow + fast + slow)
    assert host["in_s"] == pytest.approx(fast) and host["out_s"] == pytest.approx(fast + slow)
    for each in (first, second, third, host):
        assert each["total_s"] == pytest.approx(each["seconds"] + each["in_s"] + each["out_s"])
    lines = built.explain("b").splitlines()
    line = next(each for each in lines if each.startswith("    null:1  can, about "))
    assert ", copies about " in line and " in, about " in line and " out: " in line


def test_inputs_weights_and_results_of_a_node() -> None:
    weight = vs.weight(np.ones(SHAPE, np.float32), name="w")
    output = vs.matmul(vs.input("x", SHAPE), weight, name="y")
    graph, _ = build_graph(output)
    links = Links(((A, CPU, Link(1e9)),))
    where = Topology((DeviceSpec(A, "null"), DeviceSpec(B, "null"), DeviceSpec(CPU, "cpu")), links)
    size = 4 * 128 * 128
    plan = vs.plan_graph(graph, where, policy="priority")
    first, second, host = plan.node_as_dict("y")["devices"]
    # the weight is copied when the graph is compiled; x and y in each run
    assert (first["in_s"], first["out_s"]) == (pytest.approx(size / 1e9), pytest.approx(size / 1e9))
    assert first["in_measured"] and first["out_measured"]
    assert second["in_s"] == pytest.approx(size / 8e9) and not second["in_measured"]
    assert (host["in_s"], host["out_s"]) == (0.0, 0.0)
    assert "as measured in, " in next(
        line for line in plan.explain("y").splitlines() if line.startswith("  * null:0")
    )
    # one that lives in host memory is streamed in each run
    streamed = vs.plan_graph(graph, where, overrides=[("w", CPU), ("y", A)], policy="priority")
    assert streamed.node_as_dict("y")["devices"][0]["in_s"] == pytest.approx(2 * size / 1e9)
    # one that is there because its reader is goes where the reader goes
    free = vs.plan_graph(graph, where, overrides=[("y", CPU)], policy="priority")
    assert free.device_of("w") == CPU
    assert free.node_as_dict("y")["devices"][0]["in_s"] == pytest.approx(size / 1e9)
