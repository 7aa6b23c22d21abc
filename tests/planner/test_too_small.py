"""Graphs whose work is less than a submission to a GPU: they run on the CPU, which is told, unless
the user names another device. Between tiny and large the predicted times decide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.verify.happens_before import check_plan
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.topology import Topology

GPU_PER_S, CPU_PER_S, SUBMIT_S = 1e12, 1e10, 50e-6
TOO_SMALL = "auto: too small for"
KINDS = ("null", "vulkan")
"""Costs that were written down, which count as known, and rough ones of hardware."""


def topology(kind: str = "null", gpus: int = 1, **spec: object) -> Topology:
    rough = {"flops_per_s": GPU_PER_S, "bytes_per_s": GPU_PER_S, "submit_s": SUBMIT_S, **spec}
    devices = [DeviceSpec(f"null:{i}", kind, **rough) for i in range(gpus)]  # type: ignore[arg-type]
    cpu = DeviceSpec(CPU, "cpu", flops_per_s=CPU_PER_S, bytes_per_s=CPU_PER_S, submit_s=2e-6)
    return Topology((*devices, cpu), Links((), Link(8e9, 0.0)))


def product(size: int, count: int = 1) -> vs.Tensor:
    """Products of square matrices, one after the other."""
    x = vs.input("x", (size, size))
    for i in range(count):
        x = vs.matmul(x, vs.weight(np.zeros((size, size), np.float32), name=f"w{i}"), name=f"p{i}")
    return x


def plan(output: vs.Tensor, where: Topology, **more: object) -> Plan:
    graph, _ = build_graph(output)
    return check_plan(vs.plan_graph(graph, where, policy="auto", with_cpu=True, **more))  # type: ignore[arg-type]


def used(plan: Plan) -> set[str]:
    return {plan.topology.devices[s.device].name for s in plan.splits}


def too_small_notes(plan: Plan) -> list[str]:
    return [note for note in plan.notes if note.startswith(TOO_SMALL)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 12])
def test_a_tiny_graph_runs_on_the_cpu_and_says_why(kind: str, count: int) -> None:
    built = plan(product(4, count), topology(kind))
    assert used(built) == {CPU}
    (note,) = too_small_notes(built)
    assert note == (
        "auto: too small for null:0: of about 50 us there, 50 us are its submission; on cpu "
        "unless a placement names another device"
    )
    assert note in built.explain()


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_graph_runs_on_the_gpu_and_says_nothing(kind: str) -> None:
    built = plan(product(512), topology(kind))
    assert used(built) == {A} and not too_small_notes(built)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [16, 32, 48, 64, 80, 96, 128, 192, 256])
def test_between_the_two_predicted_times_decide(kind: str, size: int) -> None:
    where = topology(kind)
    built = plan(product(size), where)
    took_s = {
        name: simulate(plan(product(size), where, overrides=[("*", name)])).seconds
        for name in (A, CPU)
    }
    margin = 0.05 if kind == "null" else 0.25
    wins = took_s[CPU] <= (1 - margin if kind == "vulkan" else 1.0) * took_s[A]
    assert used(built) == ({CPU} if wins else {A}), (took_s, margin)
    assert bool(too_small_notes(built)) == (wins and 2 * SUBMIT_S >= took_s[A])


def test_costs_that_were_measured_count() -> None:
    curves = (Curve("*/flops", ((-20.0, 1.0),)), Curve("*/bytes", ((-20.0, 1.0),)))
    slow = PerfModel(curves, 1e-6, 1e-5, 2e-5, 3e-5, 0.0, calls=1)
    quick = replace(slow, launch_s=0.0, start_s=0.0, submit_s=1e-9, fence_s=1e-9)
    of_cpu = PerfModel(curves, 4e-6, 0.0, 1e-6, 1e-6, 0.0, calls=1)
    for costs, wanted in ((slow, CPU), (quick, A)):
        where = topology("vulkan", costs=costs)
        cpu = replace(where.devices[-1], costs=of_cpu)
        built = plan(product(8, 3), replace(where, devices=(where.devices[0], cpu)))
        assert used(built) == {wanted}
        assert [note.split("; ")[0].partition(": of")[2] for note in too_small_notes(built)] == (
            [" about 63.1 us there, 63 us are its submission"] if costs is slow else []
        )


def test_a_named_device_is_retained() -> None:
    for where in ({"*": A}, {"p0": A}):
        built = plan(product(4), topology(), overrides=list(where.items()))
        assert used(built) == {A} and not too_small_notes(built)
    built = plan(product(4, 2), topology(), overrides=[("p1", A)])
    assert used(built) == {A, CPU} or used(built) == {A}
    assert not too_small_notes(built)


def test_devices_that_leave_the_cpu_out_are_retained() -> None:
    graph, _ = build_graph(product(4))
    for gpus in (1, 2):
        plan = vs.plan_graph(graph, topology(gpus=gpus), policy="auto")
        assert used(plan) == {A} and not too_small_notes(plan)


def test_of_several_devices_the_best_one_is_reported() -> None:
    where = topology(gpus=2)
    second = replace(where.devices[1], submit_s=20e-6)
    built = plan(product(4), replace(where, devices=(where.devices[0], second, where.devices[-1])))
    assert used(built) == {CPU} and too_small_notes(built)[0].startswith(
        f"{TOO_SMALL} {B}: of about 20 us"
    )


def test_a_graph_that_is_slow_by_its_copies_is_not_called_small() -> None:
    slow = replace(topology(), links=Links((), Link(1e9, 0.0)))
    built = plan(vs.neg(vs.input("x", (1 << 20,))), slow)
    assert used(built) == {CPU} and not too_small_notes(built)


def test_a_scheduler_runs_it_on_the_cpu() -> None:
    spec = topology().devices[0]
    with vs.Scheduler([vs.SimulatedDevice(spec, vs.SimulatedClock()), "cpu"]) as sched:
        x = np.ones((4, 4), np.float32)
        tiny = sched.compile(product(4))
        assert used(tiny.plan) == {CPU} and too_small_notes(tiny.plan)
        assert np.array_equal(tiny(x=x), np.zeros_like(x))
        named = sched.compile(product(4), placement={"p0": A})
        assert used(named.plan) == {A} and not too_small_notes(named.plan)
