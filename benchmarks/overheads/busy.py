"""How runs on the CPU backend bear other programs: `python benchmarks/overheads/busy.py [--json
FILE]`.

Six layers of a transformer and a multilayer perceptron (MLP) run next to programs that each hold a
core, of the usual priority and of the lowest one. Processes take turns: one has the threads that
vksched takes, one has one thread for numpy's products (OPENBLAS_NUM_THREADS=1), and `--against`
adds another checkout. Figures are medians over turns of the median of each turn; ratios are medians
of the ratios of turns, as the load changes from turn to turn: turns are short, and there are many.
`--nothing-else` waits until the computer is quiet before each turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

LOOP = "while True: pass"
ROWS, WIDTH, HEADS, INNER, LAYERS = 128, 384, 12, 1536, 6
OURS, ONE, OTHER = "vksched", "one thread", "other checkout"


def transformer():  # type: ignore[no-untyped-def]
    """Return six layers of the sizes of MiniLM, with one text of 128 tokens."""
    import numpy as np

    import vksched as vs

    rng = np.random.default_rng(0)

    def linear(x, columns):  # type: ignore[no-untyped-def]
        weight = 0.05 * rng.standard_normal((x.shape[-1], columns), dtype=np.float32)
        return vs.matmul(x, vs.weight(weight), vs.weight(np.zeros(columns, np.float32)))

    def heads(x):  # type: ignore[no-untyped-def]
        return vs.transpose(vs.reshape(x, (1, ROWS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    y = vs.input("x", (ROWS, WIDTH))
    for _ in range(LAYERS):
        normed = vs.layer_norm(y)
        seen = vs.attention(*(heads(linear(normed, WIDTH)) for _ in range(3)))
        y = y + linear(vs.reshape(vs.transpose(seen, (0, 2, 1, 3)), (ROWS, WIDTH)), WIDTH)
        y = y + linear(vs.gelu(linear(vs.layer_norm(y), INNER)), WIDTH)
    return y


def perceptron():  # type: ignore[no-untyped-def]
    """Return twelve layers of 512, with 256 rows."""
    import numpy as np

    import vksched as vs

    rng = np.random.default_rng(0)
    y = vs.input("x", (256, 512))
    for _ in range(12):
        y = vs.relu(vs.layer_norm(y @ rng.standard_normal((512, 512), dtype=np.float32)))
    return y


NETWORKS = {"six layers": (transformer, (ROWS, WIDTH)), "MLP": (perceptron, (256, 512))}


def serve() -> None:
    """Run a network for so many seconds as each line from the parent says: "name seconds"."""
    import numpy as np

    import vksched as vs

    with vs.Scheduler(["cpu"]) as sched:
        networks = {}
        for name, (network, shape) in NETWORKS.items():
            values = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
            networks[name] = sched.compile(network()), values
        print("ready", flush=True)
        for line in sys.stdin:
            name, seconds = line.rsplit(maxsplit=1)
            run, values = networks[name]
            end_s, times = time.perf_counter() + float(seconds), []
            run(x=values)  # the caches are its own again
            while len(times) < 3 or time.perf_counter() < end_s:
                start = time.perf_counter()
                run(x=values)
                times.append(time.perf_counter() - start)
            print(statistics.median(times), flush=True)


class Server:
    """A process that runs networks when it is asked to."""

    def __init__(self, threads: str | None, path: str | None) -> None:
        env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
        if threads is not None:
            env["OPENBLAS_NUM_THREADS"] = threads
        if path is not None:
            env["PYTHONPATH"] = path
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=env,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._line()

    def seconds(self, name: str, during_s: float) -> float:
        """Return the median seconds of the runs of a network in so many seconds."""
        assert self._process.stdin is not None
        print(name, during_s, file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("[busy] expected a process that measures, got one that has ended")
        return line


@contextmanager
def loops(count: int, niceness: int) -> Iterator[None]:
    """Other programs that hold cores."""
    command = ["nice", "-n", str(niceness)] if niceness else []
    running = [subprocess.Popen([*command, sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def wait_for_quiet() -> None:
    """Wait until the cores have been idle for a moment, a minute at most."""
    for _ in range(120):
        before = _worked_ticks()
        time.sleep(0.5)
        if _worked_ticks() - before <= 5 * (os.cpu_count() or 1):
            return


def _worked_ticks() -> int:
    with open("/proc/stat", encoding="ascii") as file:
        columns = [int(value) for value in file.readline().split()[1:9]]
    return sum(columns) - columns[3] - columns[4]


@dataclass
class Row:
    """Times of one network next to so many programs, by who ran it."""

    network: str
    programs: int
    niceness: int
    seconds: dict[str, list[float]]

    def median_s(self, who: str) -> float:
        return statistics.median(self.seconds[who])

    def ratio(self, to: str) -> float:
        """Return the median over turns of our time over that of others."""
        turns = zip(self.seconds[OURS], self.seconds[to], strict=True)
        return statistics.median(ours / theirs for ours, theirs in turns)

    def as_json(self) -> dict[str, object]:
        others = [who for who in self.seconds if who != OURS]
        return {
            "network": self.network,
            "programs": self.programs,
            "niceness": self.niceness,
            "median_s": {who: self.median_s(who) for who in self.seconds},
            "ratio": {who: self.ratio(who) for who in others},
            "turns_s": self.seconds,
        }


def measure(servers: dict[str, Server], args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows, each when it is measured."""
    states = [(count, nice if count else 0) for nice in args.nice for count in args.loops]
    for count, niceness in dict.fromkeys(states):
        for name in NETWORKS:
            row = Row(name, count, niceness, {who: [] for who in servers})
            for turn in range(args.turns):
                if args.nothing_else:
                    wait_for_quiet()
                first = turn % len(servers)
                order = [*servers][first:] + [*servers][:first]
                with loops(count, niceness):
                    for who in order:
                        row.seconds[who].append(servers[who].seconds(name, args.seconds))
            yield row


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", type=numbers, default=[0, 1, 2, 4], help="busy programs, a list")
    parser.add_argument("--nice", type=numbers, default=[0, 19], help="their niceness, a list")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each process in a turn")
    parser.add_argument("--against", metavar="PATH", help="PYTHONPATH of another checkout")
    parser.add_argument("--nothing-else", action="store_true", help="wait for a quiet computer")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    with ExitStack() as stack:
        settings = {OURS: (None, None), ONE: ("1", None)}
        if args.against:
            settings[OTHER] = (None, args.against)
        servers = {who: Server(*each) for who, each in settings.items()}
        for server in servers.values():
            stack.callback(server.close)
        print("network     programs  nice" + "".join(f"  {who:>14}  ratio" for who in servers))
        rows = []
        for row in measure(servers, args):
            cells = "".join(
                f"  {1e3 * row.median_s(who):11.1f} ms  {row.ratio(who):5.2f}" for who in servers
            )
            print(f"{row.network:10}  {row.programs:8}  {row.niceness:4}{cells}", flush=True)
            rows.append(row)
    if args.json:
        text = json.dumps([row.as_json() for row in rows], indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
