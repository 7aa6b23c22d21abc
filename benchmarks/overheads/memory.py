"""What a model takes: bytes on each device, as planned, beside what onnxruntime's process grows by.

    python benchmarks/overheads/memory.py [--models bert_mini,resnet18] [--devices vulkan:0,cpu]
        [--json]

The models are the structures of tests/importers/models. A plan says what it takes before anything
is allocated. onnxruntime, an extra, is measured in a process of its own: how far the largest
resident size rises over what it was before the session, its copy of the weights included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.bench.baselines.memory_growth import growth_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "importers"))

from models import dimensions, example_inputs, make_model  # noqa: E402


@dataclass(frozen=True)
class Row:
    """Bytes. weights, activations, windows, peak: sizes in the plan of the first stage, on its
    device. file: size of the model. onnxruntime: None if it is not installed, or if the system does
    not report it.
    """

    model: str
    device: str
    file: int
    weights: int
    activations: int
    windows: int
    peak: int
    onnxruntime: int | None


def measure(name: str, devices: Sequence[str]) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        path = make_model(name, folder)
        baseline = growth_of(path, example_inputs(name, 0, **dimensions(name)))
        for device in devices:
            with vs.Scheduler([d for d in [device] if d != "cpu"] or ["cpu"]) as sched:
                run = sched.compile(vs.load(path))
                run(**example_inputs(name, 0, **dimensions(name)))
                sizes = [p.buffers()[device] for p in run.plans]
            rows.append(
                Row(
                    name,
                    device,
                    path.stat().st_size,
                    sum(s.weight_bytes for s in sizes),
                    sum(s.activation_bytes for s in sizes),
                    sum(s.upload_bytes + s.download_bytes for s in sizes),
                    sum(s.peak_bytes for s in sizes),
                    baseline,
                )
            )
    return rows


def show(rows: Sequence[Row]) -> None:
    table = Table(title="memory of a model, MiB")
    names = "model", "device", "file", "weights", "activations", "windows", "peak", "onnxruntime"
    for name in names:
        table.add_column(name, justify="left" if name in names[:2] else "right")
    for row in rows:
        values = row.file, row.weights, row.activations, row.windows, row.peak, row.onnxruntime
        texts = ["-" if v is None else f"{v / 2**20:.2f}" for v in values]
        table.add_row(row.model, row.device, *texts)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", default="bert_mini,resnet18")
    parser.add_argument("--devices", help="names, with commas; all when not given")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    names = args.devices.split(",") if args.devices else [d.name for d in vs.devices()]
    rows = [row for model in args.models.split(",") for row in measure(model, names)]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
