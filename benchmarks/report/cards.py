"""Writes docs/performance/gpu-results.md, of GPUs of other machines; `report.py --card` calls it.

    vksched bench --baselines torch --output ops.json             # on the machine with the card
    vksched bench --suite models --baselines torch --output models.json
    python benchmarks/report/report.py --card h100 ops.json models.json

Results of a card are put together as those of this machine are, later ones win, and kept in
docs/performance/data/cards, a file for each card. The page is written from all of them. NAME.txt
beside the results of a card is what people wrote about it; it goes into the page as it is.
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

PAGE = "gpu-results.md"
NOTES = ".txt"
"""The ending of the file, beside the results of a card, of what people wrote about it."""
TOP = [
    "# GPU results",
    "",
    "This page shows how fast vksched is on GPUs of other machines, next to PyTorch and llama.cpp. "
    "The results were measured there by `vksched bench --output` and added by "
    "`python benchmarks/report/report.py --card` "
    "([Benchmarks](../guides/benchmarks.md#gpus-of-other-machines)). "
    "[Performance](index.md) has the results of the development machine.",
    "",
]
READING = [
    "## How to read the tables",
    "",
    "- A ratio is the speed of vksched relative to the other runtime: above 1, vksched is faster. "
    "It is the median of the ratios of the rounds. Columns named after a runtime are ratios.",
    "- [Performance](index.md#how-to-read-the-tables) defines time and share.",
    "- Calls of a case are independent, and the GPU overlaps them. PyTorch launches its calls one "
    "after another from Python. Large ratios of small calls therefore show launch overhead, not "
    "kernel speed. Geometric means include them.",
    "- Calls of a case share their weights, which may be in the cache of the GPU, so a share of "
    "bandwidth may exceed 100 %.",
    "- The kernels of vksched were tuned for as long as `--tune` allowed. PyTorch runs eagerly, "
    "with its default algorithms: `cudnn.benchmark` is off.",
    '- Cases "in mixed" or "in float16" use that [precision mode](../guides/precision-modes.md), '
    "and PyTorch runs under autocast to float16. Cases that end in float16 store their operands "
    "in float16. All others are in full float32: TF32 is off.",
    "- Copies between host and device use mapped memory; PyTorch uses pinned memory.",
    "",
]
SIZES = (1024, 2048, 4096, 8192)
HIGHLIGHTS: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
    ("float32 matmul", tuple(f"matmul {n}" for n in SIZES), 0.8),
    ("float16 matmul", tuple(f"matmul {n} float16" for n in SIZES), 0.7),
    ("mixed precision matmul", tuple(f"matmul {n} in mixed" for n in SIZES), None),
    ("3 x 3 and 7 x 7 convolutions", ("conv 3x3*[0-9]", "conv 7x7*[0-9]"), None),
    ("attention", ("attention*[0-9]",), None),
    ("memory-bound ops on 4 to 16 M values", ("* 16 M", "softmax *[0-9]", "* norm *[0-9]"), None),
    ("copies between host and device", ("copy of *",), None),
    ("small ops, one by one", ("*[0-9] tiny ops",), None),
)
"""What a card's chapter begins with: what it is, its cases, and the goal for each ratio."""
LISTED = 4
"""Ratios that are listed one by one; of more than that the least and the most are."""


def keep_card(name: str, files: Sequence[Path], docs: Path) -> Path:
    """Put results into the file of a card, and returns it.

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
    """Write the page from the files of all cards, and returns it; None where there is no card."""
    files = sorted(_folder(docs).glob("*.json"))
    if not files:
        return None
    lines = [*TOP]
    for file in files:
        lines += _card(read([file])[0], file.with_suffix(NOTES))
    page = docs / "performance" / PAGE
    page.write_text("\n".join(wrapped([*lines, *READING])).rstrip() + "\n", "utf-8")
    return page


def _folder(docs: Path) -> Path:
    return docs / "performance" / "data" / "cards"


def _card(report: Report, notes: Path) -> Iterator[str]:
    """Yield the chapter of one file: a section for each of its devices."""
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
    """Yield a table of what holds on a card and what does not."""
    chosen = [
        (what, [r for r in report.results if any(fnmatch(r.spec.name, n) for n in names)], goal)
        for what, names, goal in HIGHLIGHTS
    ]
    whole = [(r.spec.name, [r], None) for r in report.results if r.spec.kind in (MODEL, LANGUAGE)]
    rows = [row for part in (*chosen, *whole) for row in _highlight(*part)]
    if rows:
        yield "| cases | ratio | relative to | goal | reached |"
        yield "|---" * 5 + "|"
        yield from rows
        yield ""


def _highlight(what: str, results: Sequence[Result], goal: float | None) -> Iterator[str]:
    """Yield a row of the table; none without a ratio to the baseline."""
    baseline = "llama.cpp" if any(r.spec.kind == LANGUAGE for r in results) else "torch"
    found = {r.spec.name: x for r in results if (x := r.ratio(baseline)) is not None}
    if not found:
        return
    ratios = list(found.values())
    text = ", ".join(map(_ratio, ratios))
    if len(ratios) > LISTED:
        text = f"{_ratio(min(ratios))} to {_ratio(max(ratios))}"
    sizes = ", ".join(f"{n:,}" for n in SIZES if any(f" {n}" in name for name in found))
    reached = [] if goal is None else [x >= goal for x in ratios]
    verdict = "yes" if all(reached) else f"{sum(reached)} of {len(reached)}"
    named = f"{what}: {sizes}" if "matmul" in what else what
    asked = "" if goal is None else f"{goal:g}"
    yield f"| {named} | {text} | {baseline} | {asked} | {verdict if reached else ''} |"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _ceiling(report: Report, device: DeviceReport) -> str:
    """Return the ceiling of a device, and the baselines it was measured with."""
    c = device.ceiling
    baselines = ", ".join(f"{name} {version}".strip() for name, version in device.baselines.items())
    return (
        f"vksched {report.version}, driver {device.driver}"
        + (f", next to {baselines}" if baselines else "")
        + f". Shares are relative to {c.flops_per_s / 1e12:.3g} TFLOP/s, the rate of a float32 "
        f"multiply-add loop, or {c.bytes_per_s / 1e9:,.0f} GB/s, the rate of a copy (reads and "
        "writes)."
    )


def _not_measured(report: Report, device: DeviceReport) -> list[str]:
    """Return which cases are missing of the suites that were measured."""
    there = {result.spec.name for result in report.results}
    missing = []
    for suite in SUITES:
        names = [spec.name for spec in fitting(specs_of(suite), device.type)]
        if there & set(names):
            missing += [name for name in names if name not in there]
    return [f"Not measured: {', '.join(missing)}.", ""] if missing else []


MODELS = "[Whole models](index.md#whole-models) describes the models and the columns."
LANGUAGE_MODELS = (
    "[Language model performance](language-model-performance.md) describes the columns, and "
    "[Benchmarks](../guides/benchmarks.md#language-models) the cases."
)


def _of_device(report: Report, device: DeviceReport) -> Report:
    """Return the part of a report that is about one device."""
    facts = [fact for fact in report.facts if fact.device == device.name]
    return Report(report.suite, [device], report.results_of(device.name), report.version, facts)
