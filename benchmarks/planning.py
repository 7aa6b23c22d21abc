"""Planning time per node for graphs of growing size: is planning linear, and how fast?

    python benchmarks/planning.py --json - --plot planning.png

Three kinds of graphs: the layers of a transformer on one device, the same spread over two devices,
and a random graph over two devices. A node is the result of an op or a view; leaves do not count.
Times are CPU time of this process, the median of several plans of a graph built anew each time, as
a graph keeps what was once asked of it.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.plan import draft, planner
from vksched.plan.machine import DeviceSpec, Machine

SIZES = (1_000, 10_000, 100_000)
WIDTH, HEADS, TOKENS = 64, 4, 16
STAGES = {
    "split_graph": "splits",
    "Program": "memory",
    "assign_memory": "memory",
    "count_levels": "barriers",
    "split_items": "barriers",
    "find_barriers": "barriers",
    "verify_plan": "verify",
}
"""What the planner calls, by stage, beside its policies; the rest of it stands under "rest"."""


# -- graphs ------------------------------------------------------------------------------------


def transformer(nodes: int) -> list[vs.Tensor]:
    """Layers of attention and a feed-forward part until there are so many nodes."""
    rng = np.random.default_rng(7)
    arrays = {
        shape: rng.standard_normal(shape, dtype=np.float32) / WIDTH
        for shape in ((WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH,))
    }
    x, made, layer = vs.input("x", (1, TOKENS, WIDTH)), 0, 0

    def linear(value: vs.Tensor, name: str, out: int = WIDTH) -> vs.Tensor:
        weight = vs.weight(arrays[value.shape[-1], out], name=name)
        return vs.matmul(value, weight)

    def norm(value: vs.Tensor, name: str) -> vs.Tensor:
        weight = vs.weight(arrays[(WIDTH,)], name=f"{name}.weight")
        return vs.layer_norm(value, weight, vs.weight(arrays[(WIDTH,)], name=f"{name}.bias"))

    def heads(value: vs.Tensor) -> vs.Tensor:
        return value.reshape(1, TOKENS, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    while made < nodes:
        with vs.scope(f"layer.{layer}"):
            h = norm(x, "norm_1")
            q, k, v = (heads(linear(h, part)) for part in ("query", "key", "value"))
            scores = vs.matmul(q, k, transpose_b=True) * 0.25
            seen = (vs.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(1, TOKENS, WIDTH)
            x = x + linear(seen, "out")
            h = norm(x, "norm_2")
            x = x + linear(vs.gelu(linear(h, "up", 4 * WIDTH)), "down")
        made, layer = made + 23, layer + 1
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


def machine() -> Machine:
    """Two devices with room for all of it, and the CPU."""
    gpus = [DeviceSpec(f"null:{i}", "null", memory_bytes=1 << 44) for i in range(2)]
    return Machine((*gpus, DeviceSpec("cpu", "cpu", memory_bytes=1 << 44)))


def over_two(graph: vs.Graph) -> list[tuple[int, str]]:
    """Placement by blocks of a thirtieth of the graph, in turns on the two devices."""
    weights = graph.weights
    block = -(-len(weights) // 30)
    return [(n.id, f"null:{i // block % 2}") for i, n in enumerate(weights)]


KINDS: dict[str, tuple[Callable[[int], list[vs.Tensor]], bool]] = {
    "transformer": (transformer, False),
    "over two": (transformer, True),
    "random": (random_graph, True),
}
"""For each kind what builds it, and whether its weights are spread over the devices."""


# -- measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Times of one kind and size, in seconds; stages_s sums to the planning time."""

    kind: str
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


@contextmanager
def timed_stages(spent_s: dict[str, float]) -> Iterator[None]:
    """Adds up the time spent in each stage of the planner."""
    own = {
        (module, name): getattr(module, name)
        for module in (planner, draft)
        for name in STAGES
        if name in vars(module)
    }
    policies = dict(planner.POLICIES)

    def wrap(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent_s[stage] = spent_s.get(stage, 0.0) + time.process_time() - start

        return timed

    try:
        for (module, name), function in own.items():
            setattr(module, name, wrap(STAGES[name], function))
        planner.POLICIES.update({k: wrap("placement", f) for k, f in policies.items()})
        yield
    finally:
        for (module, name), function in own.items():
            setattr(module, name, function)
        planner.POLICIES.update(policies)


def measure(kind: str, nodes: int, repeat: int) -> Row:
    """Returns the medians of several plans of one graph."""
    build, spread = KINDS[kind]
    outputs, devices = build(nodes), machine()
    builds: list[float] = []
    plans: list[tuple[float, dict[str, float]]] = []
    for _ in range(repeat):
        start = time.process_time()
        graph, _ = vs.build_graph(outputs)
        builds.append(time.process_time() - start)
        overrides = over_two(graph) if spread else []
        stages: dict[str, float] = {}
        with timed_stages(stages):
            start = time.process_time()
            plan = vs.plan_graph(graph, devices, overrides=overrides)
            whole = time.process_time() - start
        stages["rest"] = whole - sum(stages.values())
        plans.append((whole, stages))
    plan_s, stages = sorted(plans, key=lambda p: p[0])[len(plans) // 2]
    count = len(graph.ops)
    return Row(
        kind=kind,
        nodes=count,
        splits=len(plan.splits),
        barriers=plan.barriers,
        levels=plan.levels,
        build_s=statistics.median(builds),
        plan_s=plan_s,
        stages_s=stages,
        us_per_node=1e6 * plan_s / count,
    )


def measure_all(kinds: Sequence[str], sizes: Sequence[int], repeat: int) -> list[Row]:
    """Returns a row for each kind and size, with the ratio to the smallest size."""
    rows: list[Row] = []
    for kind in kinds:
        found = [measure(kind, size, repeat) for size in sorted(sizes)]
        first = found[0].us_per_node
        rows += [replace(row, ratio=row.us_per_node / first) for row in found]
    return rows


# -- output ------------------------------------------------------------------------------------


def as_table(rows: Sequence[Row]) -> Table:
    """The rows as a table for people."""
    stages = ["placement", *dict.fromkeys(STAGES.values()), "rest"]
    table = Table(title="planning, microseconds of CPU time per node")
    for heading in (
        "graph",
        "nodes",
        "splits",
        "barriers",
        "levels",
        "build",
        *stages,
        "plan",
        "ratio",
    ):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    for row in rows:
        each = [1e6 * row.stages_s.get(stage, 0.0) / row.nodes for stage in stages]
        table.add_row(
            row.kind,
            *(f"{n:,}" for n in (row.nodes, row.splits, row.barriers, row.levels)),
            f"{1e6 * row.build_s / row.nodes:.1f}",
            *(f"{us:.1f}" for us in each),
            f"{row.us_per_node:.1f}",
            f"{row.ratio:.2f}",
        )
    return table


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws time per node over the number of nodes."""
    try:
        import matplotlib
    except ImportError as error:
        raise click.ClickException(
            f"[plot] expected matplotlib, got {error}; try pip install vksched[bench]"
        ) from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        axes.plot([r.nodes for r in mine], [r.us_per_node for r in mine], "o-", label=kind)
    axes.set(xscale="log", xlabel="nodes", ylabel="planning, us per node", ylim=(0, None))
    axes.axhline(60, color="grey", linestyle="--", linewidth=1)
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option("--sizes", default=",".join(map(str, SIZES)), show_default=True, help="Nodes.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Which graphs.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1), help="Plans each.")
@click.option("--json", "json_path", help="Write the rows as JSON to a file, or - for stdout.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the rows (needs matplotlib).")
def main(sizes: str, kinds: str, repeat: int, json_path: str | None, plot: Path | None) -> None:
    unknown = set(kinds.split(",")) - KINDS.keys()
    if unknown:
        raise click.BadParameter(f"expected some of {', '.join(KINDS)}, got {kinds}")
    try:
        wanted = [int(size) for size in sizes.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"expected numbers with commas between, got {sizes}") from error
    rows = measure_all(kinds.split(","), wanted, repeat)
    console = Console(stderr=json_path == "-")
    if not console.is_terminal:
        console.width = 160  # a file has room for all columns
    console.print(as_table(rows))
    if json_path is not None:
        text = json.dumps([asdict(row) for row in rows], indent=2)
        if json_path == "-":
            sys.stdout.write(text + "\n")
        else:
            Path(json_path).write_text(text + "\n")
    if plot is not None:
        draw(rows, plot)


if __name__ == "__main__":
    main()
