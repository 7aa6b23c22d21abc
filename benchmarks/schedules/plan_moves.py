"""How good are plans by cost of whole graphs, by the project's own simulation, and how fast?

    python benchmarks/schedules/plan_moves.py --graphs 20
    python benchmarks/schedules/plan_moves.py --graphs 100 --json rows.json

Random graphs of 15 to 40 ops are planned for random machines of 2 to 4 devices and a CPU. Each plan
is held against the best single device and against every move of one node to another device. Graphs
of 5 to 9 ops are held against every placement. Nothing is run on a device.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import vksched as vs
from vksched import DeviceSpec, Topology
from vksched.topology.links import Link, Links

SIZE = 1024
"""Rows and columns of each value."""
SMALL, USUAL = (5, 9), (15, 40)
"""Ops of graphs that are searched whole, and of others."""
MAX_PLACEMENTS = 4_096


@dataclass(frozen=True)
class Row:
    """What one graph's plan takes.

    Attributes
    ----------
    single
        Latency of the plan over that of the best single device.
    better
        Latency of the plan over the least that was found: by moves of one node, or of all
        placements where `whole`.
    plan_s
        Seconds of the processor that planning took.
    """

    seed: int
    ops: int
    devices: int
    whole: bool
    won: str
    single: float
    better: float
    plan_s: float


def random_topology(draw: random.Random) -> Topology:
    """Return a machine of 2 to 4 cards and a CPU."""
    names = [f"d{i}" for i in range(draw.randint(2, 4))]
    cards = [
        DeviceSpec(
            name,
            "null",
            flops_per_s=10 ** draw.uniform(11.7, 12.6),
            bytes_per_s=10 ** draw.uniform(10.6, 11.7),
            submit_s=draw.choice([5e-6, 2e-5, 5e-5]),
        )
        for name in names
    ]
    links = [
        (name, "cpu", Link(10 ** draw.uniform(9.5, 10.3), draw.choice([5e-6, 3e-5])))
        for name in names
    ]
    cpu = DeviceSpec("cpu", "cpu", flops_per_s=1.4e11, bytes_per_s=5e10, submit_s=2e-6)
    return Topology((*cards, cpu), Links(tuple(links)))


def random_graph(draw: random.Random, ops: int) -> vs.Graph:
    """Return a graph of products, sums and functions, each of values a few ops before."""
    values = [vs.input("x", (SIZE, SIZE))]
    for i in range(ops):
        a, b = draw.choice(values[-6:]), draw.choice(values[-6:])
        kind = draw.random()
        if kind < 0.5:
            value = vs.matmul(a, b, name=f"n{i}")
        elif kind < 0.65:
            weight = vs.weight(np.zeros((SIZE, SIZE), np.float32), name=f"w{i}")
            value = vs.matmul(a, weight, name=f"n{i}")
        elif kind < 0.85:
            value = vs.add(a, b, name=f"n{i}")
        else:
            value = vs.tanh(a, name=f"n{i}")
        values.append(value)
    return vs.build_graph(vs.add(values[-1], values[-2], name=f"n{ops}"))[0]


def latency_s(graph: vs.Graph, topology: Topology, placed: Sequence[tuple[str, str]]) -> float:
    """Return what one run takes where each node is placed."""
    return vs.plan_graph(graph, topology, overrides=list(placed)).metrics.latency_s


def measure(seed: int, ops: int, whole: bool) -> Row:
    """Return the row of one graph; the seed draws it and its machine."""
    draw = random.Random(seed)
    topology = random_topology(draw)
    graph = random_graph(draw, ops)
    cards = [spec.name for spec in topology.devices if spec.kind != "cpu"]
    started = time.process_time()
    plan = vs.plan_graph(graph, topology, policy="auto")
    plan_s = time.process_time() - started
    took_s = plan.metrics.latency_s
    names = [node.name for node in graph.nodes if node.name.startswith("n")]
    on = {name: plan.device_of(name) for name in names}
    single_s = min(latency_s(graph, topology, [("n*", card)]) for card in cards)
    if whole:
        assert len(cards) ** len(names) <= MAX_PLACEMENTS, "too many placements"
        others = (dict(zip(names, each, strict=True)) for each in product(cards, repeat=len(names)))
    else:
        others = ({**on, name: card} for name in names for card in cards if card != on[name])
    least_s = min([took_s, *(latency_s(graph, topology, [*each.items()]) for each in others)])
    won = plan.decision.chosen.name if plan.decision else ""
    ratios = took_s / single_s, took_s / least_s
    return Row(seed, len(names), len(cards), whole, won, *ratios, plan_s)


def rows_of(seed: int, graphs: int, console: Console) -> list[Row]:
    """Return the rows of so many usual graphs and, for each five of them, a small one."""
    found = []
    for i in track(range(graphs), "plans", console=console, transient=True):
        draw = random.Random(seed + i)
        found.append(measure(seed + i, draw.randint(*USUAL), whole=False))
        if i % 5 == 0:
            cards = len(random_topology(random.Random(seed + i)).devices) - 1
            least, most = SMALL
            while cards ** (most + 1) > MAX_PLACEMENTS:  # a graph has one op more
                most -= 1
            found.append(measure(seed + i, draw.randint(least, most), whole=True))
    return found


def table_of(rows: Sequence[Row]) -> Table:
    table = Table("graphs", "", "mean", "worst", "over 5 %", title="plans by cost, by simulation")
    for whole, text in ((False, "moves of one node"), (True, "all placements")):
        mine = [row for row in rows if row.whole is whole]
        gaps = [100 * (row.better - 1) for row in mine]
        if not mine:
            continue
        over = sum(gap > 5 for gap in gaps)
        about = f"{len(mine)}", f"above the best of {text}"
        table.add_row(*about, f"{np.mean(gaps):.2f} %", f"{max(gaps):.1f} %", str(over))
    singles = [row.single for row in rows]
    mean, most = f"{np.mean(singles):.3f}", f"{max(singles):.3f}"
    table.add_row(str(len(rows)), "of the best single device", mean, most, "")
    plan_ms = [1e3 * row.plan_s for row in rows if not row.whole]
    table.add_row(str(len(plan_ms)), "ms to plan", f"{np.mean(plan_ms):.1f}", f"{max(plan_ms):.0f}")
    return table


@click.command(help=__doc__)
@click.option("--graphs", default=20, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the rows.")
def main(graphs: int, seed: int, json_file: Path | None) -> None:
    console = Console()
    rows = rows_of(seed, graphs, console)
    console.print(table_of(rows))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
