"""How runs on numpy bear other programs: `python benchmarks/busy.py [--loops 0,1,2]`.

The same network on the CPU backend beside programs that each hold a core, three times: with the
threads that vksched takes, with one thread of numpy's products, and with all (both by
OPENBLAS_NUM_THREADS, which vksched leaves alone). Medians of one run on one machine: compare the
ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOP = "while True: pass"
WAYS = {"vksched": None, "one thread": "1", "all threads": str(os.cpu_count() or 1)}


def measure(seconds: float) -> float:
    """Returns the median seconds of a run of a small network, warmed up."""
    import numpy as np

    import vksched as vs

    rng = np.random.default_rng(0)
    y = x = vs.input("x", (128, 512))
    for _ in range(12):
        y = vs.relu(vs.layer_norm(y @ rng.standard_normal((512, 512)).astype(np.float32)))
    values = rng.standard_normal(x.shape).astype(np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(y)
        warm_until, times = time.perf_counter() + seconds / 2, []
        while (start := time.perf_counter()) < warm_until + seconds:
            run(x=values)
            if start > warm_until:
                times.append(time.perf_counter() - start)
    return statistics.median(times)


@contextmanager
def loops(count: int) -> Iterator[None]:
    """Other programs that hold cores."""
    running = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def measure_apart(way: str, seconds: float) -> float:
    """As `measure`, in a process of its own with that many threads for products."""
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    if (count := WAYS[way]) is not None:
        env["OPENBLAS_NUM_THREADS"] = count
    command = [sys.executable, __file__, "--measure", str(seconds)]
    return float(subprocess.run(command, env=env, check=True, capture_output=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="0,1,2", help="busy programs beside, as a list")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--measure", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(measure(given.measure))
        return
    print("busy programs  " + "  ".join(f"{way:>14}" for way in WAYS) + "  vksched / one thread")
    for count in map(int, given.loops.split(",")):
        with loops(count):
            found = {way: measure_apart(way, given.seconds) for way in WAYS}
        cells = "  ".join(f"{1e3 * s:11.1f} ms" for s in found.values())
        print(f"{count:13}  {cells}  {found['vksched'] / found['one thread']:20.2f}")


if __name__ == "__main__":
    main()
