"""`vksched tune`: measure the fastest variant of each kernel on the devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import VkschedError
from ..options import inputs
from ..options.precision_option import (
    CHAT_DEFAULT,
    CHAT_MODES,
    SINGLE,
    parse_precision,
    tune_precision_option,
)
from . import tuning_options

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...plan.plan import Plan
    from ...runtime.device import Device
    from ...scheduler.scheduler import Scheduler
    from ...tuning.variant_cache import TuningResult

BUDGET_S = 60.0


@click.command()
@tuning_options.options(
    BUDGET_S, "the rest is measured in the next call.", "[MODEL.onnx|MODEL.gguf]..."
)
@tune_precision_option
@inputs.ctx_option
@inputs.cache_type_option("Element type of the KV cache of a language model.")
def tune(
    model_files: tuple[str, ...],
    devices: str | None,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    budget_s: float,
    clear: bool,
    as_json: bool,
    modes: tuple[str, ...],
    ctx: int | None,
    cache_type: str | None,
) -> None:
    """Autotune kernel variants and cache the fastest.

    Measures the calls of the models, or typical calls. Without --devices it measures the default
    devices, or all software devices if there are none. The options of a language model are those
    of the later `vksched chat`.
    """
    tuning_options.check_budget("tune", budget_s)
    of_chat = {"--ctx-size": ctx, "--cache-type": cache_type}
    tuning_options.check_options(
        clear, model_files, dims, shapes, {"--precision": modes, **of_chat}
    )
    if modes and not model_files:
        raise click.UsageError("--precision needs a model; typical calls have each precision.")
    from ...importers import is_gguf
    from ...scheduler.scheduler import Scheduler

    language = [file for file in model_files if is_gguf(file)]
    others = [file for file in model_files if file not in language]
    if language and not others:
        inputs.need({"--free-dim": dims, "--shape": shapes}, "an ONNX model")
    if not language:
        inputs.need(of_chat, "a GGUF model")
    chat_mode = _chat_mode(modes) if language else CHAT_DEFAULT
    with inputs.collected_warnings() as notes:
        names = _devices(inputs.parse_devices(devices))
        typical = not model_files and not clear
        graphs = _graphs(others, dims, shapes, modes, typical)
        with Scheduler(names, tune=False) as sched:
            here = {
                d.spec.memory_node: d for d in sched.devices if d.spec.kind == "vulkan"
            }.values()
            steps = [
                step
                for file in language
                for step in _steps(sched, file, ctx, cache_type, chat_mode)
            ]
            rows = [
                _clear(d) if clear else _tune(d, graphs, steps, budget_s, as_json) for d in here
            ]
    report = {"devices": rows, "notes": notes}
    click.echo(json.dumps(report, indent=2)) if as_json else _show(report, clear)


def _graphs(
    files: Sequence[str],
    dims: Sequence[str],
    shapes: Sequence[str],
    modes: Sequence[str],
    typical: bool,
) -> list[Graph]:
    """Return the graphs of ONNX models, and the graph of typical calls."""
    from ...engine.request_precision import apply_precision
    from ...tuning.tunable_calls import typical_graph

    asked = parse_precision(modes if files else ())
    read = tuning_options.graphs_of(files, dims, shapes)
    graphs = [apply_precision(graph, {}, SINGLE, asked, None) for graph in read]
    return [*graphs, typical_graph()] if typical else graphs


def _chat_mode(modes: Sequence[str]) -> str:
    """Return the precision mode of a chat."""
    if len(modes) > 1:
        raise click.UsageError(
            f"--precision of a GGUF model expects one mode, got {' and '.join(modes)}."
        )
    (mode,) = modes or (CHAT_DEFAULT,)
    if mode not in CHAT_MODES:
        known = ", ".join(CHAT_MODES)
        raise click.UsageError(f"--precision of a GGUF model expects {known}, got {mode!r}.")
    return mode


def _steps(
    sched: Scheduler, file: str, ctx: int | None, cache_type: str | None, precision: str
) -> list[Plan]:
    """Return the plans of a language model's steps, as a chat with these options compiles them."""
    from ...generation.chat import context_of
    from ...generation.compiled_steps import CompiledSteps
    from ...importers import load_gguf

    model = load_gguf(file)
    steps = CompiledSteps(
        sched,
        model,
        context_of(model, ctx),
        cache_type=cache_type,
        precision=precision,
        prefetch=False,
    )
    return list(steps.plans())


def _devices(wanted: Sequence[str] | None) -> list[str]:
    if wanted is not None:
        if all(name == "cpu" for name in wanted):
            raise VkschedError(
                "[tune] expected a Vulkan device, got cpu; numpy has no variants: nothing to tune"
            )
        return list(wanted)
    names, reason = tuning_options.default_vulkan()
    if not names:
        raise VkschedError(
            f"[tune] expected a Vulkan device, got none: {reason}; numpy has no variants"
        )
    return names


def _tune(
    device: Device, graphs: Sequence[Graph], steps: Sequence[Plan], budget_s: float, quiet: bool
) -> dict[str, Any]:
    """Measure missing calls on one device and return its measurements.

    Parameters
    ----------
    steps
        Plans of language models' steps, those of tokens first: their calls are short, and are
        measured before the long ones use up the time.
    """
    from ...tuning.autotuner import Tuner
    from ...tuning.measurement import Mode, progress_bar
    from ...tuning.tunable_calls import calls_of, planned_calls

    tuner = Tuner(Mode(True, budget_s, software=True))
    found = [calls_of(graph, device.spec) for graph in graphs]
    together = {key: call for own in found for key, call in own.items()}
    parts = [together, *(planned_calls(step.graph, step, device.spec) for step in steps)]
    calls = {key: call for own in parts for key, call in own.items()}
    measured = 0
    try:
        with progress_bar(quiet) as tell:
            for own in parts:
                measured += len(tuner.measure(device, tuner.missing(device.spec, own), tell))
    except KeyboardInterrupt:
        file = tuner.file(device.spec)
        there = file is not None and file.exists()
        progress = f"what was measured is kept in {file}" if there else "nothing was measured yet"
        click.echo(f"stopped; {progress}: the same command goes on", err=True)
        raise
    known = tuner.results(device.spec)
    row = tuning_options.row_of(device.spec, tuner.file(device.spec))
    row["measured"] = measured
    row["calls"] = [_call(known[key]) for key in calls if key in known]
    row["left"] = [key for key in calls if key not in known]
    return row


def _clear(device: Device) -> dict[str, Any]:
    from ...tuning.autotuner import Tuner
    from ...tuning.measurement import Mode

    tuner = Tuner(Mode(False))
    row = tuning_options.row_of(device.spec, tuner.file(device.spec))
    return {**row, "cleared": tuner.forget(device.spec)}


def _call(found: TuningResult) -> dict[str, Any]:
    from ...tuning.variant_cache import found_as_dict

    return {**found_as_dict(found), "gain": found.gain}


def _short(key: str) -> str:
    """Return a call's key without its result and disabled options."""
    operands, _, rest = key.partition(" -> ")
    attrs = rest.partition(" ")[2].split(", ")
    details = [a.removesuffix("=True") for a in attrs if a and not a.endswith(("=False", "=None"))]
    short = operands.replace("float", "f").replace("uint", "u").replace("int", "i")
    details = [
        re.sub(r"\d+\.\d+(e[+-]?\d+)?", lambda found: f"{float(found[0]):g}", a) for a in details
    ]
    return " ".join([short, *details])


def _show(report: Mapping[str, Any], clear: bool) -> None:
    from ...common.formatting import count_of

    for device in report["devices"]:
        if clear:
            tuning_options.show_cleared(device)
            continue
        click.echo(f"{device['name']} {device['label']}, {device['driver']}")
        rows = inputs.table("call", "fastest", "us", "static choice", "us", "times", left=2)
        for call in device["calls"]:
            seconds = call["seconds"]
            us = [f"{1e6 * seconds[call[name]]:.0f}" for name in ("best", "static")]
            gain = f"{call['gain']:.2f}"
            rows.add_row(_short(call["key"]), call["best"], us[0], call["static"], us[1], gain)
        if device["calls"]:
            inputs.print_table(rows)
        for call in device["calls"]:
            for name, why in call["dropped"].items():
                click.echo(f"dropped: {name} for {_short(call['key'])}: {why}")
        better = sum(call["best"] != call["static"] for call in device["calls"])
        known = len(device["calls"]) - device["measured"]
        left = f", {len(device['left'])} left" if device["left"] else ""
        details = (
            f"; in {better} of {len(device['calls'])} another variant than the static choice is "
            f"the fastest; kept in {device['file']}"
            if device["calls"]
            else "; try a larger --time-budget"
        )
        measured = count_of(device["measured"], "call")
        click.echo(f"{measured} measured, {known} known before{left}{details}\n")
    tuning_options.show_notes(report["notes"])
