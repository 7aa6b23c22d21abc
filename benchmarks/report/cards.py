"""Writes docs/performance/cards.md, of cards that are not at hand; `report.py --card` calls it.

    vksched bench --baselines torch --output ops.json             # on the machine with the card
    vksched bench --suite models --baselines torch --output models.json
    python benchmarks/report/report.py --card h100 ops.json models.json

Results of a card are put together as those of this machine are, later ones win, and kept in
docs/performance/cards, a file for each card. The page is written from all of them. NAME.txt beside
the results of a card is what people wrote about it; it goes into the page as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

import click
from page import calls_of, models_table, wrapped
from results import SUITES, read, write_results

from vksched.bench.baselines.workloads import LANGUAGE, MODEL
from vksched.bench.report import DeviceReport, Report
from vksched.bench.rounds import Result
from vksched.bench.suites import fitting, specs_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workloads"))
from language_models import tables_of

PAGE = "cards.md"
NOTES = ".txt"
"""The ending of the file, beside the results of a card, of what people wrote about it."""
TOP = [
    "# Cards",
    "",
    "This page has figures of cards that are not at hand, for people who want to know how fast "
    "vksched is on such a card, and beside what. `vksched bench --output` measured them on a "
    "machine with the card ([Benchmarks](../benchmarks.md#cards-that-are-not-at-hand)). "
    "[Performance](../performance.md) has the figures of the machine at hand.",
    "",
]
READING = [
    "## How to read the tables",
    "",
    "- A ratio says how many times as fast as the other one vksched is: above 1 vksched is faster. "
    "It is the median of the rounds' own ratios. Columns named after a baseline are such ratios.",
    "- [Performance](../performance.md) tells what time and share are.",
    "- Calls of a case are independent, and a card works on several at once. PyTorch's go one "
    "after another, each launched from Python. So large ratios of small calls tell what a launch "
    "costs, not how fast a kernel is; geometric means have them, too.",
    "- Calls of a case share their weights, which may lie in the card's cache. So a share of bytes "
    "may be above 100 %.",
    "- Our kernels were tuned before they were measured, for as long as `--tune` said. PyTorch is "
    "eager, and chooses algorithms as it does by itself: `cudnn.benchmark` is off.",
    '- Cases "in mixed" or "in float16" have that [precision](../precision.md), and PyTorch is '
    "under autocast to float16 in them. Cases that end in float16 hold their operands so. All "
    "others are in full float32: TF32 is off.",
    "- Copies over the bus are those of the device itself, from and to mapped memory; PyTorch has "
    "pinned memory.",
    "",
]
SIZES = (1024, 2048, 4096, 8192)
HIGHLIGHTS: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
    ("products in float32", tuple(f"matmul {n}" for n in SIZES), 0.8),
    ("products of float16", tuple(f"matmul {n} float16" for n in SIZES), 0.7),
    ("products in mixed precision", tuple(f"matmul {n} in mixed" for n in SIZES), None),
    ("convolutions of 3 x 3 and 7 x 7", ("conv 3x3*[0-9]", "conv 7x7*[0-9]"), None),
    ("attention", ("attention*[0-9]",), None),
    ("passes over 4 to 16 M values", ("* 16 M", "softmax *[0-9]", "* norm *[0-9]"), None),
    ("copies over the bus", ("copy of *",), None),
    ("tiny ops, one by one", ("*[0-9] tiny ops",), None),
)
"""What a card's chapter begins with: what it is, its cases, and the goal for each ratio."""
LISTED = 4
"""Ratios that are listed one by one; of more than that the least and the most are."""


def keep_card(name: str, files: Sequence[Path], docs: Path) -> Path:
    """Puts results into the file of a card, and returns it.

    Raises:
        ClickException: the name is no file's, there are no results, or they cannot be read.
    """
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise click.ClickException(
            f"[report] expected a card's name of letters, digits, - and _, got {name!r}"
        )
    if not files:
        raise click.ClickException(
            f"[report] expected files with results of {name}; try `vksched bench --output FILE`"
        )
    path = _folder(docs) / f"{name}.json"
    report, extras = read([*([path] if path.exists() else []), *files])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_results(report, extras, path)
    return path


def write_cards(docs: Path) -> Path | None:
    """Writes the page from the files of all cards, and returns it; None where there is no card."""
    files = sorted(_folder(docs).glob("*.json"))
    if not files:
        return None
    lines = [*TOP]
    for file in files:
        lines += _card(read([file])[0], file.with_suffix(NOTES))
    page = _folder(docs).parent / PAGE
    page.write_text("\n".join(wrapped([*lines, *READING])).rstrip() + "\n", "utf-8")
    return page


def _folder(docs: Path) -> Path:
    return docs / "performance" / "cards"


def _card(report: Report, notes: Path) -> Iterator[str]:
    """Yields the chapter of one file: a section for each of its devices."""
    for device in report.devices:
        alone = _of_device(report, device)
        yield from (f"## {device.label}", "", *_highlights(alone))
        if notes.exists():
            yield from (*notes.read_text("utf-8").splitlines(), "")
        yield from ("### Calls", "", _ceiling(alone, device), "")
        yield from calls_of(alone, device)
        yield from _not_measured(alone, device)
        if models := models_table(alone):
            yield from ("### Whole models", "", MODELS, "", *models)
        if language := [r for r in alone.results if r.spec.kind == LANGUAGE]:
            yield from ("### Language models", "", LANGUAGE_MODELS, "")
            for part in tables_of(language, device):
                yield from (*part.splitlines(), "")


def _highlights(report: Report) -> Iterator[str]:
    """Yields a table of what holds on a card and what does not."""
    chosen = [
        (what, [r for r in report.results if any(fnmatch(r.spec.name, n) for n in names)], goal)
        for what, names, goal in HIGHLIGHTS
    ]
    whole = [(r.spec.name, [r], None) for r in report.results if r.spec.kind in (MODEL, LANGUAGE)]
    rows = [row for part in (*chosen, *whole) for row in _highlight(*part)]
    if rows:
        yield "| what | times as fast | as | goal | reached |"
        yield "|---" * 5 + "|"
        yield from rows
        yield ""


def _highlight(what: str, results: Sequence[Result], goal: float | None) -> Iterator[str]:
    """Yields a row of the table; none without a ratio to the baseline."""
    beside = "llama.cpp" if any(r.spec.kind == LANGUAGE for r in results) else "torch"
    found = {r.spec.name: x for r in results if (x := r.ratio(beside)) is not None}
    if not found:
        return
    ratios = list(found.values())
    text = ", ".join(map(_ratio, ratios))
    if len(ratios) > LISTED:
        text = f"{_ratio(min(ratios))} to {_ratio(max(ratios))}"
    sizes = ", ".join(f"{n:,}" for n in SIZES if any(f" {n}" in name for name in found))
    reached = [] if goal is None else [x >= goal for x in ratios]
    verdict = "yes" if all(reached) else f"{sum(reached)} of {len(reached)}"
    named = f"{what}: {sizes}" if what.startswith("products") else what
    asked = "" if goal is None else f"{goal:g}"
    yield f"| {named} | {text} | {beside} | {asked} | {verdict if reached else ''} |"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _ceiling(report: Report, device: DeviceReport) -> str:
    """Returns what a device can do at most, and with what it was measured."""
    c = device.ceiling
    baselines = ", ".join(f"{name} {version}".strip() for name, version in device.baselines.items())
    return (
        f"vksched {report.version}, driver {device.driver}"
        + (f", beside {baselines}" if baselines else "")
        + f". Shares are of {c.flops_per_s / 1e12:.3g} TFLOP/s, which a loop of multiply-adds in "
        f"float32 reaches here, or of {c.bytes_per_s / 1e9:,.0f} GB/s, which a copy reads and "
        "writes."
    )


def _not_measured(report: Report, device: DeviceReport) -> list[str]:
    """Returns which cases are missing of the suites that were measured."""
    there = {result.spec.name for result in report.results}
    missing = []
    for suite in SUITES:
        names = [spec.name for spec in fitting(specs_of(suite), device.type)]
        if there & set(names):
            missing += [name for name in names if name not in there]
    return [f"Not measured: {', '.join(missing)}.", ""] if missing else []


MODELS = "[Whole models](../performance.md#whole-models) tells what a run is and what is beside it."
LANGUAGE_MODELS = (
    "[Language models in figures](language-models.md) tells what the columns are, and "
    "[Benchmarks](../benchmarks.md#language-models) what each case does."
)


def _of_device(report: Report, device: DeviceReport) -> Report:
    """Returns what a report has of one device."""
    facts = [fact for fact in report.facts if fact.device == device.name]
    return Report(report.suite, [device], report.results_of(device.name), report.version, facts)
