"""Plans over devices of several computers: each host has its CPU and its memory; one host's numbers
are those of a machine without hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphs import chain, mlp, transformer

import vksched as vs
from vksched.ir.graph import Graph
from vksched.plan.costs import lower_bound
from vksched.plan.costs.op_support import Support
from vksched.plan.plan import Plan
from vksched.plan.simulation.plan_metrics import plan_metrics
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.plan_types import HOST
from vksched.planner.planner import POLICIES
from vksched.planner.search.candidates import GRAINS, Candidates
from vksched.planner.what_if import compare_plan, equal_hosts
from vksched.schedule import TaskGraph, schedule
from vksched.schedule.schedule import policies
from vksched.topology.device_spec import GIB, DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology


def hosts(
    names: Sequence[str] = ("node1", "node2"), gpus: int = 1, cpu_bytes: int = GIB, **spec: object
) -> Topology:
    """Some hosts with null devices and a CPU each, and the caller's CPU."""
    devices: list[DeviceSpec] = []
    for name in names:
        devices += [DeviceSpec(f"{name}/null:{i}", "null", **spec) for i in range(gpus)]  # type: ignore[arg-type]
        devices.append(DeviceSpec(f"{name}/cpu", "cpu", memory_bytes=cpu_bytes))
    return Topology((*devices, DeviceSpec("cpu", "cpu")))


def plan_on(
    topology: Topology, outputs: Sequence[vs.Tensor], policy: str = "priority", **placement: str
) -> Plan:
    graph, _ = vs.build_graph(outputs)
    return vs.plan_graph(graph, topology, policy=policy, overrides=list(placement.items()))


def device_of(plan: Plan, name: str) -> str:
    return plan.topology.devices[plan.placements[plan.names.index(name)].device].name


def product(rows: int = 4, size: int = 64) -> vs.Tensor:
    weight = vs.weight(np.ones((size, size), np.float32), name="w")
    return vs.matmul(vs.input("x", (rows, size)), weight, name="product")


def streamed(plan: Plan) -> list[str]:
    """The names of weights that are copied in from host memory in each run."""
    data = plan.graph.data
    copies = [c for s in plan.splits for c in s.copies_in if c.source == HOST and c.node in data]
    return [plan.graph.nodes[copy.node].name for copy in copies]


@pytest.mark.parametrize("policy", ["priority", "auto", "earliest-finish"])
def test_each_policy_plans_over_hosts(policy: str) -> None:
    outputs, _ = transformer(2)
    plan = plan_on(hosts(gpus=2), outputs, policy)
    assert plan.splits
    assert plan.explain()


def slow_and_fast(bytes_per_s: float) -> Topology:
    """A device here, and one of ten times its speed on another host."""
    base = DeviceSpec("null:0", "null", flops_per_s=1e7)
    far = replace(base, name="node1/null:0", flops_per_s=1e8)
    cpus = [DeviceSpec(name, "cpu", flops_per_s=1e6) for name in ("node1/cpu", "cpu")]
    return Topology((base, far, *cpus), Links((), network=Link(bytes_per_s, 1e-4))).verify()


@pytest.mark.parametrize("policy", POLICIES)
def test_slow_links_between_hosts_keep_work_at_home(policy: str) -> None:
    outputs, _ = transformer(3)

    def used(bytes_per_s: float) -> set[str]:
        plan = plan_on(slow_and_fast(bytes_per_s), outputs, policy)
        return {plan.topology.devices[split.device].name for split in plan.splits}

    assert used(1e4) == {"null:0"}
    free = {"null:0"} if policy == "priority" else {"node1/null:0"}  # who asks for no cost
    assert used(1e12) == free


@pytest.mark.parametrize("policy", policies())
def test_schedules_of_each_policy_see_the_links_between_hosts(policy: str) -> None:
    graph, _ = vs.build_graph(transformer(3)[0])

    def away(bytes_per_s: float) -> int:
        ways = Candidates(Support(graph, slow_and_fast(bytes_per_s)), (), (0, 1))
        tasks, edges = ways.cut.tasks
        assert len(tasks) > 3
        found = schedule(TaskGraph(tasks, edges), ways.platform(), policy)
        return sum(found.device[task.name] == "node1/null:0" for task in tasks)

    assert away(1e4) == 0
    assert (away(1e12) > 0) == (policy != "priority")  # which asks for no cost


def test_gpus_of_all_hosts_come_before_cpus() -> None:
    small = hosts(memory_bytes=3 << 13)  # room for one weight each
    h = vs.input("x", (4, 64))
    for layer in range(3):
        weight = vs.weight(np.ones((64, 64), np.float32), name=f"w{layer}")
        h = vs.matmul(h, weight, name=f"p{layer}")
    plan = plan_on(small, [h])
    assert [device_of(plan, f"p{i}") for i in range(3)] == [
        "node1/null:0",
        "node2/null:0",
        "node1/cpu",
    ]


def test_what_no_gpu_can_run_goes_to_the_cpu_of_its_operands_host() -> None:
    topology = hosts(limits=Limits(storage_buffers=3))
    table = vs.input("table", (16, 8))
    wide = vs.mul(table, 2.0, name="wide")
    rows = vs.gather(wide, vs.input("i", (4,), "int32"), name="rows")
    plan = plan_on(topology, [vs.exp(rows, name="end")], wide="node2/null:0", end="node1/null:0")
    assert device_of(plan, "rows") == "node2/cpu"
    alone = plan_on(topology, [vs.gather(table, vs.input("i", (4,), "int32"), name="rows")])
    assert device_of(alone, "rows") == "cpu"  # where the caller has both


def test_weights_are_streamed_from_the_memory_of_their_host() -> None:
    topology = hosts(unified_memory=False, memory_bytes=1 << 20)
    outputs = [product(rows=512, size=128)]
    plan = plan_on(topology, outputs, w="node2/cpu")
    assert device_of(plan, "product") == "node2/null:0"
    assert streamed(plan) == ["w"]
    far = plan_on(topology, outputs, w="cpu")
    assert device_of(far, "product") == "cpu"  # no weight crosses the network in each run
    assert not streamed(far)


def test_the_memory_of_another_host_has_an_end() -> None:
    outputs = [product()]
    plan = plan_on(hosts(gpus=0), outputs)
    assert device_of(plan, "product") == "node1/cpu"
    assert plan.memory[0].peak_bytes >= plan.memory[0].weight_bytes == 64 * 64 * 4
    small = plan_on(hosts(gpus=0, cpu_bytes=64 * 64 * 4 - 1), outputs)
    assert device_of(small, "product") == "cpu"  # whose weights are the caller's arrays
    assert small.memory[-1].peak_bytes < 64 * 64 * 4


def test_copies_are_as_many_as_each_hosts_memory_has_room_for() -> None:
    outputs, _ = chain(["node1/cpu"] * 3)
    graph, _ = vs.build_graph(outputs)
    memory = vs.plan_graph(graph, hosts(gpus=0)).memory[0]
    slot_bytes = memory.peak_bytes - memory.weight_bytes
    room_bytes = memory.weight_bytes + 3 * slot_bytes
    plan = vs.plan_graph(graph, hosts(gpus=0, cpu_bytes=room_bytes), copies=8)
    assert plan.copies == 3
    assert plan.memory[0].peak_bytes == room_bytes


def test_cpus_alone_share_what_overrides_say() -> None:
    outputs, _ = mlp(4)
    topology = hosts(gpus=0)
    graph, _ = vs.build_graph(outputs)
    pairs = [("layer.[01].[wb]", "node1/cpu"), ("layer.[23].[wb]", "node2/cpu")]
    plan = vs.plan_graph(graph, topology, overrides=pairs)
    assert {s.device for s in plan.splits} == {0, 1}
    assert len(plan.transfers) == 1


@pytest.mark.parametrize("policy", ["priority", "auto"])
def test_a_host_without_work_changes_nothing(policy: str) -> None:
    outputs, _ = transformer(2)
    graph: Graph = vs.build_graph(outputs)[0]
    near = Topology((DeviceSpec("null:0", "null"), DeviceSpec("cpu", "cpu")))
    plan = vs.plan_graph(graph, near, policy=policy)
    far = replace(near, devices=(near.devices[0], DeviceSpec("node1/cpu", "cpu"), near.devices[1]))
    both = vs.plan_graph(graph, far, policy=policy)
    assert [s.nodes for s in both.splits] == [s.nodes for s in plan.splits]
    assert {s.device for s in both.splits} <= {0, 2}


def test_of_many_hosts_the_fastest_devices_compete() -> None:
    topology = hosts([f"node{i}" for i in range(50)], gpus=2)
    fast = {"node49/null:0", "node49/null:1"}
    devices = [
        replace(d, flops_per_s=1e13, bytes_per_s=1e13) if d.name in fast else d
        for d in topology.devices
    ]
    outputs, _ = transformer(2)
    plan = plan_on(replace(topology, devices=tuple(devices)), outputs, "auto")
    assert plan.decision is not None
    assert fast <= set(plan.decision.devices)
    assert len(plan.decision.devices) == GRAINS < len(topology.devices)
    singles = [c.single for c in plan.decision.candidates if c.single]
    assert len(set(singles)) == len(singles) == 2  # of equal devices one is weighed
    assert {spec.name for s in plan.splits for spec in [topology.devices[s.device]]} <= fast


@pytest.mark.parametrize("wide", [128, 1])
@pytest.mark.parametrize("policy", ["priority", "auto"])
def test_no_plan_over_hosts_is_under_its_bound(
    policy: str, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_bound, "WIDE", wide)
    outputs, _ = transformer(2)
    topology = hosts(gpus=2, flops_per_s=1e7, bytes_per_s=1e7)
    placed = {"layer.0.*": "node1/null:0", "layer.1.*": "node2/null:1"}
    plan = plan_on(topology, outputs, policy, **(placed if policy == "priority" else {}))
    found = lower_bound.find_bound(plan)
    assert 0 < found.latency_s <= simulate(plan).seconds
    assert found.period_s <= plan_metrics(plan).period_s


def test_equal_hosts_are_asked_about_once() -> None:
    topology = hosts([f"node{i}" for i in range(4)], gpus=2)
    assert equal_hosts(topology) == (("node0", "node1", "node2", "node3"),)
    pinned = equal_hosts(topology, ["node2/null:1"])
    assert pinned == (("node0", "node1", "node3"), ("node2",))
    slow = (("node1/cpu", "node3/cpu", Link(1e6, 1e-3)),)
    assert equal_hosts(replace(topology, links=Links(slow))) == (
        ("node0", "node2"),
        ("node1", "node3"),
    )
    comparison = compare_plan(plan_on(topology, transformer(1)[0]))
    rows = [row.text for row in comparison.rows]
    assert "without one of node0 .. node3" in rows and "2 of node0 .. node3" in rows
    assert not any("node1" in row for row in rows)
    (gone,) = [row for row in comparison.rows if row.text.startswith("without one of node0 ..")]
    assert [host for host in gone.topology.hosts if host] == ["node0", "node1", "node2"]
