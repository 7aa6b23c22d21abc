"""How much faster do more devices make a graph? Equal branches, spread over the devices in turns.

    python benchmarks/workloads/scaling.py [--devices vulkan:1,vulkan:0] [--branches 8] [--json]

First on simulated devices, each with a processor of its own, whose clock tells what the plan gives;
then on the devices named: the first one alone, the first two, and so on. Software devices share the
cores of the CPU, each of which one device alone keeps busy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from overlap import branch
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.vulkan.device_probe import cpu_device, device_spec
from vksched.topology.links import Link

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "overheads"))
from options import make_parser, vulkan_names

SIMULATED = (1, 2, 4, 8)


@dataclass(frozen=True)
class Row:
    """kind: "simulated" or the names of the devices; speed_up: over the first device alone."""

    kind: str
    devices: int
    run_s: float
    speed_up: float


def seconds(sched: vs.Scheduler, names: Sequence[str], sizes: tuple[int, int, int]) -> list[float]:
    """Return the times of runs of all branches; the first run warms up and does not count."""
    branches, size, layers = sizes
    outputs = [branch(str(i), size, layers) for i in range(branches)]
    placement = {f"branch{i}.*": names[i % len(names)] for i in range(branches)}
    x = np.random.default_rng(1).standard_normal((size, size), dtype=np.float32) / size**0.5
    run = sched.compile(outputs, placement=placement)
    taken = []
    for _ in range(6):
        run(**{f"x{i}": x for i in range(branches)})
        assert run.stats is not None
        taken.append(run.stats.seconds)
    return taken[1:]


def simulated(count: int, sizes: tuple[int, int, int]) -> float:
    """Return the seconds of a run on so many simulated devices."""
    clock = vs.SimulatedClock()
    names = [f"null:{i}" for i in range(count)]
    nulls = [
        vs.SimulatedDevice(vs.DeviceSpec(n, "null", bytes_per_s=1e8), clock, link=Link(1e12))
        for n in names
    ]
    cpu = CpuDevice(device_spec(cpu_device()))
    with vs.Scheduler([*nulls, cpu], trace=vs.Trace(clock)) as sched:
        return median(seconds(sched, names, sizes))


def measure(names: Sequence[str], sizes: tuple[int, int, int]) -> list[Row]:
    """Return a row for each number of devices."""
    rows: list[Row] = []
    for count in SIMULATED:
        taken = simulated(count, sizes)
        first = rows[0].run_s if rows else taken
        rows.append(Row("simulated", count, taken, first / taken))
    first = 0.0
    for count in range(1, len(names) + 1):
        with vs.Scheduler(names[:count]) as sched:
            taken = median(seconds(sched, names[:count], sizes))
        first = first or taken
        rows.append(Row(" + ".join(names[:count]), count, taken, first / taken))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="tiny branches, to try it out")
    args = parser.parse_args(arguments)
    sizes = (args.branches, *((16, 2) if args.small else (256, 6)))
    rows = measure(vulkan_names(args), sizes)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    table = Table(title=f"{args.branches} equal branches")
    for name in ("kind", "devices", "milliseconds", "speed-up"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for row in rows:
        table.add_row(row.kind, str(row.devices), f"{1e3 * row.run_s:.2f}", f"{row.speed_up:.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
