"""Devices of this host that are opened again after a failure."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from traced import null_devices

import vksched as vs
from vksched.engine.executable import CompiledGraph
from vksched.runtime.device import Device
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
