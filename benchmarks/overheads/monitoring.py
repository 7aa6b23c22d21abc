"""What being watched costs: `python benchmarks/overheads/monitoring.py [--model FILE.onnx]
[--devices cpu]`.

Runs of one graph with and without `monitor=True`, in turns in one process, while a client reads all
that the monitor tells; and with metrics for Prometheus, where that is installed. What is compared
is the processor time of the whole process for a run, its threads included, and runs per second
beside it: other programs disturb both, the latter by a half on a busy machine. "off again" shows by
how much. A ratio is the median of the rounds' own ratios. The last column is no ratio of two noisy
figures: the part of the processor time that the monitor's thread took, by its own clock. The
smallest graph is the worst case: its runs take some 100 us.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import vksched as vs
from vksched.monitor.watch import Watch

READER = """
import sys
from vksched.monitor.client import Client
client = Client(int(sys.argv[1]))
while True:
    try:
        client.look_for_new()
    except Exception:
        pass
    client.read(0.2)
"""
Case = tuple[Any, Mapping[str, Any]]
Measured = tuple[float, float, float]
"""Processor time of a run, runs per second, and the part of that time in the monitor's thread."""


def smallest() -> Case:
    """One op of four values."""
    return vs.exp(vs.input("x", (4,))), {"x": np.ones(4, np.float32)}


def layers() -> Case:
    """Six layers of 256 values for 64 rows."""
    rng = np.random.default_rng(0)
    y = x = vs.input("x", (64, 256))
    for _ in range(6):
        y = vs.relu(vs.layer_norm(y @ rng.standard_normal((256, 256)).astype(np.float32)))
    return y, {"x": rng.standard_normal(x.shape).astype(np.float32)}


def model_of(path: str) -> Callable[[], Case]:
    """An ONNX model, with made-up inputs."""

    def case() -> Case:
        from vksched.importers.onnx.example_inputs import choose_shapes, example_inputs

        model: Any = vs.load(path)
        return model, example_inputs(model, choose_shapes(model, {}, {}, {}).shapes, 0)

    return case


def monitor_s() -> float:
    """Return the processor time of the monitor's thread; 0 where there is none."""
    for thread in threading.enumerate():
        if thread.name == "vksched-monitor" and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def measure(case: Case, devices: list[str], seconds: float, **options: Any) -> Measured:
    """Return the costs of runs, measured over some seconds."""
    outputs, feeds = case
    with vs.Scheduler(devices, tune=False, **options) as sched:
        run = sched.compile(outputs)
        warm_until = time.perf_counter() + seconds / 4
        while time.perf_counter() < warm_until:
            run(**feeds)
        count, start, start_cpu, before = 0, time.perf_counter(), time.process_time(), monitor_s()
        while (end := time.perf_counter()) < start + seconds:
            run(**feeds)
            count += 1
        cpu = time.process_time() - start_cpu
        return cpu / count, count / (end - start), (monitor_s() - before) / cpu


@contextmanager
def reader() -> Iterator[None]:
    """A client in a process of its own."""
    command = [sys.executable, "-c", READER, str(os.getpid())]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def ways() -> dict[str, Callable[[], dict[str, Any]]]:
    """What is compared, by name; the first one is what the others are compared with."""
    out: dict[str, Callable[[], dict[str, Any]]] = {
        "off": lambda: {"monitor": False},
        "off again": lambda: {"monitor": False},
        "monitor": lambda: {"monitor": True},
    }
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return out
    meter = vs.metrics.prometheus(CollectorRegistry())
    return {**out, "metrics": lambda: {"monitor": False, "trace": meter}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cpu", help="as in vs.Scheduler, with commas")
    parser.add_argument(
        "--model", action="append", default=[], help="an ONNX file; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    args = parser.parse_args()
    cases = {"smallest": smallest, "layers": layers}
    cases.update({os.path.basename(path): model_of(path) for path in args.model})
    off_s, on_s, ratio = in_the_run()
    print(f"in the smallest run itself: {1e6 * off_s:.1f} and {1e6 * on_s:.1f} us, {ratio:.3f}")
    compared = ways()
    print("ratios: processor time of a run +- half of the middle half of rounds; runs per second")
    print(
        f"{'off: us/run':>32} {'runs/s':>8}"
        + "".join(f"{w:>24}" for w in [*compared][1:])
        + "      thread"
    )
    with tempfile.TemporaryDirectory(prefix="vs", dir="/tmp") as home:
        os.environ["XDG_RUNTIME_DIR"] = home
        with reader():
            for name, make in cases.items():
                case, devices = make(), args.devices.split(",")
                found: dict[str, list[Measured]] = {way: [] for way in compared}
                for number in range(args.rounds):
                    order = list(compared.items())[:: 1 if number % 2 else -1]
                    for way, options in order:
                        found[way].append(measure(case, devices, args.seconds, **options()))
                print(f"{name:>20} " + row(found), flush=True)


def in_the_run() -> tuple[float, float, float]:
    """Return the processor time of the smallest run, unwatched and watched, without the monitor's
    thread: 64 runs of the one and 64 of the other in turns, so that other programs disturb neither
    more than the other. And the ratio.
    """
    outputs, feeds = smallest()
    pairs: list[tuple[float, float]] = []
    with vs.Scheduler(["cpu"], tune=False, monitor=False) as sched:
        run = sched.compile(outputs)
        seen = Watch(sched.graphs, "auto").activity.ran
        for number in range(1600):
            took: dict[bool, float] = {}
            for watched in (False, True) if number % 2 else (True, False):
                sched._preparing.seen = seen if watched else None
                start = time.process_time()
                for _ in range(64):
                    run(**feeds)
                took[watched] = (time.process_time() - start) / 64
            pairs.append((took[False], took[True]))
    pairs = pairs[100:]
    off, on = (statistics.median(pair[column] for pair in pairs) for column in (0, 1))
    return off, on, statistics.median(b / a for a, b in pairs)


def row(found: Mapping[str, Sequence[Measured]]) -> str:
    """Return the figures of a case."""
    off, *others = found.values()
    time_, rate = (statistics.median(each[column] for each in off) for column in (0, 1))
    out = f"{1e6 * time_:11.1f} {rate:8.0f}"
    for other in others:
        times = [b[0] / a[0] for a, b in zip(off, other, strict=True)]
        rates = [b[1] / a[1] for a, b in zip(off, other, strict=True)]
        low, _, high = statistics.quantiles(times, n=4)
        cell = f"{statistics.median(times):.3f} +-{(high - low) / 2:.3f}"
        out += f"{cell}; {statistics.median(rates):.2f}".rjust(24)
    return f"{out} {100 * statistics.median(each[2] for each in found['monitor']):10.2f} %"


if __name__ == "__main__":
    main()
