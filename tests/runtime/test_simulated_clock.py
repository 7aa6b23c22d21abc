"""The simulated clock: what a stream takes depends on no order of threads, and is what the
simulator says.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphs import A, B

import vksched as vs
from vksched.plan.simulation.simulate_plan import simulate
from vksched.runtime import simulated_clock
from vksched.topology.device_spec import DeviceSpec

RUNS = 12
X = np.ones((16, 32), np.float32)
LINK = vs.Link(1e9, 1e-5)


@pytest.fixture(autouse=True)
def _restless_threads() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def there_and_back() -> list[vs.Tensor]:
    """A value that crosses to the second device and comes back: two splits on the first one."""
    h = vs.input("x", X.shape)
    for name in ("first", "second", "third"):
        for i in range(3):
            w = vs.weight(np.full((32, 32), 1 / 32, np.float32))
            h = vs.tanh(vs.matmul(h, w, name=f"{name}.p{i}"), name=f"{name}.{i}")
    return [h]


PLACEMENT = {"first.*": A, "second.*": B, "third.*": A}


def devices(clock: vs.SimulatedClock) -> list[vs.SimulatedDevice]:
    speeds = {A: 1e7, B: 3e6}
    return [
        vs.SimulatedDevice(DeviceSpec(name, "null", flops_per_s=speed), clock, LINK)
        for name, speed in speeds.items()
    ]


def stream(copies: int, runs: int = RUNS) -> tuple[vs.Plan, list[tuple[float, float]], float]:
    """The plan, the start and the end of each run in order of their ends, and all they took."""
    clock, tape = vs.SimulatedClock(), vs.Tape()
    trace = vs.Trace(clock, [tape])
    with vs.Scheduler(devices(clock), copies=copies, trace=trace, optimize=False) as sched:
        run = sched.compile(there_and_back(), PLACEMENT)
        start = clock.now()
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(runs)]
        for future in futures:
            future.result()
        took = clock.now() - start
        reported = sorted((e.start_s - start, e.end_s - start) for e in tape.select("run"))
        return run.plan, reported, took


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_stream_takes_what_the_simulator_says(copies: int) -> None:
    plan, reported, took = stream(copies)
    assert plan.copies == copies and len(plan.splits) == 3
    expected = simulate(plan, RUNS)
    assert took == pytest.approx(expected.seconds, rel=1e-9)
    assert [end for _, end in reported] == pytest.approx(sorted(expected.finish_s), rel=1e-9)


def test_each_run_takes_the_same_time_by_time() -> None:
    """To the bit: nothing is left to the order in which threads get on."""
    first = stream(3)[1:]
    assert all(stream(3)[1:] == first for _ in range(8))


def test_runs_by_several_threads_take_their_turns_too() -> None:
    clock = vs.SimulatedClock()
    with vs.Scheduler(devices(clock), copies=2, optimize=False) as sched:
        run = sched.compile(there_and_back(), PLACEMENT)
        alone = simulate(run.plan).seconds
        start, together = clock.now(), threading.Barrier(2)

        def call() -> None:
            together.wait()
            run(x=X)

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clock.now() - start <= 2 * alone * (1 + 1e-9)


def test_nothing_goes_on_while_the_clock_is_held() -> None:
    clock = vs.SimulatedClock()
    with vs.Scheduler(devices(clock), copies=2) as sched:
        run = sched.compile(there_and_back(), PLACEMENT)
        run(x=X)
        before = clock.now()
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(4)]
            assert not any(future.done() for future in futures) and clock.now() == before
        assert [future.result()[0].shape for future in futures] == [X.shape] * 4  # type: ignore[index]
        assert clock.now() > before


def test_a_run_that_another_one_waits_for_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observers of two runs that meet: the later one has no turn until the earlier one goes on."""
    monkeypatch.setattr(simulated_clock, "HELD_UP_S", 0.05)
    clock, meet = vs.SimulatedClock(), threading.Barrier(2, timeout=20)

    def see(name: str, value: Any) -> None:
        meet.wait()

    (output,) = there_and_back()
    with vs.Scheduler(devices(clock), copies=2, optimize=False) as sched:
        run = sched.compile(output, PLACEMENT, observe={"second.2": see})
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(2)]
        assert all(future.result().shape == X.shape for future in futures)  # type: ignore[union-attr]


def test_a_run_inside_a_run_is_a_part_of_it() -> None:
    clock = vs.SimulatedClock()
    (output,) = there_and_back()
    with vs.Scheduler(devices(clock), optimize=False) as sched:
        inner = sched.compile(vs.relu(vs.input("x", X.shape)))
        took = simulate(inner.plan).seconds

        def see(name: str, value: Any) -> None:
            inner(x=X)

        run = sched.compile(output, PLACEMENT, observe={"second.2": see})
        start = clock.now()
        run(x=X)
        look_s = LINK.seconds(X.nbytes)  # the observer's copy of the value
        expected = simulate(run.plan).seconds + look_s + took
        assert clock.now() - start == pytest.approx(expected, rel=1e-9)


def test_runs_that_are_cancelled_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_clock, "HELD_UP_S", 3600.0)  # none waits for as long
    clock = vs.SimulatedClock()
    with vs.Scheduler(devices(clock), copies=2) as sched:
        run = sched.compile(there_and_back(), PLACEMENT)
        with clock.hold():
            futures = [run.submit(x=X) for _ in range(8)]
            cancelled = [future for future in futures[4:] if future.cancel()]
        assert len(cancelled) == 4
        assert [f.result()[0].shape for f in futures[:4]] == [X.shape] * 4  # type: ignore[index]


def test_a_failed_device_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_clock, "HELD_UP_S", 3600.0)
    clock = vs.SimulatedClock()
    first, second = devices(clock)
    faulty = vs.FaultInjectionDevice(second, at=5)
    with vs.Scheduler([first, faulty], copies=3, optimize=False) as sched:
        run = sched.compile(there_and_back(), PLACEMENT)
        expected = run(x=X)[0]  # type: ignore[index]
        before = clock.now()
        with pytest.warns(vs.VkschedWarning, match="is lost"):
            with clock.hold():
                futures = [run.submit(x=X) for _ in range(8)]
            results = [future.result()[0] for future in futures]  # type: ignore[index]
        assert all((result == expected).all() for result in results) and clock.now() > before
