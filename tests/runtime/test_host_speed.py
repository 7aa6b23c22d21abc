"""A computer that is stopped most of the time is slow, whatever its devices say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU

import vksched as vs
from vksched.ir.build_graph import build_graph
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.runtime.executors.host_speed import FEWEST, HALF_S, LAST
from vksched.runtime.executors.speed_tracker import SpeedTracker
from vksched.runtime.run_stats import RunStats, SplitStats
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.perf_model import ANY
from vksched.topology.topology import Topology

FAR = "node1/cpu"
STALL_S = 0.08


class SteppedClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


def plan(flops_per_s: float = 1e9) -> Plan:
    """Two products: one on another computer, one here."""
    x = vs.input("x", (128, 128))
    w, v = (vs.weight(np.ones((128, 128), np.float32), name=name) for name in "wv")
    graph, _ = build_graph(vs.matmul(vs.matmul(x, w, name="a"), v, name="b"))
    cpus = [DeviceSpec(n, "cpu", flops_per_s=flops_per_s, bytes_per_s=1e12) for n in (FAR, CPU)]
    return vs.plan_graph(graph, Topology(tuple(cpus)), overrides=[("a", FAR), ("b", CPU)])


class Seen:
    """The paces of a machine, and runs that a test makes up."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.clock = plan, SteppedClock()
        self.paces = SpeedTracker(self.clock)
        self.run()

    def run(self, stalled_s: float = 0.0, slower: float = 1.0) -> None:
        """A run in which the other computer stood still for a while. slower: its time factor."""
        splits, at_s = list[SplitStats](), self.clock.now_s
        seconds = {
            span.split: span.finish_s - span.start_s
            for span in simulate(self.plan).spans
            if span.kind == "split"
        }
        for split in self.plan.splits:
            name = self.plan.topology.devices[split.device].name
            far = name == FAR
            own_s = seconds[split.id] * (slower if far else 1.0)
            end_s = at_s + own_s + (stalled_s if far else 0.0)
            # its own clock stood still as well: only what was going on shows the stall
            splits.append(SplitStats(split.id, name, len(split.nodes), own_s, None, at_s, end_s))
            at_s = end_s
        self.clock.now_s, start_s = at_s + 1e-2, self.clock.now_s
        self.paces.see(
            self.plan, RunStats(0, at_s - start_s, 0, 0, 0, 0, 0, tuple(splits), start_s)
        )

    def runs(self, count: int, every: int = 0) -> None:
        """Of so many runs each one of `every` is stalled."""
        for number in range(count):
            self.run(STALL_S if every and number % every == 0 else 0.0)

    @property
    def pace(self) -> float:
        return self.paces.of(FAR).get(ANY, 1.0)


def expected_s(plan: Plan) -> float:
    return 2 * 128**3 / plan.topology.devices[0].flops_per_s


def test_a_host_that_does_as_expected_is_not_slow() -> None:
    seen = Seen(plan())
    seen.runs(2 * LAST)
    assert seen.pace == 1.0 and seen.paces.of(CPU).get(ANY, 1.0) == 1.0


@pytest.mark.parametrize("every", [2, 4])
def test_a_host_that_stands_still_in_one_run_of_a_few_is_slow(every: int) -> None:
    """The median of its runs is as ever, and so is the time of its device."""
    seen = Seen(plan())
    seen.runs(2 * LAST)
    seen.runs(LAST, every)
    usual = expected_s(seen.plan)
    stalled = LAST // every - 1  # the longest is left out
    mean = usual + STALL_S * stalled / (LAST - 1)
    assert seen.pace == pytest.approx(mean / usual, rel=0.1) and seen.pace > 1.5
    assert seen.paces.of(CPU).get(ANY, 1.0) == 1.0
    seen.runs(LAST)
    assert seen.pace == 1.0  # it is forgiven once it goes on


def test_one_stall_says_nothing() -> None:
    seen = Seen(plan())
    seen.runs(FEWEST)
    seen.run(stalled_s=10.0)
    assert seen.pace == 1.0


def test_a_slow_device_counts_once() -> None:
    seen = Seen(plan())
    for _ in range(3 * LAST):
        seen.run(slower=3.0)
    assert seen.pace == pytest.approx(3.0, rel=0.15)


def test_a_part_that_takes_no_time_says_nothing() -> None:
    seen = Seen(plan(flops_per_s=1e11))
    assert expected_s(seen.plan) < 1e-4
    seen.runs(2 * LAST, 2)
    assert seen.pace == 1.0


def test_a_host_without_runs_is_forgiven_with_time() -> None:
    seen = Seen(plan())
    seen.runs(LAST)
    seen.runs(LAST, 2)
    slow = seen.pace
    seen.clock.now_s += 20 * HALF_S
    assert slow > 5.0 and seen.pace == 1.0


def test_plans_move_off_a_stalled_host() -> None:
    """What the runs showed is in the machine of the next plan."""
    seen = Seen(plan())
    seen.runs(LAST)
    seen.runs(LAST, 2)
    topology = seen.plan.topology
    known = tuple(seen.paces.correct(spec) for spec in topology.devices)
    graph, with_cpu = seen.plan.graph, {"policy": "auto", "with_cpu": True}
    fast = replace(topology.devices[0], flops_per_s=4e9)
    before = vs.plan_graph(
        graph, replace(topology, devices=(fast, *topology.devices[1:])), **with_cpu
    )  # type: ignore[arg-type]
    slow = replace(known[0], flops_per_s=4e9)
    after = vs.plan_graph(graph, replace(topology, devices=(slow, *known[1:])), **with_cpu)  # type: ignore[arg-type]
    assert before.device_of("a") == FAR and after.device_of("a") == CPU
