"""How good are the plans of vksched.schedule, beside every scheduler of anrg-saga, and how fast?

    python benchmarks/schedules/schedules.py --quick
    python benchmarks/schedules/schedules.py --json rows.json --write

The instances are in schedule_instances.py beside this file; what saga means is in
schedule_peers.py, and what counts as a valid plan in schedule_measure.py. Without the package
(`pip install ".[schedules]"`) the policies of vksched are compared with each other.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from schedule_instances import (
    QUICK_SIZES,
    SIZES,
    Instance,
    drawn_set,
)
from schedule_judge import MAX_TASKS, has_judge
from schedule_measure import MeasureOptions, Row, Run, default_policies, losses, measure
from schedule_page import as_table, goals, insert, markdown, verdict
from schedule_peers import PARAMETRIC, PLAIN, Peers, installed
from schedule_plots import plots
from schedule_workflows import families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance" / "scheduling-benchmark.md"
MISSING = "anrg-saga is not installed: no comparison; try pip install '.[schedules]'"
NO_JUDGE = "expected ortools for --judge, but it is not installed; try pip install '.[schedules]'"
SHOWN = 20
"""Lost instances that are printed."""


def instances(
    seed: int, sizes: Sequence[int], each: int, only: Sequence[str], large: bool
) -> list[Instance]:
    """Return the instances of a run: consistent ones, then one of each family that is not."""
    small = sorted(sizes)[min(1, len(sizes) - 1)]
    return [
        *drawn_set(seed, sizes=sizes, each=each, only=only, large=large),
        *drawn_set(seed, sizes=[small], each=1, only=only, consistent=False),
    ]


def measure_all(chosen: Sequence[Instance], options: MeasureOptions, console: Console) -> list[Row]:
    """Return the rows of all instances, under a bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rows: list[Row] = []
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("", total=len(chosen))
        for instance in chosen:

            def show_progress(text: str, instance: Instance = instance) -> None:
                bars.update(bar, description=f"{instance.family}: {text}"[:50])

            options.show_progress = show_progress
            with contextlib.suppress(KeyboardInterrupt):
                rows.append(measure(instance, options))
                bars.advance(bar)
                continue
            break  # Ctrl-C: what is measured is still told
    return rows


def _wanted(text: str, known: Sequence[str], what: str) -> list[str]:
    chosen = [name for name in text.split(",") if name]
    wrong = [name for name in chosen if name not in known]
    if wrong:
        raise click.BadParameter(f"expected {what} of {', '.join(known)}, got {', '.join(wrong)}")
    return chosen


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option("--quick", is_flag=True, help="Few small instances, in a minute.")
@click.option("--large", is_flag=True, help="Also 1,000 and 10,000 tasks.")
@click.option("--sizes", default=",".join(map(str, SIZES)), show_default=True, help="Tasks.")
@click.option("--each", default=2, show_default=True, type=click.IntRange(1), help="Of each size.")
@click.option("--families", "only", default="", help="Only these families, with commas between.")
@click.option("--policies", default="", help="Only these policies of vksched.")
@click.option("--saga/--no-saga", default=True, help="Ask the package anrg-saga, too.")
@click.option("--parametric", is_flag=True, help="Also the 72 schedulers that saga composes.")
@click.option(
    "--limit", default=5.0, show_default=True, help="Seconds of CPU for each one of saga's."
)
@click.option(
    "--time-budget", type=float, help="Seconds for `auto`; its own default when not given."
)
@click.option(
    "--judge",
    "judge_s",
    default=0.0,
    type=click.FloatRange(0),
    help=f"Seconds of OR-Tools' CP-SAT for each instance of up to {MAX_TASKS} tasks.",
)
@click.option("--seed", default=0, show_default=True, help="Of the instances, and of the policies.")
@click.option("--json", "json_path", help="Write the rows as JSON to a file, or - for stdout.")
@click.option("--from", "rows_path", type=click.Path(exists=True), help="Take rows of --json.")
@click.option(
    "--saga-from", "known", type=click.Path(exists=True), help="Rows with runs of saga and CP-SAT."
)
@click.option(
    "--also",
    type=(str, click.Path(exists=True)),
    multiple=True,
    help="The name of another set and its rows, for the page; a name may be given again.",
)
@click.option("--write", is_flag=True, help="Write the page (needs matplotlib).")
def main(
    quick: bool,
    large: bool,
    sizes: str,
    each: int,
    only: str,
    policies: str,
    saga: bool,
    parametric: bool,
    limit: float,
    time_budget: float | None,
    judge_s: float,
    seed: int,
    json_path: str | None,
    rows_path: str | None,
    known: str | None,
    also: Sequence[tuple[str, str]],
    write: bool,
) -> None:
    console = Console(stderr=json_path == "-")
    if not console.is_terminal:
        console.width = 120  # a file has room for all columns
    if saga and not installed() and rows_path is None:
        console.print(MISSING)
    if judge_s and not has_judge():
        raise click.UsageError(NO_JUDGE)
    if rows_path is not None:
        rows = _read(rows_path)
    else:
        try:
            wanted = [int(size) for size in sizes.split(",")]
        except ValueError as error:
            raise click.BadParameter(f"expected numbers with commas, got {sizes}") from error
        chosen = instances(
            seed,
            QUICK_SIZES if quick else wanted,
            1 if quick else each,
            _wanted(only, list(families()), "families"),
            large,
        )
        mine = default_policies()
        with contextlib.ExitStack() as stack:
            peers = stack.enter_context(Peers(limit)) if saga and installed() else None
            options = MeasureOptions(
                _wanted(policies, mine, "policies") or mine,
                peers,
                [*PLAIN, *(PARAMETRIC if parametric else ())],
                time_budget,
                seed,
                judge_s,
                known=_read(known) if known else (),
            )
            rows = measure_all(chosen, options, console)
    if not rows:
        raise click.ClickException("[schedules] expected instances, got none; try more --sizes")
    tell(rows, console)
    if json_path is not None:
        text = json.dumps([asdict(row) for row in rows])
        if json_path == "-":
            sys.stdout.write(text + "\n")
        else:
            Path(json_path).write_text(text + "\n", "utf-8")
    if write:
        pictures = plots(rows, PAGE.parent / "pictures")
        sets: dict[str, list[Row]] = {}
        for name, path in also:
            sets.setdefault(name, []).extend(_read(path))
        insert(PAGE, markdown(rows, _command(), _peer(), pictures, sets))


def tell(rows: Sequence[Row], console: Console) -> None:
    """Print the tables, what `auto` reached, and where it loses."""
    both = [row for row in rows if row.consistent]
    alone = [row for row in rows if not row.consistent]
    for part, what in ((both, ""), (alone, "not consistent: ")):
        if part:
            table = as_table(part)
            table.title = f"{what}{table.title}"
            console.print(table)
    for line in [*goals(both), *verdict(rows)]:
        console.print(f"auto: {line}")
    lost = losses(both)
    for ratio, row, who in lost[:SHOWN]:
        console.print(
            f"lost {ratio:.3f} to {who}: {row.family}, {row.tasks} tasks, {row.devices} devices, "
            f"heterogeneity {row.heterogeneity:.1f}, ratio {row.ratio:.2f}"
        )
    if len(lost) > SHOWN:
        console.print(f"and {len(lost) - SHOWN} more")


def _read(path: str) -> list[Row]:
    """Return the rows that --json wrote."""
    found = json.loads(Path(path).read_text("utf-8"))
    return [Row(**{**row, "runs": tuple(Run(**run) for run in row["runs"])}) for row in found]


def _command() -> str:
    arguments = [each for each in sys.argv[1:] if each != "--write"]
    for option, words in (("--json", 2), ("--from", 2), ("--saga-from", 2), ("--also", 3)):
        while option in arguments:
            at = arguments.index(option)
            del arguments[at : at + words]
    return " ".join(["python benchmarks/schedules/schedules.py", *arguments])


def _peer() -> str:
    if not installed():
        return "anrg-saga"
    return f"anrg-saga {importlib.metadata.version('anrg-saga')}"


if __name__ == "__main__":
    main()
