"""Planning time per node for graphs of growing size: is planning linear, and how fast?

    python benchmarks/overheads/planning.py --json - --plot planning.png

The graphs are those of the suite planning: benchmarks/suites/planning_time.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "suites"))
from planning_time import KINDS, POLICIES, SIZES, STAGES, Row, measure_all


def as_table(rows: Sequence[Row]) -> Table:
    """The rows as a table for people."""
    stages = [*dict.fromkeys(STAGES.values()), "rest"]
    table = Table(title="planning, microseconds of CPU time per node")
    for heading in (
        "graph",
        "policy",
        "nodes",
        "splits",
        "barriers",
        "levels",
        "build",
        *stages,
        "plan",
        "to smallest",
        "to first",
    ):
        table.add_column(heading, justify="left" if heading in ("graph", "policy") else "right")
    for row in rows:
        each = [1e6 * row.stages_s.get(stage, 0.0) / row.nodes for stage in stages]
        table.add_row(
            row.kind,
            row.policy,
            *(f"{n:,}" for n in (row.nodes, row.splits, row.barriers, row.levels)),
            f"{1e6 * row.build_s / row.nodes:.1f}",
            *(f"{us:.1f}" for us in each),
            f"{row.us_per_node:.1f}",
            f"{row.ratio:.2f}",
            f"{row.to_first:.2f}",
        )
    return table


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws time per node over the number of nodes."""
    try:
        import matplotlib
    except ImportError as error:
        raise click.ClickException(
            f"[plot] expected matplotlib, got {error}; try pip install .[bench]"
        ) from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for kind, policy in dict.fromkeys((row.kind, row.policy) for row in rows):
        mine = [row for row in rows if (row.kind, row.policy) == (kind, policy)]
        nodes, each = [r.nodes for r in mine], [r.us_per_node for r in mine]
        axes.plot(nodes, each, "o-" if policy == POLICIES[0] else "s--", label=f"{kind}, {policy}")
    axes.set(xscale="log", xlabel="nodes", ylabel="planning, us per node", ylim=(0, None))
    axes.axhline(60, color="grey", linestyle="--", linewidth=1)
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option("--sizes", default=",".join(map(str, SIZES)), show_default=True, help="Nodes.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Which graphs.")
@click.option("--policies", default=",".join(POLICIES), show_default=True, help="By which.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1), help="Plans each.")
@click.option("--json", "json_path", help="Write the rows as JSON to a file, or - for stdout.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the rows (needs matplotlib).")
def main(
    sizes: str,
    kinds: str,
    policies: str,
    repeat: int,
    json_path: str | None,
    plot: Path | None,
) -> None:
    for listed, known in ((kinds, tuple(KINDS)), (policies, POLICIES)):
        if set(listed.split(",")) - {*known}:
            raise click.BadParameter(f"expected some of {', '.join(known)}, got {listed}")
    try:
        wanted = [int(size) for size in sizes.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"expected numbers with commas between, got {sizes}") from error
    rows = measure_all(kinds.split(","), wanted, repeat, policies.split(","))
    console = Console(stderr=json_path == "-")
    if not console.is_terminal:
        console.width = 200  # a file has room for all columns
    console.print(as_table(rows))
    if json_path is not None:
        text = json.dumps([asdict(row) for row in rows], indent=2)
        if json_path == "-":
            sys.stdout.write(text + "\n")
        else:
            Path(json_path).write_text(text + "\n", "utf-8")
    if plot is not None:
        draw(rows, plot)


if __name__ == "__main__":
    main()
