"""A training step beside the forward pass of the same network, and beside PyTorch.

    python benchmarks/workloads/training.py [--devices vulkan:1,cpu] [--case MiniLM] [--json]
    python benchmarks/workloads/training.py --torch PYTHON            # a Python that has PyTorch
    python benchmarks/workloads/training.py --torch PYTHON --page     # writes the page of the docs

A step computes the loss, the gradients by all weights and their next values by SGD. Forward passes
and steps, ours and those of PyTorch, take turns; medians of rounds count. Compile times are those
of `sched.compile` in a scheduler of its own, which uploads parameters and makes pipelines, and in
one that has compiled the same before, where passes and planning are left. The first of each is left
out.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import vksched as vs
from vksched.bench.baseline_process import BaselineProcess
from vksched.bench.baselines.networks import build
from vksched.bench.baselines.workloads import RATE, TRAINING, Spec
from vksched.bench.networks_runner import Math
from vksched.common.dtypes import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "overheads"))
from options import make_parser, vulkan_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance" / "training-performance.md"
ROUNDS, COMPILED = 5, 3
MIN_S = 0.5
"""Rounds go on for at least so long."""
NETWORKS: dict[str, dict[str, Any]] = {
    "GPT-2-mini, 4 x 64 tokens": {"model": "gpt2_text"},
    "MiniLM, 8 x 32 tokens": {"model": "minilm"},
    "MiniLM of 12 layers": {"model": "minilm", "layers": 12},
    "ResNet-18, one image": {"model": "resnet18"},
}
PHASES = FORWARD, STEP = "forward", "step"
TOP = """# Training performance

This page shows the cost of a training step relative to a forward pass, and next to PyTorch.
[Training](../guides/training.md) describes how to write one.

`python benchmarks/workloads/training.py --torch PYTHON --page` writes this page. A step computes
the loss, the gradients of all weights, and an SGD update. Times are medians of alternating runs,
on a machine with two cores.

- **ratio**: a step over a forward pass. A step has three to four times the nodes of a forward pass.
- **PyTorch**: the step of PyTorch {version} on the CPU, with the same number of threads.
- **beside**: the step of vksched over that of PyTorch.
- **compile**: compilation of a step in a new scheduler, and its ratio to that of a forward pass.
- **again**: the same ratio if the scheduler has compiled both before, so that only passes and
  planning remain.

{devices}
"""


class Trained(Math):
    """The builder of tensors whose weights are states."""

    def __init__(self) -> None:
        super().__init__()
        self.params: dict[str, vs.Tensor] = {}
        self._states: dict[int, tuple[NDArray, vs.Tensor]] = {}

    def _weight(self, array: NDArray) -> vs.Tensor:
        if id(array) not in self._states:
            name = f"w{len(self._states)}"
            state = vs.state(np.asarray(array, np.float32), name, backup=False)
            self._states[id(array)] = array, state
            self.params[name] = state
        return self._states[id(array)][1]


@dataclass(frozen=True)
class Measured:
    """One network on one device, in seconds: a forward pass and a step, what it takes to compile
    both in a scheduler of its own and again in the same one, and both passes of PyTorch; 0 where
    that was not asked.
    """

    device: str
    model: str
    forward_s: float
    step_s: float
    forward_compile_s: float
    step_compile_s: float
    forward_again_s: float
    step_again_s: float
    torch_forward_s: float = 0.0
    torch_step_s: float = 0.0

    @property
    def ratios(self) -> dict[str, float]:
        """A step over a forward pass, ours and that of PyTorch; our step over that of PyTorch;
        compile times.
        """
        out = {"step": self.step_s / self.forward_s}
        out["compile"] = self.step_compile_s / self.forward_compile_s
        out["again"] = self.step_again_s / self.forward_again_s
        if self.torch_step_s:
            out["torch_step"] = self.torch_step_s / self.torch_forward_s
            out["beside_torch"] = self.step_s / self.torch_step_s
        return out


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(device: str, name: str, params: dict[str, Any], python: str) -> Measured:
    """Measure one network on one device. python: one that has PyTorch, or ""."""
    network = Trained()
    loss = vs.reduce_mean(vs.square(build(params, network)))
    updates = vs.optim.sgd(network.params, vs.grad(loss, network.params), RATE)
    runs: list[Callable[[], float]] = []
    compiling: list[list[float]] = [[], []]
    again: list[list[float]] = [[], []]
    for _ in range(1 + COMPILED):
        for seconds, step_updates in zip(compiling, (None, updates), strict=True):
            with vs.Scheduler([device], on_device_failure="raise") as sched:
                seconds.append(timed(lambda: sched.compile(loss, updates=step_updates)))  # noqa: B023
    with ExitStack() as stack:
        sched = stack.enter_context(vs.Scheduler([device], on_device_failure="raise"))
        for turn in range(1 + COMPILED):
            for seconds, step_updates in zip(again, (None, updates), strict=True):
                start = time.perf_counter()
                compiled = sched.compile(loss, updates=step_updates)
                seconds.append(time.perf_counter() - start)
                if turn == COMPILED:
                    compiled(**network.feeds)
                    runs.append(
                        lambda run=compiled: timed(lambda: run(**network.feeds))  # type: ignore[misc]
                    )
                else:
                    compiled.close()
        baselines = torch_runs(stack, device, params, python)
        taken: list[list[float]] = [[] for _ in (*runs, *baselines)]
        until = time.perf_counter() + MIN_S
        while len(taken[0]) < ROUNDS or time.perf_counter() < until:
            for seconds, run in zip(taken, (*runs, *baselines), strict=True):
                seconds.append(run())
        if device != "cpu" and any(s.device for s in compiled.plan.splits):
            print(f"a part of the step of {name} runs on numpy")
    medians = [statistics.median(seconds) for seconds in taken]
    compiled_s = [statistics.median(seconds[1:]) for seconds in (*compiling, *again)]
    return Measured(device, name, *medians[:2], *compiled_s, *medians[2:])


def torch_runs(
    stack: ExitStack, device: str, params: dict[str, Any], python: str
) -> list[Callable[[], float]]:
    """Return functions that run the forward pass and the step of PyTorch on the same device."""
    if not python:
        return []
    info = next(i for i in vs.devices() if i.name == device)
    gpu = info.type != "cpu"
    out: list[Callable[[], float]] = []
    for phase in PHASES:
        about = {"name": info.label if gpu else "numpy", "index": 0, "type": info.type, "uuid": ""}
        baseline = BaselineProcess("torch", about, [python])
        stack.callback(baseline.close)
        report = baseline.prepare(Spec(phase, TRAINING, "", params | {"phase": phase}))
        if not report.get("nmse", 1.0) < 1e-6:
            raise SystemExit(f"PyTorch computes another loss of {params['model']}: {report}")
        out.append(lambda baseline=baseline: statistics.median(baseline.measure(0.0)))  # type: ignore[misc]
    return out


def table_of(found: Sequence[Measured]) -> list[list[str]]:
    """Return the rows of a table, the first one its head."""
    rows = [["device", "network", "forward", "step", "ratio", "PyTorch", "its ratio", "beside"]]
    rows[0] += ["compile", "its ratio", "again"]
    for m in found:
        ratios = m.ratios
        baseline = ["", "", ""]
        if m.torch_step_s:
            baseline = [f"{m.torch_step_s * 1e3:.0f} ms", f"{ratios['torch_step']:.2f}"]
            baseline.append(f"{ratios['beside_torch']:.2f}")
        times = [f"{m.forward_s * 1e3:.0f} ms", f"{m.step_s * 1e3:.0f} ms", f"{ratios['step']:.2f}"]
        compiled = [f"{m.step_compile_s:.2f} s", f"{ratios['compile']:.2f}"]
        compiled.append(f"{ratios['again']:.2f}")
        rows.append([m.device, m.model, *times, *baseline, *compiled])
    return rows


def page(found: Sequence[Measured], python: str) -> str:
    """Return the page."""
    import subprocess

    command = [python, "-c", "import torch; print(torch.__version__)"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    version = done.stdout.strip()
    used = dict.fromkeys(m.device for m in found)
    labels = {info.name: info.label for info in vs.devices()}
    devices = "\n".join(f"- {name}: {labels[name]}" for name in used)
    head, *rows = table_of(found)
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return TOP.format(version=version.partition("+")[0], devices=devices) + f"\n{table}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--case", default="", help="only networks with such names")
    parser.add_argument("--torch", default="", metavar="PYTHON", help="a Python that has PyTorch")
    parser.add_argument("--page", action="store_true", help="write the page of the docs")
    args = parser.parse_args(arguments)
    if args.page and not args.torch:
        parser.error("--page needs --torch")
    devices = args.devices.split(",") if args.devices else [*vulkan_names(args), "cpu"]
    cases = [(n, d) for n in NETWORKS if args.case in n for d in devices]
    console = Console(stderr=True)
    found = [
        measure(device, name, dict(NETWORKS[name]), args.torch)
        for name, device in track(cases, "measuring", console=console, transient=True)
    ]
    if args.page:
        PAGE.write_text(page(found, args.torch), "utf-8")
        console.print(f"wrote {PAGE}")
    if args.json:
        print(json.dumps([{**asdict(m), "ratios": m.ratios} for m in found], indent=1))
        return 0
    head, *rows = table_of(found)
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
