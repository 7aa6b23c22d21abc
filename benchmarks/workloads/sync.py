"""What it costs to give a device all of a split, a level or one op at a time.

    python benchmarks/workloads/sync.py [--devices vulkan:0,vulkan:1] [--null] [--repeats 20]
        [--json]

Each graph is compiled with each policy on each device; runs of the policies take turns, so that
what else the machine does meets all of them. Printed are medians and ratios to "split". With --null
the device is simulated and the seconds are those of its clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.topology.device_spec import GRANULARITIES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "overheads"))
from options import make_parser, vulkan_names


def chain(size: int) -> vs.Tensor:
    """Small ops, each reading the one before."""
    h = vs.input("x", (size, 64))
    for _ in range(size):
        h = vs.add(vs.mul(h, 0.5), 1.0)
    return h


def wide(size: int) -> vs.Tensor:
    """Levels of many ops that read the level before."""
    h = vs.input("x", (size, 64))
    for _ in range(4):
        parts = [vs.tanh(vs.mul(h, 1.0 / (i + 1))) for i in range(16)]
        while len(parts) > 1:
            parts = [vs.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        h = vs.mul(parts[0], 1 / 16)
    return h


def transformer(size: int) -> vs.Tensor:
    """One layer of a transformer: attention of four heads and two products, with residuals."""
    width = 4 * size
    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> vs.Tensor:
        return vs.weight(rng.standard_normal((rows, columns), dtype=np.float32) / rows**0.5)

    def heads(tensor: vs.Tensor) -> vs.Tensor:
        return vs.transpose(vs.reshape(tensor, (size, 4, size)), (1, 0, 2))

    x = vs.input("x", (size, width))
    n = vs.layer_norm(x)
    q, k, v = (heads(n @ weight(width, width)) for _ in range(3))
    scores = vs.softmax(vs.mul(q @ vs.transpose(k, (0, 2, 1)), size**-0.5))
    joined = vs.reshape(vs.transpose(scores @ v, (1, 0, 2)), (size, width))
    h = vs.add(joined @ weight(width, width), x)
    n = vs.layer_norm(h)
    return vs.add(vs.gelu(n @ weight(width, 4 * width)) @ weight(4 * width, width), h)


GRAPHS: dict[str, Callable[[int], vs.Tensor]] = {
    "chain": chain,
    "wide": wide,
    "transformer": transformer,
}


@dataclass(frozen=True)
class Row:
    """seconds: medians of a run, by policy; ratio: to "split"."""

    device: str
    graph: str
    submissions: dict[str, int]
    seconds: dict[str, float]
    ratio: dict[str, float]


def measure(device: str, graph: str, size: int, repeats: int, simulated: bool) -> Row:
    """Run one graph on one device with each policy in turn."""
    schedulers = {sync: _open(device, sync, simulated) for sync in GRANULARITIES}
    try:
        outputs = GRAPHS[graph](size)
        runs = {sync: sched.compile(outputs) for sync, sched in schedulers.items()}
        shape = runs["split"].plan.graph.inputs[0].type.shape
        x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        times: dict[str, list[float]] = {sync: [] for sync in GRANULARITIES}
        for repeat in range(repeats + 1):
            for sync, run in runs.items():
                run(x=x)
                if repeat and run.stats is not None:  # the first one warms up
                    times[sync].append(run.stats.seconds)
        seconds = {sync: median(values) for sync, values in times.items()}
        return Row(
            device,
            graph,
            {sync: len(run.plan.splits) for sync, run in runs.items()},
            seconds,
            {sync: value / seconds["split"] for sync, value in seconds.items()},
        )
    finally:
        for sched in schedulers.values():
            sched.close()


def _open(device: str, sync: str, simulated: bool) -> vs.Scheduler:
    if not simulated:
        return vs.Scheduler([device], submit_granularity=sync)
    clock = vs.SimulatedClock()
    null = vs.SimulatedDevice(vs.DeviceSpec(device, "null"), clock)
    return vs.Scheduler([null], submit_granularity=sync, trace=vs.Trace(clock))


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    table = Table(title="median of a run in ms (ratio to split), submissions")
    for name in ("device", "graph", *GRANULARITIES):
        table.add_column(name, justify="left" if name in ("device", "graph") else "right")
    for row in rows:
        cells = (
            f"{1e3 * row.seconds[s]:.3f} ({row.ratio[s]:.2f}), {row.submissions[s]}"
            for s in GRANULARITIES
        )
        table.add_row(row.device, row.graph, *cells)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--null", action="store_true", help="a simulated device instead")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="tiny graphs, to try it out")
    args = parser.parse_args(arguments)
    names = ["null:0"] if args.null else vulkan_names(args)
    size = 8 if args.small else 64
    rows = [
        measure(name, graph, size, args.repeats, args.null) for name in names for graph in GRAPHS
    ]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
