"""Devices that fail in the middle: every kind of failure at every submission, the run carried out
elsewhere, the answer that of numpy, the warning with the device's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from test_executor import X, null_devices, stepped
from test_scheduler import error, numpy_result

import vksched as vs
from vksched.runtime import probe
from vksched.runtime.device import Device
from vksched.runtime.faulty import KINDS
from vksched.runtime.opening import open_device
from vksched.types import NDArray

Build = Callable[[Sequence[str]], tuple[vs.Tensor, dict[str, str]]]

W = np.random.default_rng(5).standard_normal((4, 4), dtype=np.float32)


def chain(names: Sequence[str]) -> tuple[vs.Tensor, dict[str, str]]:
    """One op per device and back to the first."""
    ops = [f"op{i}" for i in range(len(names) + 1)]
    last = stepped(vs.input("x", X.shape), *ops)[-1]
    return last, {op: names[i % len(names)] for i, op in enumerate(ops)}


def diamond(names: Sequence[str]) -> tuple[vs.Tensor, dict[str, str]]:
    x = vs.input("x", X.shape)
    left, right = vs.mul(x, 2.0, name="left"), vs.mul(x, 3.0, name="right")
    join = vs.add(left, right, name="join")
    return join, {"left": names[0], "right": names[-1], "join": names[0]}


def weights(names: Sequence[str]) -> tuple[vs.Tensor, dict[str, str]]:
    """Each device has a weight of its own, which pulls its op there."""
    y: vs.Tensor = vs.input("x", X.shape)
    for i, _ in enumerate(names):
        y = vs.relu(y @ vs.weight(W, name=f"w{i}"))
    return y, {f"w{i}": name for i, name in enumerate(names)}


BUILDS: dict[str, Build] = {"chain": chain, "diamond": diamond, "weights": weights}


def named_devices(names: Sequence[str]) -> list[Device]:
    """Opens devices by name; the same one again gets a name of its own."""
    return [open_device(probe.resolve(n), f"{n}#{i}") for i, n in enumerate(names)]


def faulty(devices: Sequence[Device], index: int, **fault: Any) -> list[Device]:
    """The devices, one of them with a fault."""
    return [vs.FaultyDevice(d, **fault) if i == index else d for i, d in enumerate(devices)]


def submissions(build: Build, devices: list[Device], index: int) -> int:
    """How many submissions one run makes on a device."""
    watched = faulty(devices, index, at=None)
    with vs.Scheduler(watched) as sched:
        y, placement = build([d.name for d in devices])
        sched.compile(y, placement)(x=X)
    counter = watched[index]
    assert isinstance(counter, vs.FaultyDevice)
    return counter.calls["submit"]


def check_failover(
    build: Build, devices: list[Device], index: int, kind: str, **fault: Any
) -> None:
    """One failing device: right answer, one warning with its name, nothing placed there later."""
    name = devices[index].name
    y, placement = build([d.name for d in devices])
    with vs.Scheduler(faulty(devices, index, kind=kind, **fault)) as sched:
        with pytest.warns(vs.VkschedWarning) as caught:
            run = sched.compile(y, placement)
            got, again = run(x=X), run(x=X * 2)
        close_to(got, numpy_result(y, X))
        close_to(again, numpy_result(y, X * 2))
        texts = [str(w.message) for w in caught]
        assert all(f"[fault] {name} failed in split" in text for text in texts)
        assert len(texts) == (2 if kind == "memory" else 1)
        used = {run.plan.machine.devices[s.device].name for s in run.plan.splits}
        assert name not in used
        assert run.stats is not None and name not in run.stats.device_seconds
        assert name in run.plan.explain() and "out of use" in run.plan.explain()
        assert list(sched.quarantined) == ([] if kind == "memory" else [name])


def close_to(got: Any, expected: NDArray) -> None:
    assert got.shape == expected.shape and error(np.asarray(got), expected) < 1e-10


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", list(BUILDS))
def test_every_kind_at_every_submission(graph: str, kind: str, count: int) -> None:
    build = BUILDS[graph]
    for index in range(count):
        for at in range(submissions(build, null_devices(count)[1], index)):
            check_failover(build, null_devices(count)[1], index, kind, at=at)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", list(BUILDS))
def test_every_kind_on_vulkan(devices: list[str], graph: str, kind: str) -> None:
    if devices == ["cpu"]:
        pytest.skip("no Vulkan device in this set")
    build = BUILDS[graph]
    for index in range(len(devices)):
        for at in range(submissions(build, named_devices(devices), index)):
            check_failover(build, named_devices(devices), index, kind, at=at)
