"""The options of speculation: guesses of the next tokens, which the model verifies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from . import inputs

if TYPE_CHECKING:
    from ...generation.speculation.speculation import Speculation

Command = Callable[..., None]


def speculation_options(command: Command) -> Command:
    """Add --ngram, --draft and --draft-device to a command."""
    for option in reversed(
        (
            click.option(
                "--ngram",
                is_flag=True,
                help="Guess that a text goes on as it did after the same tokens before.",
            ),
            click.option(
                "--draft",
                metavar="FILE",
                help="Smaller GGUF model with the same tokens, which guesses the next ones.",
            ),
            click.option(
                "--draft-device",
                metavar="NAME",
                help="Device of the draft model.  [default: as for the model]",
            ),
        )
    ):
        command = option(command)
    return command


@contextmanager
def open_speculation(
    ngram: bool, draft: str | None, draft_device: str | None
) -> Iterator[Speculation | None]:
    """Yield the speculation that the options select, with the device of the draft model open; None
    if they select none.

    Raises
    ------
    click.UsageError
        --draft-device comes without --draft.
    """
    if draft is None:
        inputs.need({"--draft-device": draft_device}, "--draft")
    if not ngram and draft is None:
        yield None
        return
    from ...generation.speculation.speculation import Speculation
    from ...importers import load_gguf
    from ...scheduler.scheduler import Scheduler

    model = None if draft is None else load_gguf(draft)
    if draft_device is None:
        yield Speculation(ngram, model)
        return
    with Scheduler(inputs.parse_devices(draft_device)) as sched:
        yield Speculation(ngram, model, sched)
