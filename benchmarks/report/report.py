"""Writes docs/performance.md with its plots, from results of `vksched bench` and its neighbours.

    python benchmarks/report/report.py  # again, from docs/performance/results.json
    python benchmarks/report/report.py a.json b.json  # from these; they are kept beside the page
    python benchmarks/report/report.py --run --baseline-python P  # measures first, everything
    python benchmarks/report/report.py --card h100 a.json b.json  # a page for a card elsewhere
    python benchmarks/report/report.py --run --under "nice -n -5" --case "matmul*" --devices cpu

Results of several runs are put together by device and case; later ones win, so a run with --case
replaces only these. Those of a card that is not at hand are kept in docs/performance/cards, a file
for each. A run that was stopped goes on where it was when it is started again: what was
measured lies in build/bench until all is there. What people wrote is in docs/performance/*.md and
goes into the page as it is. Plots need matplotlib (extra `bench`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from cards import keep_card, write_cards
from page import Extras, page, ratio_text, to_fastest
from plots import plots
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
    """Writes the page, its plots and the results they show."""
    folder = docs / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    write_cards(docs)
    text = page(report, extras, folder, plots(report, extras, folder))
    write_results(report, extras, folder / "results.json")
    (docs / "performance.md").write_text(text, "utf-8")


def _inputs(kept: Path, files: Iterable[Path], measured: Iterable[Path]) -> Iterator[Path]:
    if kept.exists():
        yield kept
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
    budget: float,
    card: str | None,
    docs: Path,
    work: Path,
) -> None:
    if card is not None:
        keep_card(card, files, docs)
        click.echo(f"wrote {write_cards(docs)}")
        return
    options = bench_options([], budget, pythons)
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
    paths = list(_inputs(docs / "performance" / "results.json", files, run.results()))
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
        f"wrote {docs / 'performance.md'}; overall {ratio_text(overall)} of the fastest baselines"
    )
    if run.unfinished:
        click.echo(f"{run.unfinished} cases are missing: the same command again goes on with them")


if __name__ == "__main__":
    main()
