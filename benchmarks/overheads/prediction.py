"""How well do the seconds hold that plans count by? Models on each device, predicted and measured.

    python benchmarks/overheads/prediction.py [--devices vulkan:0,cpu] [--case ResNet] [--page]
        [--json]
    python benchmarks/overheads/prediction.py --page --results first.json,second.json

Each device is calibrated with the calls of each model, 20 s at most. Then the model runs nine
times. --page writes docs/performance/prediction-accuracy.md. With --results nothing is measured:
the page is that of earlier measurements, written by --json, so that they can be made one at a time.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from options import make_parser
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import vksched as vs
from vksched.bench.suites import matches, specs_of
from vksched.common.dtypes import NDArray
from vksched.common.formatting import format_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "suites"))
from prediction_facts import GOAL, LISTED, SUITE, Model, Predicted, measure

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance" / "prediction-accuracy.md"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = {"two_cards.py": "build", "pipeline.py": "network"}
"""Examples whose model can be built alone, and the function that does."""
COLUMNS = ("device", "model", "what", "predicted", "measured", "ratio")
INTRODUCTION = """# Prediction accuracy

This page compares predicted and measured times of runs, to show how far plans can be trusted.
[Calibration](../guides/calibration.md) describes how costs are measured.

`python benchmarks/overheads/prediction.py --page` writes this page. It calibrates each device with
the calls of each model, predicts, and runs the model nine times. Times are medians. The ratio is
measured over predicted time; the goal for a run is {goal:.0f} %. "device" is the time on the
device's own clock. The ops below it are the most expensive ones, each timed in its own submission.

Calibration and runs must not share the machine with other programs. Calibration repeats its calls
in passes and takes medians over passes of the lower quartile of some rounds.

"""


class ExampleRun:
    """The model of an example, compiled on one device, with feeds of its own."""

    def __init__(self, sched: vs.Scheduler, build: Any) -> None:
        self.compiled = sched.compile(build())
        rng = np.random.default_rng(0)
        inputs = self.compiled.plan.graph.inputs
        self.feeds = {n.name: rng.standard_normal(n.type.shape, np.float32) for n in inputs}
        self.result()

    def result(self) -> NDArray:
        return np.asarray(self.compiled(**self.feeds))

    def close(self) -> None:
        self.compiled.close()


def models_of(pattern: str | None) -> list[Model]:
    """Return the models of the bench and of the examples whose names the pattern matches.

    Raises:
        GraphError: there is none.
    """
    every = [Model.of(spec) for spec in specs_of(SUITE)]
    every += [Model(name, partial(_load, name)) for name in MODELS]
    names = {model.name for model in every}
    found = [model for model in every if matches(model.name, pattern, names)]
    if not found:
        raise vs.GraphError(
            f"[prediction] no model matches {pattern!r}; try one of {sorted(names)}"
        )
    return found


def _load(name: str, sched: vs.Scheduler) -> ExampleRun:
    with patch.object(sys, "path", [str(EXAMPLES), *sys.path]):  # what stands beside it
        return ExampleRun(sched, runpy.run_path(str(EXAMPLES / name))[MODELS[name]])


def measure_all(devices: Sequence[str], pattern: str | None) -> list[tuple[str, str, Predicted]]:
    """Measure each model on each device."""
    models = models_of(pattern)
    out: list[tuple[str, str, Predicted]] = []
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=len(devices) * len(models))
        for device in devices:
            for model in models:
                bars.update(task, description=f"{device} {model.name}")
                out.append((device, model.name, measure(device, model)))
                bars.advance(task)
    return out


def rows_of(found: Sequence[tuple[str, str, Predicted]]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    rows: list[tuple[str, ...]] = []
    for device, model, one in found:
        longest = sorted(one.ops, key=lambda op: -one.ops[op][1])[:LISTED]
        parts = {"run": one.run, "device": one.device, **{op: one.ops[op] for op in longest}}
        for number, (what, (expected_s, taken_s)) in enumerate(parts.items()):
            ratio = f"{taken_s / expected_s:.2f}" if expected_s else "-"
            first = (device, model) if not number else ("", "")
            rows.append((*first, what, format_seconds(expected_s), format_seconds(taken_s), ratio))
    return rows


def as_page(
    found: Sequence[tuple[str, str, Predicted]], labels: dict[str, str], load: float | None
) -> str:
    """Return the page of the docs. load: how many programs wanted a core before, if known."""
    busy = ""
    if load is not None:
        busy = (
            f"{load:.1f} programs wanted the {os.cpu_count()} cores before the first measurement. "
        )
    near = sum(abs(one.run[1] / one.run[0] - 1) <= GOAL for _, _, one in found)
    lines = [INTRODUCTION.format(goal=100 * GOAL)]
    lines += [f"- {name}: {labels[name]}\n" for name in dict.fromkeys(d for d, _, _ in found)]
    lines.append(f"\n{busy}{near} of {len(found)} runs are within {100 * GOAL:.0f} %.\n\n")
    lines.append(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    lines += [f"| {' | '.join(row)} |\n" for row in rows_of(found)]
    return "".join(lines)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--case", help="only models with such names")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--results", help="files written by --json, instead of measuring")
    args = parser.parse_args()
    known = {info.name: info.label for info in vs.devices()}
    names = args.devices.split(",") if args.devices else [*known]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    found = read(args.results) if args.results else measure_all(names, args.case)
    if args.page:
        PAGE.write_text(as_page(found, known, None if args.results else load), encoding="utf-8")
    if args.json:
        print(json.dumps([_as_dict(*each) for each in found], indent=1))
        return
    table = Table(*COLUMNS)
    for row in rows_of(found):
        table.add_row(*row)
    Console().print(table)


def read(paths: str) -> list[tuple[str, str, Predicted]]:
    """Return earlier measurements, device by device."""
    rows = [row for path in paths.split(",") for row in json.loads(Path(path).read_text("utf-8"))]
    order = {
        device: number for number, device in enumerate(dict.fromkeys(r["device"] for r in rows))
    }
    rows.sort(key=lambda row: order[row["device"]])
    return [
        (
            row["device"],
            row["model"],
            Predicted(
                tuple(row["run"]),
                tuple(row["on_device"]),
                {op: tuple(seconds) for op, seconds in row["ops"].items()},
            ),
        )
        for row in rows
    ]


def _as_dict(device: str, model: str, one: Predicted) -> dict[str, Any]:
    return {"device": device, "model": model, "run": one.run, "on_device": one.device,
            "ops": dict(one.ops)}  # fmt: skip


if __name__ == "__main__":
    main()
