"""What a replayed graph costs beside the bare commands: one of 200 tiny ops, and a run of one op.

    python benchmarks/overheads/overhead.py [--devices vulkan:0,vulkan:1] [--ops 200]
        [--repeats 50] [--json]

The bare commands are a kp.Sequence of the same kernel, recorded once, with kp's own barriers: no
copies in or out, no checks, no timestamps. Both take turns in one process. The graph is compiled
without rewriting, as a chain of elementwise ops would become one dispatch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from options import make_parser, vulkan_names
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.shaders import load_shader

SIZE = 64


@dataclass(frozen=True)
class Row:
    """Medians, in microseconds. bare, run: of all ops; bare_one, run_one: of a single op."""

    device: str
    ops: int
    bare: float
    run: float
    bare_one: float
    run_one: float

    @property
    def ratio(self) -> float:
        """A run to the bare commands, copies and host work included."""
        return self.run / self.bare

    @property
    def op_ratio(self) -> float:
        """One more op of a run to one more bare dispatch."""
        return (self.run - self.run_one) / (self.bare - self.bare_one)


def bare(index: int, ops: int) -> Callable[[], object]:
    """Return a function that submits recorded dispatches through Kompute alone, and waits."""
    kp = binding.kp
    manager = kp.Manager(index)
    shader = load_shader("unary_neg_float32")
    ends = [manager.tensor(np.zeros(SIZE, np.float32)) for _ in range(2)]
    constants = np.array(shader.specialize({}), np.uint32)
    fields = [[SIZE if name == "count" else 0] * count for name, _, count in shader.push]
    push = np.array([value for field in fields for value in field], np.uint32)
    both = [
        manager.algorithm(order, shader.spirv, (1, 1, 1), constants, push)
        for order in (ends, ends[::-1])
    ]
    sequence = manager.sequence()
    for i in range(ops):
        sequence.record(kp.OpAlgoDispatch(both[i % 2], push))
    keep = manager, both

    def submit() -> object:
        return sequence.eval(), keep

    return submit


def chain(ops: int) -> vs.Tensor:
    """Each op with the result of the one before."""
    x = vs.input("x", (SIZE,))
    for _ in range(ops):
        x = vs.neg(x)
    return x


def measure(device: str, ops: int, repeats: int) -> Row:
    x = np.ones(SIZE, np.float32)
    index = next(d.index for d in vs.devices() if d.name == device)
    with vs.Scheduler([device], optimize=False) as sched:
        many, one = (sched.compile(chain(n)) for n in (ops, 1))
        calls: dict[str, Callable[[], object]] = {
            "bare": bare(index, ops),
            "run": lambda: many(x=x),
            "bare_one": bare(index, 1),
            "run_one": lambda: one(x=x),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(repeats + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if repeat:  # the first one warms up
                    times[name].append(time.perf_counter() - start)
    return Row(device, ops, **{name: 1e6 * median(values) for name, values in times.items()})


def show(rows: Sequence[Row]) -> None:
    table = Table(title="a replayed graph beside bare commands, microseconds")
    for name in ("device", "ops", "bare", "run", "ratio", "bare, 1 op", "run, 1 op", "per op"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for row in rows:
        times = f"{row.bare:.0f}", f"{row.run:.0f}", f"{row.ratio:.2f}"
        single = f"{row.bare_one:.0f}", f"{row.run_one:.0f}", f"{row.op_ratio:.2f}"
        table.add_row(row.device, str(row.ops), *times, *single)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--ops", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args(arguments)
    rows = [measure(name, args.ops, args.repeats) for name in vulkan_names(args)]
    if args.json:
        both = [{**asdict(r), "ratio": r.ratio, "op_ratio": r.op_ratio} for r in rows]
        print(json.dumps(both, indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
