"""`vksched ops`: support, correctness and speed of ops."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import VkschedError
from ..options import inputs

if TYPE_CHECKING:
    from ...scheduler.scheduler import Scheduler
    from ...testing.check_gradients import Outcome as GradientOutcome
    from ...testing.check_ops import Outcome
    from ...testing.kernel_runner import Runner
    from ...testing.time_ops import Timing

_json = click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
_op = click.option("-o", "--op", "names", multiple=True, help="Op to select (repeatable).")
_devices = click.option(
    "-d", "--devices", "wanted", multiple=True, metavar="A,B", help="Device to select (repeatable)."
)
_settings = {"token_normalize_func": lambda name: "devices" if name == "device" else name}
"""--device is an alias of the option's previous name."""


@click.group()
def ops() -> None:
    """Show the op set's support, correctness and speed."""


@ops.command()
@_json
def support(as_json: bool) -> None:
    """Show support by op, element type and kind of device, with the reason for each gap."""
    from ...testing import support_matrix

    if as_json:
        click.echo(json.dumps(support_matrix.as_dict(), indent=2))
    else:
        click.echo(support_matrix.as_markdown())


@ops.command(context_settings=_settings)
@_op
@_devices
@_json
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show every op, and the cases that fall back to the CPU with the reasons.",
)
def test(names: tuple[str, ...], wanted: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Compare every case of the op set with numpy, on every Vulkan device or the named ones.

    Prints the ops with wrong results or with cases that fall back to the CPU; -v prints all. Exit
    code 1 if a result is wrong.
    """
    from ...testing.check_ops import check_samples, outcomes_as_dicts, select

    cases = select(names)
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        runners = _runners(stack, wanted)
        with _progress(as_json) as bar:
            task = bar.add_task("cases", total=len(cases) * len(runners))
            for runner in runners:
                for outcome in check_samples(runner, cases):
                    outcomes.append(outcome)
                    bar.update(task, advance=1, description=f"{runner.device.name} {outcome.op}")
    if as_json:
        click.echo(json.dumps(outcomes_as_dicts(outcomes), indent=2))
    else:
        _show_outcomes(outcomes, verbose)
    if any(outcome.error for outcome in outcomes):
        raise SystemExit(1)


@ops.command(context_settings=_settings)
@_op
@_devices
@_json
@click.option("-v", "--verbose", is_flag=True, help="Show skipped cases with the reasons.")
def grad(names: tuple[str, ...], wanted: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """Compare the gradient rule of every op with finite differences, then on every device.

    Central differences of the op set's cases are computed in float64 with numpy, and for a few
    cases also of the gradient itself (second order). Devices, including the CPU, compute the
    gradient in float32.

    Error: the largest difference beyond rounding of float64, relative to the largest term; on a
    device the whole difference, relative to the largest gradient. Kinks: directions without a
    derivative, for example at a tie of max. Exit code 1 if a gradient is wrong.
    """
    from ...testing import check_gradients as proof

    cases, devices = proof.cases_of(names), _gradient_devices(wanted)
    outcomes: list[GradientOutcome] = []
    with _progress(as_json) as bar:
        task = bar.add_task("cases", total=len(cases) * (1 + len(devices)))
        runs = [proof.by_differences(cases), *(proof.on_device(d, cases) for d in devices)]
        for outcome in chain.from_iterable(runs):
            outcomes.append(outcome)
            advance = int(outcome.by != proof.SECOND)
            bar.update(task, advance=advance, description=f"{outcome.by} {outcome.op}")
    if as_json:
        click.echo(json.dumps(proof.as_dict(outcomes), indent=2))
    else:
        _show_gradients(outcomes, {} if names else proof.reasons(), verbose)
    if any(outcome.wrong for outcome in outcomes):
        raise SystemExit(1)


@ops.command(context_settings=_settings)
@_op
@_devices
@_json
@click.option("--repeat", default=10, show_default=True, help="Number of submissions per case.")
def perf(names: tuple[str, ...], wanted: tuple[str, ...], as_json: bool, repeat: int) -> None:
    """Time the largest case of each op on every Vulkan device or the named ones, and on numpy.

    Medians of one run, for numpy the minimum. Other load on the machine affects them: compare
    within one run only.
    """
    from ...testing.time_ops import largest, measure, timings_as_dicts

    if repeat < 1:
        raise VkschedError(f"[ops perf] expected at least one repeat, got {repeat}")
    cases = largest(names)
    timings: list[Timing] = []
    with ExitStack() as stack:
        runners = _runners(stack, wanted)
        with _progress(as_json) as bar:
            task = bar.add_task("cases", total=len(cases))
            for case in cases:
                timings += measure(case, runners, repeat)
                bar.update(task, advance=1, description=case.op)
    if as_json:
        click.echo(json.dumps(timings_as_dicts(timings), indent=2))
    else:
        _show_timings(timings)


def _runners(stack: ExitStack, wanted: Iterable[str]) -> list[Runner]:
    """Open the named Vulkan devices, or all usable ones, including software devices."""
    from ...runtime.vulkan import device_probe
    from ...runtime.vulkan.vulkan_device import VulkanDevice
    from ...scheduler.scheduler import Scheduler
    from ...testing.kernel_runner import Runner

    found = device_probe.survey()
    selected = [name for text in wanted for name in inputs.parse_devices(text) or ()]
    names = selected or [i.name for i in found.devices if i.name != "cpu" and i.usable]
    if not names:
        raise VkschedError(
            f"[ops] expected a Vulkan device, got none: {found.reason}; numpy is what devices are "
            "compared with"
        )
    if "cpu" in names:
        raise VkschedError(
            "[ops] expected Vulkan devices, got cpu: numpy is what they are compared with; try "
            "`make test`, which compares numpy with other libraries"
        )
    sched: Scheduler = stack.enter_context(Scheduler(names))
    return [Runner(d) for d in sched.devices if isinstance(d, VulkanDevice)]


def _gradient_devices(wanted: Iterable[str]) -> list[str]:
    """Return the named devices, or all usable ones, including software devices and the CPU."""
    from ...runtime.vulkan import device_probe

    names = [name for text in wanted for name in inputs.parse_devices(text) or ()]
    if names:
        return [device_probe.resolve(name).name for name in names]
    return [device.name for device in device_probe.survey().devices if device.usable]


def _progress(quiet: bool) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    from ...common.console import DescriptionColumn, ProgressBars

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), DescriptionColumn())
    return ProgressBars(*columns, quiet=quiet)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    return table


def _show_outcomes(outcomes: list[Outcome], verbose: bool) -> None:
    from ...common.console import PrintableConsole
    from ...testing.check_ops import summary

    table = _table("op", "device", "cases", "right", "by numpy", "wrong", "largest NMSE")
    rows = [r for r in summary(outcomes) if verbose or r.wrong or r.by_numpy]
    for row in rows:
        style = "red" if row.wrong else ""
        error = f"{row.nmse:.0e}" if row.nmse is not None else ""
        cells = (row.op, row.device, row.cases, row.right, row.by_numpy, row.wrong, error)
        table.add_row(*map(str, cells), style=style)
    if rows:
        PrintableConsole().print(table)
    for outcome in outcomes:
        if outcome.error:
            click.echo(f"wrong: {outcome.error}")
        elif outcome.reason and verbose:
            click.echo(f"by numpy: {outcome.case} on {outcome.device}: {outcome.reason}")
    right = sum(not o.error and not o.reason for o in outcomes)
    taken = sum(bool(o.reason) for o in outcomes)
    wrong = sum(bool(o.error) for o in outcomes)
    more = "; -v names them, with the reasons" if taken and not verbose else ""
    click.echo(f"{len(outcomes)} cases: {right} right, {taken} taken by numpy, {wrong} wrong{more}")


def _show_gradients(
    outcomes: list[GradientOutcome], without: dict[str, str], verbose: bool
) -> None:
    from ...common.console import PrintableConsole
    from ...testing.check_gradients import summary

    table = _table("op", "by", "cases", "directions", "kinks", "largest error", "wrong")
    for row in summary(outcomes):
        error = f"{row.error:.0e}" if row.cases else ""
        cells = (row.op, row.by, row.cases, row.directions or "", row.kinks or "", error, row.wrong)
        table.add_row(*map(str, cells), style="red" if row.wrong else "")
    PrintableConsole().print(table)
    for outcome in outcomes:
        if outcome.wrong:
            click.echo(f"wrong: {outcome.case} by {outcome.by}: {outcome.wrong}")
        elif outcome.reason and verbose:
            click.echo(f"not compared: {outcome.case} by {outcome.by}: {outcome.reason}")
    for op, why in without.items() if verbose else ():
        click.echo(f"no gradient: {op}, which {why or 'has no rule yet'}")
    compared = sum(not outcome.reason for outcome in outcomes)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    parts = [f"{compared} comparisons: {compared - wrong} right, {wrong} wrong"]
    parts += [f"{len(without)} ops have no gradient"] if without else []
    parts += ["-v names what is not compared"] if not verbose else []
    click.echo("; ".join(parts))


def _show_timings(timings: list[Timing]) -> None:
    from ...common.console import PrintableConsole

    table = _table("case", "device", "us", "GFLOP/s", "GB/s", "x numpy")
    for t in timings:
        speed = f"{t.numpy_s / t.seconds:.2f}" if t.seconds else ""
        cells = [f"{1e6 * t.seconds:.0f}", f"{t.flops_per_s / 1e9:.2f}"]
        cells += [f"{t.bytes_per_s / 1e9:.2f}", speed]
        table.add_row(t.case, t.device, *cells)
    console = PrintableConsole()
    widest = PrintableConsole(width=1000).measure(table).maximum
    console.width = max(console.width, widest)  # names are not wrapped
    console.print(table)
