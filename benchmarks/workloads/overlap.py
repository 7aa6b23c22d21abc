"""Do branches that share nothing run at the same time? Two on two devices, and a GPU beside numpy.

    python benchmarks/workloads/overlap.py [--devices vulkan:0,vulkan:1] [--null] [--repeats 10]
        [--json]

Per pair of devices: seconds of one branch alone on each, of both as one graph, how long both were
busy at once, as the trace shows it, and three ratios of both together. To one after the other: 0.5
is perfect for equal devices. To the slower one alone: at most 1.1 on devices of their own. To the
sum of the time that the devices were busy: devices that share the cores of the CPU gain less, but
no more than a tenth is lost beside their work as long as that is at most 1.1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.vulkan.device_probe import cpu_device, device_spec
from vksched.topology.links import Link

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "overheads"))
from options import make_parser, vulkan_names

MOST = 1.1


@dataclass(frozen=True)
class Row:
    """All in seconds, medians of the runs. alone: time of the graph with one branch, by device.
    busy: time in the graph with both, by device; overlap: time while both were busy.
    """

    devices: tuple[str, str]
    alone: dict[str, float]
    both: float
    busy: dict[str, float]
    overlap: float

    @property
    def ratio(self) -> float:
        """Both branches at once to one after the other."""
        return self.both / sum(self.alone.values())

    @property
    def to_one(self) -> float:
        """Both branches at once to the slower one alone: 1.1 at most on devices of their own."""
        return self.both / max(self.alone.values())

    @property
    def to_busy(self) -> float:
        """Both branches at once to all the time that devices were busy: what bounds devices that
        share their cores, as long as it is no more than 1.1.
        """
        return self.both / sum(self.busy.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the page."""
        more = {"ratio": self.ratio, "to_one": self.to_one, "to_busy": self.to_busy}
        return {**asdict(self), **more}


def branch(name: str, size: int, layers: int) -> vs.Tensor:
    """Some products, each with the result of the one before."""
    rng = np.random.default_rng(0)
    h = vs.input(f"x{name}", (size, size))
    for i in range(layers):
        w = vs.weight(rng.standard_normal((size, size), dtype=np.float32) / size**0.5)
        h = vs.tanh(vs.matmul(h, w, name=f"branch{name}.{i}"), name=f"branch{name}.tanh{i}")
    return h


def overlap_s(events: Sequence[vs.Event]) -> float:
    """Return the seconds for which splits of two devices or more ran at once."""
    edges = sorted(
        edge for e in events for edge in ((e.start_s, 1, e.device), (e.end_s, -1, e.device))
    )
    total, since = 0.0, 0.0
    running: dict[str, int] = {}
    for at, change, device in edges:
        if sum(count > 0 for count in running.values()) > 1:
            total += at - since
        running[device] = running.get(device, 0) + change
        since = at
    return total


def measure(pair: tuple[str, str], size: int, layers: int, repeats: int, null: bool) -> Row:
    """Runs both branches, each on its device, and each alone."""
    recorder = vs.Recorder()
    x = np.random.default_rng(1).standard_normal((size, size), dtype=np.float32) / size**0.5
    with _open(pair, null, recorder) as sched:
        outputs = [branch("0", size, layers), branch("1", size, layers)]
        placement = {f"branch{i}.*": device for i, device in enumerate(pair)}
        both = sched.compile(outputs, placement=placement)
        alone = {
            device: sched.compile(branch("", size, layers), placement={"branch.*": device})
            for device in pair
        }
        times: dict[str, list[float]] = {device: [] for device in pair}
        together: list[float] = []
        overlaps: list[float] = []
        busy: dict[str, list[float]] = {device: [] for device in pair}
        for repeat in range(repeats + 1):
            for device, run in alone.items():
                run(x=x)
                if repeat and run.stats is not None:  # the first one warms up
                    times[device].append(run.stats.seconds)
            recorder.events.clear()
            both(x0=x, x1=x)
            if repeat and both.stats is not None:
                together.append(both.stats.seconds)
                splits = recorder.select("split")
                overlaps.append(overlap_s(splits))
                for device in pair:
                    mine = [e.end_s - e.start_s for e in splits if e.device == device]
                    busy[device].append(sum(mine))
    return Row(
        pair,
        {device: median(values) for device, values in times.items()},
        median(together),
        {device: median(values) for device, values in busy.items()},
        median(overlaps),
    )


def _open(pair: tuple[str, str], null: bool, recorder: vs.Recorder) -> vs.Scheduler:
    if not null:
        gpus = [name for name in pair if name != "cpu"]
        return vs.Scheduler(gpus, trace=vs.Trace(sinks=[recorder]))
    clock = vs.SimulatedClock()
    nulls = [
        vs.SimulatedDevice(vs.DeviceSpec(n, "null", bytes_per_s=1e8), clock, link=Link(1e12))
        for n in pair
    ]
    cpu = CpuDevice(device_spec(cpu_device()))
    return vs.Scheduler([*nulls, cpu], trace=vs.Trace(clock, [recorder]))


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    table = Table(title="two branches, milliseconds")
    names = "devices", "alone", "both", "both busy at once"
    ratios = "to one after the other", "to the slower alone", "to the sum of busy", "within 1.1"
    for name in (*names, *ratios):
        table.add_column(name, justify="left" if name == "devices" else "right")
    for row in rows:
        alone = " + ".join(f"{1e3 * s:.2f}" for s in row.alone.values())
        times = f"{1e3 * row.both:.2f}", f"{1e3 * row.overlap:.2f}"
        found = (f"{ratio:.2f}" for ratio in (row.ratio, row.to_one, row.to_busy))
        within = "yes" if row.to_busy <= MOST else "no"
        table.add_row(" + ".join(row.devices), alone, *times, *found, within)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file has room for all columns
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--null", action="store_true", help="two simulated devices instead")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--small", action="store_true", help="tiny branches, to try it out")
    args = parser.parse_args(arguments)
    names = ["null:0", "null:1"] if args.null else [*vulkan_names(args), "cpu"]
    size, layers = (16, 2) if args.small else (256, 8)
    rows = [measure(pair, size, layers, args.repeats, args.null) for pair in combinations(names, 2)]
    if args.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
