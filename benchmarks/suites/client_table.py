"""The table of the suite clients: models of packages, as multiples of a baseline's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vksched.cli.options import inputs

if TYPE_CHECKING:
    from vksched.bench.report import DeviceReport
    from vksched.bench.rounds import Result, RunnerTiming


def client_table(results: Sequence[Result], device: DeviceReport) -> Any:
    """Return a table with a row for each model: what a run takes here and in each baseline, and
    how many times as long as in the baseline.
    """
    from vksched.bench.report import means
    from vksched.bench.rounds import OURS

    baselines = list(device.baselines)
    ratios = [f"times {baseline}" for baseline in baselines]
    table = inputs.table("model", OURS, "spread", *baselines, *ratios, "", left=1)
    for result in results:
        by_name = {figure.runner: figure for figure in result.figures}
        ours = by_name[OURS]
        times = [_multiple(result.ratio(baseline)) for baseline in baselines]
        others = [_time(by_name.get(baseline)) for baseline in baselines]
        spread = f"{100 * ours.spread:.0f} %" if ours.seconds is not None else ""
        table.add_row(result.spec.name, _time(ours), spread, *others, *times, ours.note)
    for found in means(results).values():
        cells = [_multiple(found.get(baseline)) for baseline in baselines]
        blank = [""] * (2 + len(baselines))
        table.add_row("geometric mean", *blank, *cells, "", style="bold")
    return table


def _multiple(times_as_fast: float | None) -> str:
    return "" if times_as_fast is None else f"{1 / times_as_fast:.2f}"


def _time(figure: RunnerTiming | None) -> str:
    from vksched.common.formatting import format_seconds

    if figure is None or figure.seconds is None:
        return "wrong" if figure is not None and figure.wrong else "-"
    return format_seconds(figure.seconds)
