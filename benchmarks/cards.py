"""Writes docs/performance/cards.md, of cards that are not at hand; `report.py --card` calls it.

    vksched bench --peers torch --output ops.json             # on the machine with the card
    vksched bench --suite models --peers torch --output models.json
    python benchmarks/report.py --card h100 ops.json models.json

Results of a card are put together as those of this machine are, later ones win, and kept in
docs/performance/cards, a file for each card. The page is written from all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from language_models import tables_of  # beside this file
from page import calls_of, ceilings, models_table, wrapped
from results import read, write_results

from vksched.bench.peers.specs import LANGUAGE
from vksched.bench.report import DeviceReport, Report

PAGE = "cards.md"
TOP = [
    "# Cards",
    "",
    "This page has figures of cards that are not at hand, for people who want to know how fast "
    "vksched is on such a card, and beside what. [Performance](../performance.md) has those of the "
    "machine at hand, and tells what its columns are. `vksched bench --output` measured the "
    "results on a machine with the card, and `python benchmarks/report.py --card NAME FILES` put "
    "them here.",
    "",
    "- Kernels were tuned before they were measured, for as long as `--tune` said.",
    '- Cases "in mixed" or "in float16" have that [precision](../precision.md), and PyTorch is '
    "under autocast to float16 in them. Cases that end in float16 hold their operands so. All "
    "others are in full float32.",
    "- Copies over the bus are those of the device itself, from and to mapped memory; PyTorch has "
    "pinned memory.",
    "",
]


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
        lines += _card(read([file])[0])
    page = _folder(docs).parent / PAGE
    page.write_text("\n".join(wrapped(lines)).rstrip() + "\n", "utf-8")
    return page


def _folder(docs: Path) -> Path:
    return docs / "performance" / "cards"


def _card(report: Report) -> Iterator[str]:
    """Yields the chapter of one file: a section for each of its devices."""
    for device in report.devices:
        yield from (f"## {device.label}", "")
        yield f"vksched {report.version}. {device.driver}."
        yield ""
        alone = _of_device(report, device)
        yield from ceilings(alone)
        yield from calls_of(alone, device)
        if models := models_table(alone):
            yield from ("### Whole models", "", MODELS, "", *models, "")
        if language := [r for r in alone.results if r.spec.kind == LANGUAGE]:
            yield from ("### Language models", "", LANGUAGE_MODELS, "")
            for part in tables_of(language, device):
                yield from part.splitlines()
                yield ""


MODELS = "[Whole models](../performance.md#whole-models) tells what a run is and what is beside it."
LANGUAGE_MODELS = (
    "[Language models in figures](language-models.md) tells what the columns are, and "
    "[Benchmarks](../benchmarks.md#language-models) what each case does."
)


def _of_device(report: Report, device: DeviceReport) -> Report:
    """Returns what a report has of one device."""
    facts = [fact for fact in report.facts if fact.device == device.name]
    return Report(report.suite, [device], report.results_of(device.name), report.version, facts)
