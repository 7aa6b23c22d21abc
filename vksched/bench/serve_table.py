"""The table of the suite "serve": rates and latencies of servers by number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .baselines.serving_job import LATENCIES
from .baselines.workloads import tokens_of

if TYPE_CHECKING:
    from .rounds import Result, RunnerTiming

SERVE_OPTIONS = ("clients", "prompt", "answer")
"""Names of the options of the suite."""
COLUMNS = ("first token", "95 %", "between tokens", "95 %")


def serve_table(results: Sequence[Result], device: object) -> Any:
    """Return a table with a row for each case and server.

    tokens/s: generated tokens of all clients, from the first request to the last token. The
    latencies are medians and 95th percentiles over all requests.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(
        ("case", "", "tokens/s", "spread", *COLUMNS, "times as fast", "")
    ):
        table.add_column(column, justify="left" if number < 2 else "right")
    for result in results:
        for number, figure in enumerate(result.figures):
            name = result.spec.name if not number else ""
            table.add_row(name, *_cells(result, figure))
    return table


def _cells(result: Result, figure: RunnerTiming) -> tuple[str, ...]:
    from ..common.formatting import format_number, format_seconds

    if figure.seconds is None:
        return figure.runner, "wrong" if figure.wrong else "-"
    ratio = result.ratio(figure.runner) if figure is not result.ours else None
    found = [figure.latencies_s.get(name) for name in LATENCIES]
    return (
        figure.runner,
        format_number(tokens_of(result.spec) / figure.seconds),
        f"{100 * figure.spread:.0f} %",
        *("" if seconds is None else format_seconds(seconds) for seconds in found),
        "" if ratio is None else f"{ratio:.2f}",
        figure.note,
    )
