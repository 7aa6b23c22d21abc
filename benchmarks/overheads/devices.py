"""Does one more device make a model slower? Models on all devices by one plan, and on each alone.

    python benchmarks/overheads/devices.py --devices vulkan:0,vulkan:1 [--case ResNet] [--json]

The models are those of the bench and of the examples. Each device is calibrated with the calls of
each model, 20 s at most. Then all take turns, nine rounds at least. The suite devices
(benchmarks/suites/multi_device.py) does it for the models of the bench.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from options import make_parser
from prediction import models_of
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import vksched as vs
from vksched.bench.extra_metrics import ExtraMetric

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "suites"))
from multi_device import facts_of, measure


def measure_all(devices: Sequence[str], pattern: str | None, budget_s: float) -> list[ExtraMetric]:
    """Measure each model on each device and on all of them."""
    models = models_of(pattern)
    out: list[ExtraMetric] = []
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=len(models))
        for model in models:
            bars.update(task, description=model.name)
            out += facts_of(model.name, devices, measure(devices, model, budget_s))
            bars.advance(task)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--case", help="only models with such names")
    parser.add_argument(
        "--time-budget", type=float, default=2.0, help="seconds of rounds for each model"
    )
    args = parser.parse_args(arguments)
    names = args.devices.split(",") if args.devices else [info.name for info in vs.devices()]
    facts = measure_all(names, args.case, args.time_budget)
    if args.json:
        print(json.dumps([{**asdict(fact), "ratio": fact.ratio} for fact in facts], indent=1))
        return 0
    table = Table("devices", "what", "time", "beside", "ratio", "")
    for fact in facts:
        table.add_row(fact.device, fact.name, *fact.cells(), fact.note)
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
