"""A plan over devices that hold each other up gives way to one of them alone, and comes back where
that was not the cause.
"""

from __future__ import annotations

import numpy as np
import pytest
from graphs import A, B

import vksched as vs
from vksched.engine.single_device import CALM
from vksched.runtime.simulated_clock import Cores
from vksched.topology.device_spec import DeviceSpec

X = np.ones((64, 64), np.float32)
PRODUCT_S = 2 * 64**3 / 1e8


def branches(count: int = 2, length: int = 4) -> vs.Tensor:
    x, ends = vs.input("x", X.shape), list[vs.Tensor]()
    for _ in range(count):
        h = x
        for _ in range(length):
            h = vs.matmul(h, vs.weight(np.full((64, 64), 1 / 64, np.float32)))
        ends.append(h)
    return ends[0] if count == 1 else vs.add(*ends)


class Runs:
    """A graph on two null devices of speeds 1 and `speed`; shared: they take turns, and nobody has
    told the planner; on_cpu: whether it ends with an op that numpy alone has.
    """

    def __init__(
        self, objective: str, speed: float, shared: bool, on_cpu: bool = False, **options: object
    ) -> None:
        self.clock, self.tape = vs.SimulatedClock(), vs.Tape()
        cores = Cores() if shared else None
        self.devices = [
            vs.SimulatedDevice(
                DeviceSpec(name, "null", flops_per_s=s, bytes_per_s=1e12, submit_s=1e-6),
                self.clock,
                vs.Link(1e10, 1e-6),
                cores=cores,
            )
            for name, s in ((A, 1e8), (B, speed * 1e8))
        ]
        self.faulty = [vs.FaultInjectionDevice(device, at=None) for device in self.devices]
        self.objective = objective
        trace = vs.Trace(self.clock, [self.tape])
        self.sched = vs.Scheduler(self.faulty, objective=objective, trace=trace, **options)  # type: ignore[arg-type]
        count = 1 if objective == "throughput" else 2
        end = branches(count, 8 // count)
        self.run = self.sched.compile(vs.nonzero(end, size=4, fill_value=0) if on_cpu else end)
        self.expected = self.run(x=X)

    def flow(self, count: int) -> float:
        """Return the seconds of a run, or in a stream those between two results."""
        start = self.clock.now()
        if self.objective == "latency":
            for _ in range(count):
                assert (self.run(x=X) == self.expected).all()
        else:
            with self.clock.hold():
                futures = [self.run.submit(x=X) for _ in range(count)]
            assert all((future.result() == self.expected).all() for future in futures)
        return (self.clock.now() - start) / count

    @property
    def used(self) -> list[str]:
        plan = self.run.plan
        return [plan.topology.devices[device].name for device in plan.working]

    @property
    def changes(self) -> int:
        return len(self.tape.select("replan"))


@pytest.mark.parametrize(("objective", "speed"), [("throughput", 0.5), ("latency", 0.4)])
def test_devices_that_hold_each_other_up_leave_the_work_to_one(
    objective: str, speed: float
) -> None:
    runs = Runs(objective, speed, shared=True)
    with runs.sched:
        assert runs.used == [A, B]
        together = runs.flow(40)
        runs.flow(40)
        assert runs.used == [A] and runs.changes == 1
        alone = runs.flow(40)
        assert alone == pytest.approx(8 * PRODUCT_S, rel=0.02) and alone < together / 1.1
        (note,) = [n for n in runs.run.plan.notes if "as measured" in n]
        assert note.endswith(f"; {A} has all of the work")
        assert f"{A} proved to be faster alone" in runs.run.plan.explain()
        runs.flow(200)
        assert runs.used == [A] and runs.changes == 1


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_devices_that_do_not_keep_the_work(objective: str) -> None:
    runs = Runs(objective, 0.9, shared=False)
    with runs.sched:
        runs.flow(200)
        assert runs.used == [A, B] and runs.changes == 0


def test_a_trial_that_is_no_better_is_undone_and_seldom_repeated() -> None:
    """All devices are three times slower than was said: that is no fault of the second one."""
    runs = Runs("throughput", 0.9, shared=False)
    with runs.sched:
        for device in runs.devices:
            device.slowdown = 3.0
        runs.flow(64)
        trials = 0
        used = [runs.used]
        for _ in range(40):
            runs.flow(8)
            if runs.used != used[-1]:
                used.append(runs.used)
        trials = used.count([A])
        assert used[-1] == [A, B] and trials <= 1
        assert trials <= 1 + np.log(runs.run.stats.run / 64) / np.log(CALM)  # type: ignore[union-attr]


def test_a_lone_device_that_slows_down_gets_company_again() -> None:
    runs = Runs("throughput", 0.5, shared=True)
    with runs.sched:
        runs.flow(80)
        assert runs.used == [A]
        runs.devices[0].slowdown = 8.0
        runs.flow(80)
        assert B in runs.used


@pytest.mark.filterwarnings("ignore:.*fallback:vksched.VkschedWarning")
def test_a_lone_device_that_fails_leaves_the_work_to_the_other() -> None:
    runs = Runs("latency", 0.4, shared=True, on_cpu=True)
    with runs.sched:
        runs.flow(80)
        assert runs.used == [A, "cpu"]
        runs.faulty[0].at = 0
        runs.flow(1)
        assert runs.used == [B, "cpu"] and list(runs.sched.failed_devices) == [A]


def test_what_the_user_has_placed_stays() -> None:
    runs = Runs("throughput", 0.5, shared=True)
    with runs.sched:
        run = runs.sched.compile(branches(), placement={"*": B})
        for _ in range(60):
            run(x=X)
        assert {run.plan.device_of(n.name) for n in run.plan.graph.nodes if n.op == "matmul"} == {B}
