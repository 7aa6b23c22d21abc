"""The tables and plots of schedules.py, for a terminal and for docs/scheduling/benchmark.md.

The page keeps what people wrote; only what stands between `BEGIN` and `END` is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import click
from page import wrapped  # beside this file
from rich.table import Table
from schedule_measure import AUTO, OURS, SAGA, SINGLE, Row, goal_of, ratios_of, standings

BEGIN = "<!-- From here to the end mark: python benchmarks/schedules.py --write -->"
END = "<!-- end -->"
BINS = ((0.1, 0.32), (0.32, 1.0), (1.0, 3.2), (3.2, 10.0))
"""Ratios of communication to computation that the plot puts together."""
TIMED = (AUTO, "lookahead", "heft", SINGLE)
"""Policies whose times are drawn."""
MOST_FAMILIES = 3
MOST_SHOWN = 2.0
"""The worst ratio of the map of families; worse ones have the same colour."""


def goals(rows: Sequence[Row]) -> list[str]:
    """Returns lines that say what `auto` reached beside saga; none where saga was not asked."""
    goal = goal_of(rows)
    if goal is None:
        return []
    slow = f"{goal.slow_s:.1f} s" if math.isfinite(goal.slow_s) else "more than the limit"
    return [
        f"At least as good as the best of all of saga's schedulers on {goal.share:.1%} of the "
        "instances (to reach: 95%).",
        f"Mean ratio of its makespan to that best: {goal.mean:.3f} (to reach: 0.98). Below 1 is "
        "better.",
        f"All instances took {goal.total_s:.1f} s. The fastest of the slower half of them took "
        f"{slow} (to reach: less than that).",
        f"In less time than the slower half of them on {goal.faster:.1%} of the instances, each "
        "taken alone.",
        f"Mean ratio of its makespan to the lower bound: {goal.to_bound:.2f}.",
    ]


def as_table(rows: Sequence[Row]) -> Table:
    """Returns how all schedulers stand, for a terminal."""
    title = f"{len(rows)} instances; ratios are to the best of {reference(rows)}"
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    for cells in _cells(rows):
        table.add_row(*cells)
    return table


HEADINGS = ("of", "policy", "as good", "mean", "worst", "ms, median", "s, all", "no plan")


def reference(rows: Sequence[Row]) -> str:
    """Returns whose best makespan ratios are to."""
    return SAGA if any(row.best_of(SAGA) is not None for row in rows) else "the policies"


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            s.by,
            s.policy,
            f"{s.best} of {s.plans}",
            f"{s.mean:.3f}",
            f"{s.worst:.2f}",
            f"{1e3 * s.median_s:.1f}",
            f"{s.total_s:.1f}",
            str(s.asked - s.plans),
        )
        for s in standings(rows)
    ]


def markdown(rows: Sequence[Row], command: str, peer: str, pictures: Mapping[str, str]) -> str:
    """Returns what stands between the marks of the page.

    command: that made the rows; peer: name and version of the other package; pictures: files by
    caption.
    """
    both = [row for row in rows if row.consistent]
    alone = [row for row in rows if not row.consistent]
    tasks, devices = [row.tasks for row in both], [row.devices for row in both]
    lines = [
        f"`{command}` wrote this part. It asks the policies of vksched and every scheduler of "
        f"{peer} for plans of {len(both)} instances of {len({r.family for r in both})} families, "
        f"with {min(tasks):,} to {max(tasks):,} tasks on {min(devices)} to {max(devices)} devices. "
        "The fastest device is up to 30 times as fast as the slowest one. The mean transfer takes "
        "0.1 to 10 times the mean task. Every plan is checked by `verify`.",
        "",
        "What `auto` reaches:",
        "",
        *(f"- {line}" for line in goals(both)),
        "",
        "Ratios are those of the makespan to the best of all of saga's schedulers. `as good` "
        "counts the instances at or below 1. Times are CPU time of one plan. `no plan` counts "
        "instances without a valid plan within the limit of time.",
        "",
        *_markdown_table(HEADINGS, _cells(both)),
        "",
    ]
    for caption, name in pictures.items():
        lines += [f"![{caption}]({name})", "", f"*{caption}*", ""]
    lines += [
        "Where each policy loses: the mean ratio by communication to computation, then by how many "
        "times the fastest device is as fast as the slowest one; and the families of its worst "
        "means.",
        "",
        *_markdown_table(*_by_kind(both)),
    ]
    if alone:
        lines += [
            "",
            f"{len(alone)} more instances are not consistent: a device is good at some kinds of "
            "tasks, bad at others, and cannot run some at all. Saga has no words for that. Here "
            "ratios are to the best of our own policies.",
            "",
            *_markdown_table(HEADINGS[1:], [cells[1:] for cells in _cells(alone)]),
        ]
    return "\n".join(wrapped([*lines, ""]))


def _markdown_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _by_kind(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Returns headings and cells: a line for each policy of ours."""
    families = _grouped(rows, lambda row: row.family)
    parts = {
        f"{word} {low:g} to {high:g}": [row for row in rows if low <= getattr(row, name) < high]
        for word, name, bins in (
            ("ratio", "ratio", ((0.1, 0.5), (0.5, 2), (2, 10))),
            ("speeds", "heterogeneity", ((1, 3), (3, 10), (10, 30))),
        )
        for low, high in bins
    }
    cells = []
    for policy in _policies(rows):
        means = [_mean(mine, policy) for mine in parts.values()]
        worst = sorted(families, key=lambda name: -_mean(families[name], policy))[:MOST_FAMILIES]
        names = ", ".join(f"{name} {_mean(families[name], policy):.2f}" for name in worst)
        cells.append([policy, *("" if mean == 0 else f"{mean:.2f}" for mean in means), names])
    return ["policy", *parts, "worst families"], cells


def _mean(rows: Sequence[Row], policy: str) -> float:
    """Returns the mean ratio of a policy of ours; 0 where there is no row."""
    return fmean(ratios_of(rows, OURS, policy) or [0.0])


def _policies(rows: Sequence[Row]) -> list[str]:
    """Returns our policies, `auto` first and one device last, the others by their mean."""
    found = [s.policy for s in standings(rows) if s.by == OURS]
    return sorted(found, key=lambda policy: (policy != AUTO, policy == SINGLE))


def _grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def insert(page: Path, text: str) -> None:
    """Replaces what stands between the marks of a page."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise click.ClickException(
            f"[page] expected the marks {BEGIN} and {END} in {page}, got none; try to write them"
        )
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")


def plots(rows: Sequence[Row], folder: Path) -> dict[str, str]:
    """Draws what there is into a folder; returns file names by caption."""
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
    _draw_families(both, folder / "families.svg")
    _draw_ratios(both, folder / "ratios.svg")
    _draw_times(both, folder / "times.svg")
    return {
        "Where each policy loses: the mean ratio of its makespan to the best of saga's": (
            "families.svg"
        ),
        "The mean ratio of makespans to the best of saga's, by communication to computation": (
            "ratios.svg"
        ),
        "CPU time of a plan over tasks times devices; grey: the median of saga's": "times.svg",
    }


def _draw_families(rows: Sequence[Row], path: Path) -> None:
    from matplotlib import pyplot

    columns, families = _policies(rows), _grouped(rows, lambda row: row.family)
    cells = [
        [_mean(mine, policy) or float("nan") for policy in columns] for mine in families.values()
    ]
    size = (2.5 + 0.42 * len(columns), 1.6 + 0.24 * len(families))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    image = axes.imshow(cells, cmap="RdYlGn_r", vmin=2 - MOST_SHOWN, vmax=MOST_SHOWN, aspect="auto")
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
    for policy in _policies(rows):
        means = {b: mean for b, mine in within.items() if (mean := _mean(mine, policy))}
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
