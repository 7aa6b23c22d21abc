"""`vksched calibrate`: measure kernel, submission and transfer costs of the devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..options import inputs
from . import tuning_options

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...runtime.device import Device
    from ...topology.device_spec import DeviceSpec
    from ...tuning.autotuner import Tuner
    from ...tuning.calibration_types import Calibration
    from ...tuning.calibrator import Calibrator

BUDGET_S = 15.0


@click.command()
@tuning_options.options(BUDGET_S, "submissions and transfers are measured first.")
def calibrate(
    model_files: tuple[str, ...],
    devices: str | None,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    budget_s: float,
    clear: bool,
    as_json: bool,
) -> None:
    """Measure kernel, submission and transfer costs and cache them for the planner.

    Measures the calls of the models, or typical calls. Without --devices it measures the default
    devices, or all software devices if there are none, and the CPU.
    """
    tuning_options.check_budget("calibrate", budget_s)
    tuning_options.check_options(clear, model_files, dims, shapes)
    from ...scheduler.scheduler import Scheduler
    from ...tuning.autotuner import Tuner
    from ...tuning.calibration_samples import typical_samples
    from ...tuning.calibrator import Calibrator
    from ...tuning.measurement import Mode

    with inputs.collected_warnings() as notes:
        wanted = inputs.parse_devices(devices)
        names = [*tuning_options.default_vulkan()[0], "cpu"] if wanted is None else list(wanted)
        with Scheduler([name for name in names if name != "cpu"] or ["cpu"], tune=False) as sched:
            # each device once; the CPU only if requested
            asked = [d for d in sched.devices if d.spec.kind != "cpu" or "cpu" in names]
            here = {(d.spec.kind, d.spec.memory_node): d for d in asked}.values()
            mode = Mode(True, budget_s, software=True)
            calibrator, tuner = Calibrator(mode), Tuner(mode)
            if clear:
                rows = [_cleared(d, calibrator) for d in here]
            else:
                graphs = tuning_options.graphs_of(model_files, dims, shapes) or [typical_samples()]
                host = sched.devices[-1]
                rows = [
                    _measured(d, host, graphs, budget_s, as_json, calibrator, tuner) for d in here
                ]
    report = {"devices": rows, "notes": notes}
    click.echo(json.dumps(report, indent=2)) if as_json else _show(report)


def _measured(
    device: Device,
    host: Device,
    graphs: list[Graph],
    budget_s: float,
    quiet: bool,
    calibrator: Calibrator,
    tuner: Tuner,
) -> dict[str, Any]:
    """Measure one device and return its measurements."""
    from ...trace import SystemClock
    from ...tuning.calibration_samples import device_samples
    from ...tuning.measurement import progress_bar

    spec = tuner.tuned(calibrator.costed(device.spec))
    wanted = [call for graph in graphs for call in device_samples(graph, spec)]
    try:
        with progress_bar(quiet, "calibrating") as tell:
            known = calibrator.measure(
                device, host, wanted, budget_s, tell, SystemClock(), again=True
            )
    except KeyboardInterrupt:
        click.echo("stopped; earlier measurements of this device are unchanged", err=True)
        raise
    return _describe(device.spec, calibrator, known)


def _cleared(device: Device, calibrator: Calibrator) -> dict[str, Any]:
    row = _describe(device.spec, calibrator, None)
    return {**row, "cleared": calibrator.forget(device.spec)}


def _describe(
    spec: DeviceSpec, calibrator: Calibrator, known: Calibration | None
) -> dict[str, Any]:
    row = tuning_options.row_of(spec, calibrator.file(spec))
    return row if known is None else {**row, "calibration": known.as_dict()}


# -- text output -----------------------------------------------------------------------------------


def _show(report: Mapping[str, Any]) -> None:
    from ...common.formatting import count_of

    measured = [device for device in report["devices"] if "calibration" in device]
    for device in report["devices"]:
        if "cleared" in device:
            tuning_options.show_cleared(device)
    if measured:
        table = inputs.table(
            "device", "submit", "launch", "GFLOP/s", "GB/s", "from host", "to host", "calls",
            left=1,
        )  # fmt: skip
        for device in measured:
            table.add_row(device["name"], *_cells(device["calibration"]))
        inputs.print_table(table)
        for device in measured:
            calls = count_of(len(device["calibration"]["samples"]), "kind") + " of calls"
            stored = f"kept in {device['file']}" if device["file"] else "not kept"
            click.echo(f"{device['name']} {device['label']}: {calls}, {stored}")
    tuning_options.show_notes(report["notes"])


def _cells(known: Mapping[str, Any]) -> list[str]:
    from ...common.formatting import format_seconds

    overheads = known["overheads"] or {}
    submission_s = sum(overheads.get(name, 0.0) for name in ("submit_s", "start_s", "fence_s"))
    return [
        format_seconds(submission_s),
        format_seconds(overheads.get("launch_s", 0.0)),
        _rate(known["flops_per_s"]),
        _rate(known["bytes_per_s"]),
        _link(known["link_in"]),
        _link(known["link_out"]),
        str(len(known["samples"])),
    ]


def _rate(per_s: float) -> str:
    """Return billions per second, or "-" if no call was long enough."""
    return f"{per_s / 1e9:.3g}" if per_s else "-"


def _link(link: Mapping[str, float] | None) -> str:
    from ...common.formatting import format_seconds

    if link is None:
        return "-"
    return f"{link['bytes_per_s'] / 1e9:.3g} GB/s + {format_seconds(link['latency_s'])}"
