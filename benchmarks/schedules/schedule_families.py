"""Task graphs as programs have them, for benchmarks of schedules.

A scheduler that is good at one shape may be bad at another, so one shape says little. This module
draws the shapes that papers and programs use. A `Shape` has the work of each task and the bytes of
each edge, but no machine: schedule_instances.py beside this file adds the devices.

    FAMILIES["cholesky"](50, random.Random(0))  # the largest one with at most 50 tasks

A family takes the number of tasks wanted and a source of chance. The regular ones return their
largest member with at most that many tasks, or else their smallest member. The same arguments give
the same shape. Making one takes time linear in its edges. Workflows of sciences are in
schedule_workflows.py; examples are in tests/bench/test_schedules.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

BLOCK_BYTES = 1 << 20
"""Bytes of a tile, a vector, or another unit of data."""
SPREAD = (0.5, 1.5)
"""Works and bytes that a family leaves open are drawn between these."""


@dataclass
class Shape:
    """names: tasks by name; work: seconds of each task on a device of speed 1; edges: bytes by
    pairs of task numbers (from, to). Edges go from lower numbers to higher ones.
    """

    names: list[str] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    edges: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, name: str, work: float, after: Iterable[tuple[int, float]] = ()) -> int:
        """Add a task and returns its number. after: tasks before it, and the blocks it takes."""
        number = len(self.names)
        self.names.append(name)
        self.work.append(work)
        self.edges += [(a, number, max(1, round(blocks * BLOCK_BYTES))) for a, blocks in after]
        return number


Family = Callable[[int, random.Random], Shape]


def largest(count: Callable[[int], int], most: int, smallest: int) -> int:
    """Return the largest parameter, from smallest on, whose count of tasks is at most `most`."""
    parameter = smallest
    while count(parameter + 1) <= most:
        parameter += 1
    return parameter


class _Tiles:
    """Draws the edges of a program over tiles: each task waits for who wrote what it reads."""

    def __init__(self) -> None:
        self.shape = Shape()
        self._writer: dict[tuple[int, int], int] = {}

    def run(self, name: str, work: float, write: tuple[int, int], *read: tuple[int, int]) -> None:
        """Add a task that reads tiles, and reads and writes the tile `write`."""
        before = dict.fromkeys(
            self._writer[tile] for tile in (write, *read) if tile in self._writer
        )
        self._writer[write] = self.shape.add(name, work, [(a, 1.0) for a in before])


def gaussian(tasks: int, rng: random.Random) -> Shape:
    """Return Gaussian elimination of a matrix of m columns: (m*m + m - 2) / 2 tasks.

    Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", 2002, section 5.4.
    """
    m = largest(lambda m: (m * m + m - 2) // 2, tasks, 2)
    shape, column = Shape(), dict[int, int]()
    for k in range(m - 1):
        rows = (m - k) / m
        before = [(column[k], rows)] if k in column else []
        pivot = shape.add(f"pivot{k}", rows, before)
        for j in range(k + 1, m):
            before = [(pivot, rows)] + ([(column[j], rows)] if j in column else [])
            column[j] = shape.add(f"update{k}.{j}", 2 * rows, before)
    return shape


def fft(tasks: int, rng: random.Random) -> Shape:
    """Return a fast Fourier transform of m points: 2m - 1 calls, then m butterflies at each level.

    Source: as `gaussian`, section 5.4. All tasks of a level are alike.
    """
    levels = largest(lambda k: 2 * 2**k - 1 + 2**k * k, tasks, 1)
    shape = Shape()
    row = [shape.add("call0.0", 1.0)]
    for level in range(1, levels + 1):
        row = [
            shape.add(f"call{level}.{i}", 1.0, [(row[i // 2], 2.0**-level)])
            for i in range(2**level)
        ]
    for level in range(levels):
        row = [
            shape.add(f"fly{level}.{i}", 2.0, [(row[i], 0.5), (row[i ^ 1 << level], 0.5)])
            for i in range(2**levels)
        ]
    return shape


def cholesky(tasks: int, rng: random.Random) -> Shape:
    """Return a tiled Cholesky factorisation of t x t tiles: t(t+1)(t+2)/6 tasks.

    Source: Buttari, Langou, Kurzak and Dongarra, "A class of parallel tiled linear algebra
    algorithms for multicore architectures", 2009.
    """
    tiles = largest(lambda t: t * (t + 1) * (t + 2) // 6, tasks, 2)
    program = _Tiles()
    for k in range(tiles):
        program.run(f"potrf{k}", 1 / 3, (k, k))
        for i in range(k + 1, tiles):
            program.run(f"trsm{k}.{i}", 1.0, (i, k), (k, k))
        for i in range(k + 1, tiles):
            program.run(f"syrk{k}.{i}", 1.0, (i, i), (i, k))
            for j in range(k + 1, i):
                program.run(f"gemm{k}.{i}.{j}", 2.0, (i, j), (i, k), (j, k))
    return program.shape


def lu(tasks: int, rng: random.Random) -> Shape:
    """Return a tiled LU factorisation without pivots: t(t+1)(2t+1)/6 tasks. Source: as above."""
    tiles = largest(lambda t: t * (t + 1) * (2 * t + 1) // 6, tasks, 2)
    program = _Tiles()
    for k in range(tiles):
        program.run(f"getrf{k}", 2 / 3, (k, k))
        for i in range(k + 1, tiles):
            program.run(f"row{k}.{i}", 1.0, (k, i), (k, k))
            program.run(f"column{k}.{i}", 1.0, (i, k), (k, k))
        for i in range(k + 1, tiles):
            for j in range(k + 1, tiles):
                program.run(f"gemm{k}.{i}.{j}", 2.0, (i, j), (i, k), (k, j))
    return program.shape


def stencil(tasks: int, rng: random.Random) -> Shape:
    """Return steps of a stencil over a line of parts; each part reads itself and two neighbours.

    The line is as long as there are steps. Neighbours exchange an edge, a tenth of a part.
    """
    width = max(2, round(tasks**0.5))
    shape, row = Shape(), list[int]()
    for step in range(max(1, tasks // width)):
        before = row
        row = []
        for i in range(width):
            near = [
                (before[j], 1.0 if i == j else 0.1)
                for j in (i - 1, i, i + 1)
                if before and 0 <= j < width
            ]
            row.append(shape.add(f"part{step}.{i}", rng.uniform(*SPREAD), near))
    return shape


def out_tree(tasks: int, rng: random.Random) -> Shape:
    """Return a tree that grows from one task; each task has 1 to 4 after it."""
    shape = Shape()
    shape.add("task0", rng.uniform(*SPREAD))
    parent = 0
    while len(shape.names) < tasks:
        for _ in range(min(rng.randint(1, 4), tasks - len(shape.names))):
            name, work = f"task{len(shape.names)}", rng.uniform(*SPREAD)
            shape.add(name, work, [(parent, rng.uniform(*SPREAD))])
        parent += 1
    return shape


def in_tree(tasks: int, rng: random.Random) -> Shape:
    """Return the mirror image of `out_tree`: results are put together, up to one task."""
    tree = out_tree(tasks, rng)
    last = len(tree.names) - 1
    edges = sorted((last - b, last - a, size) for a, b, size in tree.edges)
    return Shape(tree.names, tree.work[::-1], edges)


def fork_join(tasks: int, rng: random.Random) -> Shape:
    """Return stages of tasks side by side, each between a task that forks and one that joins."""
    width = max(2, round((tasks / 3) ** 0.6))
    shape = Shape()
    join = shape.add("fork0", rng.uniform(*SPREAD))
    for stage in range(max(1, (tasks - 1) // (width + 1))):
        side = [
            shape.add(f"side{stage}.{i}", rng.uniform(*SPREAD), [(join, rng.uniform(*SPREAD))])
            for i in range(width)
        ]
        after = [(a, rng.uniform(*SPREAD)) for a in side]
        join = shape.add(f"join{stage}", rng.uniform(*SPREAD), after)
    return shape


def transformer(tasks: int, rng: random.Random) -> Shape:
    """Return layers of a transformer whose heads and whose feed-forward columns are tasks.

    A layer is: norm, then for each head its projection and its attention, their sum, norm, two
    products for each slice of columns, their sum. Work is in the share of a layer's flops.
    """
    heads = max(2, min(12, tasks // 12))
    each = 4 + 4 * heads
    shape, last = Shape(), list[tuple[int, float]]()
    for layer in range(max(1, tasks // each)):
        norm = shape.add(f"norm{layer}", 0.1, last)
        done = []
        for head in range(heads):
            project = shape.add(f"project{layer}.{head}", 3 / heads, [(norm, 1.0)])
            attend = shape.add(f"attend{layer}.{head}", 2 / heads, [(project, 3 / heads)])
            done.append((attend, 1 / heads))
        total = shape.add(f"sum{layer}", 1.0, [*done, *last])
        norm = shape.add(f"norm.mlp{layer}", 0.1, [(total, 1.0)])
        done = []
        for part in range(heads):
            up = shape.add(f"up{layer}.{part}", 4 / heads, [(norm, 1.0)])
            down = shape.add(f"down{layer}.{part}", 4 / heads, [(up, 4 / heads)])
            done.append((down, 1.0))
        last = [(shape.add(f"out{layer}", 0.1, [*done, (total, 1.0)]), 1.0)]
    return shape


def experts(tasks: int, rng: random.Random) -> Shape:
    """Return layers with a mixture of experts: attention, a router, experts of unequal load."""
    count = max(2, min(16, tasks // 6))
    shape, last = Shape(), list[tuple[int, float]]()
    for layer in range(max(1, tasks // (count + 3))):
        attend = shape.add(f"attend{layer}", 2.0, last)
        route = shape.add(f"route{layer}", 0.05, [(attend, 1.0)])
        loads = [rng.expovariate(1.0) + 0.05 for _ in range(count)]
        shares = [load / sum(loads) for load in loads]
        done = [
            (shape.add(f"expert{layer}.{i}", 8 * share, [(route, 2 * share)]), 2 * share)
            for i, share in enumerate(shares)
        ]
        last = [(shape.add(f"sum{layer}", 0.1, [*done, (attend, 1.0)]), 1.0)]
    return shape


def pipeline(tasks: int, rng: random.Random) -> Shape:
    """Return a step of training by stages and microbatches: all forward, back, then updates.

    A stage's way back needs its own activations and takes twice the time of its way forward.
    """
    stages = max(2, min(8, round((tasks / 4) ** 0.5)))
    batches = max(1, (tasks - stages) // (2 * stages))
    work = [rng.uniform(*SPREAD) for _ in range(stages)]
    shape, forth, back = Shape(), dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    for batch in range(batches):
        for stage in range(stages):
            before = [(forth[stage - 1, batch], 1.0)] if stage else []
            forth[stage, batch] = shape.add(f"forth{stage}.{batch}", work[stage], before)
    for batch in range(batches):
        for stage in reversed(range(stages)):
            before = [(forth[stage, batch], 2.0)]
            if stage + 1 < stages:
                before.append((back[stage + 1, batch], 1.0))
            back[stage, batch] = shape.add(f"back{stage}.{batch}", 2 * work[stage], before)
    for stage in range(stages):
        after = [(back[stage, batch], 0.5) for batch in range(batches)]
        shape.add(f"update{stage}", 0.2, after)
    return shape


def layered(tasks: int, rng: random.Random) -> Shape:
    """Return random layers; each task takes from 1 to 4 of the two layers before its own.

    Source: the idea of layers by Tobita and Kasahara, "A standard task graph set for fair
    evaluation of multiprocessor scheduling algorithms", 2002.
    """
    shape, layers = Shape(), list[list[int]]()
    width = max(1.0, tasks ** rng.uniform(0.3, 0.7))
    while len(shape.names) < tasks:
        count = min(max(1, round(width * rng.uniform(0.3, 1.7))), tasks - len(shape.names))
        near = [number for layer in layers[-2:] for number in layer]
        row = []
        for _ in range(count):
            before = rng.sample(near, min(len(near), rng.randint(1, 4)))
            after = [(a, rng.uniform(*SPREAD)) for a in sorted(before)]
            row.append(shape.add(f"task{len(shape.names)}", rng.lognormvariate(0.0, 0.7), after))
        layers.append(row)
    return shape


FAMILIES: dict[str, Family] = {
    "gaussian": gaussian,
    "fft": fft,
    "cholesky": cholesky,
    "lu": lu,
    "stencil": stencil,
    "out-tree": out_tree,
    "in-tree": in_tree,
    "fork-join": fork_join,
    "transformer": transformer,
    "experts": experts,
    "pipeline": pipeline,
    "layered": layered,
}
