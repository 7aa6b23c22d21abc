"""`vksched doctor`: examine loader, drivers, devices and kernels, and write a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..options import inputs

if TYPE_CHECKING:
    from ...doctor.health_report import HealthReport

NO_GPU = 3
"""Exit code if there is no GPU and nothing is wrong."""
_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@inputs.devices_option
@click.option("--all-cases", is_flag=True, help="Run all op cases, as `vksched ops test` does.")
@click.option("--no-kernels", is_flag=True, help="Run no op cases.")
@click.option("--no-speed", is_flag=True, help="Measure no speed.")
@click.option("--output", metavar="FILE.json", help="Also write the report to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def doctor(
    devices: str | None,
    all_cases: bool,
    no_kernels: bool,
    no_speed: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Examine loader, drivers, devices and kernels, and say what to mend.

    Op cases and quick measurements run on each GPU, or on the devices of --devices; this takes some
    minutes. llama.cpp is measured in the same rounds if llama-cpp-python is installed. The report
    has no names, paths or serial numbers, so that it can be attached to an issue.

    Exit code 1 if something is to be mended, 3 if there is no GPU.
    """
    if no_kernels:
        inputs.exclude("--no-kernels", {"--all-cases": all_cases})
    if output is not None:
        inputs.check_folder(output)
    from ...doctor.examine import examine

    with _Progress(as_json) as progress:
        report = examine(
            inputs.parse_devices(devices),
            every_case=all_cases,
            kernels=not no_kernels,
            speed=not no_speed,
            begin=progress.begin,
        )
    if output is not None:
        report.save(output)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=1))
    else:
        show(report)
    if report.has_problem:
        raise SystemExit(1)
    if all(device.type == "cpu" for device in report.devices):
        raise SystemExit(NO_GPU)


class _Progress:
    """A progress bar for each stage, on stderr."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

        from ...common.console import DescriptionColumn, ProgressBars

        columns = (DescriptionColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = ProgressBars(*columns, quiet=quiet)

    def begin(self, stage: str, steps: int) -> Callable[[str], None]:
        """Add the bar of a stage; return the call after each step."""
        task = self._bars.add_task(stage, total=steps)
        return lambda text: self._bars.update(
            task, advance=1, description=f"{stage} {text}".rstrip()
        )

    def __enter__(self) -> _Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


def show(report: HealthReport) -> None:
    """Print a report as tables."""
    from ...common.console import PrintableConsole

    console = PrintableConsole()
    system = report.system
    console.print(
        f"vksched {system.vksched}, Python {system.python}, {system.os} {system.machine}, "
        f"drivers: {', '.join(system.drivers) or 'none'}",
        highlight=False,
    )
    console.print(findings_table(report))
    if any(device.measured for device in report.devices):
        console.print(measurements_table(report))
    console.print(report.verdict, highlight=False, soft_wrap=True)


def findings_table(report: HealthReport) -> Any:
    """Return the table of findings."""
    from rich.text import Text

    table = inputs.table("", "subject", "finding", "try", left=4)
    for finding in report.findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(level, finding.subject, Text(finding.text), Text(finding.remedy))
    return table


def measurements_table(report: HealthReport) -> Any:
    """Return the table of measurements."""
    names = sorted({n for d in report.devices for m in d.measured for n in m.baselines})
    table = inputs.table("device", "measured", "vksched", *names, "unit", left=2)
    for device in report.devices:
        for one in device.measured:
            others = (f"{one.baselines[n]:,.4g}" if n in one.baselines else "" for n in names)
            table.add_row(device.name, one.name, f"{one.value:,.4g}", *others, one.unit)
    return table
