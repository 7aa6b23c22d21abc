"""States and devices that fail: restored from the host's copy, or one clear error; never wrong."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from test_executor import X, null_devices

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.runtime.device import Device
from vksched.runtime.simulated.fault_injection import KINDS
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.open_device import open_device

RUNS = 3


def faulty(devices: list[Device], index: int, **fault: Any) -> list[Device]:
    """The devices, one of them with a fault."""
    return [vs.FaultInjectionDevice(d, **fault) if i == index else d for i, d in enumerate(devices)]


def named_devices(names: list[str]) -> list[Device]:
    """Open devices by name; the same one again gets a name of its own."""
    return [open_device(device_probe.resolve(n), f"{n}#{i}") for i, n in enumerate(names)]


def two_states(names: list[str], backup: bool) -> tuple[vs.Tensor, vs.Tensor, Any, dict[str, str]]:
    """Two states on two devices, each of which needs the other's value for its next one."""
    a = vs.state(X, name="a", backup=backup)
    b = vs.state(X + 10, name="b", backup=backup)
    x = vs.input("x", X.shape)
    next_a = vs.add(vs.mul(a, 0.5, name="half"), b, name="next_a")
    next_b = vs.sub(vs.add(b, x, name="fed"), a, name="next_b")
    placement = {"a": names[0], "half": names[0], "b": names[-1], "fed": names[-1]}
    return a, b, {"outputs": next_a - next_b, "updates": {a: next_a, b: next_b}}, placement


def step(a: NDArray, b: NDArray, x: NDArray) -> tuple[NDArray, NDArray]:
    """What one run makes of the two states."""
    return a * np.float32(0.5) + b, b + x - a


def submissions(devices: list[Device], index: int) -> int:
    """How many submissions RUNS runs make on a device."""
    watched = faulty(devices, index, at=None)
    with vs.Scheduler(watched) as sched:
        _, _, graph, placement = two_states([d.name for d in devices], True)
        run = sched.compile(graph["outputs"], placement, updates=graph["updates"])
        for i in range(RUNS):
            run(x=X + i)
    counter = watched[index]
    assert isinstance(counter, vs.FaultInjectionDevice)
    return counter.calls["submit"]


def check(devices: list[Device], index: int, backup: bool, **fault: Any) -> int:
    """Runs with one failing device; returns how many runs found a state lost."""
    names = [d.name for d in devices]
    a, b, graph, placement = two_states(names, backup)
    expected = (X, X + 10)
    lost = 0
    with warnings.catch_warnings(), vs.Scheduler(faulty(devices, index, **fault)) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        run = sched.compile(graph["outputs"], placement, updates=graph["updates"])
        for i in range(RUNS):
            try:
                got = run(x=X + i)
            except vs.StateLost as error:
                lost += 1
                assert not backup and names[index] in str(error) and "sched.write" in str(error)
                for state, value in zip((a, b), expected, strict=True):
                    try:
                        assert np.allclose(sched.read(state), value), "not lost, so it is right"
                    except vs.StateLost:
                        sched.write(state, value)
                got = run(x=X + i)
            expected = step(*expected, X + i)
            assert np.allclose(got, expected[0] - expected[1]), (i, fault)
        for state, value in zip((a, b), expected, strict=True):
            try:
                assert np.allclose(sched.read(state), value), (state, fault)
            except vs.StateLost:
                assert not backup
        assert (names[index] in sched.failed_devices) == (fault["kind"] != "memory")
    return lost


@pytest.mark.parametrize("backup", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [0, 1])
def test_every_kind_at_every_submission(index: int, kind: str, backup: bool) -> None:
    count = submissions(null_devices(2)[1], index)
    lost = [
        check(null_devices(2)[1], index, backup, kind=kind, at=at, times=1) for at in range(count)
    ]
    if backup:
        assert not any(lost)
    elif kind != "memory":
        assert any(lost), "a state without a copy is lost with its device"


@pytest.mark.parametrize("kind", ["lost", "sequence", "memory"])
def test_on_vulkan(two_devices: list[str], kind: str) -> None:
    count = submissions(named_devices(two_devices), 1)
    for at in {0, count // 2, count - 1}:
        for backup in (True, False):
            check(named_devices(two_devices), 1, backup, kind=kind, at=at, times=1)


@pytest.mark.parametrize("call", ["prepare", "stage", "wait", "check", "fetch", "states"])
@pytest.mark.parametrize("index", [0, 1])
def test_every_call(index: int, call: str) -> None:
    for at in range(6):
        devices = null_devices(2)[1]
        names = [d.name for d in devices]
        a, b, graph, placement = two_states(names, True)
        expected = (X, X + 10)
        broken = faulty(devices, index, kind="lost", call=call, at=at)
        with warnings.catch_warnings(), vs.Scheduler(broken) as sched:
            warnings.simplefilter("ignore", vs.VkschedWarning)
            run = sched.compile(graph["outputs"], placement, updates=graph["updates"])
            for i in range(RUNS):
                got = run(x=X + i)
                expected = step(*expected, X + i)
                assert np.allclose(got, expected[0] - expected[1]), (call, at, i)
            if not (call == "states" and at > 0):  # then it is the reading that fails
                assert np.allclose(sched.read(a), expected[0])
                assert np.allclose(sched.read(b), expected[1])


def test_a_device_lost_while_states_are_written_costs_no_result() -> None:
    """All is computed: the caller gets it, with a warning, and the next run goes on from there."""
    devices = null_devices(2)[1]
    a, b, graph, placement = two_states([d.name for d in devices], True)
    with vs.Scheduler(faulty(devices, 1, kind="lost", at=None)) as sched:
        run = sched.compile(graph["outputs"], placement, updates=graph["updates"])
        commit = sum(s.device == 1 for s in run.plan.splits) - 1
        broken = sched.devices[1]
        assert isinstance(broken, vs.FaultInjectionDevice)
        broken.at = commit
        with pytest.warns(vs.VkschedWarning, match="null:1 failed"):
            got = run(x=X)
        after = step(X, X + 10, X)
        assert np.allclose(got, after[0] - after[1])
        assert np.allclose(sched.read(a), after[0]) and np.allclose(sched.read(b), after[1])


def test_a_failure_in_one_graph_moves_the_states_of_another() -> None:
    devices = null_devices(2)[1]
    held = vs.state(X, name="held")
    x = vs.input("x", X.shape)
    with vs.Scheduler(faulty(devices, 0, kind="lost", at=1)) as sched:
        step_ = sched.compile(vs.neg(held), {"held": "null:0"}, updates={held: held + 1.0})
        other = sched.compile(x * 2.0, {"mul": "null:0"})
        with pytest.warns(vs.VkschedWarning, match="null:0 failed"):
            other(x=X)
            other(x=X)
            assert np.array_equal(step_(), -X)
        assert np.array_equal(step_(), -X - 1)
        assert np.array_equal(sched.read(held), X + 2)


def test_raise_leaves_states_as_the_last_good_run_did() -> None:
    devices = null_devices(1)[1]
    held = vs.state(X, name="held", backup=True)
    with vs.Scheduler(faulty(devices, 0, kind="lost", at=2), on_device_failure="raise") as sched:
        run = sched.compile(vs.neg(held), {"held": "null:0"}, updates={held: held + 1.0})
        run()
        with pytest.raises(vs.DeviceLost):
            run()
        assert np.array_equal(sched.read(held), X + 1)


def test_a_lost_state_is_lost_until_it_is_written() -> None:
    devices = null_devices(1)[1]
    held = vs.state(X, name="held", backup=False)
    with vs.Scheduler(faulty(devices, 0, kind="lost", at=2)) as sched:
        run = sched.compile(vs.neg(held), {"held": "null:0"}, updates={held: held + 1.0})
        run()
        with pytest.warns(vs.VkschedWarning), pytest.raises(vs.StateLost, match="'held'.*null:0"):
            run()
        for attempt in (run, lambda: sched.read(held), lambda: sched.compile(held * 2.0)):
            with pytest.raises(vs.StateLost, match=r"sched\.write"):
                attempt()
        sched.write(held, X)
        assert np.array_equal(run(), -X) and np.array_equal(sched.read(held), X + 1)
