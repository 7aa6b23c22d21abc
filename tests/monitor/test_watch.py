"""What is told of a scheduler: its runs, what is under way, its devices and their faults."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
from conftest import DEVICE_SETS, vulkan_names
from graphs import SHAPE, A, B, make_topology, source, steps

import vksched as vs
from vksched.monitor.top.snapshot import SchedulerNow
from vksched.monitor.watch import Watch

X = np.ones(SHAPE, np.float32)


def look(watch: Watch) -> SchedulerNow:
    found = watch.look()
    assert found is not None
    return found


def watch_of(sched: vs.Scheduler) -> Watch:
    return Watch(sched.graphs, sched.policy)


@pytest.mark.parametrize("names", DEVICE_SETS.values(), ids=list(DEVICE_SETS))
def test_runs_and_bytes_are_those_of_the_stats(names: list[str]) -> None:
    with vs.Scheduler(names, policy="priority") as sched:
        watch = watch_of(sched)
        run = sched.compile(steps(source(), ["a", "b"])[-1])
        for _ in range(5):
            run(x=X)
        stats, reported = run.stats, look(watch)
        assert stats is not None
        assert (reported.runs, reported.graphs, reported.running, reported.waiting) == (5, 1, 0, 0)
        assert [d.name for d in reported.devices] == [d.name for d in sched.devices]
        worked = [d for d in reported.devices if d.runs]
        assert {d.name for d in worked} == set(stats.device_seconds)
        if worked[0].kind == "vulkan":
            assert worked[0].copied_bytes == 5 * (stats.input_bytes + stats.output_bytes)
            assert worked[0].copies == 10
            assert 0 < (worked[0].memory_own_bytes or 0) <= (worked[0].memory_total_bytes or 0)
        else:
            assert worked[0].copied_bytes == 0
            assert (worked[0].memory_own_bytes or 1) > 0
        assert worked[0].busy_s > 0
        assert all(0 <= d.busy <= 1 and not d.queue and not d.now for d in reported.devices)


def test_busy_seconds_are_those_of_null_devices() -> None:
    clock = vs.SimulatedClock()
    specs = make_topology(2).devices
    devices = [vs.SimulatedDevice(spec, clock) for spec in specs[:2]]
    with vs.Scheduler(devices, trace=vs.Trace(clock), policy="priority") as sched:
        watch = watch_of(sched)
        names = steps(source(), ["a", "b"])
        run = sched.compile(names[-1], {"a": A, "b": B})
        seconds: dict[str, float] = {}
        for _ in range(4):
            run(x=X)
            assert run.stats is not None
            for name, each in run.stats.device_seconds.items():
                seconds[name] = seconds.get(name, 0.0) + each
        reported = look(watch)
        assert reported.simulated
        assert {d.name: d.busy_s for d in reported.devices if d.runs} == pytest.approx(seconds)
        transfer = {d.name: d.copied_bytes // 4 for d in reported.devices if d.runs}
        size = X.nbytes
        assert transfer == {A: 2 * size, B: 2 * size}
        assert all(d.memory_total_bytes is None for d in reported.devices[:2]), (
            "nothing is invented"
        )


@pytest.mark.parametrize("policy", ["priority", "earliest-finish"])
def test_what_a_device_works_on_is_reported_while_it_does(policy: str) -> None:
    names = vulkan_names()[:1] or ["cpu"]
    seen: list[SchedulerNow] = []

    with vs.Scheduler(names, policy=policy) as sched:
        watch = watch_of(sched)
        x = vs.input("x", (256, 256))
        y = x
        for _ in range(6):
            y = vs.softmax(y @ x)
        run = sched.compile(y)
        a = np.ones((256, 256), np.float32)
        run(x=a)
        futures = [run.submit(x=a) for _ in range(20)]
        while not all(f.done() for f in futures):
            seen.append(look(watch))
            time.sleep(0.001)
        reported = look(watch)
        assert reported.running == reported.waiting == 0
    at_work = [d for each in seen for d in each.devices if d.now]
    assert at_work and all(d.queue >= 1 and "matmul" in d.now for d in at_work)
    assert max(each.running + each.waiting for each in seen) > 1
    assert max(d.busy for each in seen for d in each.devices) > 0.05


def test_faults_and_devices_out_of_use_are_reported() -> None:
    name = (vulkan_names() or ["cpu"])[0]
    if name == "cpu":
        pytest.skip("no Vulkan device here")
    device = vs.FaultInjectionDevice(name, 2)
    with vs.Scheduler([device]) as sched, warnings.catch_warnings():
        warnings.simplefilter("ignore", vs.VkschedWarning)
        watch = watch_of(sched)
        run = sched.compile(steps(source(), ["a", "b"])[-1], {"*": name})
        for _ in range(5):
            run(x=X)
        reported = look(watch)
        assert reported.runs == 5
        first, cpu = reported.devices
        assert first.faults == 1 and first.problem
        assert cpu.faults == 0 and cpu.runs >= 3


def test_a_scheduler_is_not_retained_alive() -> None:
    sched = vs.Scheduler(["cpu"])
    watch, seen = watch_of(sched), weakref.ref(sched)
    sched.close()
    del sched
    gc.collect()
    assert seen() is None and watch.gone and watch.look() is None


def test_looking_while_others_compile_run_and_close_is_safe() -> None:
    names = list(DEVICE_SETS.values())[-1]
    with vs.Scheduler(names) as sched:
        watch, failed = watch_of(sched), list[BaseException]()
        ended = threading.Event()

        def looks() -> None:
            while not ended.is_set():
                try:
                    look(watch)
                except BaseException as error:
                    failed.append(error)
                    return

        thread = threading.Thread(target=looks)
        thread.start()
        for size in range(1, 12):
            run = sched.compile(vs.exp(vs.input("x", (size, 4))))
            for _ in range(5):
                run(x=np.ones((size, 4), np.float32))
            run.close()
        ended.set()
        thread.join()
        assert failed == []
        assert look(watch).runs == 55
