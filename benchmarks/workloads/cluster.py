"""What a cluster would do that is not here: planning time, pipelines, data parallel training.

    python benchmarks/workloads/cluster.py [--hosts 1,8,64,1000] [--card rtx4090]
        [--network ethernet100g]
                                 [--only planning,pipeline,training,tree] [--json]

Nothing is opened and nothing runs. Devices are cards by their data sheets, the network is one by
its name (`vksched/topology/link_presets.py`), and each time is that of a simulated run of a plan.
Planning times are seconds of this machine.

planning   a transformer of 1,000 nodes: its layers in stretches over all hosts, and by cost
pipeline   one layer a host, and a stream of batches through all of them
training   a step that `shard: {axis: 0}` cuts over all hosts: the batch grows with them
tree       the same step written by hand, whose gradients are added up along a tree of hosts
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.engine.apply_config import PlanCostOracle
from vksched.parallel.apply_config import apply_config
from vksched.parallel.config.read_config import read_config
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import program_of, run_program, simulate
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.link_presets import way
from vksched.topology.links import Links
from vksched.topology.presets import card
from vksched.topology.topology import Topology

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "suites"))
from planning_time import transformer

WIDTH, TOKENS, LAYERS = 4096, 2048, 4
"""Of the pipeline's layers and of the trained network, whose layers are products with a square."""
BATCHES = 64
"""Batches of a stream under way at once."""
GPUS = 8
"""Cards of a host where plans are made; pipelines and training have one a host."""
MAX_CUT = 64
"""Hosts over which a step is cut: each pair of them exchanges a part of each gradient."""
PARTS = ("planning", "pipeline", "training", "tree")


@dataclass(frozen=True)
class Row:
    """seconds: what the part is about. ideal: the same, were a network free. plan_s: the time to
    make the plan.
    """

    part: str
    hosts: int
    devices: int
    nodes: int
    splits: int
    plan_s: float
    seconds: float = 0.0
    ideal_s: float = 0.0
    first_s: float = 0.0

    @property
    def efficiency(self) -> float | None:
        """The share of the ideal speed."""
        return self.ideal_s / self.seconds if self.seconds and self.ideal_s else None


def cluster(hosts: int, name: str, network: str, gpus: int = 1) -> Topology:
    """Return hosts with some cards and a CPU each, and the caller's CPU."""
    found = card(name)
    spec, devices, links = found.spec(), list[DeviceSpec](), []
    for host in (f"node{number}" for number in range(hosts)):
        for number in range(gpus):
            devices.append(replace(spec, name=f"{host}/gpu:{number}"))
            links.append((devices[-1].name, f"{host}/cpu", found.way))
        devices.append(DeviceSpec(f"{host}/cpu", "cpu", memory_bytes=256 << 30))
    devices.append(DeviceSpec("cpu", "cpu", memory_bytes=256 << 30))
    return Topology(tuple(devices), Links(tuple(links), network=way(network)))


def timed(
    graph: vs.Graph, topology: Topology, overrides: Sequence[tuple[str | int, str]], **how: Any
) -> tuple[Plan, float]:
    """Return a plan and the seconds that it took to make it."""
    start = time.perf_counter()
    plan = vs.plan_graph(graph, topology, overrides=overrides, **how)
    return plan, time.perf_counter() - start


@functools.cache
def zeros(rows: int, columns: int) -> NDArray:
    """Return a matrix that all who ask for its shape share."""
    return np.zeros((rows, columns), np.float32)


# -- planning --------------------------------------------------------------------------------------


def planning(hosts: int, name: str, network: str) -> list[Row]:
    """Two ways to plan a transformer over hosts with several cards."""
    topology = cluster(hosts, name, network, GPUS)
    cards = [spec.name for spec in topology.devices if spec.kind != "cpu"]
    rows = []
    for part, policy in (("planning, placed", "priority"), ("planning, by cost", "auto")):
        graph, _ = vs.build_graph(transformer(1_000))
        layers = 1 + max(int(n.name.split(".")[1]) for n in graph.ops if n.name.startswith("layer"))
        placed = [(f"layer.{i}.*", cards[i * len(cards) // layers]) for i in range(layers)]
        plan, plan_s = timed(graph, topology, placed if policy == "priority" else (), policy=policy)
        rows.append(
            Row(part, hosts, len(cards), len(graph.nodes), len(plan.splits), plan_s,
                simulate(plan).seconds)
        )  # fmt: skip
    return rows


# -- a pipeline ------------------------------------------------------------------------------------


def layer(h: vs.Tensor, number: int) -> vs.Tensor:
    """Attention and a feed-forward part; weights are zeros that take no memory."""

    def linear(value: vs.Tensor, name: str, out: int = WIDTH) -> vs.Tensor:
        return vs.matmul(value, vs.weight(zeros(value.shape[-1], out), name=name))

    with vs.name_scope(f"layer.{number}"):
        q, k, v = (linear(h, part) for part in ("query", "key", "value"))
        seen = vs.softmax(vs.matmul(q, k, transpose_b=True) * WIDTH**-0.5) @ v
        h = h + linear(seen, "out")
        return h + linear(vs.gelu(linear(h, "up", 4 * WIDTH)), "down")


def pipeline(hosts: int, name: str, network: str) -> list[Row]:
    """One layer a host: the time between two batches, against that of a layer alone."""
    topology = cluster(hosts, name, network)
    h = vs.input("x", (1, TOKENS, WIDTH))
    for number in range(hosts):
        h = layer(h, number)
    graph, _ = vs.build_graph([h])
    placed = [(f"layer.{i}.*", f"node{i}/gpu:0") for i in range(hosts)]
    plan, plan_s = timed(graph, topology, placed)
    done = run_program(program_of(plan), BATCHES, BATCHES)
    ends = sorted(done.finish_s)
    period_s = (ends[-1] - ends[0]) / (BATCHES - 1)
    busy_s = max(done.busy_s.values()) / BATCHES
    return [
        Row("pipeline", hosts, hosts, len(graph.nodes), len(plan.splits), plan_s, period_s, busy_s,
            ends[0])
    ]  # fmt: skip


# -- training --------------------------------------------------------------------------------------


def step(rows: int) -> vs.Graph:
    """A step of training of some layers: loss, gradients, next weights."""
    params = {
        f"w{i}": vs.state(np.zeros((WIDTH, WIDTH), np.float32), f"w{i}", backup=False)
        for i in range(LAYERS)
    }
    h = _wide(vs.input("x", (rows, 1)))
    for weight in params.values():
        h = vs.relu(vs.matmul(h, weight))
    loss = vs.reduce_mean(vs.square(h))
    graph, _ = vs.build_graph([loss], vs.optim.sgd(params, vs.grad(loss, params), 0.1))
    return graph


def _wide(x: vs.Tensor) -> vs.Tensor:
    """Return rows of values made of a number each: what the caller gives of text is small."""
    return vs.mul(x, vs.weight(np.zeros((1, WIDTH), np.float32), name="row"))


def training(hosts: int, name: str, network: str) -> list[Row]:
    """A step over all hosts, as a config cuts it; the batch grows with them."""
    if hosts > MAX_CUT:
        return []
    topology = cluster(hosts, name, network)
    cards = [spec.name for spec in topology.devices if spec.kind != "cpu"]
    config = read_config({"*": {"devices": cards, "shard": {"axis": 0}}})
    start = time.perf_counter()
    sharded = apply_config(
        step(hosts * TOKENS), config, topology, PlanCostOracle(topology, "priority", False)
    )
    applied_s = time.perf_counter() - start
    plan, plan_s = timed(sharded.graph, topology, sharded.overrides)
    return [_trained("training", plan, topology, applied_s + plan_s)]


def tree(hosts: int, name: str, network: str) -> list[Row]:
    """The same step by hand: a part of the batch for each host, gradients summed up along a tree
    and brought back along it.
    """
    topology = cluster(hosts, name, network)
    square = zeros(WIDTH, WIDTH)
    held, gradients = list[list[vs.Tensor]](), list[list[vs.Tensor]]()
    for host in range(hosts):
        with vs.name_scope(f"host{host}"):
            weights = [vs.weight(square, name=f"w{i}") for i in range(LAYERS)]
            values = [_wide(vs.input(f"x{host}", (TOKENS, 1)))]
            for weight in weights:
                values.append(vs.relu(vs.matmul(values[-1], weight)))
            down, found = values[-1], list[vs.Tensor]()
            for weight, value in zip(reversed(weights), reversed(values[:-1]), strict=True):
                found.append(vs.matmul(value, down, transpose_a=True))
                down = vs.matmul(down, weight, transpose_b=True)
            held.append(weights[::-1])
            gradients.append(found)
    columns = enumerate(zip(*gradients, strict=True))
    sums = [_exchanged(column, number) for number, column in columns]
    ends = []
    for host, of_host in enumerate(zip(*sums, strict=True)):
        with vs.name_scope(f"host{host}"):  # the next weights; only a number of each leaves
            pairs = zip(held[host], of_host, strict=True)
            ends += [vs.reduce_max(weight - total * 0.1) for weight, total in pairs]
    graph, _ = vs.build_graph(ends)
    placed = [(f"host{host}.*", f"node{host}/gpu:0") for host in range(hosts)]
    plan, plan_s = timed(graph, topology, placed)
    return [_trained("tree", plan, topology, plan_s)]


def _exchanged(terms: Sequence[vs.Tensor], number: int) -> list[vs.Tensor]:
    """Return the sum of a term of each host, on each host."""
    out, width = list(terms), 1
    while width < len(out):
        for host in range(0, len(out) - width, 2 * width):
            with vs.name_scope(f"host{host}"):
                out[host] = vs.add(out[host], out[host + width], name=f"sum{number}.{width}")
        width *= 2
    while width > 1:
        width //= 2
        for host in range(0, len(out) - width, 2 * width):
            with vs.name_scope(f"host{host + width}"):
                out[host + width] = vs.mul(out[host], 1.0, name=f"back{number}.{width}")
    return out


def _trained(part: str, plan: Plan, topology: Topology, plan_s: float) -> Row:
    """Return the row of a step. Its ideal is what one host takes for its part of the batch."""
    alone = Topology((*topology.devices[:2], topology.devices[-1]), topology.links)
    one = vs.plan_graph(step(TOKENS), alone, overrides=[("*", alone.devices[0].name)])
    hosts = len(topology.hosts) - 1
    return Row(part, hosts, hosts, len(plan.graph.nodes), len(plan.splits), plan_s,
               simulate(plan).seconds, simulate(one).seconds)  # fmt: skip


MAKE: dict[str, Callable[[int, str, str], list[Row]]] = {
    "planning": planning,
    "pipeline": pipeline,
    "training": training,
    "tree": tree,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="1,8,64,1000", help="numbers of hosts, with commas")
    parser.add_argument("--card", default="rtx4090", help="the card of each host")
    parser.add_argument("--network", default="ethernet100g", help="the network between hosts")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[Row] = []
    for part in args.only.split(","):
        for hosts in map(int, args.hosts.split(",")):
            rows += MAKE[part](hosts, args.card, args.network)
    if args.json:
        print(json.dumps([{**asdict(row), "efficiency": row.efficiency} for row in rows]))
        return
    heads = ("part", "hosts", "devices", "nodes", "splits", "plan s", "run ms", "ideal ms", "share")
    table = Table(*heads, box=None)
    for row in rows:
        share = row.efficiency
        table.add_row(
            row.part, f"{row.hosts:,}", f"{row.devices:,}", f"{row.nodes:,}", f"{row.splits:,}",
            f"{row.plan_s:.2f}", f"{1e3 * row.seconds:.2f}", f"{1e3 * row.ideal_s:.2f}",
            f"{share:.0%}" if share else "",
        )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
