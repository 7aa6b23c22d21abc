"""`vksched embed`: text embeddings with a GGUF language model."""

from __future__ import annotations

import json

import click

from ..options import inputs
from ..options.precision_option import mode_option


@click.command()
@click.argument("model_file", metavar="MODEL.gguf")
@click.option("--text", "texts", multiple=True, required=True, help="Text to embed (repeatable).")
@inputs.devices_option
@click.option("-c", "--ctx-size", "ctx", type=click.IntRange(1), help="Context length in tokens.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "last"]),
    help="Pooling of token embeddings.  [default: as in the file]",
)
@mode_option
@click.option("--truncate", is_flag=True, help="Truncate texts that exceed the context.")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
def embed(
    model_file: str,
    texts: tuple[str, ...],
    devices: str | None,
    ctx: int | None,
    pooling: str | None,
    precision: str,
    truncate: bool,
    as_json: bool,
) -> None:
    """Compute an embedding of each text with a GGUF language model: one line of numbers per text.

    Exit code 0, or 1 with an error message.
    """
    from ...generation.embedder import Embedder
    from ...importers import load_gguf
    from ...scheduler.scheduler import Scheduler

    model = load_gguf(model_file)
    with Scheduler(inputs.parse_devices(devices), precision=precision) as sched:
        with inputs.progress_bars(as_json) as progress:
            embedder = Embedder(sched, model, pooling, ctx, progress=progress)
            vectors = embedder.embed(texts, truncate=truncate)
    if as_json:
        rows = [
            {"text": text, "tokens": len(embedder.encode(text)), "vector": vector.tolist()}
            for text, vector in zip(texts, vectors, strict=True)
        ]
        report = {"model": model.name, "pooling": embedder.pooling, "width": embedder.width}
        click.echo(json.dumps({**report, "texts": rows}, indent=2))
        return
    for vector in vectors:
        click.echo(" ".join(f"{number:.6g}" for number in vector))
