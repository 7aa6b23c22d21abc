"""What if: machines beside each other, by the plans that each would get."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, C
from test_select import FAST, SLOW, WIDTH, branches, layers, topology

import vksched as vs
from vksched.common.formatting import format_bytes
from vksched.plan.simulation.plan_metrics import plan_metrics
from vksched.plan.simulation.simulate_plan import simulate
from vksched.planner.what_if import (
    Comparison,
    MachineChange,
    Outcome,
    changed,
    compare,
    compare_plan,
    equal_devices,
    present,
    with_device,
    without,
)
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link
from vksched.topology.perf_model import PerfModel
from vksched.topology.topology import Topology
from vksched.topology.topology_file import load_topology


def plan_of(output: vs.Tensor, where: Topology, **more: object) -> vs.Plan:
    graph, _ = vs.build_graph(output)
    return vs.plan_graph(graph, where, policy="auto", **more)  # type: ignore[arg-type]


def row(found: Comparison, text: str) -> Outcome:
    return next(each for each in found.rows if text in each.text.split(", "))


def test_a_second_device_that_helps_is_worth_its_place() -> None:
    found = compare_plan(plan_of(branches(4, 4), topology(SLOW, 0.9 * SLOW)))
    assert [each.text for each in found.rows] == [
        "as it is",
        "without null:0, null:1 alone",
        "without null:1, null:0 alone",
        "cpu alone",
    ]
    both, second, first, cpu = found.rows
    for each in found.rows:
        assert each.plan is not None and each.seconds == simulate(each.plan).seconds
    assert found.factor(both) == 1.0 and set(both.busy) == {A, B}
    assert found.factor(first) == first.seconds / both.seconds > 1.3  # type: ignore[operator]
    assert second.seconds > first.seconds  # type: ignore[operator]
    assert cpu.busy == {CPU: pytest.approx(1.0, abs=0.01)}
    assert f"{B} is worth its place: a run takes" in found.findings()[1]


def test_a_second_device_that_does_not_help_can_be_spared() -> None:
    chain = layers(6, vs.input("x", (WIDTH, WIDTH)))
    found = compare_plan(plan_of(chain, topology(FAST, SLOW)))
    assert found.factor(row(found, "without null:1")) == 1.0
    assert found.factor(row(found, "without null:0")) > 10  # type: ignore[operator]
    assert "null:1 can be spared: a run takes as long without it" in found.findings()
    text = found.as_text()
    assert "times as long" in text and "the same" in text and text.startswith("  ")


def test_a_device_that_is_added_counts_by_its_speed_and_its_link() -> None:
    base = topology(SLOW)
    plan = plan_of(branches(4, 4), base)
    near, far = Link(1e10, 1e-5), Link(1e5, 1e-2)
    card = DeviceSpec("card", "null", flops_per_s=SLOW, bytes_per_s=SLOW)
    changes = [
        MachineChange("+near", with_device(base, card, near)),
        MachineChange("+far", with_device(base, card, far)),
        MachineChange("-null:0", without(base, A)),
    ]
    found = compare_plan(plan, changes)
    assert row(found, "+near").kind == "change" and set(row(found, "+near").busy) == {A, "card"}
    assert found.factor(row(found, "+near")) < 0.7  # type: ignore[operator]
    assert found.factor(row(found, "+far")) == 1.0
    # the same machine is asked about once
    assert row(found, "-null:0") is row(found, "cpu alone") is row(found, "without null:0")
    reported = found.findings()
    assert "+far changes nothing" in reported
    assert any(line.startswith("+near makes a run ") and "shorter" in line for line in reported)


def test_a_change_that_changes_nothing_has_its_place_in_the_table() -> None:
    base = topology(SLOW)
    card = DeviceSpec("card", "null", flops_per_s=FAST, bytes_per_s=FAST)
    back = without(with_device(base, card), "card")
    found = compare_plan(plan_of(branches(2, 2), base), [MachineChange("+card,-card", back)])
    assert row(found, "+card,-card") is found.rows[0]
    assert "as it is, +card,-card" in found.as_text()


def test_equal_devices_are_asked_about_once() -> None:
    asked: list[Topology] = []
    where = topology(SLOW, SLOW, SLOW, FAST, SLOW)
    graph, _ = vs.build_graph(branches(3, 2))

    def plan_on(other: Topology) -> vs.Plan:
        asked.append(other)
        return vs.plan_graph(graph, other, policy="auto")

    groups = equal_devices(where)
    assert groups == ((A, B, C), ("null:3",), ("null:4",))  # side by side only
    found = compare(where, plan_on)
    assert len(asked) == len(set(asked)) == len(found.rows) == 1 + 3 + 3 + 1
    assert [each.kind for each in found.rows].count("some") == 0
    assert row(found, "without one of null:0").devices == (A, B, C)
    assert equal_devices(where, pinned=[B])[:3] == ((A,), (B,), (C,))


def test_of_many_equal_devices_it_is_reported_how_many_are_enough() -> None:
    found = compare_plan(plan_of(branches(4, 4), topology(*[SLOW] * 9)))
    rows = [each for each in found.rows if each.kind == "some"]
    assert [each.text for each in rows] == [f"{n} of null:0 .. null:8" for n in (2, 4)]
    assert [len(each.topology.devices) for each in rows] == [3, 5]
    times = [row(found, "one of null:0 .. null:8 alone").seconds, *(each.seconds for each in rows)]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]  # type: ignore[operator,type-var]
    assert found.factor(rows[-1]) == pytest.approx(1.0, abs=0.02)  # of four branches
    assert "4 of null:0 .. null:8 are enough: a run takes as long" in found.findings()
    assert not any(line.startswith("2 of") for line in found.findings())


def test_where_one_of_equal_devices_is_enough_two_are_not_reported() -> None:
    found = compare_plan(plan_of(branches(1, 4), topology(*[SLOW] * 5)))
    enough = [line for line in found.findings() if "enough" in line]
    assert enough == ["one of null:0 .. null:4 is enough: a run takes as long"]


def test_64_machines_and_5000_nodes_are_planned() -> None:
    x = vs.input("x", (8192, 512))
    held = np.zeros((512, 512), np.float32)
    for i in range(16):
        with vs.name_scope(f"layer.{i}"):
            parts = [vs.matmul(x, vs.weight(held, name=f"w{b}")) for b in range(64)]
            for _ in range(3):
                parts = [vs.relu(part) for part in parts]
            total = parts[0]
            for part in parts[1:]:
                total = vs.add(total, part)
            x = vs.softmax(total)
    graph, _ = vs.build_graph(x)
    assert len(graph.ops) > 5000
    where = load_topology("preset:network-64")
    change = MachineChange("-node:63", changed(where, "-node:63"))

    def plan_on(other: Topology) -> vs.Plan:
        return vs.plan_graph(graph, other, policy="auto")

    found = compare(where, plan_on, [change], each=False)
    assert [len(each.topology.devices) for each in found.rows] == [65, 64]
    for each in found.rows:
        assert isinstance(each.plan, vs.Plan) and each.plan.verify() is each.plan
        assert each.seconds is not None and each.seconds > 0


def test_what_makes_devices_unequal() -> None:
    where = topology(SLOW, SLOW)
    assert equal_devices(where) == ((A, B),)
    first, second, cpu = where.devices
    other_link = replace(where, links=vs.Links(((B, CPU, Link(1.0)),), where.links.default))
    assert equal_devices(other_link) == ((A,), (B,))
    measured = replace(second, costs=PerfModel(calls=1))
    assert equal_devices(replace(where, devices=(first, measured, cpu))) == ((A,), (B,))
    one_memory = tuple(replace(spec, memory_node="p") for spec in (first, second))
    assert equal_devices(replace(where, devices=(*one_memory, cpu))) == ((A,), (B,))
    own_memories = (replace(first, memory_node="p"), replace(second, memory_node="q"))
    assert equal_devices(replace(where, devices=(*own_memories, cpu))) == ((A, B),)


def test_a_model_that_needs_both_devices_is_reported() -> None:
    room = 7 * 4 * WIDTH * WIDTH  # of three weights, and four values on their way
    small = [
        replace(d, memory_bytes=room, offload_flops_per_byte=math.inf)
        for d in topology(SLOW, SLOW).devices[:-1]
    ]
    where = replace(topology(SLOW, SLOW), devices=(*small, topology().devices[-1]))
    output = layers(6, vs.input("x", (WIDTH, WIDTH)))
    found = compare_plan(plan_of(output, where))
    alone = row(found, "without one of null:0")
    assert set(found.rows[0].busy) == {A, B}
    assert found.factor(alone) > 1.05 and CPU in alone.busy  # type: ignore[operator]


def test_what_does_not_fit_has_a_reason_and_no_time() -> None:
    host = replace(topology().devices[-1], memory_bytes=1000)
    where = replace(topology(SLOW), devices=(topology(SLOW).devices[0], host))
    found = compare_plan(plan_of(layers(2, vs.input("x", (WIDTH, WIDTH))), where))
    cpu = row(found, "cpu alone")
    assert cpu.seconds is None and cpu.plan is None and found.factor(cpu) is None
    assert "bytes of host memory" in cpu.why_not and "does not fit" in found.as_text()
    assert json.loads(json.dumps(found.as_dict()))[-1]["why_not"] == cpu.why_not


def test_placements_on_a_device_that_is_gone_are_left_out() -> None:
    where = topology(FAST, SLOW)
    overrides = (("p0", B), ("p1", A))
    plan = plan_of(layers(3, vs.input("x", (WIDTH, WIDTH))), where, overrides=overrides)
    found = compare_plan(plan, overrides=overrides)
    assert set(found.rows[0].busy) == {A, B}
    assert set(row(found, "without null:1").busy) == {A}
    assert found.factor(row(found, "without null:1")) < 1  # type: ignore[operator]
    assert any("without null:1 a run would take" in line for line in found.findings())
    assert present(overrides, without(where, B), where) == (("p1", A),)
    unknown = (("p0", "nul:1"),)  # for the planner to refuse
    assert present(unknown, where, where) == unknown


def test_a_cpu_that_is_faster_is_reported() -> None:
    chain = layers(6, vs.input("x", (WIDTH, WIDTH)))
    found = compare_plan(plan_of(chain, topology(SLOW, SLOW / 2, cpu=10 * SLOW)))
    (line,) = (each for each in found.findings() if each.startswith("on cpu alone"))
    assert line.startswith("on cpu alone a run would take 9")
    assert "; cpu did not compete: it has what others cannot run" in line


def test_streams_are_reported_where_a_plan_has_copies() -> None:
    plan = plan_of(layers(3, vs.input("x", (WIDTH, WIDTH))), topology(SLOW), copies=2)
    first = compare_plan(plan).rows[0]
    assert first.seconds_per_run is not None and first.seconds_per_run < first.seconds  # type: ignore[operator]
    assert "in a stream" in compare_plan(plan).as_text()
    assert (
        compare_plan(plan_of(layers(1, vs.input("x", (8, WIDTH))), topology(SLOW)))
        .rows[0]
        .seconds_per_run
        is None
    )


def test_devices_that_can_be_spared_one_at_a_time_are_reported_together() -> None:
    where = topology(SLOW, SLOW)
    named = replace(where.devices[1], label="another card")
    where = replace(where, devices=(where.devices[0], named, where.devices[2]))
    found = compare_plan(plan_of(layers(6, vs.input("x", (WIDTH, WIDTH))), where))
    message = f"{A}, {B} can each be spared: a run takes as long without one of them"
    assert [line for line in found.findings() if "spared" in line] == [message]
    assert found.factor(row(found, "cpu alone")) > 2  # type: ignore[operator]


def test_streams_are_compared_where_plans_are_for_throughput() -> None:
    chain = layers(8, vs.input("x", (WIDTH, WIDTH)))
    found = compare_plan(plan_of(chain, topology(SLOW, 0.9 * SLOW), objective="throughput"))
    both, alone = found.rows[0], row(found, f"without {B}")
    assert alone.seconds < both.seconds  # type: ignore[operator]
    assert found.factor(alone) == alone.seconds_per_run / both.seconds_per_run > 1.3  # type: ignore[operator]
    assert f"{B} is worth its place: a run in a stream takes" in found.findings()[1]
    # one run after the other
    one = compare_plan(plan_of(chain, topology(SLOW), objective="throughput", copies=1))
    assert one.rows[0].seconds_per_run is None and "in a stream" in one.as_text().splitlines()[0]
    assert one.as_dict()[0]["value"] == one.rows[0].seconds


def test_bytes_are_compared_where_plans_are_for_memory() -> None:
    chain = layers(8, vs.input("x", (WIDTH, WIDTH)))
    where = topology(SLOW, SLOW / 4)
    found = compare_plan(plan_of(chain, where, objective="memory"))
    both, alone = found.rows[0], row(found, f"without {B}")
    assert both.metrics is not None and alone.metrics is not None
    peaks = both.metrics.peak_bytes, alone.metrics.peak_bytes
    assert peaks[0] == max(both.peak_bytes.values())
    assert found.factor(alone) == peaks[1] / peaks[0] > 1.3  # type: ignore[operator]
    assert alone.seconds < both.seconds  # type: ignore[operator]
    head, first, *_ = found.as_text().splitlines()
    assert head.split() == ["one", "run", "peak", "change", "at", "work"]
    assert format_bytes(int(peaks[0])) in first  # type: ignore[arg-type]
    reported = found.findings()
    assert any(
        line.startswith(f"{B} is worth its place: the fullest device holds") for line in reported
    )
    assert any("more without it" in line or "times as much without" in line for line in reported)
    assert "the memory of cpu counts without weights, which are your arrays" in reported
    data = json.loads(json.dumps(found.as_dict()))
    assert [data[0][key] for key in ("objective", "value", "factor")] == ["memory", peaks[0], 1.0]
    assert "peak" not in compare_plan(plan_of(chain, where)).as_text().splitlines()[0]


def test_joules_are_compared_where_plans_are_for_energy() -> None:
    chain = layers(6, vs.input("x", (WIDTH, WIDTH)))
    base = topology(SLOW, SLOW)
    hungry = replace(base.devices[0], busy_watts=300.0, idle_watts=30.0)
    frugal = replace(base.devices[1], busy_watts=30.0, idle_watts=3.0)
    where = replace(base, devices=(hungry, frugal, base.devices[2]))
    found = compare_plan(plan_of(chain, where, objective="energy"))
    first, without_hungry = found.rows[0], row(found, f"without {A}")
    assert set(first.busy) == {B} and first.seconds == without_hungry.seconds
    factor = found.factor(without_hungry)
    assert factor == without_hungry.energy_j / first.energy_j < 0.98  # type: ignore[operator]
    reported = next(
        line for line in found.findings() if line.startswith(f"without {A} a run would")
    )
    assert " less energy" in reported
    assert any("as much energy without it" in line for line in found.findings())


def test_a_mix_is_compared_with_the_machine_as_it_is() -> None:
    chain = layers(6, vs.input("x", (WIDTH, WIDTH)))
    mix = {"latency": 1, "memory": 1}
    found = compare_plan(plan_of(chain, topology(SLOW, SLOW), objective=mix))
    first, cpu = found.rows[0], row(found, "cpu alone")
    assert first.metrics is not None and cpu.metrics is not None
    wanted = [
        cpu.metrics.latency_s / first.metrics.latency_s,
        cpu.metrics.peak_bytes / first.metrics.peak_bytes,  # type: ignore[operator]
    ]
    assert found.factor(cpu) == pytest.approx(sum(wanted) / 2)
    lines = found.as_text().splitlines()
    assert lines[0].split() == ["one", "run", "peak", "mix", "change", "at", "work"]
    (reported,) = (line for line in lines if line.startswith("  cpu alone"))
    assert found.as_dict()[0]["value"] == 1.0 and f"  {sum(wanted) / 2:.3g}  " in reported


def test_estimates_are_marked_and_measured_devices_are_not() -> None:
    base = topology(SLOW)
    known = replace(base.devices[0], costs=PerfModel(calls=1))
    where = replace(base, devices=(known, replace(base.devices[1], costs=PerfModel(calls=1))))
    change = MachineChange("+preset:rtx4090", changed(where, "+preset:rtx4090"))
    found = compare_plan(plan_of(layers(6, vs.input("x", (WIDTH, WIDTH))), where), [change])
    assert found.rows[0].estimated == ()
    assert found.rows[-1].estimated == ("rtx4090",)
    assert "rtx4090 is estimated, not measured" in found.findings()


def test_energy_counts_where_watts_are_known() -> None:
    chain = layers(3, vs.input("x", (WIDTH, WIDTH)))
    base = topology(SLOW)
    assert "energy" not in compare_plan(plan_of(chain, base)).as_text().splitlines()[0]
    watts = {"busy_watts": 100.0, "idle_watts": 10.0}
    devices = tuple(replace(spec, **watts) for spec in base.devices)
    where = replace(base, devices=devices)
    found = compare_plan(plan_of(chain, where))
    plan = plan_of(chain, topology(SLOW, SLOW), objective="energy")
    assert "energy" in compare_plan(plan).as_text().splitlines()[0]  # by assumed watts
    first, cpu = found.rows
    assert "energy" in found.as_text().splitlines()[0]
    assert not first.watts_assumed and compare_plan(plan_of(chain, base)).rows[0].watts_assumed
    assert first.plan is not None
    assert first.energy_j == pytest.approx(plan_metrics(first.plan).energy_j)
    assert cpu.energy_j == pytest.approx(100.0 * cpu.seconds)  # type: ignore[operator]


def test_the_objective_of_a_plan_is_retained() -> None:
    where = topology(SLOW, SLOW / 4)
    plan = plan_of(branches(4, 4), where, objective="memory")
    for each in compare_plan(plan).rows:
        assert isinstance(each.plan, vs.Plan)
        if each.plan.decision is not None:
            assert each.plan.decision.objective.name == "memory"


def test_data_has_every_row() -> None:
    found = compare_plan(plan_of(branches(4, 4), topology(SLOW, SLOW)))
    data = json.loads(json.dumps(found.as_dict()))
    assert [each["kind"] for each in data] == ["all", "without", "alone"]
    assert data[0]["factor"] == 1.0 and data[1]["devices"] == [A, B]
    assert data[0]["busy"].keys() == data[0]["peak_bytes"].keys() == {A, B}
    plan = found.rows[0].plan
    assert isinstance(plan, vs.Plan)
    assert data[0]["peak_bytes"][A] == plan.buffers()[A].peak_bytes > 0


def test_a_device_that_a_policy_uses_though_it_is_slow_is_no_small_matter() -> None:
    where = topology(SLOW / 10, 1e3 * SLOW)
    graph, _ = vs.build_graph(branches(1, 2))
    found = compare_plan(vs.plan_graph(graph, where, policy="priority"))
    message = f"without {A} a run would take over 99 % less"
    assert message in found.findings() and "over 99 % shorter" in found.as_text()


def test_devices_that_are_out_of_use_are_not_asked_about() -> None:
    where = topology(SLOW, FAST)
    gone = replace(where.devices[1], disabled_reason="it failed")
    where = replace(where, devices=(where.devices[0], gone, where.devices[2]))
    found = compare_plan(plan_of(branches(1, 2), where))
    texts = ["as it is", f"without {A}", f"{A} alone", "cpu alone"]
    assert [each.text for each in found.rows] == texts
    assert not any(B in line for line in found.findings())
