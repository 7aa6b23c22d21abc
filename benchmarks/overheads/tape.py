"""What a tape costs: whole networks with a tape and without one, in turns on the same graph.

    python benchmarks/overheads/tape.py [--devices cpu,vulkan:0] [--repeats 60] [--json]

Runs with and without the tape take turns, in pairs whose order changes each time. on: the median
of a run with the tape to the median of one without. busy: the same of the seconds that all threads
of the process had a core, which other programs change less. alone: the time that the events of a
run take if they are handed to a tape again and again with nothing between, to a run; off: the same
if no sink is there to take them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from options import make_parser, vulkan_names
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.bench.baselines.networks import NETWORKS, build
from vksched.bench.networks_runner import Math

MODELS = ("minilm", "resnet18", "gpt2_mini")
ROUNDS = 200


@dataclass(frozen=True)
class Row:
    """seconds: the median of a run without a tape. The rest as the page above says."""

    device: str
    model: str
    seconds: float
    events: int
    on: float
    busy: float
    alone: float
    off: float


Taken = tuple[float, float]
"""Seconds, and those in which the process had a core, all its threads together."""


def taken(call: Callable[[], object]) -> Taken:
    start, busy = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - busy


def measure(device: str, model: str, repeats: int) -> Row:
    math, trace, tape = Math(), vs.Trace(), vs.Tape()
    output = build({"model": model}, math)
    with vs.Scheduler([device], trace=trace, tune=False) as sched:
        run = sched.compile(output, updates=math.updates or None)
        plain: list[Taken] = []
        taped: list[Taken] = []

        def with_tape() -> None:
            trace.add(tape)
            taped.append(taken(lambda: run(**math.feeds)))
            trace.remove(tape)

        def without() -> None:
            plain.append(taken(lambda: run(**math.feeds)))

        run(**math.feeds)
        for number in range(repeats):
            for turn in (with_tape, without) if number % 2 else (without, with_tape):
                turn()
    events = [event for event in tape.events if event.run == tape.events[-1].run]
    seconds, busy_s = (median(each) for each in zip(*plain, strict=True))
    taped_s, taped_busy_s = (median(each) for each in zip(*taped, strict=True))
    alone_s = emitted_s(events, vs.Trace(sinks=[vs.Tape()]))
    return Row(
        device,
        model,
        seconds,
        len(events),
        taped_s / seconds,
        taped_busy_s / busy_s,
        alone_s / seconds,
        emitted_s(events, vs.Trace()) / seconds,
    )


def emitted_s(events: Sequence[vs.Event], trace: vs.Trace) -> float:
    """Return the seconds of making the events of a run and handing them to a trace, as runs do."""

    def hand_over() -> None:
        for e in events:
            if trace.active:
                fields = dict(e.fields)
                trace.emit(vs.Event(e.name, e.device, e.start_s, e.end_s, e.run, fields, e.plan))

    return median([taken(hand_over)[0] for _ in range(ROUNDS)])


def show(rows: Sequence[Row]) -> None:
    table = Table(title="runs with a tape, to runs without")
    for name in ("device", "model", "a run", "events", "on", "busy", "alone", "off"):
        table.add_column(name, justify="left" if name in ("device", "model") else "right")
    for row in rows:
        ratios = f"{row.on:.3f}", f"{row.busy:.3f}", f"{row.alone:.3%}", f"{row.off:.4%}"
        table.add_row(row.device, row.model, f"{row.seconds:.4f} s", str(row.events), *ratios)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--repeats", type=int, default=60)
    args = parser.parse_args(arguments)
    devices = args.devices.split(",") if args.devices else ["cpu", *vulkan_names(args)]
    rows = [measure(d, m, args.repeats) for d in devices for m in args.models.split(",")]
    print(json.dumps([asdict(row) for row in rows], indent=2)) if args.json else show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
