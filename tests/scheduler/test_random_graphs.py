"""Random graphs placed anyhow on random sets of devices, several runs at once: numpy's results, bit
for bit, and the happens-before checker silent. VKSCHED_GRAPHS=20000 draws more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import DEVICE_SETS
from graphs import numpy_outputs
from lazy_device import lazy_devices
from selection import by_tier

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.runtime.device import Device
from vksched.runtime.executors import race_checker
from vksched.topology.device_spec import DeviceSpec

GRAPHS = int(os.environ.get("VKSCHED_GRAPHS", by_tier(120, 600, 2000)))
ON_VULKAN = 0.15
"""The share of graphs on real devices: each graph makes pipelines of its own there, which takes
tens of milliseconds in drivers that compile for a CPU.
"""
ROWS, COLUMNS = 4, 16

pytestmark = [pytest.mark.scales, pytest.mark.timeout(max(120, GRAPHS // 20))]


def null_devices(count: int, seed: int) -> list[Device]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(DeviceSpec(f"null:{i}", "null"), clock) for i in range(count)]


SIMULATED: dict[str, Callable[[int], Sequence[Device]]] = {
    "one lazy": lambda seed: lazy_devices(1, seed),
    "two lazy": lambda seed: lazy_devices(2, seed),
    "four lazy": lambda seed: lazy_devices(4, seed),
    "null": lambda seed: null_devices(3, seed),
    "small lazy": lambda seed: lazy_devices(
        3, seed, memory_bytes=1 << 12, max_buffer_bytes=1 << 11
    ),
}
REAL = {name: names for name, names in DEVICE_SETS.items() if name != "cpu"}


class Draw:
    """Draws a graph of ops whose results are exact, so that every device gives the same bits.

    few: only ops that drivers compile quickly, on few shapes.
    """

    def __init__(self, rng: np.random.Generator, few: bool) -> None:
        self.rng = rng
        self.few = few
        types = ["float32", "float32", "int32", "float16"]
        self.pool: list[vs.Tensor] = [
            vs.input(f"x{i}", (ROWS, COLUMNS), self.one_of(types)) for i in range(self.below(3) + 1)
        ]
        self.used: set[vs.Tensor] = set()

    def below(self, count: int) -> int:
        return int(self.rng.integers(count))

    def one_of(self, items: Sequence[str]) -> str:
        return items[self.below(len(items))]

    def operand(self, like: vs.Tensor | None = None) -> vs.Tensor:
        """One of what is there, of the same type where that is asked for; often a recent one."""
        fits = [
            t for t in self.pool if like is None or (t.shape, t.dtype) == (like.shape, like.dtype)
        ]
        recent = fits[-4:] if self.rng.random() < 0.5 else fits
        chosen = recent[self.below(len(recent))]
        self.used.add(chosen)
        return chosen

    def weight(self, shape: Sequence[int], dtype: str) -> vs.Tensor:
        values = self.rng.integers(-2, 3, tuple(shape)).astype(dtype)
        return vs.weight(values) if self.below(2) else vs.constant(values)

    def add(self) -> None:
        kinds = FEW if self.few else MANY
        self.pool.append(kinds[self.below(len(kinds))](self, self.operand()))

    def outputs(self) -> list[vs.Tensor]:
        """What nobody reads, and some more: inputs, views, weights, the same thing twice."""
        ends = [t for t in self.pool if t not in self.used]
        more = [self.pool[self.below(len(self.pool))] for _ in range(self.below(4))]
        if self.below(8) == 0:
            more.append(self.weight((3,), "float32"))
        return ends + more or self.pool[-1:]


def small(a: vs.Tensor) -> vs.Tensor:
    """Within what all types hold, so that casts and sums of products are exact."""
    return a if a.dtype == "bool" else vs.clip(a, -8, 8)


def unary(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.relu(a) if d.below(2) else vs.neg(a)


def binary(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return (vs.add, vs.sub, vs.maximum)[d.below(3)](small(a), small(d.operand(like=a)))


def with_weight(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.add(small(a), d.weight(a.shape[-1:], a.dtype))


def part(d: Draw, a: vs.Tensor) -> vs.Tensor:
    half = a.shape[0] // 2
    return a[:half] if d.below(2) or not half else a[half:]


def whole(d: Draw, a: vs.Tensor) -> vs.Tensor:
    if a.size == ROWS * COLUMNS:
        return vs.reshape(a, (ROWS, COLUMNS) if a.rank == 1 else (a.size,))
    return vs.concat([a, d.operand(like=a)])


def cast(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.cast(small(a), d.one_of(["float32", "int32", "float16"]))


def choose(d: Draw, a: vs.Tensor) -> vs.Tensor:
    b = d.operand(like=a)
    return vs.where(vs.less(a, b), a, vs.neg(b))


def pick(d: Draw, a: vs.Tensor) -> vs.Tensor:
    if not a.size:
        return unary(d, a)
    return vs.gather(a, d.rng.integers(0, a.shape[0], a.shape[0]).astype(np.int32))


def largest(d: Draw, a: vs.Tensor) -> vs.Tensor:
    if not a.size:  # nothing is the largest of nothing
        return unary(d, a)
    return vs.sub(small(a), small(vs.reduce_max(a, (d.below(a.rank),), keepdims=True)))


def product(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.matmul(small(a), d.weight((a.shape[-1], COLUMNS), a.dtype)) if a.rank == 2 else a


def turn(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.reshape(vs.transpose(a), a.shape)


def order(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.sort(a)


def total(d: Draw, a: vs.Tensor) -> vs.Tensor:
    return vs.add(small(a), vs.cumsum(small(a), 0))


FEW = [unary, binary, binary, with_weight, part, whole, cast]
MANY = [*FEW, choose, pick, largest, product, turn, order, total, whole, binary]


def feed(graph: Graph, rng: np.random.Generator) -> dict[str, NDArray]:
    return {n.name: rng.integers(-9, 10, n.type.shape).astype(n.type.dtype) for n in graph.inputs}


@pytest.fixture(scope="module")
def callers() -> Iterator[ThreadPoolExecutor]:
    """Threads of the user."""
    with ThreadPoolExecutor(3) as pool:
        yield pool


def run_one(
    sched: vs.Scheduler, seed: Sequence[int], few: bool, callers: ThreadPoolExecutor
) -> None:
    """Draw a graph, places some of it anyhow, and compares several runs at once with numpy."""
    rng = np.random.default_rng(seed)
    drawn = Draw(rng, few)
    for _ in range(drawn.below(8 if few else 16) + 1):
        drawn.add()
    outputs = drawn.outputs()
    graph, ids = vs.build_graph(outputs)
    names = [d.name for d in sched.devices]
    share = rng.random()
    placement: Mapping[vs.Tensor | str, str] = {
        tensor: drawn.one_of(names)
        for tensor, node in ids.items()
        if graph.nodes[node].op not in ("input", "constant") and rng.random() < share
    }
    feeds = [feed(graph, rng) for _ in range(drawn.below(5) + 1)]
    run = sched.compile(outputs, placement=placement)
    try:
        futures = [run.submit(**f) if drawn.below(2) else callers.submit(run, **f) for f in feeds]
        results = [future.result() for future in futures]
    finally:
        run.close()
    for values, result in zip(feeds, results, strict=True):
        for got, wanted in zip(result, numpy_outputs(graph, values), strict=True):
            assert got.dtype == wanted.dtype and np.array_equal(got, wanted), (
                f"graph {seed}:\n{graph}\n{run.plan.explain()}"
            )


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", list(SIMULATED))
def test_random_graphs_on_simulated_devices(
    devices: str, copies: int, callers: ThreadPoolExecutor
) -> None:
    assert race_checker.wanted()
    first = list(SIMULATED).index(devices)
    each = round(GRAPHS * (1 - ON_VULKAN if REAL else 1) / (4 * len(SIMULATED)))
    with vs.Scheduler(SIMULATED[devices](copies), copies=copies) as sched:
        for number in range(each):
            run_one(sched, (first, copies, number), False, callers)


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", list(REAL))
def test_random_graphs_on_real_devices(
    devices: str, copies: int, callers: ThreadPoolExecutor
) -> None:
    first = 100 + list(REAL).index(devices)
    each = round(GRAPHS * ON_VULKAN / (4 * len(REAL)))
    with vs.Scheduler(REAL[devices], copies=copies) as sched:
        for number in range(each):
            run_one(sched, (first, copies, number), True, callers)
