"""Metrics of plans: by hand, and the period that a stream takes on null devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, chain, diamond, make_plan, make_topology

import vksched as vs
from vksched.common.errors import PlanError
from vksched.plan.simulation.plan_metrics import energy, evaluate_metrics, period_of, plan_metrics
from vksched.plan.simulation.sim_types import Program, SplitTiming
from vksched.plan.simulation.simulate_plan import run_program, simulate
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link, Links
from vksched.topology.power import DISCRETE, INTEGRATED, PROCESSOR, SOFTWARE, DevicePower, watts_of
from vksched.topology.topology import Topology

WATTS = (DevicePower(100.0, 10.0), DevicePower(30.0, 5.0), DevicePower(40.0, 2.0))


def topology(*watts: DevicePower, memory_node: str = "") -> Topology:
    """Null devices and a CPU with these watts."""
    names = [f"null:{i}" for i in range(len(watts) - 1)]
    specs = [
        DeviceSpec(name, "null", busy_watts=w.busy, idle_watts=w.idle, memory_node=memory_node)
        for name, w in zip(names, watts, strict=False)
    ]
    host = DeviceSpec(CPU, "cpu", busy_watts=watts[-1].busy, idle_watts=watts[-1].idle)
    return Topology((*specs, host))


def two_stages(copy_s: float = 0.0) -> Program:
    """2 s on one device, then 3 s on the other one; both wait for the host, which copies."""
    steps = (SplitTiming(0, copy_s, (), 0.0, 2.0), SplitTiming(1, 0.0, (0,), 0.0, 3.0))
    return Program((A, B, CPU), steps, 0, 0.0, (1,))


def test_the_numbers_of_two_stages() -> None:
    where = topology(*WATTS)
    found = evaluate_metrics(two_stages(), where, 2, 1024)
    # of 5 s one device works 2, the other one 3, the CPU never
    joules = 100 * 2 + 10 * 3 + 30 * 3 + 5 * 2 + 2 * 5
    assert (found.latency_s, found.peak_bytes) == (5.0, 1024)
    assert found.period_s == pytest.approx(3.0) and found.energy_j == pytest.approx(joules)
    assert evaluate_metrics(two_stages(), where, 1).period_s == 5.0
    assert evaluate_metrics(two_stages(), where, 1).peak_bytes is None


def test_copies_of_the_host_are_work_of_the_cpu() -> None:
    found = evaluate_metrics(two_stages(copy_s=1.0), topology(*WATTS), 1)
    assert found.latency_s == 6.0
    assert found.energy_j == pytest.approx(100 * 2 + 10 * 4 + 30 * 3 + 5 * 3 + 40 * 1 + 2 * 5)


def test_a_gpu_that_is_opened_twice_is_idle_once() -> None:
    once = topology(
        DevicePower(100.0, 10.0),
        DevicePower(100.0, 10.0),
        DevicePower(0.0, 0.0),
        memory_node="card",
    )
    one = run_program(two_stages())
    assert energy(once, one) == pytest.approx(10 * 5 + 90 * 5)


@pytest.mark.parametrize("copies", [1, 2, 3, 5])
def test_a_period_is_that_of_the_fullest_device(copies: int) -> None:
    # 4 stages of 1 s: with so many copies as this they keep one device busy each
    steps = tuple(SplitTiming(d, 0.0, (d - 1,) if d else (), 0.0, 1.0) for d in range(4))
    program = Program((A, B, "null:2", "null:3", CPU), steps, 0, 0.0, (3,))
    where = topology(*[DevicePower(1.0)] * 5)
    assert evaluate_metrics(program, where, copies).period_s == pytest.approx(
        max(1.0, 4.0 / copies)
    )


def test_ends_may_come_in_bursts() -> None:
    bursts = [float(3 * (i // 3)) for i in range(30)]
    assert period_of(bursts, 3, 6) == pytest.approx(1.0)


# -- watts -----------------------------------------------------------------------------------------


def test_watts_are_set_or_assumed_by_kind() -> None:
    card = DeviceSpec("v", "vulkan", unified_memory=False)
    assert watts_of(card) == DISCRETE and DISCRETE.assumed
    assert watts_of(DeviceSpec("v", "vulkan")) == INTEGRATED
    assert watts_of(DeviceSpec("v", "vulkan", limits=Limits(software=True))) == SOFTWARE
    assert watts_of(DeviceSpec(CPU, "cpu")) == PROCESSOR
    assert watts_of(replace(card, busy_watts=90.0, idle_watts=8.0)) == DevicePower(90.0, 8.0)
    # one of both: the other one is assumed, and never above, or below
    assert watts_of(replace(card, busy_watts=5.0)) == DevicePower(5.0, 5.0, True)
    assert watts_of(replace(card, idle_watts=500.0)) == DevicePower(500.0, 500.0, True)


def test_watts_are_fields_of_machine_files() -> None:
    data = {"devices": [{"name": "card", "kind": "vulkan", "busy_watts": 120, "idle_watts": 0}]}
    found = Topology.from_dict(data)
    assert watts_of(found.devices[0]) == DevicePower(120.0, 0.0)
    assert Topology.from_dict(found.as_dict()) == found
    assert "busy_watts" not in found.as_dict()["devices"][1]
    with pytest.raises(PlanError, match="busy_watts of at least idle_watts for device 0"):
        Topology.from_dict({"devices": [{**data["devices"][0], "idle_watts": 130.0}]})
    with pytest.raises(PlanError, match="busy_watts of device 0"):
        Topology.from_dict({"devices": [{"name": "c", "kind": "vulkan", "busy_watts": "many"}]})


# -- plans -----------------------------------------------------------------------------------------


def test_a_plan_has_the_metrics_of_its_simulation() -> None:
    built, placement = diamond(A, A, B, A)
    for copies in (1, 3):
        plan = make_plan(built, placement, make_topology(2), copies=copies)
        assert plan.metrics.latency_s == simulate(plan).seconds
        assert plan.metrics.peak_bytes == max(m.peak_bytes for m in plan.memory)
        assert plan.metrics.energy_j and plan.metrics == plan_metrics(plan)
    assert plan.metrics.period_s < plan.metrics.latency_s


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("speed", [2e8, 2e9])
def test_a_stream_on_null_devices_has_the_simulated_period(copies: int, speed: float) -> None:
    specs = (
        DeviceSpec(A, "null", bytes_per_s=speed, flops_per_s=speed, submit_s=7e-6),
        DeviceSpec(B, "null", bytes_per_s=1e9, flops_per_s=1e9, submit_s=2e-6),
    )
    clock, tape, runs = vs.SimulatedClock(), vs.Tape(), 8 * copies
    devices = [vs.SimulatedDevice(spec, clock, link=Link(3e9, 1e-6)) for spec in specs]
    outputs, placement = chain([A, B, A, B])
    feeds = {"x": np.ones((8, 64), np.float32)}
    trace = vs.Trace(clock, [tape])
    with vs.Scheduler(devices, "priority", copies, trace=trace, optimize=False) as sched:
        run = sched.compile(outputs[0], placement)
        plan = run.plan
        assert plan.copies == copies and len(plan.transfers) == 3
        with clock.hold():
            futures = [run.submit(**feeds) for _ in range(runs)]
        for future in futures:
            future.result()
    ends, done = [event.end_s for event in tape.select("run")], simulate(plan, runs)
    assert len(ends) == runs
    assert period_of(ends, copies, 2 * copies) == pytest.approx(plan.metrics.period_s, rel=1e-6)
    assert sorted(ends) == pytest.approx(sorted(done.finish_s))


def test_links_that_are_named_are_known() -> None:
    links = Links(((A, CPU, Link(1e9)),))
    assert links.named(A, CPU) and links.named(CPU, A) and not links.named(B, CPU)
