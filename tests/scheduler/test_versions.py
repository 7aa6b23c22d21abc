"""Versions of a graph: each plan is weighed on the graph as passes make it for its own devices, and
a device that allows less makes no plan slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from graphs import numpy_outputs

import vksched as vs
from vksched.engine.request import Request, plan_request
from vksched.plan.plan import Plan
from vksched.planner.planner import plan_graph
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.topology import Topology

RICH = Limits(storage_buffers=32, max_invocations=1024, shared_bytes=65536)
POOR = Limits(storage_buffers=4)
RATES = {"flops_per_s": 6e11, "submit_s": 2e-5}
WEAK = DeviceSpec("weak", "null", bytes_per_s=1.5e11, limits=POOR, **RATES)
STRONG = DeviceSpec("strong", "null", bytes_per_s=1.2e11, limits=RICH, **RATES)
SHAPES = [(1, 4), (2, 3), (4, 2), (8, 1)]


def chains(width: int, depth: int, rows: int = 1024) -> vs.Tensor:
    """Chains of six operands: two buffers are too few for one dispatch."""
    ins = [vs.input(f"x{i}", (rows, rows)) for i in range(6)]
    ends = []
    for b in range(width):
        h = ins[b % 6]
        for _ in range(depth):
            h = vs.tanh(h * ins[0] + ins[1] * ins[2] - ins[3] * ins[4] + ins[5])
        ends.append(vs.reduce_sum(h, axis=1))
    out = ends[0]
    for end in ends[1:]:
        out = out + end
    return out


def planned(
    out: vs.Tensor, specs: Sequence[DeviceSpec], objective: str = "latency", with_cpu: bool = False
) -> Plan:
    cpu = DeviceSpec("cpu", "cpu", flops_per_s=1e9, bytes_per_s=1e9)
    topology = Topology((*specs, cpu))
    request = Request(vs.build_graph(out)[0], (), {}).optimized(topology)
    return plan_request(
        request,
        topology,
        lambda v: plan_graph(
            v.graph, topology, policy="auto", objective=objective, with_cpu=with_cpu
        ),
    )


def latency_s(plan: Plan) -> float:
    return plan.metrics.latency_s


@pytest.mark.parametrize("order", list(permutations((WEAK, STRONG))), ids=["weak", "strong"])
@pytest.mark.parametrize(("width", "depth"), SHAPES)
def test_a_poorer_card_makes_no_plan_slower(
    width: int, depth: int, order: Sequence[DeviceSpec]
) -> None:
    out = chains(width, depth)
    alone = [latency_s(planned(out, [each])) for each in order]
    both = planned(out, order)
    assert latency_s(both) <= min(alone) * 1.000001
    decision = both.decision
    assert decision is not None
    working = {both.topology.devices[split.device].name for split in both.splits}
    assert set(decision.chosen.devices) == working
    assert decision.chosen.single in working  # and not a device that has no work
    assert decision.best_single_device_value <= min(alone) * 1.000001


def test_two_better_cards_share_the_graph_that_is_built_for_them() -> None:
    """Beside a poorer one; the graph for all three would take longer."""
    topologies = [STRONG, DeviceSpec("other", "null", bytes_per_s=1.2e11, limits=RICH, **RATES)]
    ends = []
    for b in range(2):
        own = [vs.input(f"{b}{i}", (1024, 1024)) for i in range(5)]
        h = own[0]
        for _ in range(3):
            h = vs.matmul(h, own[0])
            h = vs.tanh(h * own[0] + own[1] * own[2] - own[3] * own[4])
        ends.append(vs.reduce_sum(h, axis=1))
    out = ends[0] + ends[1]
    pair, three = planned(out, topologies), planned(out, [WEAK, *topologies])
    assert len({split.device for split in pair.splits}) == 2
    assert latency_s(three) <= latency_s(pair) * 1.000001


def test_estimates_near_each_other_leave_the_first_version() -> None:
    """As they leave the first device: they are right to a factor."""
    guessed = {"flops_per_s": 6e11, "submit_s": 2e-5}
    weak = DeviceSpec("weak", "vulkan", bytes_per_s=1.5e11, limits=POOR, **guessed)
    strong = DeviceSpec("strong", "vulkan", bytes_per_s=1.2e11, limits=RICH, **guessed)
    plan = planned(chains(1, 4), [weak, strong])
    assert plan.decision is not None and not plan.decision.measured
    assert {plan.topology.devices[split.device].name for split in plan.splits} == {"weak"}


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_no_objective_is_worse_for_a_poorer_card(objective: str) -> None:
    out = chains(2, 3)
    both, alone = (planned(out, specs, objective).decision for specs in ([WEAK, STRONG], [STRONG]))
    assert both is not None and alone is not None
    assert both.value <= alone.value * 1.000001


def test_results_are_those_of_numpy() -> None:
    clock = vs.SimulatedClock()
    rng = np.random.default_rng(0)
    out = chains(2, 3, 16)
    feeds = {f"x{i}": rng.standard_normal((16, 16), np.float32) for i in range(6)}
    cards = [vs.SimulatedDevice(each, clock) for each in (WEAK, STRONG)]
    with vs.Scheduler(cards, policy="auto", tune=False) as sched:
        got = sched.compile(out)(**feeds)
    (wanted,) = numpy_outputs(vs.build_graph(out)[0], feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_cpu_that_runs_the_graph_as_written_faster_than_cards_want_it_gets_it() -> None:
    """Winograd's convolutions are fast on cards and slow in numpy."""
    one, many = ((-10.0, 1.0),), ((-10.0, 30.0),)
    usual = [Curve(f"*/{bound}", one) for bound in ("bytes", "flops")]
    slow = [Curve(f"winograd_conv/{bound}", many) for bound in ("bytes", "flops")]
    card = DeviceSpec(
        "card",
        "null",
        flops_per_s=2e10,
        bytes_per_s=4e9,
        limits=RICH,
        costs=PerfModel((*usual,), calls=1),
    )
    cpu = DeviceSpec(
        "cpu", "cpu", flops_per_s=5e10, bytes_per_s=1e10, costs=PerfModel((*usual, *slow), calls=1)
    )
    h = vs.input("x", (1, 16, 64, 64))
    for _ in range(3):
        h = vs.relu(vs.conv(h, vs.weight(np.ones((16, 16, 3, 3), np.float32)), padding=1))
    graph = vs.build_graph(h)[0]

    def plan_on(*devices: DeviceSpec) -> Plan:
        topology = Topology(devices)
        request = Request(graph, (), {}).optimized(topology)
        return plan_request(
            request, topology, lambda v: plan_graph(v.graph, topology, policy="auto", with_cpu=True)
        )

    both, alone = plan_on(card, cpu), plan_on(cpu)
    assert {node.op for node in both.graph.ops} == {"conv"}
    assert latency_s(both) == pytest.approx(latency_s(alone))
    assert latency_s(alone) < latency_s(plan_on(card, DeviceSpec("cpu", "cpu", flops_per_s=1e7)))
