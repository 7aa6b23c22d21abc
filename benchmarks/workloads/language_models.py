"""Writes docs/performance/language-model-performance.md, from results of `vksched bench --suite
llm`.

    python benchmarks/workloads/language_models.py --run --baseline-python P   # measures first
    python benchmarks/workloads/language_models.py a.json b.json   # from these, too
    python benchmarks/workloads/language_models.py                 # again, from what is beside it

Results are put together by device and case, later ones win, and kept beside the page. A run takes
the place of all that was known of its devices. One that was stopped goes on where it was when it is
started again: what was measured lies in build/llm until all is there. Other code, drivers or
options have to begin anew. Pictures need matplotlib (extra `bench`); without it, those that are
there stay.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
from portions import Run, bench_options, devices_of, run_options

from vksched.bench.baselines.workloads import tokens_of, work_of
from vksched.bench.language.random_models import TYPES
from vksched.bench.report import DeviceReport, Report, find_devices
from vksched.bench.rounds import Result, RunnerTiming, geometric_mean
from vksched.bench.suite_loader import SuiteOptions
from vksched.bench.suites import specs_of
from vksched.common.formatting import format_bytes, format_number, format_seconds
from vksched.ir.precision import SINGLE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from page import WIDTH
from results import merge, read

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance" / "language-model-performance.md"
STORED = PAGE.parent / "data" / "language-models.json"
BASELINE = "llama.cpp"
TOP = f"""# Language model performance

This page shows the speed of prefill and decode of language models, next to {BASELINE}.
[Benchmarks](../guides/benchmarks.md#language-models) describes the cases and how to measure your
devices. `python benchmarks/workloads/language_models.py --run` measures and writes this page.

- A time is the median of rounds in which vksched and {BASELINE} alternate. A ratio above 1 means
  that vksched is faster. It is the median of the ratios of the rounds, and therefore holds on a
  machine with other load.
- "prompt" is prefill, and "token" is decode after the given number of tokens.
- GB/s counts the weights that a step reads, each once, with their size in the file. The share is
  relative to the device's copy, which reads and writes, in the same run.
- The memory of vksched is that of its plans on the device, with weights and a KV cache of 4,096
  tokens. That of {BASELINE} is taken from its log.
- On the CPU {BASELINE} has as many threads as vksched, or half as many if that is faster.
- vksched computes in float32. In the cases named "int8" it quantizes activations to 8 bits in
  products with quantized weights ([Precision modes](../guides/precision-modes.md)), as {BASELINE}
  always does on the CPU.
- Every result was compared with the logits of the numpy backend in float32 before it was timed.
"""


def lines_of_page(report: Report) -> Iterator[str]:
    """Yield the page, paragraph by paragraph."""
    yield TOP
    yield _devices(report.devices)
    yield _summary(report)
    for device in report.devices:
        results = report.results_of(device.name)
        if results:
            yield f"## {device.name}: {device.label.partition(' (')[0]}\n"
            picture = picture_of(device.name)
            if picture.exists():
                yield f"![Times as fast as {BASELINE} on {device.name}](pictures/{picture.name})\n"
            yield from tables_of(results, device)
    if report.facts:
        yield "## Startup time\n"
        yield (
            "The time from opening the device and the file to the logits after one token, in a\n"
            "separate process after imports. The first start has empty caches. The next column is\n"
            "a plain read of the file by the same process. From disk: with a cold page cache.\n"
        )
        rows = [[f.device, f.name.partition(",")[0], *f.cells(), f.note] for f in report.facts]
        yield _table(rows, ("device", "what", "time", "plain read", "ratio", ""))


def tables_of(results: Sequence[Result], device: DeviceReport) -> Iterator[str]:
    """Yield the figures of a device, and why some are missing."""
    yield _table([_row(result, device) for result in results], ROWS)
    yield from _reasons(results)


def picture_of(device: str) -> Path:
    """Return where the picture of a device lies."""
    return PAGE.parent / "pictures" / f"language-models-{device.replace(':', '-')}.svg"


def draw(report: Report) -> None:
    """Draw for each device how many times as fast as the baseline each case is, by type."""
    try:
        import matplotlib
    except ImportError:
        return
    picture_of("").parent.mkdir(exist_ok=True)
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "vksched", "svg.fonttype": "none"})
    for device in report.devices:
        bars: dict[str, dict[str, float]] = {}
        for result in report.results_of(device.name):
            ratio = result.ratio(BASELINE)
            if ratio is not None and result.spec["phase"] != "load":
                label = f"{result.spec['phase']}, {result.spec['tokens']}"
                name = result.spec.name.partition(f" {result.spec['phase']} ")[0]
                bars.setdefault(label, {})[name.replace(" ", "\n")] = ratio
        if bars:
            _draw_bars(bars, picture_of(device.name))


def _draw_bars(bars: Mapping[str, Mapping[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import LogLocator, NullFormatter

    picture = Picture(figsize=(8, 3.5), layout="constrained")
    axes = picture.subplots()
    models = list(dict.fromkeys(model for ratios in bars.values() for model in ratios))
    width = 0.8 / len(bars)
    for number, (label, ratios) in enumerate(bars.items()):
        places = [models.index(model) + (number + 0.5) * width - 0.4 for model in ratios]
        axes.bar(places, ratios.values(), width, label=label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(models)), models, fontsize=7)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"times as fast as {BASELINE}")
    axes.legend(fontsize=7)
    picture.savefig(path, metadata={"Date": None})


def _devices(devices: Sequence[DeviceReport]) -> str:
    rows = []
    for device in devices:
        baseline = device.baselines.get(BASELINE) or device.missing.get(BASELINE, "not asked for")
        copy = f"{device.ceiling.bytes_per_s / 1e9:.3g}"
        rows.append([f"{device.name}: {device.label}", device.driver, copy, baseline])
    return _table(rows, ("device", "driver", "copy, GB/s", BASELINE))


def _summary(report: Report) -> str:
    """How many times as fast as the baseline: geometric means by device, type and phase."""
    phases = ("load", "prompt", "token")
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for result in report.results:
        ratio = result.ratio(BASELINE)
        if ratio is not None:
            precision = result.spec.get("precision", SINGLE)
            kind = result.spec["type"] + f", {precision}" * (precision != SINGLE)
            of_type = found.setdefault((result.device, kind), {})
            of_type.setdefault(result.spec["phase"], []).append(ratio)
    rows = []
    for (device, kind), ratios in found.items():
        means = [geometric_mean(ratios.get(phase, ())) for phase in phases]
        rows.append([device, kind, *map(_ratio, means)])
    if not rows:
        return ""
    text = f"Times as fast as {BASELINE}, geometric means of the cases below:\n\n"
    return text + _table(rows, ("device", "type", *phases))


ROWS = (
    *("case", "tokens/s", f"{BASELINE}'s", "ratio", "time", "spread", "GB/s", "share of copy"),
    *("memory", f"{BASELINE}'s"),
)


def _row(result: Result, device: DeviceReport) -> list[str]:
    ours, baseline = result.ours, next((f for f in result.figures if f.runner == BASELINE), None)
    ratio = result.ratio(BASELINE)
    rate = work_of(result.spec)[1] / ours.seconds if ours and ours.seconds else None
    share = None if rate is None else f"{100 * rate / device.ceiling.bytes_per_s:.1f} %"
    return [
        result.spec.name,
        _tokens(result, ours),
        _tokens(result, baseline),
        _ratio(ratio),
        format_seconds(ours.seconds) if ours and ours.seconds else "-",
        f"{100 * ours.spread:.0f} %" if ours and ours.seconds else "",
        "" if rate is None else f"{rate / 1e9:.3g}",
        share or "",
        *(_memory(figure) for figure in (ours, baseline)),
    ]


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _tokens(result: Result, figure: RunnerTiming | None) -> str:
    """Tokens a second; of loads, which read one token, seconds."""
    if figure is None or figure.seconds is None:
        return "-"
    tokens = tokens_of(result.spec)
    return format_number(tokens / figure.seconds) if tokens else format_seconds(figure.seconds)


def _memory(figure: RunnerTiming | None) -> str:
    known = figure is not None and figure.memory_bytes
    return format_bytes(int(known)) if known else ""


def _reasons(results: Sequence[Result]) -> Iterator[str]:
    """Why there are no figures."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for figure in result.figures:
            if figure.reason:
                reasons.setdefault((figure.runner, figure.reason), []).append(result.spec.name)
    for (runner, reason), names in reasons.items():
        yield textwrap.fill(f"{runner}: {reason}: {', '.join(names)}.", WIDTH) + "\n"


def _table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- measuring -------------------------------------------------------------------------------------

LONG = ("F32", "F16", "Q8_0", "Q4_K")
"""Types of which long prompts are measured, too; on software one takes a baseline 10 s."""
CODES = ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K")
"""Types that are also measured with activations of 8 bits, on the CPU."""
FEW = ",".join(
    f"*27M {case}"
    for case in ("Q4_K prompt 128", "F16 token at 128", "Q8_0 token at 128", "Q4_K token at 128")
)
"""Cases of a device that takes 20 s for a prompt."""
ON_VULKAN = "*load,*prompt 128,*token at 128"
"""Cases of a file of the user's on other devices than the CPU."""


def measure(run: Run, devices: Sequence[str], few: Sequence[str], models: Sequence[Path]) -> None:
    """Measures on each device each type of random models, and files of the user's."""
    for info in find_devices(devices):
        on_cpu = info.name == "cpu"
        if info.name in few:
            run.suite("llm", info.name, _names(FEW))
            continue
        for kind in TYPES:
            cases = f"*27M {kind} prompt 128,*27M {kind} token at *"
            run.suite("llm", info.name, _names(cases + f",*27M {kind} prompt 512" * (kind in LONG)))
        for kind in CODES if on_cpu else ():
            cases = f"*27M {kind} * prompt 128,*27M {kind} * token at *"
            run.suite("llm", "cpu", _names(cases, precision="int8"), ("--precision", "int8"))
        for file in models:
            names = _names("*" if on_cpu else ON_VULKAN, [file])
            run.suite("llm", info.name, names, ("--model", str(file)))


def _names(cases: str, models: Sequence[Path] = (), precision: str = SINGLE) -> list[str]:
    return [spec.name for spec in specs_of("llm", cases, SuiteOptions(models, precision=precision))]


def _without(report: Report, devices: Sequence[str]) -> Report:
    """Return the results and facts of other devices."""
    others_only = [
        [x for x in of if x.device not in devices] for of in (report.results, report.facts)
    ]
    others = [device for device in report.devices if device.name not in devices]
    return replace(report, devices=others, results=others_only[0], facts=others_only[1])


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@run_options("llm")
@click.option("--few", default="", help="With --run: slow devices, of which only few cases count.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="With --run: this file, too; may be repeated.",
)
def main(
    files: tuple[Path, ...],
    wanted: bool,
    devices: str | None,
    few: str,
    models: tuple[Path, ...],
    pythons: tuple[str, ...],
    time_budget: float,
    work: Path,
) -> None:
    run = Run(work, bench_options([BASELINE], time_budget, pythons), [], False)
    chosen = devices_of(devices) if wanted else []
    if wanted:
        run.require_same()
        measure(run, chosen, few.split(","), models)
        if run.unfinished:
            raise click.ClickException(
                f"{run.unfinished} cases are missing: the same command again goes on with them"
            )
    stored = [read([STORED])[0]] if STORED.exists() else []
    found = [_without(report, chosen) for report in stored]
    found += [read(files)[0]] * bool(files) + [read(run.results())[0]] * wanted
    if not found:
        raise click.ClickException("expected results; try --run, or files of vksched bench")
    report = merge(found)
    if files or wanted:
        STORED.write_text(json.dumps(report.as_dict(), indent=1) + "\n", "utf-8")
    draw(report)
    PAGE.write_text("\n".join(filter(None, lines_of_page(report))), "utf-8")
    if wanted:
        run.remove()
    click.echo(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
