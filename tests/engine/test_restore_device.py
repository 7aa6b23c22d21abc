"""Devices of this host that are opened again after a failure."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from traced import null_devices

import vksched as vs
from vksched.engine.executable import CompiledGraph
from vksched.engine.faults import Faults, Quarantine
from vksched.engine.plan_builder import PlanBuilder
from vksched.engine.state_table import StateTable
from vksched.runtime.device import Device
from vksched.runtime.vulkan import vulkan_device
from vksched.runtime.vulkan.device_probe import list_devices

RNG = np.random.default_rng(3)
X = RNG.standard_normal((8, 16), dtype=np.float32)
W = RNG.standard_normal((16, 16), dtype=np.float32)
NAMES = [info.name for info in list_devices() if info.name != "cpu" and info.usable]


@pytest.fixture(params=["simulated", *NAMES])
def device(request: pytest.FixtureRequest) -> Iterator[vs.FaultInjectionDevice]:
    name = request.param
    inner: str | Device = null_devices(1)[0] if name == "simulated" else name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vs.VkschedWarning)
        yield vs.FaultInjectionDevice(inner, at=None)


def current(sched: vs.Scheduler) -> vs.FaultInjectionDevice:
    found = sched.devices[0]
    assert isinstance(found, vs.FaultInjectionDevice)
    return found


def homes(run: CompiledGraph) -> set[str]:
    assert run.plan is not None
    return {run.plan.topology.devices[split.device].name for split in run.plan.splits}


def test_graphs_use_a_restored_device_again(device: vs.FaultInjectionDevice) -> None:
    expected = np.maximum(X @ W, 0)
    with vs.Scheduler([device]) as sched:
        name = device.name
        run = sched.compile(vs.relu(vs.input("x", X.shape) @ vs.weight(W, name="w")))
        other = sched.compile(vs.input("x", X.shape) + 1)
        for _ in range(3):
            first = run(x=X)
            np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
            assert homes(run) == {name}
            lost = current(sched)
            lost.at = 0
            np.testing.assert_allclose(run(x=X), expected, rtol=1e-5, atol=1e-5)
            assert set(sched.failed_devices) == {name} and name not in homes(run)
            sched.restore_device(name)
            assert not sched.failed_devices
            assert current(sched) is not lost
            np.testing.assert_array_equal(run(x=X), first)
            np.testing.assert_array_equal(other(x=X), X + 1)  # it was not run after the loss
            assert homes(run) == homes(other) == {name}


def test_states_of_a_lost_device_stay_lost(device: vs.FaultInjectionDevice) -> None:
    state = vs.state(np.zeros(4, np.float32), "total", backup=False)
    with vs.Scheduler([device]) as sched:
        run = sched.compile(vs.input("x", (4,)) + state, updates={state: state + 1})
        run(x=np.ones(4, np.float32))
        current(sched).at = 0
        with pytest.raises(vs.StateLost):
            run(x=np.ones(4, np.float32))
        sched.restore_device(device.name)
        with pytest.raises(vs.StateLost):
            sched.read(state)
        sched.write(state, np.full(4, 5, np.float32))
        np.testing.assert_array_equal(run(x=np.ones(4, np.float32)), np.full(4, 6))
        np.testing.assert_array_equal(sched.read(state), np.full(4, 6))
        assert homes(run) == {device.name}


def test_a_device_in_use_is_not_reopened(device: vs.FaultInjectionDevice) -> None:
    with vs.Scheduler([device]) as sched:
        sched.restore_device(device.name)
        assert current(sched) is device
        with pytest.raises(vs.DeviceError, match=re.escape(f"{device.name}, or a host")):
            sched.restore_device("cpu")


def test_a_device_that_cannot_be_opened_stays_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = vs.FaultInjectionDevice(null_devices(1)[0], at=None)

    def refuse(self: vs.SimulatedDevice) -> None:
        raise vs.DeviceError("[open] there is no such device now")

    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        run = sched.compile(vs.input("x", X.shape) * 2)
        device.at = 0
        np.testing.assert_array_equal(run(x=X), 2 * X)
        with monkeypatch.context() as patch:
            patch.setattr(vs.SimulatedDevice, "reopen", refuse)
            with pytest.raises(vs.DeviceError, match="no such device now"):
                sched.restore_device(device.name)
        assert set(sched.failed_devices) == {device.name}
        np.testing.assert_array_equal(run(x=X), 2 * X)
        sched.restore_device(device.name)
        np.testing.assert_array_equal(run(x=X), 2 * X)
        assert homes(run) == {device.name}


LIMIT_S = 60


@pytest.fixture
def failed() -> Iterator[tuple[vs.Scheduler, vs.FaultInjectionDevice, list[CompiledGraph]]]:
    """A scheduler with a failed device, on which the second graph ran before the failure."""
    device = vs.FaultInjectionDevice(null_devices(1)[0], at=None)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        x = vs.input("x", X.shape)
        runs = [sched.compile(x * 2), sched.compile(x + 1)]
        runs[1](x=X)
        device.at = 0
        runs[0](x=X)
        assert set(sched.failed_devices) == {device.name}
        yield sched, device, runs


Failed = tuple[vs.Scheduler, vs.FaultInjectionDevice, list[CompiledGraph]]


def test_no_run_begins_on_the_closed_device(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another graph runs as soon as the device is no longer excluded."""
    sched, lost, (_, other) = failed
    restore, results = Quarantine.restore_device, list[object]()

    def run_after(self: Quarantine, names: Iterable[str]) -> None:
        restore(self, names)
        results.append(other(x=X))

    monkeypatch.setattr(Quarantine, "restore_device", run_after)
    before = dict(lost.calls)
    sched.restore_device(lost.name)
    np.testing.assert_array_equal(np.asarray(results[0]), X + 1)
    assert dict(lost.calls) == before
    assert homes(other) == {lost.name} and not sched.failed_devices


def test_graphs_compile_while_a_device_is_opened_again(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver takes seconds for it, and the former device is closed: its memory is unknown."""
    sched, lost, _ = failed
    spec_of, reopen = vs.FaultInjectionDevice.spec.fget, vs.FaultInjectionDevice.reopen
    results: list[object] = []

    def spec(self: vs.FaultInjectionDevice) -> vs.DeviceSpec:
        if self is lost:
            raise vs.DeviceError("[memory] expected an open device, got a closed one")
        found: vs.DeviceSpec = spec_of(self)
        return found

    def slow(self: vs.FaultInjectionDevice) -> vs.FaultInjectionDevice:
        x = vs.input("x", X.shape)
        results.append(sched.compile(x * 5)(x=X))
        return reopen(self)

    monkeypatch.setattr(vs.FaultInjectionDevice, "spec", property(spec))
    monkeypatch.setattr(vs.FaultInjectionDevice, "reopen", slow)
    sched.restore_device(lost.name)
    np.testing.assert_array_equal(np.asarray(results[0]), 5 * X)
    assert not sched.failed_devices


def test_no_plan_reads_the_closed_device(failed: Failed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is restored while another thread describes the devices for a plan."""
    sched, lost, _ = failed
    name, spec_of, threads = lost.name, PlanBuilder._spec, list[threading.Thread]()
    read: list[Device] = []

    def slow(self: vs.FaultInjectionDevice) -> str:
        if self is lost and not threads:
            threads.append(threading.Thread(target=sched.restore_device, args=[name]))
            threads[0].start()
            threads[0].join(0.5)
        return name

    def observed(self: PlanBuilder, device: Device) -> object:
        read.append(device)
        return spec_of(self, device)

    monkeypatch.setattr(PlanBuilder, "_spec", observed)
    monkeypatch.setattr(vs.FaultInjectionDevice, "name", property(slow))
    topology = sched._preparing.topology()
    monkeypatch.undo()
    threads[0].join(LIMIT_S)
    assert lost not in read and topology.devices[0].disabled_reason
    assert not sched.failed_devices and current(sched) is not lost


def test_a_late_fault_of_the_former_device_does_not_exclude_the_new_one(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is restored while another graph records a fault of the lost one."""
    sched, lost, (run, _) = failed
    is_in_use, threads = StateTable.is_in_use, list[threading.Thread]()

    def slow(self: StateTable, device: Device) -> bool:
        found = is_in_use(self, device)
        if device is lost and not threads:
            threads.append(threading.Thread(target=sched.restore_device, args=[lost.name]))
            threads[0].start()
            threads[0].join(0.5)
        return found

    error = vs.DeviceLost("[submit] it is lost")
    error.device, error.during = lost.name, "submit"
    monkeypatch.setattr(StateTable, "is_in_use", slow)
    Faults(sched._quarantine, sched._states, sched.trace).record([error], [lost])
    threads[0].join(LIMIT_S)
    assert not sched.failed_devices and current(sched) is not lost
    np.testing.assert_array_equal(run(x=X), 2 * X)
    assert homes(run) == {lost.name}


def test_a_device_that_returns_during_close_is_closed(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that hangs while it opens a device does not prevent `close`."""
    sched, lost, _ = failed
    opening, go_on = threading.Event(), threading.Event()
    opened, closed, errors = list[Device](), list[Device](), list[str]()
    reopen, close = vs.FaultInjectionDevice.reopen, vs.FaultInjectionDevice.close

    def slow(self: vs.FaultInjectionDevice) -> vs.FaultInjectionDevice:
        opening.set()
        assert go_on.wait(LIMIT_S)
        opened.append(new := reopen(self))
        return new

    def noted(self: vs.FaultInjectionDevice) -> None:
        closed.append(self)
        close(self)

    def restore() -> None:
        try:
            sched.restore_device(lost.name)
        except vs.DeviceError as error:
            errors.append(str(error))

    monkeypatch.setattr(vs.FaultInjectionDevice, "reopen", slow)
    monkeypatch.setattr(vs.FaultInjectionDevice, "close", noted)
    thread = threading.Thread(target=restore)
    thread.start()
    assert opening.wait(LIMIT_S)
    sched.close()
    go_on.set()
    thread.join(LIMIT_S)
    assert len(opened) == 1 and opened[0] in closed
    assert len(errors) == 1 and "closed" in errors[0]


def test_the_warning_names_the_remedy() -> None:
    device = vs.FaultInjectionDevice(null_devices(1)[0], at=None)
    with vs.Scheduler([device]) as sched:
        run = sched.compile(vs.input("x", X.shape) * 2)
        device.at = 0
        with pytest.warns(
            vs.VkschedWarning, match=re.escape("until sched.restore_device('gpu:0')")
        ):
            run(x=X)


@pytest.mark.skipif(not NAMES, reason="needs a Vulkan device")
def test_another_device_at_the_index_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver lists other devices after a card has dropped off the bus."""
    device = vs.FaultInjectionDevice(NAMES[0], at=None)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        run = sched.compile(vs.input("x", X.shape) * 2)
        device.at = 0
        run(x=X)
        real = vulkan_device.describe_devices()
        for listed, text in (
            ([{**each, "uuid": "ab" * 16} for each in real], "got .* with UUID abab"),
            ([{**each, "name": "Other"} for each in real], "got Other"),
            ([], "got no device"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(vulkan_device, "describe_devices", lambda listed=listed: listed)
                with pytest.raises(vs.DeviceError, match=text):
                    sched.restore_device(device.name)
            assert set(sched.failed_devices) == {device.name}
        sched.restore_device(device.name)
        np.testing.assert_array_equal(run(x=X), 2 * X)
        assert homes(run) == {device.name}
