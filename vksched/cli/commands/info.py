"""`vksched info`: describe a model and its planned devices, without allocation."""

from __future__ import annotations

import json

import click
from click.core import ParameterSource

from ..options import inputs as feeds
from ..options.policy_options import PlanningOptions, with_planning_options
from ..options.topology_options import topology_of, topology_option
from ..views.gguf_info import is_projector, show_language_model
from ..views.model_info import _show, describe
from ..views.projector_info import show_projector


@click.command()
@click.argument("model_file", metavar="MODEL.onnx|MODEL.gguf")
@feeds.devices_option
@topology_option
@with_planning_options
@feeds.place_option
@feeds.dim_option
@feeds.shape_option
@feeds.input_option
@click.option(
    "-c",
    "--ctx-size",
    "ctx",
    type=click.IntRange(1),
    help="For a GGUF model: show the memory fit of this context length.",
)
@feeds.cache_type_option(
    "Element type of the KV cache for --ctx-size.", "f16 if all GPUs have float16, else f32"
)
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
@click.pass_context
def info(
    context: click.Context,
    model_file: str,
    devices: str | None,
    topology_file: str | None,
    places: tuple[str, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    ctx: int | None,
    cache_type: str | None,
    as_json: bool,
    planning: PlanningOptions,
) -> None:
    """Show a model's inputs and outputs and the planned device of each op (dry run).

    For a GGUF model it shows the contents of the file. With --ctx-size, --cache-type, --devices or
    --topology it also shows the placement of the model in memory and its predicted speed, with and
    without each device. For a projector file (mmproj) it shows the memory of the encoder, and how
    to use it.
    """
    from ...importers import is_gguf, load_gguf, load_onnx

    if is_gguf(model_file):
        used, model = _check_options(context), load_gguf(model_file)
        if is_projector(model.file):
            _reject(ctx, cache_type, "is for language models")
            show_projector(model.file, as_json, devices, topology_file)
            return
        place = devices, topology_file, ctx, cache_type
        asked = {"devices", "topology_file", "ctx", "cache_type"} & used
        show_language_model(model, as_json, place if asked else None)
        return
    _reject(ctx, cache_type, "is for GGUF models")
    wanted = feeds.parse_places(places)
    with feeds.collected_warnings() as notes:
        with feeds.progress_bars(as_json) as progress:
            onnx_model = load_onnx(model_file, progress)
        topology, aliases, with_cpu = topology_of(devices, topology_file)
        report = describe(
            onnx_model,
            topology,
            {pattern: aliases.get(name, name) for pattern, name in wanted.items()},
            feeds.parse_dims(dims),
            feeds.parse_shapes(shapes),
            feeds.read_arrays(inputs, onnx_model),
            with_cpu,
            planning,
        )
    report["notes"] += notes
    click.echo(json.dumps(report, indent=2)) if as_json else _show(report, onnx_model)


def _reject(ctx: int | None, cache_type: str | None, reason: str) -> None:
    """Raise UsageError if an option of KV caches is used."""
    for option, value in (("--ctx-size", ctx), ("--cache-type", cache_type)):
        if value is not None:
            raise click.UsageError(f"{option} {reason}.")


def _check_options(context: click.Context) -> set[str]:
    """Return the names of the used options. Raise UsageError for options of ONNX models."""
    used: set[str] = set()
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            used.add(name)
            if name not in (
                "model_file",
                "devices",
                "topology_file",
                "ctx",
                "cache_type",
                "as_json",
            ):
                raise click.UsageError(f"{parameter.opts[0]} is for ONNX models.")
    return used
