"""Independent branches run at the same time: on two devices, and on the CPU beside one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from graphs import CPU, A, B, C
from test_sync import load

import vksched as vs
from vksched.common.dtypes import Progress
from vksched.runtime.device import PreparedPlan
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link

X = np.full((16, 16), 0.1, np.float32)


def branches(count: int, length: int = 6) -> list[vs.Tensor]:
    """Chains that share nothing but their input."""
    x = vs.input("x", X.shape)
    out = []
    for branch in range(count):
        h = x
        for i in range(length):
            h = vs.add(vs.mul(h, 0.5), float(branch), name=f"b{branch}.{i}")
        out.append(h)
    return out


def makespan(count: int, placement: dict[str, str]) -> float:
    clock = vs.SimulatedClock()
    devices = [
        vs.SimulatedDevice(DeviceSpec(n, "null", bytes_per_s=1e6), clock, link=Link(1e12))
        for n in (A, B, C)
    ]
    # what has no name is beside what it reads, whatever is faster
    trace = vs.Trace(clock)
    with vs.Scheduler(devices, policy="priority", trace=trace, optimize=False) as sched:
        run = sched.compile(branches(count), placement=placement)
        run(x=X)
        assert run.stats is not None
        return run.stats.seconds


def test_two_equal_branches_on_two_devices_take_the_time_of_one() -> None:
    one = makespan(1, {"b0.*": A})
    two = makespan(2, {"b0.*": A, "b1.*": B})
    in_turn = makespan(2, {"b0.*": A, "b1.*": A})
    assert one <= two <= 1.1 * one and in_turn >= 1.8 * one


def test_what_crosses_late_does_not_hold_back_what_crosses_early() -> None:
    """The end of one branch waits for all the rest of it; most of the other for its start alone."""
    late, early = {"b0.*": A, "b0.5": B}, {"b1.*": C, "b1.0": B}
    alone = makespan(1, late)
    assert alone <= makespan(2, {**late, **early}) <= 1.1 * alone


class Order:
    """What a scheduler's devices are asked to do, in order."""

    def __init__(self, sched: vs.Scheduler) -> None:
        self.calls: list[tuple[str, str]] = []
        for device in sched.devices:
            self._watch(device)

    def _watch(self, device: Any) -> None:
        prepare = device.prepare

        def watched(plan: vs.Plan, index: int, progress: Progress | None = None) -> PreparedPlan:
            prepared = prepare(plan, index, progress)
            for name in ("submit", "wait"):
                self._record(prepared, name, device.name)
            return prepared  # type: ignore[no-any-return]

        device.prepare = watched

    def _record(self, prepared: Any, name: str, device: str) -> None:
        real = getattr(prepared, name)

        def recorded(*args: Any) -> Any:
            self.calls.append((name, device))
            return real(*args)

        setattr(prepared, name, recorded)


def test_both_devices_have_their_work_before_the_host_waits(two_devices: list[str]) -> None:
    with vs.Scheduler(two_devices) as sched:
        order = Order(sched)
        one, two, _ = (d.name for d in sched.devices)
        run = sched.compile(branches(2), placement={"b0.*": one, "b1.*": two})
        expected = run(x=X)
        assert [name for name, _ in order.calls] == ["submit", "submit", "wait", "wait"]
        assert {device for _, device in order.calls[:2]} == {one, two}
        np.testing.assert_allclose(expected[1] - expected[0], 2 - 0.5**5, rtol=1e-5)


@pytest.mark.one_set
def test_the_cpu_works_next_to_a_device(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        if len(sched.devices) == 1:
            pytest.skip("no device beside the CPU")
        order = Order(sched)
        gpu = sched.devices[0].name
        run = sched.compile(branches(2), placement={"b0.*": gpu, "b1.*": CPU})
        run(x=X)
        assert [name for name, _ in order.calls] == ["submit", "submit", "wait", "wait"]
        assert {device for _, device in order.calls[:2]} == {gpu, CPU}


def test_a_chain_next_to_an_exchange_goes_on_while_the_host_waits(two_devices: list[str]) -> None:
    """What crosses is waited for; what follows on the other device has been submitted by then."""
    with vs.Scheduler(two_devices) as sched:
        order = Order(sched)
        one, two, _ = (d.name for d in sched.devices)
        first, second = branches(2)
        run = sched.compile(
            vs.add(first, second, name="join"), placement={"b0.*": one, "b1.*": two, "join": one}
        )
        run(x=X)
        assert order.calls[:3] == [("submit", order.calls[0][1]), *order.calls[1:2], ("wait", two)]
        assert {device for _, device in order.calls[:2]} == {one, two}


def test_overlap_is_counted_between_devices_only() -> None:
    bench = load("overlap")

    def event(device: str, start: float, end: float) -> vs.Event:
        return vs.Event("split", device, start, end)

    assert bench.overlap_s([event("a", 0, 2), event("b", 1, 3)]) == 1
    assert bench.overlap_s([event("a", 0, 2), event("a", 1, 3)]) == 0
    assert bench.overlap_s([event("a", 0, 1), event("b", 1, 2), event("c", 1.5, 4)]) == 0.5
    assert bench.overlap_s([]) == 0


@pytest.mark.parametrize("null", [True, False])
def test_benchmark_of_overlap(null: bool, two_devices: list[str], capsys: Any) -> None:
    bench = load("overlap")
    chosen = ["--null"] if null else ["--devices", two_devices[0]]
    arguments = ["--small", "--repeats", "1", *chosen]
    assert bench.main([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row["alone"]) == set(row["devices"]) == set(row["busy"])
    if null:
        assert row["ratio"] == pytest.approx(0.5, rel=0.1)
        assert row["overlap"] == pytest.approx(min(row["busy"].values()), rel=0.05)
    else:
        assert row["devices"] == [two_devices[0], "cpu"] and row["both"] > 0
    assert bench.main(arguments) == 0
