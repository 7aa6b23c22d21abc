"""A device slower than planned gets shorter submissions from the next run on, and once only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import SHAPE, A, B, source, steps

import vksched as vs
from vksched.runtime.executors.slowdown_tracker import LONGEST_S, SlowdownTracker
from vksched.runtime.run_stats import SplitStats
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link

X = np.ones(SHAPE, np.float32)
NODES = 20
NODE_BYTES = 2 * 4 * SHAPE[0] * SHAPE[1]
"""Read and written; the constant adds a few."""


def slow_scheduler(
    slowdown: float,
    node_s: float = 0.01,
    names: tuple[str, ...] = (A,),
    limits: Limits | None = None,
    **options: Any,
) -> tuple[vs.Scheduler, list[vs.SimulatedDevice], vs.Recorder]:
    """Devices that the planner thinks take node_s for a node, and that take slowdown times that."""
    clock, recorder = vs.SimulatedClock(), vs.Recorder()
    devices = [
        vs.SimulatedDevice(
            DeviceSpec(
                name,
                "null",
                bytes_per_s=NODE_BYTES / node_s,
                submit_s=1e-4,
                limits=limits or Limits(),
            ),
            clock,
            slowdown=slowdown if name == A else 1.0,
        )
        for name in names
    ]
    trace = vs.Trace(clock, [recorder])
    return (
        vs.Scheduler(devices, trace=trace, timeout_s=1e6, optimize=False, **options),
        devices,
        recorder,
    )


def chain() -> vs.Tensor:
    return steps(source(), [f"n{i}" for i in range(NODES)])[-1]


def longest_s(run: vs.CompiledGraph) -> float:
    assert run.stats is not None
    return max(s.longest_s or 0.0 for s in run.stats.splits)


@pytest.mark.parametrize("slowdown", [10.0, 40.0, 95.0])
def test_submissions_get_shorter_until_each_is_under_the_bound(slowdown: float) -> None:
    sched, _, recorder = slow_scheduler(slowdown)
    with sched:
        run = sched.compile(chain())
        plans = [run.plan]
        for _ in range(4):
            assert np.array_equal(run(x=X), X + NODES)
            if run.plan is not plans[-1]:
                plans.append(run.plan)
        assert [len(p.splits) for p in plans][0] == 1 and len(plans) == 2
        assert longest_s(run) <= LONGEST_S
        assert not any(s.waits for s in run.plan.splits)
        (event,) = recorder.select("slowdown")
        assert event.device == A and event.fields["slowdown"] == pytest.approx(slowdown, rel=0.05)
        assert f"null:0 takes {event.fields['slowdown']:.3g} times as long" in run.plan.explain()


def test_kernels_that_a_software_driver_translates_in_the_first_run_change_no_plan() -> None:
    sched, devices, recorder = slow_scheduler(40.0, limits=Limits(software=True))
    with sched:
        run = sched.compile(chain())
        plan = run.plan
        run(x=X)
        assert longest_s(run) > LONGEST_S
        devices[0].slowdown = 1.0
        for _ in range(3):
            run(x=X)
        assert run.plan is plan and not recorder.select("slowdown")


def test_a_software_driver_that_stays_slow_is_judged_by_its_second_run() -> None:
    sched, _, recorder = slow_scheduler(40.0, limits=Limits(software=True))
    with sched:
        run = sched.compile(chain())
        plan = run.plan
        for _ in range(2):
            run(x=X)
            assert run.plan is plan
        run(x=X)
        assert run.plan is not plan and longest_s(run) <= LONGEST_S
        assert len(recorder.select("slowdown")) == 1


@pytest.mark.parametrize("slowdown", [1.0, 4.0])
def test_what_is_under_the_bound_is_left_alone(slowdown: float) -> None:
    sched, devices, recorder = slow_scheduler(slowdown)
    with sched:
        run = sched.compile(chain())
        plan = run.plan
        for _ in range(3):
            run(x=X)
        assert run.plan is plan and not recorder.select("slowdown")
        assert devices[0].submissions == 3


def test_one_op_that_cannot_be_cut_is_not_planned_again() -> None:
    sched, _, _ = slow_scheduler(1000.0)
    with sched:
        run = sched.compile(vs.add(source(), 1.0, name="n"))
        plan = run.plan
        for _ in range(3):
            assert np.array_equal(run(x=X), X + 1)
        assert run.plan is plan and longest_s(run) > LONGEST_S


def test_ops_over_the_bound_each_end_in_submissions_of_their_own() -> None:
    sched, _, recorder = slow_scheduler(500.0)
    with sched:
        run = sched.compile(chain())
        plans = set()
        for _ in range(4):
            run(x=X)
            plans.add(run.plan)
        assert len(plans) == 2 and len(run.plan.splits) == NODES
        assert len(recorder.select("slowdown")) == 1


def test_what_one_graph_shows_helps_the_next() -> None:
    sched, _, _ = slow_scheduler(40.0)
    with sched:
        sched.compile(chain())(x=X)
        other = sched.compile(vs.neg(chain(), name="end"))
        plan = other.plan
        assert len(plan.splits) > 1
        other(x=X)
        assert other.plan is plan and longest_s(other) <= LONGEST_S


def test_only_the_slow_device_gets_shorter_submissions() -> None:
    sched, _, _ = slow_scheduler(40.0, names=(A, B))
    with sched:
        placement = {f"n{i}": A if i < NODES // 2 else B for i in range(NODES)}
        run = sched.compile(chain(), placement=placement)
        placed = [p.device for p in run.plan.placements]
        for _ in range(2):
            assert np.array_equal(run(x=X), X + NODES)
        devices = [s.device for s in run.plan.splits]
        assert devices.count(0) > 1 and devices.count(1) == 1
        assert [p.device for p in run.plan.placements] == placed
        assert [d.slowdown > 1 for d in sched.topology.devices] == [True, False, False]


def test_runs_under_way_end_before_the_new_plan() -> None:
    sched, _, _ = slow_scheduler(40.0, copies=3)
    with sched:
        run = sched.compile(chain())
        futures = [run.submit(x=X * k) for k in range(8)]
        for k, future in enumerate(futures):
            assert np.array_equal(future.result(), X * k + NODES)
        run(x=X)
        assert longest_s(run) <= LONGEST_S


def test_plans_stay_where_the_user_wants_them_to() -> None:
    sched, _, recorder = slow_scheduler(40.0, on_device_failure="raise")
    with sched:
        run = sched.compile(chain())
        plan = run.plan
        for _ in range(2):
            run(x=X)
        assert run.plan is plan and len(recorder.select("slowdown")) == 1


def test_the_way_of_streamed_weights_is_not_the_device_s_fault() -> None:
    clock = vs.SimulatedClock()
    spec = DeviceSpec(A, "null", unified_memory=False)  # it copies them itself
    device = vs.SimulatedDevice(spec, clock, link=Link(1e4))
    with vs.Scheduler([device], trace=vs.Trace(clock)) as sched:
        h = vs.input("x", (64, 64))
        for i in range(3):
            h = h @ vs.weight(np.eye(64, dtype=np.float32), f"w{i}")
        run = sched.compile(h, placement={"w*": "cpu"})
        plan = run.plan
        for _ in range(3):
            run(x=np.ones((64, 64), np.float32))
        assert longest_s(run) > LONGEST_S and run.plan is plan
        assert sched.topology.devices[0].slowdown == 1.0


def test_devices_without_a_clock_are_not_judged() -> None:
    sched, _, _ = slow_scheduler(1.0)
    with sched:
        run = sched.compile(chain())
        run(x=X)
        assert run.stats is not None
        stats = run.stats
        watchdog = SlowdownTracker(vs.Trace())
        blind = SplitStats(0, A, NODES, 1e3, None)
        seen = SplitStats(0, A, NODES, 1e3, 1e3)
        assert not watchdog.see(run.plan, type(stats)(0, 1.0, 0, 0, 0, 0, 0, (blind,)))
        assert watchdog.see(run.plan, type(stats)(0, 1.0, 0, 0, 0, 0, 0, (seen,)))


def test_the_longest_submission_is_known(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        run = sched.compile(chain())
        run(x=X)
        assert run.stats is not None
        for split in run.stats.splits:
            on_cpu = split.device == "cpu"
            assert (split.longest_s is None) == on_cpu or split.longest_s is None
            if split.longest_s is not None:
                assert 0 < split.longest_s <= split.device_s


def test_a_slowed_device_spreads_one_long_op_over_submissions(devices: list[str]) -> None:
    """The planner's slowdown reaches the recordings of a Vulkan device, too."""
    # "auto" would take another device
    with vs.Scheduler(devices, policy="priority", optimize=False) as sched:
        gpus = [d for d in sched.devices if d.spec.kind == "vulkan"]
        if not gpus:
            pytest.skip("no Vulkan device in this set")
        sched._preparing.watchdog._slowdowns[gpus[0].name] = 1e7
        run = sched.compile(chain())
        assert len(run.plan.splits) > 1
        assert np.array_equal(run(x=X), X + NODES)


def test_states_go_on_where_they_were() -> None:
    sched, _, _ = slow_scheduler(40.0)
    with sched:
        total = vs.state(np.zeros(SHAPE, np.float32), "total")
        y = vs.add(chain(), total, name="y")
        run = sched.compile(y, updates={total: y})
        plans = {run.plan}
        for count in range(1, 4):
            assert np.array_equal(run(x=X), count * (X + NODES))
            plans.add(run.plan)
        assert len(plans) == 2 and longest_s(run) <= LONGEST_S
        assert np.array_equal(sched.read(total), 3 * (X + NODES))
