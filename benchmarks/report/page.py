"""The tables of docs/performance/index.md, from results; scripts/docs/docs_pages.py adds them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vksched.bench.baselines.workloads import COPY, LANGUAGE, work_of
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.report import FLOORS, DeviceReport, Report, means, rates
from vksched.bench.rounds import OURS, Result, RunnerTiming
from vksched.common.formatting import format_bytes

GPU_PRODUCTS = tuple(f"matmul {size}{kind}" for size in (2048, 4096) for kind in ("", " float16"))
MODEL_BASELINES = ("ncnn", "iree", "torch", "onnxruntime")
MODEL_FACTS = ("a run", "compile and first run", "peak")
SOFTWARE = "cpu"
"""The type of devices that are no cards."""
DISPATCH_S, DISPATCH_ON_CARDS_S = 100e-6, 10e-6
"""Calls that take less are bound by what a dispatch costs rather than by their work."""
DISPATCH = "dispatch"
WIDTH = 100
"""Columns of prose; tables may be wider."""
Extras = Mapping[str, list[dict[str, Any]]]
"""Rows of other benchmarks, by the script's name."""
ELSEWHERE = "No GPU was present. [GPU results](gpu-results.md) has results of other machines."
PLANNING = (
    "CPU time per node from a graph to a verified plan, next to that of the smallest graph of its "
    "kind: a ratio of 1 means linear growth. The time by auto is next to that of the policy "
    "priority for the same graph."
)

TOGETHER = (
    "`vksched bench --suite-dir benchmarks/suites --suite devices`: whole models on all devices "
    "by one plan, alternating with "
    "each device alone. A ratio is the median of the ratios of the rounds. The goal is at most "
    "1.05: an additional device never makes a model slower."
)


def page(report: Report, extras: Extras, drawn: Mapping[str, Mapping[str, str]]) -> str:
    """Return the tables of the page. drawn: files of plots by caption, by section."""

    def pictures(section: str) -> list[str]:
        found = drawn.get(section, {}).items()
        return [x for c, f in found for x in (f"![{c}](pictures/{f})", "", f"*{c}*", "")]

    lines = ["## Devices", "", *ceilings(report), *_models(report)]
    for device in report.devices:
        calls = calls_of(report, device)
        if calls:
            lines += [f"## {device.name}: {device.label}", "", *pictures(device.name), *calls]
    lines += _gpu(report) + _loading(extras)
    planner = [fact for fact in report.facts if fact.device == "planner"]
    if planner:
        lines += ["## Planning", "", PLANNING, "", *pictures("planning"), *_facts(planner)]
    together = [fact for fact in report.facts if " + " in fact.device]
    lines += _several(extras, pictures("devices"), together)
    return "\n".join(wrapped(lines)).rstrip() + "\n"


def calls_of(report: Report, device: DeviceReport) -> list[str]:
    """Return the tables of a device's calls, and of what was measured beside them."""
    whole = ("model", LANGUAGE)
    results = [r for r in report.results_of(device.name) if r.spec.kind not in whole]
    facts = [f for f in report.facts if f.device == device.name and not _of_model(f)]
    tables = _means(device, results) + _cases(device, results) + _no_figures(results)
    return tables + _facts(facts)


def wrapped(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with their prose at `WIDTH` columns; tables, pictures and headings stay."""
    for line in lines:
        if len(line) <= WIDTH or line.startswith(("|", "!", "#")):
            yield line
            continue
        indent = "  " if line.startswith("- ") else ""
        yield from textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )


def ceilings(report: Report) -> list[str]:
    """Return the table of devices, with what they can do at most."""
    lines = [
        "| device | type | driver | arithmetic, GFLOP/s | by | copy, GB/s | by | baselines |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for d in report.devices:
        baselines = ", ".join(f"{name} {version}".strip() for name, version in d.baselines.items())
        c = d.ceiling
        lines.append(
            f"| {d.name}: {d.label} | {d.type} | {d.driver} | {c.flops_per_s / 1e9:.3g} | "
            f"{c.arithmetic} | {c.bytes_per_s / 1e9:.3g} | {c.copy} | {baselines} |"
        )
    return [*lines, ""]


def _means(device: DeviceReport, results: Sequence[Result]) -> list[str]:
    baselines = [p for p in device.baselines if any(r.ratio(p) for r in results)]
    found = means(results)
    if not baselines:
        return []
    several = len(baselines) > 1
    head = [*baselines, *["the fastest baseline of each case"] * several]
    floor = "; `kp` is plain Kompute, a reference for the device"
    lines = [
        f"Speed relative to each baseline, geometric means{floor if 'kp' in baselines else ''}.",
        "",
        f"| cases | {' | '.join(head)} | least ratio{' to the fastest' * several} |",
        "|---" * (len(head) + 2) + "|",
    ]
    for group, by_baseline in found.items():
        cells = [
            ratio_text(by_baseline.get(baseline))
            for baseline in (*baselines, *["fastest"] * several)
        ]
        own = [r for r in results if r.spec.group == group]
        least = min((x for x in map(to_fastest, own) if x is not None), default=None)
        lines.append(f"| {group} | {' | '.join(cells)} | {ratio_text(least)} |")
    return [*lines, ""]


def to_fastest(result: Result) -> float | None:
    fastest = result.fastest_baseline(FLOORS)
    return result.ratio(fastest.runner) if fastest else None


def _cases(device: DeviceReport, results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    baselines = [p for p in device.baselines if any(r.ratio(p) for r in results)]
    head = "".join(f" {baseline} |" for baseline in baselines)
    lines = [
        f"| case | time | spread | GFLOP/s | GB/s | share | bound by |{head}",
        "|---" * (7 + len(baselines)) + "|",
    ]
    for result in results:
        ours = result.ours
        ratios = "".join(f" {ratio_text(result.ratio(baseline))} |" for baseline in baselines)
        if ours is None or ours.seconds is None:
            why = "wrong" if ours and ours.wrong else "none"
            lines.append(f"| {result.spec.name} | {why} | | | | | |{ratios}")
            continue
        flops, moved, share = rates(result.spec, ours.seconds, device.ceiling)
        bound = bound_of(device, result)
        of_ceiling = "" if share is None or bound == DISPATCH else f"{100 * share:.0f} %"
        lines.append(
            f"| {result.spec.name} | {_time(ours.seconds)} | {100 * ours.spread:.0f} % | "
            f"{_rate(flops)} | {_rate(moved)} | {of_ceiling} | {bound} |{ratios}"
        )
    return [*lines, ""]


def bound_of(device: DeviceReport, result: Result) -> str:
    """Return the bound of our time of a case: arithmetic, bytes, or the cost of dispatches."""
    work = work_of(result.spec)
    seconds = result.ours.seconds if result.ours else None
    least = DISPATCH_S if device.type == SOFTWARE else DISPATCH_ON_CARDS_S
    ideal = device.ceiling.share(*work, 1.0)
    if result.spec.kind == COPY:
        return "bus"
    if result.spec.kind == "chain" or (seconds and seconds < least and ideal < seconds / 4):
        return DISPATCH
    return device.ceiling.bound(*work)


def _no_figures(results: Sequence[Result]) -> list[str]:
    why: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for figure in result.figures:
            if figure.reason:
                why.setdefault((figure.runner, figure.reason), []).append(result.spec.name)
    lines = [f"- {runner}: {reason}: {', '.join(c)}" for (runner, reason), c in why.items()]
    return ["No figures:", "", *lines, ""] if lines else []


def _facts(found: Sequence[ExtraMetric]) -> list[str]:
    if not found:
        return []
    lines = ["| what | value | beside | ratio | |", "|---|---|---|---|---|"]
    for fact in found:
        value, baseline, ratio = fact.cells()
        lines.append(f"| {fact.name} | {value} | {baseline} | {ratio} | {fact.note} |")
    return [*lines, ""]


# -- models ----------------------------------------------------------------------------------------


def _of_model(fact: ExtraMetric) -> bool:
    return ": " in fact.name and fact.name.split(": ")[1].split(",")[0] in MODEL_FACTS


def _models(report: Report) -> list[str]:
    """Return the section of whole models, on all devices."""
    lines = models_table(report)
    return ["## Model timings", "", *lines] if lines else []


def models_table(report: Report) -> list[str]:
    """Return the table of whole models, and why some have no figures. It names devices where there
    are several.
    """
    results = [r for r in report.results if r.spec.kind == "model"]
    if not results:
        return []
    facts = {(f.device, f.name): f for f in report.facts}
    baselines = [p for p in MODEL_BASELINES if any(r.ratio(p) for r in results)]
    head = ["model", "device", "time", "spread", "a run / its kernels", "ratio"]
    head += [f"{p}: time, ratio" for p in baselines]
    head += ["memory", "onnxruntime's", "ratio", "compile, first run"]
    rows: list[list[str]] = []
    labels = {d.name: d.label.split(" (")[0] for d in report.devices}
    for result in sorted(results, key=lambda r: (r.spec.name, r.device)):
        name = result.spec.name
        run, peak, first = (
            facts.get((result.device, f"{name}: {kind}"))
            for kind in (
                "a run, beside its kernels",
                "peak, beside onnxruntime",
                "compile and first run",
            )
        )
        ours = result.ours
        device = f"{result.device}: {labels.get(result.device, '')}"
        cells = [name, device if len(labels) > 1 else ""]
        cells += [_seconds(ours), f"{100 * ours.spread:.0f} %" if ours and ours.rounds_s else ""]
        cells += ["{} / {}".format(*run.cells()), ratio_text(run.ratio)] if run else ["", ""]
        for baseline in baselines:
            figure = next((f for f in result.figures if f.runner == baseline), None)
            cells.append(f"{_seconds(figure)} {ratio_text(result.ratio(baseline))}".strip())
        memory = ours.memory_bytes if ours else None
        cells.append(format_bytes(int(memory)) if memory else "")
        cells += [peak.cells()[1], ratio_text(peak.ratio)] if peak else ["", ""]
        rows.append([*cells, first.cells()[0] if first else ""])
    why = [
        f"- {f.runner} on {r.device}: {f.reason}: {r.spec.name}"
        for r in results
        for f in r.figures
        if f.reason and f.runner in (OURS, *MODEL_BASELINES)
    ]
    return [*_table(head, rows), "", *(["No figures:", "", *why, ""] if why else [])]


def _seconds(figure: RunnerTiming | None) -> str:
    return "" if figure is None or figure.seconds is None else _time(figure.seconds)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table without the columns that are empty in all rows."""
    filled = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [_row(row[i] for i in filled) for row in (head, *rows)]
    return [lines[0], "|---" * len(filled) + "|", *lines[1:]]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -- several devices, loading ----------------------------------------------------------------------


def _several(extras: Extras, pictures: Sequence[str], together: Sequence[ExtraMetric]) -> list[str]:
    """Return the section of models over all devices, of branches on two devices, and of speed-up
    by their number.
    """
    lines: list[str] = []
    if together:
        lines += [TOGETHER, "", *_facts(together)]
    if extras.get("overlap"):
        lines += [
            "`benchmarks/workloads/overlap.py`: two independent branches on two devices. On "
            "separate devices "
            "both take at most 1.1 times as long as the slower one. Devices that share the cores "
            "of the CPU are bound by the sum of their busy times: at most 1.1 times as long.",
            "",
            "| devices | each alone | both | busy at once | to the slower alone | to the sum of "
            "busy | within 1.1 of it |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in extras["overlap"]:
            cells = [" + ".join(row["devices"]), " + ".join(map(_time, row["alone"].values()))]
            cells += [_time(row["both"]), _time(row["overlap"])]
            cells += [ratio_text(row[key]) for key in ("to_one", "to_busy")]
            lines.append(_row([*cells, "yes" if row["to_busy"] <= 1.1 else "no"]))
        lines.append("")
    if extras.get("scaling"):
        lines += [
            "`benchmarks/workloads/scaling.py`: equal branches distributed over the first "
            "devices, for "
            "simulated devices, and for those of this machine, which share its cores.",
            "",
            *pictures,
            "| devices | | time | speed-up |",
            "|---|---|---|---|",
        ]
        for row in extras["scaling"]:
            cells = [str(row["devices"]), row["kind"], _time(row["run_s"])]
            lines.append(_row([*cells, ratio_text(row["speed_up"])]))
        lines.append("")
    return ["## Several devices", "", *lines] if lines else []


def _loading(extras: Extras) -> list[str]:
    """Return the section of loading: a column for each key of the rows, by the unit in it."""
    rows = extras.get("loading")
    if not rows:
        return []
    keys = list(rows[0])
    lines = [
        "## Loading a model",
        "",
        "`benchmarks/workloads/loading.py`, medians; 1 MB is a million bytes.",
    ]
    lines += ["", _row(_heading(key) for key in keys), "|---" * len(keys) + "|"]
    lines += [_row(_cell(key, row.get(key)) for key in keys) for row in rows]
    return [*lines, ""]


def _heading(key: str) -> str:
    for unit in ("_bytes_per_s", "_bytes", "_s"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _cell(key: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if key.endswith("_bytes_per_s"):
        return f"{value / 1e9:.3g} GB/s"
    if key.endswith("_bytes"):
        return f"{value / 1e6:.3g} MB"
    return _time(value) if key.endswith("_s") else f"{value:.3g}"


# -- GPUs ------------------------------------------------------------------------------------------


def _gpu(report: Report) -> list[str]:
    gpus = [d for d in report.devices if d.type != SOFTWARE]
    lines = ["## GPUs", ""]
    if not gpus:
        return [*lines, ELSEWHERE, ""]
    lines += [
        "Matrix products next to the vendor's library, called by PyTorch, in GFLOP/s; float16 "
        "operands, float32 accumulation.",
        "",
        "| device | product | vksched | torch | ratio | copy, GB/s |",
        "|---|---|---|---|---|---|",
    ]
    for device in gpus:
        for result in report.results_of(device.name):
            if result.spec.name not in GPU_PRODUCTS:
                continue
            flops, _ = work_of(result.spec)
            figures = {f.runner: f.seconds for f in result.figures}
            cells = [device.label, result.spec.name]
            for runner in (OURS, "torch"):
                seconds = figures.get(runner)
                cells.append(f"{flops / seconds / 1e9:.4g}" if seconds else "")
            cells += [ratio_text(result.ratio("torch")), f"{device.ceiling.bytes_per_s / 1e9:.4g}"]
            lines.append(_row(cells))
    return [*lines, ""]


def _rate(value: float) -> str:
    """Return a rate with three digits; nothing for 0."""
    short = float(f"{value:.3g}")
    return "" if not value else f"{short:,.0f}" if short >= 1000 else f"{value:.3g}"


def ratio_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
