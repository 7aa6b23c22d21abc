"""Pipelines on null devices: as idle, and with as much memory, as the formulas say."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from selection import spread

import vksched as vs
from vksched.parallel.pipeline import (
    dualpipe,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
)
from vksched.plan.types.plan_types import DeviceMemory
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.topology.device_spec import DeviceSpec

WIDTH, ROWS = 16, 64
SCHEDULES = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "interleaved": partial(interleaved, rounds=2),
    "dualpipe": dualpipe,
}


def cards(count: int, clock: vs.SimulatedClock, **more: int) -> list[Device]:
    """Equal cards that are not there, without latency."""
    spec = {"flops_per_s": 1e9, "bytes_per_s": 1e15, "submit_s": 0.0, **more}
    return [
        vs.SimulatedDevice(DeviceSpec(f"n{i}", "null", **spec), clock, vs.Link(1e18))  # type: ignore[arg-type]
        for i in range(count)
    ]


def layers(
    schedule: str, devices: list[Device], batches: int, depth: int
) -> tuple[vs.Tensor, vs.Tensor, dict[str, vs.Tensor], dict[str, Any]]:
    """Input, result and weights of equal stages, and their config. depth: layers of a stage."""
    count = len(devices) * (2 if schedule == "interleaved" else 1)
    h = x = vs.input("x", (ROWS * batches, WIDTH))
    weights: dict[str, vs.Tensor] = {}
    for i in range(count):
        with vs.signal(f"s.{i}"):
            for layer in range(depth):
                w = vs.weight(np.eye(WIDTH, dtype=np.float32), f"w{layer}")
                weights[w.name] = w
                h = h @ w if depth == 1 else vs.tanh(h @ w)
    about = {
        "stages": [f"s.{i}" for i in range(count)],
        "microbatches": batches,
        "schedule": schedule,
        "devices": [d.name for d in devices],
    }
    return x, h, weights, {"pipeline": about}


@pytest.mark.parametrize(
    ("schedule", "devices", "batches"),
    [(name, 3, m) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2") for m in (6, 12)]
    + [(name, p, m) for name in ("interleaved", "dualpipe") for p, m in ((2, 4), (4, 8), (4, 16))],
)
def test_devices_are_idle_as_the_formulas_say(schedule: str, devices: int, batches: int) -> None:
    # F, I and W of each stage are a product each
    clock = vs.SimulatedClock()
    opened = cards(devices, clock)
    x, h, weights, config = layers(schedule, opened, batches, 1)
    with vs.Scheduler(opened, config=config) as sched:
        step = sched.compile(vs.grad(vs.reduce_sum(h * h), weights | {"x": x}))
        xs = np.ones(x.shape, np.float32)
        step(x=xs)
        begin = clock.now()
        step(x=xs)
        took = clock.now() - begin
    product_s = 2 * ROWS * WIDTH**2 / 1e9
    # a B that is no I and W hands its gradient on before it goes on with that of its weight
    early = devices - 1 if schedule in ("gpipe", "1f1b", "interleaved") else 0
    wanted = simulate(SCHEDULES[schedule](devices, batches)).makespan_s - early
    assert took == pytest.approx(wanted * product_s, rel=0.03)


@cache
def memory(schedule: str, batches: int, depth: int) -> tuple[DeviceMemory, ...]:
    """What a gradient by the weights of all stages takes on four cards."""
    opened = cards(4, vs.SimulatedClock())
    _, h, weights, config = layers(schedule, opened, batches, depth)
    with vs.Scheduler(opened, config=config) as sched:
        return sched.compile(vs.grad(vs.reduce_sum(h * h), weights)).plan.memory[:4]


DEPTH = 6


def held(schedule: str, batches: int) -> list[float]:
    """Activations of the two cards in the middle, in those of one stage for one microbatch."""
    one = 4 * ROWS * WIDTH * (DEPTH + 1)  # what its layers are given, and the last one's result
    return [4 * sum(m.activation_pages) / one for m in memory(schedule, batches, DEPTH)[1:3]]


def test_peaks_follow_the_microbatches_that_are_held() -> None:
    # beside what is held there are the gradients of weights, and values on their way
    few, many = held("gpipe", 8), held("gpipe", 16)
    assert [b - a for a, b in zip(few, many, strict=True)] == pytest.approx([8, 8], abs=0.5)
    first, second = held("1f1b", 16)
    assert first - second == pytest.approx(1, abs=0.2)  # 3 and 2
    assert many[0] - first == pytest.approx(16 - 3, abs=0.7)


@pytest.mark.parametrize(
    "schedule", spread(["1f1b", "zb-h1", "zb-h2", "interleaved", "dualpipe"], 2)
)
def test_peaks_do_not_grow_with_the_batch(schedule: str) -> None:
    assert held(schedule, 16) == pytest.approx(held(schedule, 8), abs=0.6)


def test_h2_holds_more_than_h1_by_its_formula() -> None:
    # 7 and 4 microbatches; between I and W also the gradients, one a layer
    h1, h2 = held("zb-h1", 16)[0], held("zb-h2", 16)[0]
    assert (7 - 4) - 0.5 <= h2 - h1 <= 2 * (7 - 4) + 0.5


def test_dualpipe_holds_each_weight_twice() -> None:
    weights = 4 * WIDTH * WIDTH * DEPTH
    for schedule, copies in (("1f1b", 1), ("dualpipe", 2)):
        found = memory(schedule, 8, DEPTH)
        assert [m.weight_bytes for m in found] == pytest.approx([copies * weights] * 4, rel=0.02)
        assert all(m.peak_bytes >= m.weight_bytes + 4 * sum(m.activation_pages) for m in found)


@pytest.mark.parametrize(("memory_bytes", "taken"), [(2 << 20, "zb-h1"), (110_000, "1f1b")])
def test_auto_takes_what_memory_suffices_for(memory_bytes: int, taken: str) -> None:
    # what a card has no room for goes to the CPU, which is slow here
    opened = cards(3, vs.SimulatedClock(), memory_bytes=memory_bytes)
    slow = CpuDevice(DeviceSpec("cpu", "cpu", flops_per_s=1e7, bytes_per_s=1e15))
    _, h, weights, config = layers("auto", opened, 6, 1)
    with vs.Scheduler([*opened, slow], config=config) as sched:
        plan = sched.compile(vs.grad(vs.reduce_sum(h * h), weights)).plan
    assert [note for note in plan.notes if note.startswith(f"pipeline: {taken}, 3 stages")]
