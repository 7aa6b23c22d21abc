"""`vksched tune`: measures which variant of each kernel is the fastest on the devices at hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import VkschedError
from . import feeds

if TYPE_CHECKING:
    from ..graph import Graph
    from ..machine.spec import DeviceSpec
    from ..runtime.device import Device
    from ..tuner.store import Found
    from ..tuner.tuner import Tuner

BUDGET_S = 60.0


@click.command()
@click.argument("model_files", metavar="[MODEL.onnx]...", nargs=-1)
@feeds.devices_option
@feeds.dim_option
@feeds.shape_option
@click.option(
    "--budget",
    "budget_s",
    default=BUDGET_S,
    show_default=True,
    metavar="SECONDS",
    help="For each device; what is left is measured next time.",
)
@click.option("--clear", is_flag=True, help="Forget what is known of the devices; measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def tune(
    model_files: tuple[str, ...],
    devices: str | None,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    budget_s: float,
    clear: bool,
    as_json: bool,
) -> None:
    """Measure the variants of kernels, for the calls of models or for typical ones, and keep which
    is the fastest for each; programs use that from then on.

    Without --devices it measures the default devices, or all software devices where there are none.
    """
    if not budget_s > 0:
        raise VkschedError(f"[tune] expected a budget above 0 seconds, got {budget_s:g}")
    from ..scheduler import Scheduler
    from ..tuner.calls import typical_graph

    with feeds.collected_warnings() as notes:
        names = _devices(feeds.parse_devices(devices))
        if clear:
            graphs = []
        elif model_files:
            sizes = feeds.parse_dims(dims), feeds.parse_shapes(shapes)
            graphs = [graph for file in model_files for graph in graphs_of(file, *sizes)]
        else:
            graphs = [typical_graph()]
        with Scheduler(names, tune=False) as sched:
            here = {d.spec.pool: d for d in sched.devices if d.spec.kind == "vulkan"}.values()
            rows = [_clear(d) if clear else _tune(d, graphs, budget_s, as_json) for d in here]
    report = {"devices": rows, "notes": notes}
    click.echo(json.dumps(report, indent=2)) if as_json else _show(report, clear)


def _devices(wanted: Sequence[str] | None) -> list[str]:
    from ..runtime.vulkan import probe

    if wanted is not None:
        if all(name == "cpu" for name in wanted):
            raise VkschedError(
                "[tune] expected a Vulkan device, got cpu; numpy has no variants: nothing to tune"
            )
        return list(wanted)
    found = probe.survey()
    vulkan = [i for i in found.devices if i.name != "cpu" and i.usable and not i.duplicate_of]
    names = [i.name for i in vulkan if i.default] or [i.name for i in vulkan]
    if not names:
        raise VkschedError(
            f"[tune] expected a Vulkan device, got none: {found.reason}; numpy has no variants"
        )
    return names


def graphs_of(
    file: str, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> list[Graph]:
    """Returns the graph of a model's first stage, if it has one."""
    from ..graph import build_graph
    from ..importers import load
    from ..importers.onnx.example import choose_shapes
    from ..passes import optimize
    from .info import hint_at, lower_model

    model = load(file)
    sizes = choose_shapes(model, {}, dims, shapes)
    with hint_at(sizes.assumed, feeds.size_options(model, sizes)):
        lowered, _ = lower_model(model, sizes.shapes, {})
    return [optimize(build_graph(lowered.outputs)[0])] if lowered.outputs else []


def _tune(device: Device, graphs: Sequence[Graph], budget_s: float, quiet: bool) -> dict[str, Any]:
    """Measures what is missing on one device; returns what is known then."""
    from ..tuner.calls import calls_of
    from ..tuner.store import Store
    from ..tuner.tuner import Mode, Tuner, progress_bar

    tuner = Tuner(Mode(True, budget_s, software=True), Store())
    calls = {key: call for graph in graphs for key, call in calls_of(graph, device.spec).items()}
    missing = tuner.missing(device.spec, calls)
    try:
        with progress_bar(quiet) as tell:
            made = tuner.measure(device, missing, tell)
    except KeyboardInterrupt:
        file = tuner.file(device.spec)
        there = file is not None and file.exists()
        kept = f"what was measured is kept in {file}" if there else "nothing was measured yet"
        click.echo(f"stopped; {kept}: the same command goes on", err=True)
        raise
    known = tuner.results(device.spec)
    row = _about(device.spec, tuner)
    row["measured"] = len(made)
    row["calls"] = [_call(known[key]) for key in calls if key in known]
    row["left"] = [key for key in calls if key not in known]
    return row


def _clear(device: Device) -> dict[str, Any]:
    from ..tuner.store import Store
    from ..tuner.tuner import Mode, Tuner, identity_of

    identity, store = identity_of(device.spec), Store()
    row = _about(device.spec, Tuner(Mode(False), store))
    row["cleared"] = identity is not None and store.clear(identity)
    return row


def _about(spec: DeviceSpec, tuner: Tuner) -> dict[str, Any]:
    about = {"name": spec.name, "label": spec.label, "driver": spec.driver, "uuid": spec.pool}
    return {**about, "file": str(tuner.file(spec) or "")}


def _call(found: Found) -> dict[str, Any]:
    from ..tuner.store import found_as_dict

    return {**found_as_dict(found), "gain": found.gain}


def _short(key: str) -> str:
    """Returns a call's key without its result and without what is off."""
    operands, _, rest = key.partition(" -> ")
    attrs = rest.partition(" ")[2].split(", ")
    told = [a.removesuffix("=True") for a in attrs if a and not a.endswith(("=False", "=None"))]
    short = operands.replace("float", "f").replace("uint", "u").replace("int", "i")
    told = [re.sub(r"\d+\.\d+(e[+-]?\d+)?", lambda found: f"{float(found[0]):g}", a) for a in told]
    return " ".join([short, *told])


def _show(report: Mapping[str, Any], clear: bool) -> None:
    from ..units import count_of

    for device in report["devices"]:
        if clear:
            what = "forgotten" if device["cleared"] else "nothing was known"
            click.echo(f"{device['name']} {device['label']}: {what}")
            continue
        click.echo(f"{device['name']} {device['label']}, {device['driver']}")
        rows = feeds.table("call", "fastest", "us", "static choice", "us", "times", left=2)
        for call in device["calls"]:
            seconds = call["seconds"]
            us = [f"{1e6 * seconds[call[name]]:.0f}" for name in ("best", "static")]
            gain = f"{call['gain']:.2f}"
            rows.add_row(_short(call["key"]), call["best"], us[0], call["static"], us[1], gain)
        if device["calls"]:
            feeds.print_table(rows)
        for call in device["calls"]:
            for name, why in call["dropped"].items():
                click.echo(f"dropped: {name} for {_short(call['key'])}: {why}")
        better = sum(call["best"] != call["static"] for call in device["calls"])
        known = len(device["calls"]) - device["measured"]
        left = f", {len(device['left'])} left" if device["left"] else ""
        told = (
            f"; in {better} of {len(device['calls'])} another variant than the static choice is "
            f"the fastest; kept in {device['file']}"
            if device["calls"]
            else "; try a larger --budget"
        )
        measured = count_of(device["measured"], "call")
        click.echo(f"{measured} measured, {known} known before{left}{told}\n")
    for note in report["notes"]:
        click.echo(f"note: {note}")
