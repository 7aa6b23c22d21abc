"""Devices without work: what they do not allow costs nothing, and a graph still runs on them when
the others are gone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import numpy_outputs

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.engine.request import Request, plan_request
from vksched.plan.costs.node_cost import call_of
from vksched.plan.plan import Plan
from vksched.planner.planner import plan_graph
from vksched.topology.device_spec import GIB, DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology

LOW = Limits(storage_buffers=4, subgroup_size=4, software=True)
HIGH = Limits(256, (256, 256, 64), shared_bytes=1 << 15, storage_buffers=16, subgroup_size=32)
RATES = {"flops_per_s": 1e12, "bytes_per_s": 1e11, "memory_bytes": GIB}
SLOW = DeviceSpec("slow", "null", limits=LOW, **{**RATES, "flops_per_s": 1e8, "bytes_per_s": 1e7})
FAST = DeviceSpec("fast", "null", limits=HIGH, **RATES)
CPU = DeviceSpec("cpu", "cpu", flops_per_s=1e9, bytes_per_s=1e9)


def values(*shape: int, seed: int = 1) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def gelu_layers() -> vs.Tensor:
    """Products with an exponential behind, which devices of few lanes take apart."""
    x = vs.input("x", (8, 64))
    for i in range(3):
        x = vs.gelu(vs.matmul(x, vs.weight(values(64, 64, seed=i) / 8, name=f"w{i}")), name=f"g{i}")
    return x


def wide_chain() -> vs.Tensor:
    """Elementwise ops on more values than four buffers hold."""
    x = vs.input("x", (8, 64))
    y = x
    for i in range(6):
        y = vs.tanh(y * vs.weight(values(8, 64, seed=i), name=f"w{i}"), name=f"t{i}")
    return y


def windows() -> vs.Tensor:
    x = vs.input("x", (1, 32, 16, 16))
    for i in range(2):
        w = vs.weight(values(32, 32, 3, 3, seed=i) / 16, name=f"w{i}")
        x = vs.relu(vs.conv(x, w, padding=1), name=f"r{i}")
    return x


GRAPHS = {each.__name__: each for each in (gelu_layers, wide_chain, windows)}
GRAPH = pytest.mark.parametrize("build", GRAPHS.values(), ids=list(GRAPHS))


def planned(built: vs.Graph, *specs: DeviceSpec, with_cpu: bool = False) -> tuple[Request, Plan]:
    """Return the request that all devices allow, and the plan, as a scheduler makes them."""
    topology = Topology((*specs, CPU))
    request = Request(built, (), {}).optimized(topology)

    def plan(version: Request) -> Plan:
        return plan_graph(version.graph, topology, policy="auto", copies="auto", with_cpu=with_cpu)

    return request, plan_request(request, topology, plan)


def contents(plan: Plan) -> list[Any]:
    """Return the steps of a plan, without the numbers of devices."""
    graph, specs = plan.graph, plan.topology.devices
    kernels = [
        (specs[split.device].name, node.op, call_of(specs[split.device], graph, node))
        for split in plan.splits
        for node in (graph.nodes[n] for n in split.nodes)
    ]
    splits = [replace(split, device=0) for split in plan.splits]
    memory = [m for spec, m in zip(specs, plan.memory, strict=True) if spec.name == "fast"]
    sizes = plan.buffers()["fast"]
    return [graph.key, kernels, splits, memory, sizes, plan.copies, plan.final_waits]


def is_replanned(plan: Plan) -> bool:
    return any(note.startswith("passes: ") for note in plan.notes)


def scheduler(*devices: vs.Device, **options: Any) -> vs.Scheduler:
    return vs.Scheduler(devices, tune=False, timeout_s=1e6, **options)


def null(clock: vs.SimulatedClock, *specs: DeviceSpec) -> list[vs.SimulatedDevice]:
    return [vs.SimulatedDevice(spec, clock) for spec in specs]


def feeds(output: vs.Tensor) -> dict[str, NDArray]:
    graph, _ = vs.build_graph(output)
    return {node.name: values(*node.type.shape) for node in graph.inputs}


@GRAPH
@pytest.mark.parametrize("order", [(SLOW, FAST), (FAST, SLOW)], ids=["slow first", "fast first"])
def test_a_plan_with_an_idle_device_is_that_of_the_others(
    build: Callable[[], vs.Tensor], order: Sequence[DeviceSpec]
) -> None:
    graph, _ = vs.build_graph(build())
    _, alone = planned(graph, FAST)
    request, both = planned(graph, *order)
    assert {order[split.device].name for split in both.splits} == {"fast"}
    assert contents(both) == contents(alone)
    if build is not windows:  # else this would show nothing
        assert request.graph.key != alone.graph.key
        assert "passes: for what fast allows, as no other device has work" in both.notes


def test_numpy_gets_its_own_graph_where_cards_are_idle() -> None:
    graph, _ = vs.build_graph(wide_chain())
    quick = replace(CPU, flops_per_s=1e14, bytes_per_s=1e13, submit_s=0.0)
    topology = Topology((SLOW, quick))
    request = Request(graph, (), {}).optimized(topology)
    plan = plan_request(
        request, topology, lambda v: plan_graph(v.graph, topology, policy="auto", with_cpu=True)
    )
    own = Request(graph, (), {}).optimized(Topology((quick,))).graph
    assert {split.device for split in plan.splits} == {1}
    assert plan.graph.key == own.key != request.graph.key
    assert len(plan.graph.ops) < len(request.graph.ops)  # numpy has no limit on operands


def test_a_plan_in_which_others_would_work_is_not_taken() -> None:
    """Here the second version would move the work to the idle device."""
    graph, _ = vs.build_graph(gelu_layers())
    topology = Topology((SLOW, FAST, CPU))
    request = Request(graph, (), {}).optimized(topology)
    asked: list[Request] = []

    def plan(version: Request) -> Plan:
        asked.append(version)
        home = "fast" if version is request else "slow"
        return plan_graph(version.graph, topology, overrides=[("*", home)])

    found = plan_request(request, topology, plan)
    assert len(asked) == 2 and asked[1] is not request
    assert found.graph is request.graph and not is_replanned(found)


def test_devices_that_all_work_or_are_alike_cause_no_second_graph() -> None:
    graph, _ = vs.build_graph(gelu_layers())
    request, plan = planned(graph, FAST)
    assert plan.graph is request.graph and not is_replanned(plan)
    request, plan = planned(graph, FAST, replace(FAST, name="twin"))
    assert plan.graph is request.graph and not is_replanned(plan)
    topology = Topology((SLOW, FAST, CPU))
    assert request.for_devices(Topology((FAST, replace(FAST, name="twin"), CPU)), {0, 1}) is request
    slow = Request(graph, (), {})
    assert slow.for_devices(topology, {1}) is slow  # nobody asked for lighter ones


@GRAPH
def test_results_and_observed_values_are_those_of_numpy(build: Callable[[], vs.Tensor]) -> None:
    output = build()
    values, seen = feeds(output), dict[str, NDArray]()
    watched = {"g1", "t1", "r0"} & {node.name for node in vs.build_graph(output)[0].nodes}
    with scheduler(*null(vs.SimulatedClock(), SLOW, FAST)) as sched:
        run = sched.compile(
            output,
            observe=dict.fromkeys(watched, lambda name, value: seen.update({name: value})),
            placement={"w1": "fast"},
        )
        assert is_replanned(run.plan) or build is windows
        (want,) = numpy_outputs(run.plan.graph, values)
        for _ in range(2):
            np.testing.assert_allclose(run(**values), want, rtol=1e-4, atol=1e-5)
        assert seen.keys() == watched
        report = run.report()
        assert {line.what for line in report.devices} == {"fast"}
        assert "fast" in run.plan.explain(next(iter(watched)))


@GRAPH
def test_a_graph_runs_on_the_idle_device_when_the_other_is_lost(
    build: Callable[[], vs.Tensor],
) -> None:
    """In the version of that device, which the first plan was not made for."""
    output = build()
    values, seen = feeds(output), list[str]()
    watched = {"g1", "t1", "r0"} & {node.name for node in vs.build_graph(output)[0].nodes}
    slow, fast = null(vs.SimulatedClock(), SLOW, FAST)
    faulty = vs.FaultInjectionDevice(fast, at=None)
    observe = dict.fromkeys(watched, lambda name, value: seen.append(name))
    with scheduler(slow, faulty) as sched:
        run = sched.compile(output, observe=observe)
        before, first = run.plan, run(**values)
        faulty.at = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vs.VkschedWarning)
            second = run(**values)
        assert sched.failed_devices.keys() == {"fast"}
        after = run.plan
        assert {after.topology.devices[split.device].name for split in after.splits} == {"slow"}
        np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-5)
        assert seen == 2 * [*watched]
        alone = Request(*_asked(output, watched)).optimized(Topology((SLOW, CPU)))
        assert after.graph.key == alone.graph.key
        if build is not windows:
            assert after.graph.key != before.graph.key


def _asked(output: vs.Tensor, watched: set[str]) -> tuple[vs.Graph, tuple[()], Mapping[int, Any]]:
    graph, _ = vs.build_graph(output)
    return graph, (), {node.id: () for node in graph.nodes if node.name in watched}


def test_states_and_pins_stay_with_the_version_that_runs() -> None:
    state = vs.state(np.zeros((8, 64), np.float32), name="sum")
    out = gelu_layers()
    with scheduler(*null(vs.SimulatedClock(), SLOW, FAST)) as sched:
        run = sched.compile(out, updates={state: state + out}, placement={out: "fast"})
        assert {run.plan.topology.devices[s.device].name for s in run.plan.splits} == {"fast"}
        feeds = {"x": values(8, 64)}
        total = np.zeros((8, 64), np.float32)
        for _ in range(3):
            total = total + run(**feeds)
        np.testing.assert_allclose(sched.read(state), total, rtol=1e-5, atol=1e-5)
        assert run.report().devices
