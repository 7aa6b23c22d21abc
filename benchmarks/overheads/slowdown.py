"""What policies make of a device that slows down in the middle of a stream of runs.

    python benchmarks/overheads/slowdown.py [--devices vulkan:0,vulkan:1] [--null] [--runs 40]
        [--slowdown 4]
        [--repeats 3] [--json]
    python benchmarks/overheads/slowdown.py --devices vulkan:1,cpu  numpy, too, but not as the first

The first device takes `slowdown` times as long from the middle on: a null device on its simulated
clock, a real one in a wrapper that lets its submissions end later. Each policy carries out the same
stream. Beside it stands the plan that knew: for each half the fastest of the plans that never
change, measured in that half alone. No policy knows anything of the devices before: what was
calibrated of one of them would help some policies more than others. Streams take turns; of each the
fastest of some repeats counts. Printed are seconds and ratios.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from options import make_parser, vulkan_names
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.runtime.simulated.throttled_device import ThrottledDevice
from vksched.topology.device_spec import DeviceSpec

WIDTH = 192
X = np.random.default_rng(0).random((WIDTH, WIDTH), np.float32)


def branches(count: int, depth: int) -> vs.Tensor:
    """Parts that know nothing of each other until their ends are added."""
    x = vs.input("x", X.shape)
    ends: list[vs.Tensor] = []
    for i in range(count):
        end = x
        for k in range(depth):
            values = np.full((WIDTH, WIDTH), (i + k + 1) / WIDTH / 8, np.float32)
            end = vs.relu(vs.matmul(end, vs.weight(values, f"b{i}.w{k}")))
        ends.append(end)
    total = ends[0]
    for end in ends[1:]:
        total = vs.add(total, end)
    return total


GRAPHS: dict[str, Callable[[], vs.Tensor]] = {
    "8 branches of 4": lambda: branches(8, 4),
    "2 branches of 8": lambda: branches(2, 8),
    "a chain of 16": lambda: branches(1, 16),
}


@dataclass
class Stage:
    """Devices whose first one can be slowed down, and their clock."""

    devices: list[ThrottledDevice | vs.SimulatedDevice | str]
    trace: vs.Trace
    now: Callable[[], float]

    def slow(self, slowdown: float) -> None:
        first = self.devices[0]
        assert not isinstance(first, str)
        first.slowdown = slowdown


def open_stage(names: Sequence[str], null: bool) -> Stage:
    if not null:
        slowed = [name if name == "cpu" else ThrottledDevice(name) for name in names]
        return Stage(slowed, vs.Trace(), time.perf_counter)
    clock = vs.SimulatedClock()
    specs = [
        DeviceSpec(f"null:{i}", "null", flops_per_s=s, bytes_per_s=s, submit_s=2e-5)
        for i, s in enumerate((2e10, 1.6e10))
    ]
    return Stage([vs.SimulatedDevice(spec, clock) for spec in specs], vs.Trace(clock), clock.now)


def stream_s(
    names: Sequence[str],
    null: bool,
    output: vs.Tensor,
    policy: str,
    slowdowns: Sequence[float],
    place: str = "",
) -> float:
    """Return the seconds of a run for each slowdown, after two that nobody counts."""
    stage = open_stage(names, null)
    options = {
        "trace": stage.trace,
        "optimize": False,
        "copies": 1,
        "timeout_s": 1e3,
        "tune": False,
    }
    with vs.Scheduler(stage.devices, policy=policy, **options) as sched:  # type: ignore[arg-type]
        at = {"*": sched.devices[int(place)].name} if place else None
        run = sched.compile(output, at)
        stage.slow(slowdowns[0])
        for _ in range(2):
            run(x=X)
        start = stage.now()
        for slowdown in slowdowns:
            stage.slow(slowdown)
            run(x=X)
        return stage.now() - start


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--null", action="store_true", help="simulated devices")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--slowdown", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    names = options.devices.split(",") if options.devices else vulkan_names(options)[:2]
    if not options.null and (len(names) != 2 or names[0] == "cpu"):
        raise SystemExit("expected two devices, the first of them a Vulkan device; try --null")
    half = options.runs // 2
    rows: list[dict[str, object]] = []
    table = Table(
        "graph",
        "knew",
        "earliest-finish",
        "work-stealing",
        "auto",
        "ratio dynamic",
        "work-stealing",
        "auto",
    )
    for graph, build in GRAPHS.items():
        first, second = [1.0] * half, [options.slowdown] * half
        streams = [
            (policy, [*first, *second], "")
            for policy in ("earliest-finish", "work-stealing", "auto")
        ]
        fixed = (("priority", "0"), ("priority", "1"), ("auto", ""))
        streams += [(policy, part, at) for part in (first, second) for policy, at in fixed]
        each = [
            [stream_s(names, options.null, build(), *stream) for stream in streams]
            for _ in range(1 if options.null else options.repeats)
        ]
        best = [min(seconds) for seconds in zip(*each, strict=True)]
        took, knew_s = best[:3], min(best[3:6]) + min(best[6:])
        found = dict(
            zip(("knew", "earliest-finish", "work-stealing", "auto"), (knew_s, *took), strict=True)
        )
        rows.append({"graph": graph, "seconds": found})
        cells = [f"{seconds * 1e3:.1f} ms" for seconds in (knew_s, *took)]
        table.add_row(graph, *cells, *(f"{seconds / knew_s:.2f}" for seconds in took))
    if options.json:
        print(json.dumps(rows))
    else:
        Console().print(table)


if __name__ == "__main__":
    main()
