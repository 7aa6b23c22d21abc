"""The tables and plots of docs/performance/index.md, from stored results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from page import Extras, page  # beside this file
from results import read

from vksched.bench.report import Report
from vksched.bench.rounds import OURS, Result

MAX_TICKS = 9
APART = 1.3
"""How many times the one before a labelled size is, so that labels do not touch."""
Series = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Chart:
    """A plot of the page. section: the device or the part of the page that shows it. limit: the
    dashed line, if there is one.
    """

    section: str
    caption: str
    name: str
    series: Series
    x: str
    y: str
    limit: float | None = None


def charts(report: Report, extras: Extras) -> Iterator[Chart]:
    """Yield the plots that the results allow."""
    for device in report.devices:
        results, suffix = report.results_of(device.name), device.name.replace(":", "-")
        square = {r.spec["m"]: r for r in results if r.spec.group == "matmul square"}
        if len(square) > 1:
            caption = f"Products of square matrices on {device.name}; dashed: the ceiling"
            peak = device.ceiling.flops_per_s / 1e9
            axes = "size of square matrices", "GFLOP/s"
            yield Chart(
                device.name, caption, f"matmul-{suffix}.svg", _series(square, 2.0), *axes, peak
            )
        chains = {
            r.spec["ops"]: r for r in results if r.spec.kind == "chain" and not r.spec.get("fused")
        }
        if len(chains) > 1:
            caption = f"Time of one op over the ops of a replayed graph on {device.name}"
            axes = "ops in the graph", "us per op"
            yield Chart(device.name, caption, f"overhead-{suffix}.svg", _series(chains, 0.0), *axes)
    if planning := _planning(report):
        caption = "Planning time over the nodes of a graph; dashed: 60 us per node"
        axes = "nodes", "planning, us per node"
        yield Chart("planning", caption, "planning.svg", planning, *axes, 60.0)
    if speed_up := _speed_up(extras):
        caption = "Speed-up of equal branches over the number of devices"
        yield Chart("devices", caption, "devices.svg", speed_up, "devices", "speed-up")


def captions(report: Report, extras: Extras) -> dict[str, dict[str, str]]:
    """Return the file names of the plots by caption, by section of the page."""
    found: dict[str, dict[str, str]] = {}
    for chart in charts(report, extras):
        found.setdefault(chart.section, {})[chart.caption] = chart.name
    return found


def stored_results(docs: Path) -> Path:
    """Return the file of results that the page is built from."""
    return docs / "performance" / "data" / "results.json"


def performance_tables(docs: Path) -> str:
    """Return the tables of docs/performance/index.md from the stored results."""
    report, extras = read([stored_results(docs)])
    return page(report, extras, captions(report, extras))


def draw_plots(report: Report, extras: Extras, folder: Path) -> None:
    """Draw all plots into a folder."""
    try:
        import matplotlib
    except ImportError as error:
        raise click.ClickException(
            f"[report] expected matplotlib, got {error}; try pip install .[bench]"
        ) from error
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "vksched", "svg.fonttype": "none"})
    for chart in charts(report, extras):
        _draw(folder / chart.name, chart.series, chart.x, chart.y, chart.limit)


def _planning(report: Report) -> Series:
    """Return by kind of graph points of nodes and microseconds per node."""
    out: Series = {}
    for fact in report.facts:
        found = re.fullmatch(r"planning( by auto)?: (.*), ([\d,]+) nodes", fact.name)
        if found:
            nodes = int(found[3].replace(",", ""))
            out.setdefault(f"{found[2]}{found[1] or ''}", []).append((nodes, fact.value))
    return {kind: sorted(points) for kind, points in out.items() if len(points) > 1}


def _speed_up(extras: Extras) -> Series:
    """Return points of devices and speed-up: simulated, of this machine, and the ideal."""
    out: Series = {}
    for row in extras.get("scaling", ()):
        kind = "simulated" if row["kind"] == "simulated" else "this machine's"
        out.setdefault(kind, []).append((row["devices"], row["speed_up"]))
    most = max((count for points in out.values() for count, _ in points), default=0)
    if out:
        out["ideal"] = [(count, float(count)) for count in (1, most)]
    return out


def _series(results: dict[int, Result], power: float) -> Series:
    """Return by runner points of size and rate (power 2: products), or us per op (0)."""
    out: Series = {}
    for size, result in sorted(results.items()):
        for figure in result.figures:
            if figure.seconds:
                value = 2 * size**3 / figure.seconds / 1e9 if power else 1e6 * figure.seconds
                out.setdefault(figure.runner, []).append((size, value))
    return out


def _draw(path: Path, series: Series, x: str, y: str, line: float | None) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, points in series.items():
        width = 2.5 if name == OURS else 1.2
        axes.plot(*zip(*points, strict=True), "o-", label=name, linewidth=width, markersize=4)
    if line is not None:
        axes.axhline(line, color="grey", linestyle="--", linewidth=1)
    axes.set(xscale="log", xlabel=x, ylabel=y, ylim=(0, None))
    ticks: list[int] = []
    for tick in sorted({point[0] for points in series.values() for point in points}):
        if not ticks or tick >= APART * ticks[-1]:
            ticks.append(tick)
    if len(ticks) < MAX_TICKS:
        axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
