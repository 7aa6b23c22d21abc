"""Options, devices, graphs and report rows of `vksched tune` and `vksched calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...common.errors import VkschedError
from ..options import inputs

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...topology.device_spec import DeviceSpec

Command = TypeVar("Command", bound=Callable[..., object])


def options(
    budget_s: float, about_budget: str, models: str = "[MODEL.onnx]..."
) -> Callable[[Command], Command]:
    """Return a decorator that adds the arguments of a measuring command; budget_s: default
    budget. models: the model files in its usage.
    """
    selected = [
        click.argument("model_files", metavar=models, nargs=-1),
        inputs.devices_option,
        inputs.dim_option,
        inputs.shape_option,
        click.option(
            "--time-budget",
            "budget_s",
            default=budget_s,
            show_default=True,
            metavar="SECONDS",
            help=f"Seconds per device; {about_budget}",
        ),
        click.option(
            "--clear", is_flag=True, help="Delete the measurements of the devices; measure nothing."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print results as JSON."),
    ]

    def add(command: Command) -> Command:
        for option in reversed(selected):
            command = option(command)
        return command

    return add


def check_budget(command: str, budget_s: float) -> None:
    """Raise VkschedError if the time budget is 0 or not a number."""
    if not budget_s > 0:
        raise VkschedError(f"[{command}] expected a budget above 0 seconds, got {budget_s:g}")


def check_options(
    clear: bool,
    files: Sequence[str],
    dims: Sequence[str],
    shapes: Sequence[str],
    more: Mapping[str, object] | None = None,
) -> None:
    """Refuse options without effect: sizes without models, and options with --clear. more: further
    options of the command.
    """
    sizes = {"--free-dim": dims, "--shape": shapes}
    if clear:
        inputs.exclude("--clear", {"MODEL.onnx": files, **sizes, **(more or {})})
    if not files:
        inputs.need(sizes, "a model")


def default_vulkan() -> tuple[list[str], str | None]:
    """Return the default devices, or all software devices if there are none, each once; and the
    reason if no Vulkan device is used by default.
    """
    from ...runtime.vulkan import device_probe

    found = device_probe.survey()
    vulkan = [i for i in found.devices if i.name != "cpu" and i.usable and not i.duplicate_of]
    return [i.name for i in vulkan if i.default] or [i.name for i in vulkan], found.reason


def graphs_of(files: Sequence[str], dims: Sequence[str], shapes: Sequence[str]) -> list[Graph]:
    """Return the graphs of the first stages of models, for these sizes."""
    sizes = inputs.parse_dims(dims), inputs.parse_shapes(shapes)
    return [graph for file in files for graph in _first_stage(file, *sizes)]


def _first_stage(
    file: str, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> list[Graph]:
    """Return the graph of a model's first stage, or None."""
    from ...importers import load_onnx
    from ...importers.onnx.example_inputs import choose_shapes
    from ...ir.build_graph import build_graph
    from ...passes import optimize
    from ..views.model_info import hint_at, lower_model

    model = load_onnx(file)
    sizes = choose_shapes(model, {}, dims, shapes)
    with hint_at(sizes.assumed, inputs.size_options(model, sizes)):
        lowered, _ = lower_model(model, sizes.shapes, {})
    return [optimize(build_graph(lowered.outputs)[0])] if lowered.outputs else []


def row_of(spec: DeviceSpec, file: Path | None) -> dict[str, Any]:
    """Return a device's row of a report; file: file of its measurements."""
    about = {
        "name": spec.name,
        "label": spec.label,
        "driver": spec.driver,
        "uuid": spec.memory_node,
    }
    return {**about, "file": str(file or "")}


def show_cleared(row: Mapping[str, Any]) -> None:
    """Print the effect of --clear on a device."""
    what = "forgotten" if row["cleared"] else "nothing was known"
    click.echo(f"{row['name']} {row['label']}: {what}")


def show_notes(notes: Sequence[str]) -> None:
    """Print collected warnings."""
    for note in notes:
        click.echo(f"note: {note}")
