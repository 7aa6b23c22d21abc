"""Writes the results and plots of docs/performance/, from `vksched bench` and other benchmarks.

    python benchmarks/report/report.py                          # again, from the results in docs
    python benchmarks/report/report.py a.json b.json  # from these; they join those in docs
    python benchmarks/report/report.py --run --baseline-python P    # measures everything first
    python benchmarks/report/report.py --card h100 a.json b.json  # a page of another card
    python benchmarks/report/report.py --run --under "nice -n -5" --case "matmul*" --devices cpu

Results of several runs are merged by device and case; later ones win, so a run with --case replaces
only these. They are stored in docs/performance/data/results.json, and `make docs` builds the tables
of docs/performance/index.md from it. Results of a GPU of another machine are stored in
docs/performance/data/cards, a file for each. A run that was interrupted continues when it is
started again: partial results are in build/bench. Plots need matplotlib (extra `bench`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from cards import keep_card, write_cards
from page import Extras, page, ratio_text, to_fastest
from plots import draw_plots, performance_tables, stored_results
from results import EXTRAS, SUITES, read, write_results

from vksched.bench.report import Report, find_devices
from vksched.bench.rounds import geometric_mean
from vksched.bench.suites import fitting, specs_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workloads"))
from portions import Run, bench_options, devices_of, run_options

ROOT = Path(__file__).resolve().parents[2]


def run_all(run: Run, devices: Sequence[str], suites: Sequence[str], pattern: str | None) -> None:
    """Runs suites and scripts on all devices; with a pattern only such cases of the suites."""
    for info in find_devices(devices):
        for suite in suites:
            if suite in SUITES:
                specs = fitting(specs_of(suite, pattern), info.type)
                run.suite(suite, info.name, [spec.name for spec in specs])
    if "planning" in suites:
        run.suite("planning", "", ["planning"])
    gpus = ",".join(name for name in devices if name != "cpu")
    for key in EXTRAS:
        if key in suites and gpus:
            run.extra(key, "--devices", gpus)


# -- command ---------------------------------------------------------------------------------------


def write(report: Report, extras: Extras, docs: Path) -> None:
    """Write the results and their plots, and the page of GPU results."""
    data, pictures = stored_results(docs).parent, docs / "performance" / "pictures"
    data.mkdir(parents=True, exist_ok=True)
    pictures.mkdir(exist_ok=True)
    write_cards(docs)
    draw_plots(report, extras, pictures)
    write_results(report, extras, stored_results(docs))


def _inputs(stored: Path, files: Iterable[Path], measured: Iterable[Path]) -> Iterator[Path]:
    if stored.exists():
        yield stored
    yield from files
    yield from measured


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@run_options("bench")
@click.option(
    "--suite",
    "suites",
    help=f"With --run: some of {', '.join((*SUITES, 'planning', *EXTRAS))}; all when not given.",
)
@click.option("--case", "pattern", help="With --run: only such cases, of ops or --suite, anew.")
@click.option("--under", default="", help="With --run: a command to put before each portion.")
@click.option("--card", help="FILES are of this card, not at hand: write the page of cards alone.")
@click.option("--docs", default=ROOT / "docs", type=click.Path(path_type=Path), help="The page's.")
def main(
    files: tuple[Path, ...],
    wanted: bool,
    devices: str | None,
    pythons: tuple[str, ...],
    suites: str | None,
    pattern: str | None,
    under: str,
    time_budget: float,
    card: str | None,
    docs: Path,
    work: Path,
) -> None:
    if card is not None:
        keep_card(card, files, docs)
        click.echo(f"wrote {write_cards(docs)}")
        return
    options = bench_options([], time_budget, pythons)
    run = Run(work, options, shlex.split(under), pattern is not None)
    known = (*SUITES, "planning", *EXTRAS)
    chosen = suites.split(",") if suites else known if pattern is None else ("ops",)
    if unknown := set(chosen) - set(known):
        raise click.BadParameter(f"expected some of {', '.join(known)}, got {unknown.pop()}")
    if wanted:
        try:
            run_all(run, devices_of(devices), chosen, pattern)
        except KeyboardInterrupt:
            raise click.ClickException(
                f"[report] stopped; what is measured lies in {work}, and the same command goes on"
            ) from None
    paths = list(_inputs(stored_results(docs), files, run.results()))
    if not paths:
        raise click.ClickException(
            "[report] expected results; try --run, or files of vksched bench"
        )
    report, extras = read(paths)
    write(report, extras, docs)
    if wanted and not run.unfinished:
        run.remove()
    overall = geometric_mean(x for x in map(to_fastest, report.results) if x is not None)
    click.echo(
        f"wrote {stored_results(docs)}; overall {ratio_text(overall)} of the fastest baselines"
    )
    if run.unfinished:
        click.echo(f"{run.unfinished} cases are missing: the same command again goes on with them")


__all__ = ["main", "page", "performance_tables", "read"]


if __name__ == "__main__":
    main()
