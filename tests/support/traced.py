"""Tapes of small graphs over two null devices, for tests of what is done with tapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vksched as vs

X = np.linspace(0.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


def null_devices(count: int = 2) -> list[Any]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(vs.DeviceSpec(f"gpu:{i}", "null"), clock) for i in range(count)]


def graph_of_two_devices() -> dict[str, Any]:
    """Return arguments of `compile`: a graph with a state, a transfer value and an observer."""
    x = vs.input("x", X.shape)
    held = vs.state(np.zeros(X.shape, np.float32), "held")
    a = vs.relu(x @ vs.weight(X, name="w"), name="a")
    b = vs.gather(vs.softmax(a + held, name="b"), vs.constant(np.array([1, 5])))
    return {
        "outputs": {"a": a, "b": b},
        "placement": {"a": "gpu:0", "b": "gpu:1"},
        "updates": {held: a * 0.5},
        "observe": {"b": lambda *_: None},
    }


def save_two_runs(path: Path, devices: Sequence[Any] | None = None, **options: Any) -> Path:
    """Run the graph twice and writes the tape."""
    tape = vs.Tape()
    with vs.Scheduler(devices or null_devices(), trace=tape, **options) as sched:
        run = sched.compile(**graph_of_two_devices())
        run(x=X)
        run(x=X)
    tape.save(path)
    return path
