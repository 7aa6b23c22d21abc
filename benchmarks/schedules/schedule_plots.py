"""The pictures of schedules.py, for docs/performance/scheduling-benchmark.md: SVG files, drawn by
matplotlib.

The same rows give the same files: no date is in them, and names of parts are not drawn by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import click
from schedule_measure import AUTO, OURS, SINGLE, Row
from schedule_page import grouped, mean_of, ours_in_order

BINS = ((0.1, 0.32), (0.32, 1.0), (1.0, 3.2), (3.2, 10.0))
"""Ratios of communication to computation that the plot puts together."""
TIMED = (AUTO, "lookahead", "heft", SINGLE)
"""Policies whose times are drawn."""
MAX_SHOWN = 2.0
"""The worst ratio of the map of families; worse ones have the same colour."""


def plots(rows: Sequence[Row], folder: Path) -> dict[str, str]:
    """Draw what there is into a folder; returns file names by caption."""
    try:
        import matplotlib
    except ImportError as error:
        raise click.ClickException(
            f"[page] expected matplotlib, got {error}; try pip install .[bench]"
        ) from error
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "vksched", "svg.fonttype": "none"})
    folder.mkdir(exist_ok=True)
    both = [row for row in rows if row.consistent]
    _draw_families(both, folder / "scheduling-families.svg")
    _draw_ratios(both, folder / "scheduling-ratios.svg")
    _draw_times(both, folder / "scheduling-times.svg")
    return {
        "Where each policy loses: the mean ratio of its makespan to the best of saga's": (
            "scheduling-families.svg"
        ),
        "The mean ratio of makespans to the best of saga's, by communication to computation": (
            "scheduling-ratios.svg"
        ),
        "CPU time of a plan over tasks times devices; grey: the median of saga's": (
            "scheduling-times.svg"
        ),
    }


def _draw_families(rows: Sequence[Row], path: Path) -> None:
    from matplotlib import pyplot

    columns, families = ours_in_order(rows), grouped(rows, lambda row: row.family)
    cells = [
        [mean_of(mine, policy) or float("nan") for policy in columns] for mine in families.values()
    ]
    size = (2.5 + 0.42 * len(columns), 1.6 + 0.24 * len(families))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    image = axes.imshow(cells, cmap="RdYlGn_r", vmin=2 - MAX_SHOWN, vmax=MAX_SHOWN, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize="small")
    axes.set_yticks(range(len(families)), list(families), fontsize="small")
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=6)
    figure.colorbar(image, ax=axes, extend="max", shrink=0.6)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw_ratios(rows: Sequence[Row], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)
    within = {b: [r for r in rows if b[0] <= r.ratio < b[1]] for b in BINS}
    for policy in ours_in_order(rows):
        means = {b: mean for b, mine in within.items() if (mean := mean_of(mine, policy))}
        middles = [(low * high) ** 0.5 for low, high in means]
        width = 2.5 if policy == AUTO else 1.2
        axes.plot(middles, list(means.values()), "o-", label=policy, linewidth=width, markersize=4)
    axes.axhline(1.0, color="grey", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="communication to computation", ylabel="mean ratio")
    axes.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    axes.set_yticks([1, 1.5, 2, 3, 5], ["1", "1.5", "2", "3", "5"])
    axes.minorticks_off()
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw_times(rows: Sequence[Row], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    slow = [(r.tasks * r.devices, s) for r in rows if (s := r.slow_half_s) and math.isfinite(s)]
    if slow:
        axes.scatter(*zip(*slow, strict=True), color="grey", s=10, label="median of saga's")
    for policy in TIMED:
        points = [
            (row.tasks * row.devices, run.seconds)
            for row in rows
            if (run := row.run_of(OURS, policy)) is not None and run.makespan_s is not None
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=8, label=policy)
    axes.set(xscale="log", yscale="log", xlabel="tasks x devices", ylabel="seconds of CPU")
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
