"""The tables of schedules.py, for a terminal and for docs/performance/scheduling-benchmark.md.

The page keeps what people wrote; only what stands between `BEGIN` and `END` is replaced.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import click
from rich.table import Table
from schedule_judge import MAX_TASKS
from schedule_measure import (
    AUTO,
    OURS,
    SAGA,
    SINGLE,
    Row,
    goal_of,
    losses,
    ratios_of,
    standings,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from page import wrapped

BEGIN = "<!-- From here to the end mark: python benchmarks/schedules/schedules.py --write -->"
END = "<!-- end -->"
MAX_FAMILIES = 3
BINS = (
    ("ratio", "ratio", ((0.1, 0.5), (0.5, 2), (2, 10))),
    ("speeds", "heterogeneity", ((1, 3), (3, 10), (10, 30))),
    ("devices", "devices", ((2, 4), (4, 8), (8, 17))),
)
"""What instances are put together by: a word, the field of a row, and parts of its values."""


def goals(rows: Sequence[Row]) -> list[str]:
    """Return lines that say what `auto` reached beside saga; none where saga was not asked."""
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


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return lines that say how far `auto` is from the best known; none where nobody judged."""
    gaps = sorted(row.gap for row in rows if row.gap is not None)
    if not gaps:
        return []
    proven = [row.gap for row in rows if row.proven and row.gap is not None]
    lines = [
        f"CP-SAT judged {len(gaps)} instances of up to {MAX_TASKS} tasks: `auto` is longer than "
        f"the best known by {fmean(gaps):.2%} on average, {gaps[-1]:.2%} at worst (to reach: 1% "
        "and 5%)."
    ]
    if proven:
        lines.append(
            f"The best known is proven to be the least on {len(proven)} of them: `auto` is longer "
            f"by {fmean(proven):.2%} on average, {max(proven):.2%} at worst."
        )
    return lines


def as_table(rows: Sequence[Row]) -> Table:
    """Return how all schedulers stand, for a terminal."""
    title = f"{len(rows)} instances; ratios are to the best of {reference(rows)}"
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    for cells in _cells(rows):
        table.add_row(*cells)
    return table


HEADINGS = ("of", "policy", "as good", "mean", "worst", "ms, median", "s, all", "no plan")


def reference(rows: Sequence[Row]) -> str:
    """Return whose best makespan ratios are to."""
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


def markdown(
    rows: Sequence[Row],
    command: str,
    peer: str,
    pictures: Mapping[str, str],
    also: Mapping[str, Sequence[Row]] | None = None,
) -> str:
    """Return the text between the marks of the page.

    command: command line that produced the rows; peer: name and version of the other package;
    pictures: files by caption; also: rows of more sets by name.
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
        "## Results of auto",
        "",
        *(f"- {line}" for line in goals(both)),
        "",
        *_more_sets({MAIN: both, **(also or {})}),
        "## Every policy and scheduler",
        "",
        "Ratios are those of the makespan to the best of all of saga's schedulers. `as good` "
        "counts the instances at or below 1. Times are CPU time of one plan. `no plan` counts "
        "instances without a valid plan within the limit of time.",
        "",
        *_markdown_table(HEADINGS, _cells(both)),
        "",
    ]
    if alone:
        lines += [
            f"{len(alone)} more instances are not consistent: a device is good at some kinds of "
            "tasks, bad at others, and cannot run some at all. Saga has no words for that. Here "
            "ratios are to the best of our own policies.",
            "",
            *_markdown_table(HEADINGS[1:], [cells[1:] for cells in _cells(alone)]),
            "",
        ]
    lines += [
        "## Results by kind of instance",
        "",
        "The mean ratio by communication to computation (`ratio`), by how many times the fastest "
        "device is as fast as the slowest one (`speeds`), and by the number of devices:",
        "",
        *_markdown_table(*_by_kind(both)),
        "",
        "The families where a policy has its worst means, and its mean over all others than the "
        "first of them:",
        "",
        *_markdown_table(*_by_family(both)),
    ]
    for caption, name in pictures.items():
        lines += ["", f"![{caption}](pictures/{name})", "", f"*{caption}*"]
    return "\n".join(wrapped([*lines, ""]))


MAIN = "the instances of this page"
SETS = (
    *("set", "schedulers", "instances", "as good", "share", "mean", "worst", "s, all"),
    "slower half from, s",
)
LOST = ("set", "family", "tasks", "devices", "speeds", "ratio", "loses", "to")


def _more_sets(sets: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return how `auto` stands on each set, and where it loses; nothing without saga."""
    cells, lost = [], []
    for name, members in sets.items():
        rows = [row for row in members if row.consistent]
        goal = goal_of(rows)
        if goal is None:
            continue
        ratios = ratios_of(rows, OURS, AUTO)
        cells.append(
            (
                name,
                str(len({run.policy for row in rows for run in row.runs if run.by == SAGA})),
                str(len(rows)),
                str(round(goal.share * len(rows))),
                f"{goal.share:.1%}",
                f"{goal.mean:.3f}",
                f"{max(ratios):.3f}",
                f"{goal.total_s:.1f}",
                f"{goal.slow_s:.1f}" if math.isfinite(goal.slow_s) else "over the limit",
            )
        )
        lost += [
            (
                name,
                row.family,
                str(row.tasks),
                str(row.devices),
                f"{row.heterogeneity:.1f}",
                f"{row.ratio:.2f}",
                f"{ratio - 1:.2%}" if ratio > 1.0001 else "< 0.01%",
                who if who.count(",") < MAX_FAMILIES else f"{who.count(',') + 1} schedulers",
            )
            for ratio, row, who in losses(rows)
        ]
    if not cells:
        return []
    lines = [
        "The same for more sets. `schedulers` counts those of saga that were asked. `slower half "
        "from` is what the fastest of their slower half took.",
        "",
        *_markdown_table(SETS, cells),
        "",
    ]
    if lost:
        lines += [
            "These are all instances where `auto` loses, and by how much:",
            "",
            *_markdown_table(LOST, lost),
            "",
        ]
    return lines


def _markdown_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _by_kind(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells: a line for each policy of ours, a column for each part."""
    parts = {
        _part(word, low, high): [row for row in rows if low <= getattr(row, name) < high]
        for word, name, bins in BINS
        for low, high in bins
    }
    cells = []
    for policy in ours_in_order(rows):
        means = [mean_of(mine, policy) for mine in parts.values()]
        cells.append([policy, *("" if mean == 0 else f"{mean:.2f}" for mean in means)])
    return ["policy", *parts], cells


def _by_family(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells: the worst families of each policy of ours."""
    families, cells = grouped(rows, lambda row: row.family), []
    for policy in ours_in_order(rows):
        means = {name: mean_of(mine, policy) for name, mine in families.items()}
        worst = sorted(means, key=lambda name: -means[name])[:MAX_FAMILIES]
        rest = [row for row in rows if row.family not in worst[:1]]
        names = ", ".join(f"{name} {means[name]:.2f}" for name in worst)
        cells.append([policy, names, f"{mean_of(rest, policy):.2f}"])
    return ["policy", "worst families", "mean without the first"], cells


def _part(word: str, low: float, high: float) -> str:
    """Return the heading of a part; devices are whole numbers, so the last one is below high."""
    return f"{word} {low:g} to {high - 1 if word == 'devices' else high:g}"


def mean_of(rows: Sequence[Row], policy: str) -> float:
    """Return the mean ratio of a policy of ours; 0 where there is no row."""
    return fmean(ratios_of(rows, OURS, policy) or [0.0])


def ours_in_order(rows: Sequence[Row]) -> list[str]:
    """Return our policies, `auto` first and one device last, the others by their mean."""
    found = [s.policy for s in standings(rows) if s.by == OURS]
    return sorted(found, key=lambda policy: (policy != AUTO, policy == SINGLE))


def grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def insert(page: Path, text: str) -> None:
    """Replace what stands between the marks of a page."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise click.ClickException(
            f"[page] expected the marks {BEGIN} and {END} in {page}, got none; try to write them"
        )
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")
