"""`vksched replay`: recompute the plans and orders of a tape and show the first difference."""

from __future__ import annotations

import json

import click

from ...common.errors import VkschedError


@click.command()
@click.argument("tape_file", metavar="TAPE.json")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
def replay(tape_file: str, as_json: bool) -> None:
    """Recompute the plans and orders of a tape, without running ops, and compare.

    Tapes are written by `vs.Tape().save`, `vksched run --trace` and VKSCHED_TRACE. Exit code 0 if
    all are equal, else 1 with the first difference.
    """
    from ...engine.replay.replay_tape import replay_tape
    from ...trace import load_tape

    found = replay_tape(load_tape(tape_file))
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if found.difference is not None:
        raise VkschedError(f"[replay] {found.difference}")
