"""`vksched perplexity`: the accuracy of a precision mode with a GGUF language model on a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ...common.errors import VkschedError
from ...common.formatting import count_of
from ..options import inputs
from ..options.precision_option import measured_mode_option

if TYPE_CHECKING:
    from ...generation.perplexity import PrecisionLoss, TokenProgress


@click.command()
@click.argument("model_file", metavar="MODEL.gguf")
@click.option("--text", "text_file", metavar="FILE", required=True, help="UTF-8 text to predict.")
@inputs.devices_option
@measured_mode_option
@inputs.cache_type_option(
    "Measured element type of the KV cache.", "f16 in mixed and float16, else f32"
)
@click.option(
    "-c",
    "--ctx-size",
    "ctx",
    type=click.IntRange(2),
    help="Tokens of a chunk.  [default: 512, or the model's limit]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="Maximum number of tokens to predict.  [default: the whole text]",
)
@click.option(
    "--reference",
    "reference_file",
    metavar="MODEL.gguf",
    help="Model to compute in float32.  [default: the same]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def perplexity(
    model_file: str,
    text_file: str,
    devices: str | None,
    precision: str,
    cache_type: str | None,
    ctx: int | None,
    max_tokens: int | None,
    reference_file: str | None,
    as_json: bool,
) -> None:
    """Measure the accuracy of a precision mode on a text, next to float32.

    Prints the perplexity in both, the Kullback-Leibler divergence of the next-token distributions,
    and the share of tokens with an equal most likely next token. Exit code 0, or 1 with an error
    message.
    """
    from ...generation.perplexity import perplexity as measure
    from ...importers import load_gguf
    from ...scheduler.scheduler import Scheduler

    text = _read(text_file)
    model = load_gguf(model_file)
    with Scheduler(inputs.parse_devices(devices)) as sched, _progress(as_json) as progress:
        loss = measure(
            sched,
            model,
            text,
            precision=precision,
            cache_type=cache_type,
            ctx=ctx,
            max_tokens=max_tokens,
            reference=None if reference_file is None else load_gguf(reference_file),
            progress=progress,
        )
    if as_json:
        change = {"perplexity_change": loss.perplexity_change}
        click.echo(json.dumps({"model": model.name, **asdict(loss), **change}, indent=2))
    else:
        _show(model.name, loss)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise VkschedError(
            f"[perplexity] expected a UTF-8 text in {path!r}, got: {error}"
        ) from None


@contextmanager
def _progress(quiet: bool) -> Iterator[TokenProgress]:
    """Yield a function of (tokens done, tokens in total) that shows a progress bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    from ...common.console import DescriptionColumn, ProgressBars

    columns = (DescriptionColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBars(*columns, quiet=quiet) as bars:
        task = bars.add_task("tokens", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _show(name: str, loss: PrecisionLoss) -> None:
    mode = f"{loss.precision}, KV cache in {loss.cache_type}"
    for note in loss.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{name}: {count_of(loss.tokens, 'token')}, {mode}, next to float32")
    click.echo(
        f"perplexity:    {loss.perplexity:.5f}, in float32 {loss.reference_perplexity:.5f} "
        f"({100 * loss.perplexity_change:+.4f} %)"
    )
    click.echo(f"KL divergence: mean {loss.mean_kl:.2e}, max {loss.max_kl:.2e}")
    click.echo(f"equal top-1:   {100 * loss.same_top:.2f} %")
