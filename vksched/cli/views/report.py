"""`--report` of `vksched run`: activity of each device, as tables, JSON or a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...common.errors import VkschedError
from ..options import inputs

if TYPE_CHECKING:
    from ...engine.report.run_report import RunReport

PRINTED = "-"
"""Value of the option without a file."""
TITLES = ("predicted beside measured:", "what each device did, and the host:")


def _checked(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    if path is None or path == PRINTED:
        return path
    if Path(path).suffix.lower() not in (".svg", ".json"):
        raise click.UsageError(
            f"expected --report alone or with a file that ends in .svg or .json, got {path!r}; "
            "try --report as the last word"
        )
    inputs.check_folder(path)
    return path


report_option = click.option(
    "--report",
    is_flag=False,
    flag_value=PRINTED,
    metavar="[FILE.svg|FILE.json]",
    callback=_checked,
    help=(
        "Report the activity of each device in all runs after the first, and the predicted one; "
        "a single run is repeated once."
    ),
)


def write_report(report: RunReport, path: str) -> None:
    """Write a report as a picture or JSON, by the suffix of the file. Raise VkschedError on
    failure.
    """
    if Path(path).suffix.lower() == ".svg":
        report.draw(path)
        return
    try:
        Path(path).write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise VkschedError(f"[report] cannot write {path}: {inputs.error_text(error)}") from error


def show_report(report: RunReport, path: str | None) -> None:
    """Print a report as tables. path: file that it was written to."""
    for rows, title in zip(report.tables(), TITLES, strict=True):
        click.echo(title)
        head, *body = rows
        table = inputs.table(*head)
        for row in body:
            table.add_row(*row)
        inputs.print_table(table)
    for line in report.lines():
        click.echo(line)
    if path is not None:
        click.echo(f"wrote {path}")
    click.echo()
