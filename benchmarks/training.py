"""A training step beside the forward pass of the same network.

    python benchmarks/training.py [--devices vulkan:1,cpu] [--case MiniLM] [--json]

The networks are those of the bench. A step computes the loss, the gradients by all weights and
their next values by SGD. Forward pass and step take turns; medians of rounds count. Compile times
hold planning and uploads, of the first run each.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from options import make_parser, vulkan_names  # beside this file
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.bench.models import Math
from vksched.bench.peers.networks import build
from vksched.bench.peers.specs import Spec
from vksched.bench.suites import specs_of
from vksched.types import NDArray

ROUNDS = 5
LEAST_S = 0.5
"""Rounds go on for at least so long."""


class Trained(Math):
    """The builder of tensors whose weights are states."""

    def __init__(self) -> None:
        super().__init__()
        self.params: dict[str, vs.Tensor] = {}
        self._states: dict[int, tuple[NDArray, vs.Tensor]] = {}

    def _weight(self, array: NDArray) -> vs.Tensor:
        if id(array) not in self._states:
            name = f"w{len(self._states)}"
            made = vs.state(np.asarray(array, np.float32), name, backup=False)
            self._states[id(array)] = array, made
            self.params[name] = made
        return self._states[id(array)][1]


@dataclass(frozen=True)
class Measured:
    """One network on one device: seconds of a forward pass and of a step, and to compile both."""

    device: str
    model: str
    forward_s: float
    step_s: float
    forward_compile_s: float
    step_compile_s: float

    @property
    def ratio(self) -> float:
        return self.step_s / self.forward_s


def measure(device: str, spec: Spec) -> Measured:
    """Measures one network on one device."""
    made = Trained()
    result = build(spec.params, made)
    loss = vs.reduce_mean(vs.square(result))
    with vs.Scheduler([device], on_fault="raise") as sched:
        start = time.perf_counter()
        forward = sched.compile(loss)
        forward(**made.feeds)
        middle = time.perf_counter()
        updates = vs.optim.sgd(made.params, vs.grad(loss, made.params), 1e-6)
        step = sched.compile(loss, updates=updates)
        step(**made.feeds)
        compiled = (middle - start, time.perf_counter() - middle)
        taken: dict[int, list[float]] = {0: [], 1: []}
        until = time.perf_counter() + LEAST_S
        while len(taken[0]) < ROUNDS or time.perf_counter() < until:
            for which, run in enumerate((forward, step)):
                before = time.perf_counter()
                run(**made.feeds)
                taken[which].append(time.perf_counter() - before)
        if device != "cpu" and (left := [s.device for s in step.plan.splits if s.device != 0]):
            print(f"{len(left)} splits of the step of {spec.name} run on numpy")
    medians = [statistics.median(taken[which]) for which in (0, 1)]
    return Measured(device, spec.name, medians[0], medians[1], *compiled)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--case", help="only networks with such names")
    given = parser.parse_args(arguments)
    devices = given.devices.split(",") if given.devices else [*vulkan_names(given), "cpu"]
    # the decoder's step has a cache for a state, and is no training
    specs = [s for s in specs_of("models", given.case) if "GPT" not in s.name]
    found = [measure(device, spec) for spec in specs for device in devices]
    if given.json:
        print(json.dumps([{**asdict(m), "ratio": m.ratio} for m in found], indent=1))
        return 0
    table = Table("device", "network", "forward", "step", "ratio", "compile", "its ratio")
    for m in found:
        compiled = m.step_compile_s / m.forward_compile_s
        table.add_row(
            m.device,
            m.model,
            f"{m.forward_s * 1e3:.1f} ms",
            f"{m.step_s * 1e3:.1f} ms",
            f"{m.ratio:.2f}",
            f"{m.forward_compile_s:.2f} s, {m.step_compile_s:.2f} s",
            f"{compiled:.2f}",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
