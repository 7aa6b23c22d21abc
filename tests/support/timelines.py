"""Made-up plans and events for tests of timelines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from traced import X, graph_of_two_devices

import vksched as vs
from vksched.topology.links import Link
from vksched.trace import Event
from vksched.viz.timeline.build import run_timeline
from vksched.viz.timeline.timeline import Timeline
from vksched.viz.timeline.timeline_types import Lane, NodeView, PlanView, PredictedSpan, SplitView

LANES = [Lane("host"), Lane("gpu:0", "a fast card"), Lane("gpu:1", "a slow card")]
STEP_S = 200e-6
COPY_S = 10e-6
SPLITS = 4


def sample_plan(nodes_of_split: int = 3) -> PlanView:
    """Four splits, by turns on two devices, each of which reads what the one before made."""
    ops = ("matmul", "relu", "softmax")
    count = SPLITS * nodes_of_split
    nodes = [
        NodeView(
            f"layer{i}", ops[i % 3], f"float32[{i + 1},64]", ("x float32[1,64]",), 20e-6,
            f"layer{i}: explained",
        )
        for i in range(count)
    ]  # fmt: skip
    splits = [
        SplitView(
            1 + i % 2,
            tuple(range(i * nodes_of_split, (i + 1) * nodes_of_split)),
            (i - 1,) if i else (),
            ((i - 1, f"h{i}", 4096),) if i else (),
        )
        for i in range(SPLITS)
    ]
    predicted: list[PredictedSpan] = []
    for i in range(SPLITS):
        at = i * STEP_S
        predicted.append(PredictedSpan("copy", 1 + i % 2, i, at, at + COPY_S))
        predicted.append(PredictedSpan("split", 1 + i % 2, i, at + COPY_S, at + STEP_S))
        predicted.append(PredictedSpan("wait", 1 + i % 2, i, at + COPY_S, at + STEP_S))
    alive = [(i + 1) << 20 for i in range(SPLITS)]
    about, most = "plan: all of it", [0, 8 << 20, 8 << 20]
    return PlanView("plan", about, nodes, splits, predicted, SPLITS * STEP_S, alive, most)


def sample_events(runs: int, seed: int = 1) -> list[Event]:
    """Runs of that plan one after the other: 13 events each."""
    draw = random.Random(seed)
    out: list[Event] = []
    at = 100.0
    for run in range(runs):
        start = at
        for i in range(SPLITS):
            device = f"gpu:{i % 2}"
            copied = at + draw.uniform(1e-6, 2 * COPY_S)
            done = copied + draw.uniform(0.1 * STEP_S, 2 * STEP_S)
            about = {"split": i, "node": 1, "bytes": 4096}
            out.append(Event("copy", device, at, copied, run, about, 0))
            out.append(Event("split", device, copied, done, run, {"split": i}, 0))
            at = done + 1e-6
            out.append(Event("wait", device, copied, at, run, {"split": i}, 0))
        out.append(Event("run", "host", start, at, run, {}, 0))
        at += 5e-6
    return out


def sample_timeline(runs: int = 2) -> Timeline:
    return run_timeline(sample_events(runs), [sample_plan()], LANES)


def simulated_devices(copy_queues: bool = False) -> list[Any]:
    """Two null devices and a slow CPU, all on one simulated clock."""
    clock = vs.SimulatedClock()
    speeds = {"flops_per_s": 3e7, "bytes_per_s": 2e8, "submit_s": 7e-5}
    specs = [vs.DeviceSpec("gpu:0", "null", **speeds), vs.DeviceSpec("gpu:1", "null", **speeds)]
    if copy_queues:
        specs = [replace(s, limits=replace(s.limits, copy_queue=True)) for s in specs]
    cpu = vs.DeviceSpec("cpu", "cpu", flops_per_s=2e7, bytes_per_s=1e8, submit_s=1e-6)
    links = {"gpu:0": Link(3e7, 1e-5), "gpu:1": Link(1e7, 3e-5)}
    return [vs.SimulatedDevice(spec, clock, link=links.get(spec.name)) for spec in (*specs, cpu)]


def simulated_tape() -> vs.Tape:
    """Two runs of a graph over two null devices and a slow CPU, all on one simulated clock: they
    take exactly what plans expect.
    """
    graph = graph_of_two_devices()
    del graph["observe"]  # plans expect no copies for observers
    return _taped(simulated_devices(), graph, X)


SIDE = 512
"""Of the weights that a copy queue brings: 1 MiB each."""


def copying_tape() -> vs.Tape:
    """The same of four products whose weights lie in host memory: copy queues bring them, and take
    out what crosses.
    """
    y, placement = vs.input("x", (SIDE, SIDE)), {}
    for layer in range(4):
        weight = vs.weight(np.eye(SIDE, dtype=np.float32) * (layer + 1), name=f"w{layer}")
        y = vs.matmul(y, weight, name=f"p{layer}")
        placement |= {weight: "cpu", y: f"gpu:{layer // 2}"}
    graph = {"outputs": y, "placement": placement}
    x = np.ones((SIDE, SIDE), np.float32)
    return _taped(simulated_devices(copy_queues=True), graph, x, optimize=False)


def _taped(devices: Sequence[Any], graph: dict[str, Any], x: Any, **options: Any) -> vs.Tape:
    tape = vs.Tape()
    with vs.Scheduler(devices, trace=vs.Trace(devices[0].clock, [tape]), **options) as sched:
        run = sched.compile(**graph)
        run(x=x)
        run(x=x)
    return tape
