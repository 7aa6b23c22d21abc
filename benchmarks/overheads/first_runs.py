"""How good are the first runs on a machine that was never measured? Plans and predictions by run.

    VKSCHED_SOFTWARE=1 python benchmarks/overheads/first_runs.py
        [--devices vulkan:0,vulkan:1,cpu] [--json]
    python benchmarks/overheads/first_runs.py --case conv --turns 15

Each graph begins with an empty cache, once for each order of the devices. Then it takes turns with
references: each device alone, and the same devices after a calibration with the calls of the graph.
A second start with the same cache does the same. "ratio" is the median of turns, from the third run
on, over the fastest reference. "predicted" is what the plan takes by the costs that are known in
the end, over the median. "by rough speeds" is that of each device alone, with nothing measured.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from options import make_parser
from rich.console import Console
from rich.progress import track
from rich.table import Table

import vksched as vs
from vksched import Topology
from vksched.common.dtypes import NDArray
from vksched.plan.simulation.predict import predict
from vksched.topology.perf_model import PerfModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "suites"))
from prediction_facts import Model, calibrate

FIRST = 2
"""Runs before the third one."""
STARTS = 2
TURNS = 9
TURN_S = 0.03
"""Of one turn at least: short runs come several times, of which the median counts."""
BUDGET_S = 6.0
"""For the calibration of one device."""


class Weights:
    """Draws weights."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __call__(self, *shape: int) -> vs.Tensor:
        scale = float(np.prod(shape[1:] if len(shape) > 2 else shape[:1])) ** -0.5
        return vs.weight(scale * self._rng.standard_normal(shape, np.float32))


def branches(count: int) -> vs.Tensor:
    """Return branches of three products each, and their sum."""
    weight, x = Weights(), vs.input("x", (128, 256))
    ends = []
    for _ in range(count):
        h = x
        for _ in range(3):
            h = vs.gelu(h @ weight(256, 256))
        ends.append(h)
    total = ends[0]
    for end in ends[1:]:
        total = total + end
    return total


def products(count: int) -> vs.Tensor:
    """Return a chain of products."""
    weight, h = Weights(), vs.input("x", (128, 384))
    for _ in range(count):
        h = h @ weight(384, 384)
    return h


def transformer(layers: int) -> vs.Tensor:
    """Return layers of attention with four heads and two products."""
    rows, width, heads = 64, 128, 4
    weight, h = Weights(), vs.input("x", (rows, width))

    def parts(tensor: vs.Tensor) -> vs.Tensor:
        return vs.transpose(vs.reshape(tensor, (rows, heads, width // heads)), (1, 0, 2))

    for _ in range(layers):
        n = vs.layer_norm(h)
        q, k, v = (parts(n @ weight(width, width)) for _ in range(3))
        scores = vs.softmax(vs.mul(q @ vs.transpose(k, (0, 2, 1)), (width // heads) ** -0.5))
        joined = vs.reshape(vs.transpose(scores @ v, (1, 0, 2)), (rows, width))
        h = joined @ weight(width, width) + h
        h = vs.gelu(vs.layer_norm(h) @ weight(width, 4 * width)) @ weight(4 * width, width) + h
    return h


def convolutions(layers: int) -> vs.Tensor:
    """Return layers of 3 x 3 convolutions, pooled in between."""
    weight, h = Weights(), vs.input("x", (1, 3, 64, 64))
    channels = 3
    for layer in range(layers):
        wider = 16 * 2 ** (layer // 2)
        h = vs.relu(vs.conv(h, weight(wider, channels, 3, 3), padding=1))
        channels = wider
        if layer % 2:
            h = vs.max_pool(h, 2, stride=2)
    return vs.softmax(vs.reshape(vs.reduce_mean(h, (2, 3)), (1, channels)) @ weight(channels, 10))


def tiny(count: int) -> vs.Tensor:
    """Return ops with next to no work, each of which reads the one before."""
    h = x = vs.input("x", (8, 8))
    for i in range(count // 2):
        h = vs.softmax(vs.transpose(h, (1, 0))) if i % 2 else vs.tanh(h @ x)
    return h


CASES: dict[str, Callable[[], vs.Tensor]] = {
    "2 branches": lambda: branches(2),
    "8 branches": lambda: branches(8),
    "12 products": lambda: products(12),
    "4 layers": lambda: transformer(4),
    "conv net": lambda: convolutions(6),
    "150 tiny ops": lambda: tiny(150),
}


class Started:
    """A graph on the devices of one scheduler, compiled."""

    def __init__(self, case: str, sched: vs.Scheduler) -> None:
        start = time.perf_counter()
        self.sched = sched
        self.compiled = sched.compile(CASES[case]())
        self.compile_s = time.perf_counter() - start
        rng = np.random.default_rng(1)
        self.feeds: dict[str, NDArray] = {
            node.name: rng.standard_normal(node.type.shape, np.float32)
            for node in self.compiled.plan.graph.inputs
        }

    @property
    def used(self) -> str:
        """The devices that have work now."""
        plan = self.compiled.plan
        return " + ".join(sorted({plan.topology.devices[s.device].name for s in plan.splits}))

    def predicted_s(self, topology: Topology) -> float:
        """Return what a run of its plan takes by the costs of a machine."""
        return predict(replace(self.compiled.plan, topology=topology)).seconds

    def rough_s(self) -> float:
        """Return what a run takes by rough speeds, as if nothing was ever measured."""
        topology = self.compiled.plan.topology
        devices = tuple(replace(s, costs=PerfModel(), slowdown=1.0) for s in topology.devices)
        return self.predicted_s(Topology(devices))

    def result(self) -> NDArray:
        """Return the result of one run."""
        return np.asarray(self.compiled(**self.feeds))

    def run_s(self) -> float:
        """Return the seconds of one run."""
        start = time.perf_counter()
        self.result()
        return time.perf_counter() - start

    def turn_s(self) -> float:
        """Return the median of the runs of one turn."""
        runs_s = [self.run_s()]
        while sum(runs_s) < TURN_S:
            runs_s.append(self.run_s())
        return statistics.median(runs_s)

    def close(self) -> None:
        """Free what the graph holds on its devices."""
        self.compiled.close()


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("VKSCHED_CACHE")
    os.environ["VKSCHED_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["VKSCHED_CACHE"]
        else:
            os.environ["VKSCHED_CACHE"] = before


@dataclass(frozen=True)
class Start:
    """One start of a program.

    Attributes
    ----------
    used
        The devices that have work in the end.
    compile_s
        Seconds of the compile.
    first_s
        Seconds of each of the runs before the third.
    run_s
        Median of the turns.
    ratio
        Median, over turns, of the run over the fastest reference.
    predicted
        What the plan takes by the costs that are known then, over the median.
    best, best_s
        The fastest reference, and its median.
    """

    used: str
    compile_s: float
    first_s: tuple[float, ...]
    run_s: float
    ratio: float
    predicted: float
    best: str
    best_s: float


@dataclass(frozen=True)
class Row:
    """One graph on devices in one order. starts: the first one, and the one after it. rough: the
    ratio of estimated to measured run time of each device alone, by rough speeds.
    """

    case: str
    devices: str
    starts: tuple[Start, ...]
    rough: dict[str, float]


def calibrate_all(case: str, devices: Sequence[str], cache: Path, budget_s: float) -> None:
    """Measure the calls of a graph on each device, as `vksched calibrate` does."""
    with _cache(cache):
        for device in devices:
            calibrate(device, Model(case, partial(Started, case)), budget_s)


def measure(case: str, devices: Sequence[str], turns: int, known: Path) -> Row:
    """Measure one graph on devices in one order. known: the cache of a calibration."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack, _cache(known):
        names = {**{name: [name] for name in devices}, "calibrated": devices}
        references = {
            name: Started(case, stack.enter_context(vs.Scheduler(on, monitor=False)))
            for name, on in names.items()
        }
        for each in references.values():
            each.run_s()
        starts, alone_s = [], {name: [] for name in devices}
        for _ in range(STARTS):
            with _cache(Path(folder)), vs.Scheduler(devices, monitor=False) as sched:
                own = Started(case, sched)
                first_s = tuple(own.run_s() for _ in range(FIRST))
                taken = _in_turn({**references, "own": own}, turns)
                for name in devices:
                    alone_s[name] += taken[name]
                starts.append(_start_of(own, first_s, references, taken))
        rough = {
            name: references[name].rough_s() / statistics.median(alone_s[name]) for name in devices
        }
        return Row(case, ", ".join(devices), tuple(starts), rough)


def _in_turn(everyone: dict[str, Started], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each one's turns, in an order that changes."""
    taken: dict[str, list[float]] = {name: [] for name in everyone}
    order = list(everyone)
    for _ in range(turns):
        for name in order:
            taken[name].append(everyone[name].turn_s())
        order.reverse()
    return taken


def _start_of(
    own: Started,
    first_s: tuple[float, ...],
    references: dict[str, Started],
    taken: dict[str, list[float]],
) -> Start:
    medians = {name: statistics.median(times) for name, times in taken.items()}
    best = min(references, key=lambda name: medians[name])
    ratio = statistics.median(a / b for a, b in zip(taken["own"], taken[best], strict=True))
    predicted = own.predicted_s(own.sched.topology) / medians["own"]
    about = f"{best}: {references[best].used}" if best == "calibrated" else best
    return Start(
        own.used, own.compile_s, first_s, medians["own"], ratio, predicted, about, medians[best]
    )


def table_of(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    table = Table(title="first and second start with an empty cache")
    for name in ("graph", "devices", "compile s", "works on", "ms", "fastest reference"):
        table.add_column(name, overflow="fold")
    for name in ("ratio", "predicted", "by rough speeds"):
        table.add_column(name, justify="right")
    for row in rows:
        for number, start in enumerate(row.starts):
            table.add_row(
                *(("", "") if number else (row.case, row.devices)),
                f"{start.compile_s:.2f}",
                start.used,
                f"{1e3 * start.run_s:.3g}",
                f"{start.best}, {1e3 * start.best_s:.3g} ms",
                f"{start.ratio:.2f}",
                f"{start.predicted:.2f}",
                "" if number else " ".join(f"{ratio:.2f}" for ratio in row.rough.values()),
            )
    return table


def orders_of(devices: Sequence[str]) -> list[list[str]]:
    """Return both orders of the devices, with the CPU and without it."""
    cards = [name for name in devices if name != "cpu"]
    orders = [cards, cards[::-1]] if len(cards) > 1 else [cards]
    with_cpu = [[*order, "cpu"] for order in orders] if "cpu" in devices else []
    return [*(order for order in orders if len(order) > 1), *with_cpu]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--case", default="", help="only graphs with such names")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument(
        "--time-budget", type=float, default=BUDGET_S, help="s to calibrate a device"
    )
    args = parser.parse_args(arguments)
    names = (args.devices or ",".join(info.name for info in vs.devices())).split(",")
    cases = [case for case in CASES if args.case in case]
    rows: list[Row] = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        work = [(case, order) for case in cases for order in orders_of(names)]
        for case in cases:
            calibrate_all(case, names, Path(folder) / case, args.time_budget)
        for case, order in track(work, "first runs", console=console, transient=True):
            rows.append(measure(case, order, args.turns, Path(folder) / case))
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console().print(table_of(rows))


if __name__ == "__main__":
    main()
