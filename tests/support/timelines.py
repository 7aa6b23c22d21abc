"""Made-up plans and events for tests of timelines."""

from __future__ import annotations

import random

from vksched.trace import Event
from vksched.view.make import run_timeline
from vksched.view.timeline import Timeline
from vksched.view.value import Foreseen, Lane, NodeTold, PlanTold, SplitTold

LANES = [Lane("host"), Lane("gpu:0", "a fast card"), Lane("gpu:1", "a slow card")]
STEP_S = 200e-6
COPY_S = 10e-6
SPLITS = 4


def told_plan(nodes_of_split: int = 3) -> PlanTold:
    """Four splits, by turns on two devices, each of which reads what the one before made."""
    ops = ("matmul", "relu", "softmax")
    count = SPLITS * nodes_of_split
    nodes = [
        NodeTold(
            f"layer{i}", ops[i % 3], f"float32[{i + 1},64]", ("x float32[1,64]",), 20e-6,
            f"layer{i}: explained",
        )
        for i in range(count)
    ]  # fmt: skip
    splits = [
        SplitTold(
            1 + i % 2,
            tuple(range(i * nodes_of_split, (i + 1) * nodes_of_split)),
            (i - 1,) if i else (),
            ((i - 1, f"h{i}", 4096),) if i else (),
        )
        for i in range(SPLITS)
    ]
    foreseen: list[Foreseen] = []
    for i in range(SPLITS):
        at = i * STEP_S
        foreseen.append(Foreseen("copy", 1 + i % 2, i, at, at + COPY_S))
        foreseen.append(Foreseen("split", 1 + i % 2, i, at + COPY_S, at + STEP_S))
        foreseen.append(Foreseen("wait", 1 + i % 2, i, at + COPY_S, at + STEP_S))
    alive = [(i + 1) << 20 for i in range(SPLITS)]
    about, most = "plan: all of it", [0, 8 << 20, 8 << 20]
    return PlanTold("plan", about, nodes, splits, foreseen, SPLITS * STEP_S, alive, most)


def told_events(runs: int, seed: int = 1) -> list[Event]:
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


def told_timeline(runs: int = 2) -> Timeline:
    return run_timeline(told_events(runs), [told_plan()], LANES)
