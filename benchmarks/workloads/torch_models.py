"""PyTorch models through vksched, next to eager PyTorch, inductor and the ONNX importer.

    python benchmarks/workloads/torch_models.py [--device cpu] [--case MiniLM] [--turns 9] [--json]
    python benchmarks/workloads/torch_models.py --first [--case MiniLM]     # times of first calls
    python benchmarks/workloads/torch_models.py --device vulkan:1 --backends vksched,onnx

It needs PyTorch and transformers; the backend onnx needs onnxscript, too. Weights are random. All
backends take turns in one process, and medians count. `--first` measures the first call, with
compilation, in processes of their own: cold without any cache, and warm with the caches that
the process before left. A result that differs from eager PyTorch is an error.

`--cpu-time` measures one thread, and the CPU time of the process and its children instead of the
time that passes: it hardly changes if other programs use the same cores.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import vksched as vs
from vksched.torch.backend import vksched

BACKENDS = "eager", "inductor", "vksched", "onnx"
PAIRS = ("vksched", "eager"), ("vksched", "inductor"), ("vksched", "onnx")
MIN_S = 1.0
"""Turns go on for at least so long, up to MAX_TURNS."""
MAX_TURNS = 200
FIRST_REPEATS = 3
Call = Callable[[], Any]
Clock = Callable[[], float]


class Block(nn.Module):
    """Two convolutions with batch norm, and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """images: (n, 3, 224, 224) -> scores: (n, 1000)"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
            nn.MaxPool2d(3, 2, 1),
        )
        sizes = (64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)
        stages = [(Block(a, b, stride), Block(b, b, 1)) for a, b, stride in sizes]
        self.stages = nn.Sequential(*(block for stage in stages for block in stage))
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return scores


class FirstOutput(nn.Module):
    """A model of transformers that returns a tensor instead of a dataclass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.model(input_ids=ids, use_cache=False)[0]
        return first


class CachedStep(nn.Module):
    """GPT-2 with a static cache: one token at a position after those of the prompt.

    The cache is a set of buffers that each step changes in place.
    """

    def __init__(self, model: Any, length: int, at: int) -> None:
        super().__init__()
        from transformers import StaticCache

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        prompt = torch.arange(at)[None]
        with torch.no_grad():
            model(input_ids=prompt, cache=self.cache, use_cache=True)
        self.at = at
        self.position = torch.tensor([[at]])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        for layer in self.cache.layers:  # the same step again
            layer.cumulative_length.fill_(self.at)
        out = self.model(
            input_ids=ids, cache=self.cache, position_ids=self.position, use_cache=True
        )
        logits: torch.Tensor = out.logits
        return logits


def resnet18() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return ResNet18(), (torch.randn(1, 3, 224, 224),)


def minilm() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return FirstOutput(BertModel(config)), (torch.randint(0, 30000, (1, 128)),)


def gpt2_prompt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    return FirstOutput(model), (torch.randint(0, 50000, (1, 64)),)


def gpt2_step() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).eval()
    return CachedStep(model, 128, 64), (torch.randint(0, 50000, (1, 1)),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "ResNet-18": resnet18,
    "MiniLM, 128 tokens": minilm,
    "GPT-2, 64 tokens": gpt2_prompt,
    "GPT-2, one token": gpt2_step,
}
NOT_EXPORTED = {"GPT-2, one token": "torch.onnx does not write to the buffers of a model"}


def make_call(
    backend: str, model: nn.Module, args: tuple[torch.Tensor, ...], sched: vs.Scheduler
) -> Call:
    """Return the call of a model through a backend. Its first call compiles."""
    if backend == "eager":
        return partial(model, *args)
    if backend == "inductor":
        return partial(torch.compile(model), *args)
    if backend == "vksched":
        fast = torch.compile(model, backend=vksched, options={"scheduler": sched})
        return partial(fast, *args)
    file = io.BytesIO()
    with warnings.catch_warnings():  # PyTorch's own
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, args, dynamo=True, verbose=False)
        assert program is not None
        program.save(file)
    loaded = vs.load(file.getvalue())
    run = sched.compile(loaded)
    names = [tensor.name for tensor in loaded.inputs]
    arrays = dict(zip(names, (a.numpy() for a in args), strict=True))
    return lambda: [torch.from_numpy(value) for value in run(**arrays).values()][0]


def check(found: torch.Tensor, wanted: torch.Tensor, backend: str) -> None:
    """Raise an error if a result differs from eager PyTorch."""
    error = float((found - wanted).norm() / wanted.norm())
    if not error < 1e-3:
        raise SystemExit(f"{backend} differs from eager PyTorch by {error:.1e} of the norm")


def use_one_thread() -> None:
    """Restrict this process and its children to one core and one thread."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # read when inductor is imported


def cpu_time_s() -> float:
    """Return the CPU time of this process and its children until now."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def seconds_of(call: Call, clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start


@dataclass(frozen=True)
class Row:
    """A model on a device. seconds: median by backend; first_s: first calls, cold and warm."""

    model: str
    device: str
    seconds: dict[str, float]
    ratios: dict[str, float]

    @staticmethod
    def of(model: str, device: str, times: dict[str, list[float]]) -> Row:
        medians = {backend: statistics.median(values) for backend, values in times.items()}
        ratios = {
            f"{a}/{b}": statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))
            for a, b in PAIRS
            if a in times and b in times
        }
        return Row(model, device, medians, ratios)


def measure(name: str, device: str, backends: Sequence[str], turns: int, clock: Clock) -> Row:
    """Measure the calls of a model after the first one, in turns."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, args = MODELS[name]()
    model.eval()
    times: dict[str, list[float]] = {}
    with vs.Scheduler([device]) as sched, torch.no_grad():
        calls: dict[str, Call] = {}
        wanted = model(*args)
        for backend in backends:
            if backend == "onnx" and name in NOT_EXPORTED:
                continue
            calls[backend] = make_call(backend, model, args, sched)
            check(calls[backend](), wanted, backend)
            calls[backend]()  # a second one is steady
        start = time.perf_counter()
        times = {backend: [] for backend in calls}
        order = list(calls)
        for turn in range(MAX_TURNS):
            if turn >= turns and time.perf_counter() - start > MIN_S:
                break
            for backend in order if turn % 2 else reversed(order):
                times[backend].append(seconds_of(calls[backend], clock))
    torch._dynamo.reset()
    return Row.of(name, device, times)


def first_call_s(name: str, device: str, backend: str, clock: Clock) -> float:
    """Return the seconds of the first call in this process, without the imports of PyTorch."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    model.eval()
    with vs.Scheduler([device]) as sched, torch.no_grad():
        model(*args)
        return seconds_of(lambda: make_call(backend, model, args, sched)(), clock)


def measure_first(
    name: str, device: str, backends: Sequence[str], more: Sequence[str]
) -> list[Row]:
    """Measure first calls in processes of their own, in turns: cold, then warm.

    Parameters
    ----------
    more
        Options of the processes.
    """
    times: dict[str, dict[str, list[float]]] = {
        kind: {backend: [] for backend in backends} for kind in ("cold", "warm")
    }
    for _ in range(FIRST_REPEATS):
        for backend in backends:
            with tempfile.TemporaryDirectory() as folder:
                for found in times.values():
                    command = ["--device", device, "--case", name, "--backends", backend, *more]
                    found[backend].append(_first_in_child(command, folder))
    return [Row.of(f"{name}, {kind}", device, found) for kind, found in times.items()]


def _first_in_child(options: Sequence[str], folder: str) -> float:
    """Return the seconds of the first call in a new process, whose caches are in a folder."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "MESA_SHADER_CACHE_DIR": f"{folder}/mesa",
    }
    done = subprocess.run(
        [sys.executable, __file__, *options, "--in-child"],
        env={**os.environ, **caches},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return float(done.stdout.split()[-1])


def show(rows: Sequence[Row], backends: Sequence[str]) -> None:
    """Print the rows as a table."""
    ratios = [f"{a}/{b}" for a, b in PAIRS if a in backends and b in backends]
    table = Table("model", "device", *(f"{b} ms" for b in backends), *ratios)
    for row in rows:
        times = [f"{1e3 * row.seconds[b]:.2f}" if b in row.seconds else "" for b in backends]
        found = [f"{row.ratios[r]:.2f}" if r in row.ratios else "" for r in ratios]
        table.add_row(row.model, row.device, *times, *found)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file has room for all columns
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="the device of vksched")
    parser.add_argument("--case", default="", help="only models with this in their names")
    parser.add_argument("--backends", help=f"with commas, of {', '.join(BACKENDS)}")
    parser.add_argument("--turns", type=int, default=9, help="the minimum number of turns")
    parser.add_argument("--first", action="store_true", help="first calls, with compilation")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread")
    parser.add_argument("--in-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    default = "inductor,vksched" if args.first else "eager,inductor,vksched"
    backends = (args.backends or default).split(",")
    unknown = sorted({*backends} - {*BACKENDS})
    if unknown:
        parser.error(f"expected backends of {', '.join(BACKENDS)}, got {', '.join(unknown)}")
    names = [name for name in MODELS if args.case in name]
    if not names:
        parser.error(f"expected a part of {', '.join(map(repr, MODELS))}, got {args.case!r}")
    clock: Clock = time.perf_counter
    if args.cpu_time:
        use_one_thread()
        clock = cpu_time_s
    if args.in_child:
        print(first_call_s(names[0], args.device, backends[0], clock))
        return 0
    rows: list[Row] = []
    for name in names:
        if args.first:
            more = ["--cpu-time"] if args.cpu_time else []
            rows += measure_first(name, args.device, backends, more)
        else:
            rows.append(measure(name, args.device, backends, args.turns, clock))
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        show(rows, backends)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
