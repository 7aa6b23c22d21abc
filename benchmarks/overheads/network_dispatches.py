"""The dispatches and barriers of networks on a GPU that need not be present.

    python benchmarks/overheads/network_dispatches.py [--card "Arc A770"] [--precision mixed]

The networks are those of `vksched bench --suite models`, with random weights. A run is planned for
a described card, with the features of its drivers; nothing is computed.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from card_counts import CARDS, spec_of
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.bench.baselines.networks import build
from vksched.bench.networks_runner import Math
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.set_precision import set_precision
from vksched.plan.costs import node_cost
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.host_names import CPU
from vksched.topology.topology import Topology

NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "MiniLM 8 x 32 tokens": {"model": "minilm", "batch": 8, "tokens": 32},
    "GPT-2 prompt 512": {"model": "gpt2_prompt", "tokens": 512},
    "ResNet-18": {"model": "resnet18"},
    "ResNet-50": {"model": "resnet50"},
    "MobileNet-V2": {"model": "mobilenet"},
}
HOST = DeviceSpec(name=CPU, kind="cpu", memory_bytes=1 << 36)


@dataclass(frozen=True)
class NetworkCount:
    """The counts of one run. barriers: those between nodes and within them."""

    network: str
    card: str
    precision: str
    dispatches: int
    barriers: int
    kernels: Mapping[str, int]


@cache
def graph_of(network: str) -> Graph:
    """Return the graph of a network as users write it."""
    math = Math()
    return vs.build_graph(build(NETWORKS[network], math), math.updates)[0]


def count(network: str, spec: DeviceSpec, precision: str = "float32") -> NetworkCount:
    """Return the counts of a network on a described device."""
    graph = graph_of(network)
    graph = set_precision(graph, {node.id: precision for node in graph.nodes})
    constraints = RewriteConstraints(limits=spec.limits, memory_bytes=spec.memory_bytes)
    graph = optimize(graph, constraints)
    plan = vs.plan_graph(graph, Topology((spec, HOST)), overrides=[("*", spec.name)])
    kernels: Counter[str] = Counter()
    for node_id in (n for split in plan.splits for n in split.nodes):
        lowering = node_cost.lower_node(spec, graph, graph.nodes[node_id])
        kernels.update(d.shader for d in lowering.run(node_id in plan.in_place))
    return NetworkCount(
        *(network, spec.label, precision, kernels.total()),
        *(plan.barriers + plan.inner_barriers, dict(kernels.most_common())),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--card", choices=CARDS, default="NVIDIA H100")
    parser.add_argument("--precision", default="float32", choices=("float32", "mixed"))
    parser.add_argument("--kernels", action="store_true", help="the dispatches of each shader")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    spec = spec_of(args.card)
    counts = [count(network, spec, args.precision) for network in NETWORKS]
    if args.json:
        print(json.dumps([asdict(each) for each in counts], indent=2))
        return
    table = Table("network", "dispatches", "barriers")
    for each in counts:
        table.add_row(each.network, str(each.dispatches), str(each.barriers))
    Console().print(table)
    if args.kernels:
        for each in counts:
            Console().print(each.network, dict(each.kernels))


if __name__ == "__main__":
    main()
