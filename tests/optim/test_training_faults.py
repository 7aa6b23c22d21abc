"""A device lost in the middle of training: the same steps from whole states, or StateLost."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from test_executor import null_devices
from test_state_faults import faulty

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.runtime.device import Device

STEPS = 3
RNG = np.random.default_rng(5)
X = RNG.standard_normal((STEPS, 6, 4)).astype(np.float32)
Y = RNG.integers(0, 3, (STEPS, 6)).astype(np.int32)


class Training:
    """Two layers on two devices, each with its parameters and moments."""

    def __init__(self, sched: vs.Scheduler, names: list[str], backup: bool) -> None:
        self.sched = sched
        shapes = {"front.w": (5, 4), "back.w": (3, 5)}
        params = {
            name: vs.state(vs.init.kaiming_normal(shape, name=name), name, backup=backup)
            for name, shape in shapes.items()
        }
        with vs.name_scope("front"):
            h = vs.relu(vs.linear(vs.input("x", (6, 4)), params["front.w"]))
        with vs.name_scope("back"):
            logits = vs.linear(h, params["back.w"])
        loss = vs.losses.cross_entropy(logits, vs.input("y", (6,), "int32", bounds=(0, 2)))
        self.updates = vs.optim.adamw(params, vs.grad(loss, params), 0.1)
        halves = {"front.*": names[0], "back.*": names[-1]}
        self.run = sched.compile(loss, halves, updates=self.updates)

    def step(self, i: int) -> float:
        return float(self.run(x=X[i], y=Y[i]))

    def values(self) -> dict[str, NDArray]:
        return {state.name: self.sched.read(state) for state in self.updates}


def train(devices: list[Device], backup: bool) -> tuple[list[float], dict[str, NDArray] | None]:
    """Return the losses of the steps up to the first whose states are lost, and the states at the
    end, None where they are lost.
    """
    losses: list[float] = []
    with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        training = Training(sched, [d.name for d in devices], backup)
        try:
            for i in range(STEPS):
                losses.append(training.step(i))
            return losses, training.values()
        except vs.StateLost as error:
            assert not backup and "sched.write" in str(error)
            return losses, None


def submissions(index: int) -> int:
    devices = faulty(null_devices(2)[1], index, at=None)
    train(devices, True)
    counter = devices[index]
    assert isinstance(counter, vs.FaultInjectionDevice)
    return counter.calls["submit"]


@pytest.mark.parametrize("backup", [True, False])
@pytest.mark.parametrize("index", [0, 1])
def test_a_device_lost_at_every_submission_of_three_steps(index: int, backup: bool) -> None:
    expected, last = train(null_devices(2)[1], True)
    assert last is not None and len(expected) == STEPS and expected[-1] != expected[0]
    ended = []
    for at in range(submissions(index)):
        devices = faulty(null_devices(2)[1], index, kind="lost", at=at, times=1)
        losses, states = train(devices, backup)
        np.testing.assert_allclose(losses, expected[: len(losses)], rtol=1e-5, err_msg=str(at))
        ended.append(states is not None)
        for name, value in (states or {}).items():
            np.testing.assert_allclose(value, last[name], 1e-4, 1e-6, err_msg=f"{at} {name}")
    assert len(ended) >= 2 * STEPS
    assert all(ended) if backup else not all(ended)
