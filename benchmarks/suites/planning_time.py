"""Planning time per node for graphs of growing size; benchmarks/overheads/planning.py has a table.

Four kinds of graphs: the layers of a transformer on one device, the same spread over two devices, a
random graph over two devices, and a random graph that nobody has placed on two slow devices, where
"auto" finds that both together are faster. A node is the result of an op or a view; leaves do not
count. Each kind is planned by each policy.

Times are CPU time of this process, the median of several plans of a graph built anew each time, as
a graph keeps what was once asked of it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import vksched as vs
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.suite_loader import Suite
from vksched.planner import planner
from vksched.planner.memory import draft
from vksched.planner.search import evaluate
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

SIZES = (1_000, 10_000, 100_000)
FACT_SIZES = (1_000, 3_000, 10_000, 30_000)
WIDTH, HEADS, TOKENS = 64, 4, 16
POLICIES = ("priority", "auto")
STAGES = {
    "choose": "choice",
    "place": "placement",
    "split_graph": "splits",
    "MemoryUse": "memory",
    "assign_memory": "memory",
    "critical_path_length": "barriers",
    "split_items": "barriers",
    "find_barriers": "barriers",
    "verify_plan": "verify",
}
"""What the planner calls, by stage; the rest of it stands under "rest"."""


# -- graphs ------------------------------------------------------------------------------------


def transformer(nodes: int) -> list[vs.Tensor]:
    """Layers of attention and a feed-forward part until there are so many nodes."""
    rng = np.random.default_rng(7)
    arrays = {
        shape: rng.standard_normal(shape, dtype=np.float32) / WIDTH
        for shape in ((WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH,))
    }
    x, count, layer = vs.input("x", (1, TOKENS, WIDTH)), 0, 0

    def linear(value: vs.Tensor, name: str, out: int = WIDTH) -> vs.Tensor:
        weight = vs.weight(arrays[value.shape[-1], out], name=name)
        return vs.matmul(value, weight)

    def norm(value: vs.Tensor, name: str) -> vs.Tensor:
        weight = vs.weight(arrays[(WIDTH,)], name=f"{name}.weight")
        return vs.layer_norm(value, weight, vs.weight(arrays[(WIDTH,)], name=f"{name}.bias"))

    def heads(value: vs.Tensor) -> vs.Tensor:
        return value.reshape(1, TOKENS, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    while count < nodes:
        with vs.name_scope(f"layer.{layer}"):
            h = norm(x, "norm_1")
            q, k, v = (heads(linear(h, part)) for part in ("query", "key", "value"))
            scores = vs.matmul(q, k, transpose_b=True) * 0.25
            seen = (vs.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(1, TOKENS, WIDTH)
            x = x + linear(seen, "out")
            h = norm(x, "norm_2")
            x = x + linear(vs.gelu(linear(h, "up", 4 * WIDTH)), "down")
        count, layer = count + 23, layer + 1
    return [x]


def random_graph(nodes: int) -> list[vs.Tensor]:
    """Elementwise ops, views and products of values made a while ago; the sinks are outputs."""
    rng = np.random.default_rng(11)
    weights = [
        vs.weight(rng.standard_normal((32, 32), dtype=np.float32), name=f"w{i}") for i in range(64)
    ]
    pool = [vs.input("x", (8, 32))]
    unread = dict.fromkeys(pool)
    for kind, a, b in zip(
        rng.integers(0, 6, nodes),
        rng.geometric(0.2, nodes),
        rng.geometric(0.05, nodes),
        strict=True,
    ):
        left, right = pool[max(-a, -len(pool))], pool[max(-b, -len(pool))]
        if kind == 0:
            new = left @ weights[int(b) % 64]
        elif kind == 1:
            new = vs.relu(left)
        elif kind == 2:
            new = vs.reshape(vs.reshape(left, (16, 16)), (8, 32))
        else:
            new = (left + right) if kind < 5 else (left * right)
            unread.pop(right, None)
        unread.pop(left, None)
        unread[new] = None
        pool.append(new)
    return list(unread)


def topology(flops_per_s: float = 1e11) -> Topology:
    """Two devices of this speed with room for all of it, and the CPU."""
    rates = {"flops_per_s": flops_per_s, "bytes_per_s": flops_per_s / 5, "memory_bytes": 1 << 44}
    gpus = [DeviceSpec(f"null:{i}", "null", **rates) for i in range(2)]  # type: ignore[arg-type]
    return Topology((*gpus, DeviceSpec("cpu", "cpu", memory_bytes=1 << 44)))


def over_two(graph: vs.Graph) -> list[tuple[int, str]]:
    """Placement by blocks of a thirtieth of the graph, in turns on the two devices."""
    weights = graph.weights
    block = -(-len(weights) // 30)
    return [(n.id, f"null:{i // block % 2}") for i, n in enumerate(weights)]


@dataclass(frozen=True)
class Kind:
    """build: returns the outputs of a graph with a number of nodes. spread: True if its weights
    are placed on both devices. flops_per_s: speed of each device.
    """

    build: Callable[[int], list[vs.Tensor]]
    spread: bool = False
    flops_per_s: float = 1e11


KINDS = {
    "transformer": Kind(transformer),
    "over two": Kind(transformer, spread=True),
    "random": Kind(random_graph, spread=True),
    "shared": Kind(random_graph, flops_per_s=1e7),
}


# -- measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Times of one kind, policy and size, in seconds; stages_s sums to the planning time."""

    kind: str
    policy: str
    nodes: int
    splits: int
    barriers: int
    levels: int
    build_s: float
    plan_s: float
    stages_s: dict[str, float]
    us_per_node: float
    ratio: float = 1.0
    """Time per node against that of the smallest size."""
    to_first: float = 1.0
    """Planning time against that of the first policy for the same graph."""


@contextmanager
def timed_stages(spent_s: dict[str, float]) -> Iterator[None]:
    """Add up the time spent in each stage of the planner; what a stage calls counts as its own."""
    own = {
        (module, name): getattr(module, name)
        for module in (planner, draft, evaluate)
        for name in STAGES
        if name in vars(module)
    }
    under_way: list[str] = []

    def wrap(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if under_way:
                return function(*args, **kwargs)
            under_way.append(stage)
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent_s[stage] = spent_s.get(stage, 0.0) + time.process_time() - start
                under_way.clear()

        return timed

    try:
        for (module, name), function in own.items():
            setattr(module, name, wrap(STAGES[name], function))
        yield
    finally:
        for (module, name), function in own.items():
            setattr(module, name, function)


def measure(kind: str, nodes: int, repeat: int, policy: str = POLICIES[0]) -> Row:
    """Return the medians of several plans of one graph."""
    wanted = KINDS[kind]
    outputs, devices = wanted.build(nodes), topology(wanted.flops_per_s)
    builds: list[float] = []
    plans: list[tuple[float, dict[str, float]]] = []
    for _ in range(repeat):
        start = time.process_time()
        graph, _ = vs.build_graph(outputs)
        builds.append(time.process_time() - start)
        overrides = over_two(graph) if wanted.spread else []
        stages: dict[str, float] = {}
        with timed_stages(stages):
            start = time.process_time()
            plan = vs.plan_graph(graph, devices, policy=policy, overrides=overrides)
            whole = time.process_time() - start
        stages["rest"] = whole - sum(stages.values())
        plans.append((whole, stages))
    plan_s, stages = sorted(plans, key=lambda p: p[0])[len(plans) // 2]
    count = len(graph.ops)
    return Row(
        kind=kind,
        policy=policy,
        nodes=count,
        splits=len(plan.splits),
        barriers=plan.barriers,
        levels=plan.depth,
        build_s=statistics.median(builds),
        plan_s=plan_s,
        stages_s=stages,
        us_per_node=1e6 * plan_s / count,
    )


def measure_all(
    kinds: Sequence[str], sizes: Sequence[int], repeat: int, policies: Sequence[str] = POLICIES
) -> list[Row]:
    """Return a row for each kind, policy and size, with the ratios to the smallest size and to the
    first policy.
    """
    rows: list[Row] = []
    for kind in kinds:
        first_s: list[float] = []
        for policy in policies:
            found = [measure(kind, size, repeat, policy) for size in sorted(sizes)]
            first_s = first_s or [row.plan_s for row in found]
            least = found[0].us_per_node
            rows += [
                replace(row, ratio=row.us_per_node / least, to_first=row.plan_s / before_s)
                for row, before_s in zip(found, first_s, strict=True)
            ]
    return rows


def planning_facts(sizes: Sequence[int] = FACT_SIZES) -> Iterator[ExtraMetric]:
    """Yield microseconds per node by kind, policy and size: of "priority" beside those of the
    smallest size, of "auto" beside those of "priority".
    """
    for row in measure_all(list(KINDS), sizes, 3):
        note = f"{row.splits} splits, {row.barriers} barriers"
        by, ratio = ("", row.ratio) if row.policy == POLICIES[0] else (" by auto", row.to_first)
        name = f"planning{by}: {row.kind}, {row.nodes:,} nodes"
        yield ExtraMetric(
            "planner", name, row.us_per_node, "us/node", row.us_per_node / ratio, note
        )


SUITE = Suite(
    "planning",
    lambda _: (),
    may_be_empty=True,
    uses_devices=False,
    run_facts=lambda *_: {"planning": planning_facts()},
)
