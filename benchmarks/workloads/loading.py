"""How long a model takes from its file to being ready, beside reading and copying its bytes.

    python benchmarks/workloads/loading.py [--models resnet18,minilm.onnx] [--devices vulkan:0]
        [--json]

A model is a structure of tests/importers/models or a file; one of 90 MB comes from
`python examples/export_minilm.py minilm.onnx`. All takes turns in one process, with the file in the
system's cache. The first load of a process also imports what it needs, and compiles shaders.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.models.compiled_model import CompiledModel
from vksched.runtime.vulkan.buffers import Buffer
from vksched.runtime.vulkan.context import Context
from vksched.runtime.vulkan.staging import write_new

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "overheads"))
from memory import make_model
from options import make_parser, vulkan_names

T = TypeVar("T")

DIMENSION = 8
"""Of inputs, where a model leaves it open."""


@dataclass(frozen=True)
class Row:
    """Medians. read_s: the whole file. memory_s: making memory of the device for the weights, which
    some drivers clear. copy_s: as many bytes, to that memory. upload_s: the same by what uploads
    weights. load_s: `vs.load` and compiling, until the model could run. first_s: the same, the
    first time.
    """

    model: str
    device: str
    file_bytes: int
    weight_bytes: int
    read_s: float
    memory_s: float
    copy_s: float
    upload_s: float
    load_s: float
    first_s: float

    @property
    def ratio(self) -> float:
        """Loading to reading the file and copying its weights to new memory."""
        return self.load_s / (self.read_s + self.memory_s + self.copy_s)

    @property
    def share(self) -> float:
        """Of the bandwidth of a plain copy, what uploading reaches."""
        return self.copy_s / self.upload_s


def plain_copy(context: Context, target: Buffer, words: NDArray) -> None:
    """Copies words to the device: into its memory, where the host sees it, or from a window."""
    with target.mapped() as mapped:
        if mapped is not None:
            np.copyto(mapped[: words.size], words)
            return
    window = context.host(words.size, zeroed=False)
    recording = context.recording()
    np.copyto(window.array, words)
    recording.begin()
    recording.copy(window, target, 0, 0, words.size)
    recording.end()
    recording.submit()
    recording.wait(60.0)
    recording.close()
    window.close()


def measure(path: Path, device: str, repeats: int) -> Row:
    index = next(d.index for d in vs.devices() if d.name == device)
    with vs.Scheduler([device]) as sched:

        def load() -> CompiledModel:
            model = vs.load(path)
            run = sched.compile(model)
            run.prepare(**{i.name: [_size(d) for d in i.dims or ()] for i in model.inputs})
            return run

        start = time.perf_counter()
        run = load()
        first_s = time.perf_counter() - start
        size = sum(p.buffers()[device].weight_bytes for p in run.plans)
        run.close()
        words = np.ones(max(1, size // 4), np.uint32)
        context = Context(index, device)
        times: dict[str, list[float]] = {}

        def timed(name: str, call: Callable[[], T]) -> T:
            start = time.perf_counter()
            result = call()
            times.setdefault(name, []).append(time.perf_counter() - start)
            return result

        for _ in range(repeats):
            timed("read_s", path.read_bytes)
            target = timed("memory_s", lambda: context.storage(words.size))
            timed("copy_s", lambda to=target: plain_copy(context, to, words))
            target.close()
            target = context.storage(words.size)
            timed("upload_s", lambda to=target: write_new(context, to, [words]))
            target.close()
            timed("load_s", load).close()
        context.close()
    found = {name: median(values) for name, values in times.items()}
    return Row(path.stem, device, path.stat().st_size, size, first_s=first_s, **found)


def _size(dimension: int | str | None) -> int:
    return dimension if isinstance(dimension, int) else DIMENSION


def show(rows: Sequence[Row]) -> None:
    table = Table(title="loading a model, milliseconds")
    names = "model", "device", "read", "memory", "copy", "upload", "share", "load", "ratio", "first"
    for name in names:
        table.add_column(name, justify="left" if name in names[:2] else "right")
    for row in rows:
        times = (row.read_s, row.memory_s, row.copy_s, row.upload_s, row.load_s, row.first_s)
        *copying, load, first = (f"{1e3 * t:.0f}" for t in times)
        shares = f"{row.share:.2f}", load, f"{row.ratio:.2f}"
        table.add_row(row.model, row.device, *copying, *shares, first)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--models", default="resnet18")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args(arguments)
    names, rows = vulkan_names(args), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models.split(","):
            path = Path(model) if model.endswith(".onnx") else make_model(model, Path(folder))
            rows += [measure(path, name, args.repeats) for name in names]
    if args.json:
        both = [{**asdict(r), "ratio": r.ratio, "share": r.share} for r in rows]
        print(json.dumps(both, indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
