"""Planning is linear: four times the nodes take about four times the steps, whatever the graph's
shape and the machine. A step is a line of vksched/plan that Python carries out, so no clock counts.
Where memory is tight there are many drafts, about as many for each size: there a draft counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from planning_time import random_graph, transformer

import vksched as vs
from vksched.plan.types.offsets import Lifetime
from vksched.planner import planner
from vksched.planner.memory import draft
from vksched.planner.memory.allocate import MemoryUse
from vksched.planner.search import candidates
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology

SHAPE = (4, 16)
BYTES = 4 * 4 * 16
SIZES = (200, 800)
MOST = 1.2
"""Times the steps per node of the smaller graph."""
MAX_DRAFTS = 60
"""For two devices that are both too small."""
PLAN = str(Path(planner.__file__).parents[1] / "plan")  # and "planner"
Outputs = tuple[list[vs.Tensor], Mapping[vs.Tensor, vs.Tensor]]


def wide(count: int) -> Outputs:
    """Many nodes read one."""
    first = vs.relu(vs.input("x", SHAPE))
    return [vs.add(first, float(i)) for i in range(count)], {}


def join(count: int) -> Outputs:
    """One node reads many."""
    x = vs.input("x", SHAPE)
    return [vs.concat([vs.add(x, float(i)) for i in range(count)])], {}


def comb(count: int) -> Outputs:
    """A chain, each node of which reads the first one, too."""
    first = out = vs.relu(vs.input("x", SHAPE))
    for _ in range(count):
        out = vs.add(out, first)
    return [out], {}


def ladder(count: int) -> Outputs:
    """Every other node is one that picky devices cannot run."""
    x, rows = vs.input("x", SHAPE), np.arange(SHAPE[0], dtype=np.int32)
    for _ in range(count // 2):
        x = vs.gather(vs.relu(x), rows)
    return [x], {}


def grid(count: int) -> Outputs:
    """Rows whose nodes read the row above and the node beside."""
    x, side = vs.input("x", SHAPE), int(count**0.5)
    row = [vs.add(x, float(i)) for i in range(side)]
    for _ in range(side - 1):
        new: list[vs.Tensor] = []
        for i, above in enumerate(row):
            new.append(vs.add(above, new[-1] if i else above))
        row = new
    return row, {}


def states(count: int) -> Outputs:
    """Many states, each read and written."""
    x, updates = vs.input("x", SHAPE), {}
    for i in range(count // 3):
        held = vs.state(np.zeros(SHAPE, np.float32), name=f"s{i}")
        updates[held] = vs.add(held, x)
        x = vs.relu(updates[held])
    return [x], updates


GRAPHS: dict[str, Callable[[int], Outputs]] = {
    "wide": wide,
    "join": join,
    "comb": comb,
    "ladder": ladder,
    "grid": grid,
    "states": states,
    "random": lambda count: (random_graph(count), {}),
    "transformer": lambda count: (transformer(count), {}),
}
PICKY = {"limits": Limits(storage_buffers=3)}
TOPOLOGIES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "plain": lambda nodes: [{}, {}],
    "slow": lambda nodes: [{"flops_per_s": 1e5, "bytes_per_s": 1e6}] * 2,
    "picky": lambda nodes: [PICKY, {}],
    "tight": lambda nodes: [{"memory_bytes": max(8, nodes // 3) * BYTES}] * 2,
    "one buffer each": lambda nodes: [{"disable_aliasing": True}] * 2,
    "small pages": lambda nodes: [{"max_buffer_bytes": 1 << 14}] * 2,
    "op by op": lambda nodes: [{"submit_granularity": "op"}] * 2,
    "eight": lambda nodes: [{}] * 8,
}
EVERY_DAY = [
    ("wide", "one buffer each", "priority"),
    ("join", "op by op", "auto"),
    ("random", "slow", "auto"),
    ("grid", "tight", "priority"),
    ("ladder", "picky", "auto"),
    ("states", "plain", "auto"),
]


def steps(graph: str, topology: str, policy: str, count: int) -> tuple[float, int]:
    """Return the steps that planning takes for each node, and how many drafts it makes."""
    outputs, updates = GRAPHS[graph](count)
    output, _ = vs.build_graph(outputs, updates)
    devices = [
        DeviceSpec(f"null:{i}", "null", **spec)
        for i, spec in enumerate(TOPOLOGIES[topology](count))
    ]
    where = Topology((*devices, DeviceSpec("cpu", "cpu", memory_bytes=1 << 44)))
    taken = drafts = 0

    def line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal taken
        taken += event == "line"
        return line

    def call(frame: FrameType, event: str, _: object) -> Any:
        nonlocal drafts
        drafts += frame.f_code is draft.make_draft.__code__
        return line if frame.f_code.co_filename.startswith(PLAN) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        vs.plan_graph(output, where, policy=policy)
    finally:
        sys.settrace(before)
    return taken / len(output.ops), drafts


def check(graph: str, topology: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "LARGE", 0)  # so that both sizes are treated alike
    small, large = (steps(graph, topology, policy, count) for count in SIZES)
    each = [taken / (drafts if topology == "tight" else 1) for taken, drafts in (small, large)]
    assert max(small[1], large[1]) <= (MAX_DRAFTS if topology == "tight" else 1)
    assert each[1] <= MOST * each[0], f"{each[0]:.0f} steps a node, then {each[1]:.0f}"


@pytest.mark.parametrize(("graph", "topology", "policy"), EVERY_DAY)
def test_steps_grow_as_the_graph_does(
    graph: str, topology: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(graph, topology, policy, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["priority", "auto"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_steps_grow_as_every_graph_does(
    graph: str, topology: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (topology, policy) != ("tight", "auto"):  # the choice is made once, and drafts share it
        check(graph, topology, policy, monkeypatch)


def test_a_stage_that_looks_at_all_for_each_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(MemoryUse):
        def lifetimes(self, slack: float | None = None) -> list[Lifetime]:
            assert all(self.live() for _ in self.parts)
            return super().lifetimes(slack)

    monkeypatch.setattr(draft, "MemoryUse", Slow)
    with pytest.raises(AssertionError, match="steps a node, then"):
        check("wide", "plain", "priority", monkeypatch)
