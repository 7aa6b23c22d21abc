"""`vksched rerank`: scores of documents for a query with a GGUF language model."""

from __future__ import annotations

import json

import click

from ..options import inputs
from ..options.precision_option import mode_option


@click.command()
@click.argument("model_file", metavar="MODEL.gguf")
@click.option("--query", required=True, help="Query.")
@click.option("--text", "texts", multiple=True, required=True, help="Document (repeatable).")
@inputs.devices_option
@click.option("-c", "--ctx-size", "ctx", type=click.IntRange(1), help="Context length in tokens.")
@mode_option
@click.option("--truncate", is_flag=True, help="Truncate documents that exceed the context.")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
def rerank(
    model_file: str,
    query: str,
    texts: tuple[str, ...],
    devices: str | None,
    ctx: int | None,
    precision: str,
    truncate: bool,
    as_json: bool,
) -> None:
    """Score documents for a query with a GGUF reranker: the best document first.

    Exit code 0, or 1 with an error message.
    """
    from ...common.formatting import printable
    from ...generation.reranker import Reranker
    from ...importers import load_gguf
    from ...scheduler.scheduler import Scheduler

    model = load_gguf(model_file)
    with Scheduler(inputs.parse_devices(devices), precision=precision) as sched:
        with inputs.progress_bars(as_json) as progress:
            reranker = Reranker(sched, model, ctx, progress=progress)
            scores = reranker.score(query, texts, truncate=truncate)
    order = sorted(range(len(texts)), key=lambda at: -scores[at])
    if as_json:
        rows = [{"index": at, "text": texts[at], "score": float(scores[at])} for at in order]
        click.echo(json.dumps({"model": model.name, "query": query, "texts": rows}, indent=2))
        return
    for at in order:
        click.echo(f"{scores[at]:.6g}  {printable(texts[at], one_line=True)}")
