"""Searches a text by meaning: a real sentence encoder, its layers spread over all devices given.

    python examples/semantic_search.py --query "growing vegetables" --devices vulkan:0,vulkan:1,cpu

Embeds every sentence in batches, prints the nearest to the query, and which device did what.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from minilm import MiniLM, load_minilm
from pick import present_devices
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import vksched as vs
from vksched.common.dtypes import NDArray

SENTENCES = Path(__file__).parent / "data" / "sentences.txt"


@dataclass
class Totals:
    """What all runs cost together; a sink of the trace."""

    runs: int = 0
    fence_waits: int = 0
    transfer_bytes: int = 0
    device_seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, event: vs.Event) -> None:
        stats = event.fields.get("stats")
        if not isinstance(stats, vs.RunStats):
            return
        self.runs += 1
        self.fence_waits += stats.fence_waits
        self.transfer_bytes += stats.transfer_bytes
        for device, seconds in stats.device_seconds.items():
            self.device_seconds[device] = self.device_seconds.get(device, 0.0) + seconds


class Encoder:
    """Turns sentences into vectors on a scheduler; one graph for each length, compiled once."""

    def __init__(
        self, model: MiniLM, sched: vs.Scheduler, devices: Sequence[str], batch: int
    ) -> None:
        self.model, self.batch = model, batch
        self._sched = sched
        self._graphs: dict[int, vs.CompiledGraph] = {}
        layers = model.layers
        self.layers = {i: devices[i * len(devices) // layers] for i in range(layers)}
        self.placement = {
            "embeddings.*": self.layers[0],
            **{f"layer.{i}.*": device for i, device in self.layers.items()},
            "pooling.*": self.layers[layers - 1],
        }

    def graph(self, length: int) -> vs.CompiledGraph:
        """Return the compiled encoder for texts of this many tokens."""
        if length not in self._graphs:
            encoder = self.model.build_encoder(self.batch, length)
            self._graphs[length] = self._sched.compile(encoder, placement=self.placement)
        return self._graphs[length]

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray:
        """Return one row per text. Two batches are under way at once, short texts first."""
        tokens = self.model.tokenize(texts)
        order = sorted(range(len(texts)), key=lambda i: len(tokens[i]))
        out = np.empty((len(texts), int(self.model.config["hidden_size"])), np.float32)
        task = progress.add_task("embedding", total=len(texts)) if progress else None
        under_way: deque[tuple[list[int], Future[Any]]] = deque()

        def finish() -> None:
            rows, future = under_way.popleft()
            out[rows] = future.result()[: len(rows)]
            if progress and task is not None:
                progress.advance(task, len(rows))

        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            length = self.model.padded_length(max(len(tokens[i]) for i in rows))
            feeds = self.model.fill([tokens[i] for i in rows], self.batch, length)
            while len(under_way) >= 2:
                finish()
            under_way.append((rows, self.graph(length).submit(**feeds)))
        while under_way:
            finish()
        return out


def choose_devices(named: str | None) -> list[str]:
    """Return the devices named, or all of the best kind present."""
    if named is None:
        return present_devices()
    names = [name.strip() for name in named.split(",") if name.strip()]
    if not names:
        raise click.ClickException(f"expected devices as in vulkan:0,cpu, got {named!r}")
    return names


def search(
    query: str, sentences: Sequence[str], named: str | None, batch: int, top: int, quiet: bool
) -> dict[str, Any]:
    """Does everything and returns the report."""
    model, totals = load_minilm(), Totals()
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sentences"),
        TimeElapsedColumn(),
        console=console,
        disable=quiet,
    )
    chosen = choose_devices(named)
    with vs.Scheduler(chosen, trace=totals) as sched:
        names = [device.name for device in sched.devices]
        if "cpu" not in chosen:
            names.remove("cpu")
        encoder = Encoder(model, sched, names, batch)
        start = time.perf_counter()
        with bar:
            vectors = encoder.embed(sentences, bar)
        seconds = time.perf_counter() - start
        wanted = encoder.embed([query])[0]
    probe = sorted({0, len(sentences) // 2, len(sentences) - 1})
    with vs.Scheduler(["cpu"]) as sched:
        on_numpy = Encoder(model, sched, ["cpu"], 4).embed([sentences[i] for i in probe] + [query])
    difference = np.abs(on_numpy - np.stack([*(vectors[i] for i in probe), wanted])).max()
    scores = vectors @ wanted
    nearest = np.argsort(-scores, kind="stable")[:top]
    ran = {name: [i for i, d in encoder.layers.items() if d == name] for name in names}
    return {
        "query": query,
        "nearest": [{"score": float(scores[i]), "sentence": sentences[i]} for i in nearest],
        "sentences": len(sentences),
        "seconds": seconds,
        "layers": ran,
        "totals": asdict(totals),
        "largest_difference_from_numpy": float(difference),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as tables."""
    console.print(f'nearest to "{report["query"]}"', markup=False)
    found = Table()
    found.add_column("score", justify="right")
    found.add_column("sentence")
    for hit in report["nearest"]:
        found.add_row(f"{hit['score']:.3f}", hit["sentence"])
    console.print(found)
    totals, work = report["totals"], Table()
    console.print("which device ran what (their times overlap)")
    for column in ("device", "layers", "seconds busy"):
        work.add_column(column)
    for device, layers in report["layers"].items():
        span = "none" if not layers else f"{layers[0]} to {layers[-1]}"
        work.add_row(device, span, f"{totals['device_seconds'].get(device, 0):.2f}")
    console.print(work)
    console.print(
        f"{report['sentences']} sentences in {report['seconds']:.1f} s and {totals['runs']} runs, "
        f"{totals['fence_waits']} fence waits, "
        f"{totals['transfer_bytes'] / 1e6:.1f} MB copied between devices"
    )
    difference = report["largest_difference_from_numpy"]
    console.print(f"largest difference from numpy: {difference:.1e}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--query",
    default="how do graphics cards compute so fast?",
    show_default=True,
    help="What to find.",
)
@click.option("--devices", "named", help="As in vulkan:0,vulkan:1,cpu. Default: all cards.")
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True)
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Hits to show.")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=SENTENCES,
    help="A file with one sentence per line. Default: the 300 of the examples.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def main(query: str, named: str | None, batch: int, top: int, text: Path, as_json: bool) -> None:
    """Search a text by meaning, with the encoder's layers spread over all devices."""
    try:
        lines = [line.strip() for line in text.read_text("utf-8").splitlines()]
        sentences = [line for line in lines if line]
        if not sentences:
            raise click.ClickException(f"expected sentences in {text}, got an empty file")
        report = search(query, sentences, named, batch, top, quiet=as_json)
    except UnicodeDecodeError as error:
        raise click.ClickException(
            f"expected text in {text}, got bytes that are none: {error}"
        ) from error
    except vs.VkschedError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
