"""Output of `vksched info` for a projector file (mmproj), the encoder of pictures of a language
model.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import ModelFormatError, OutOfMemory
from ..options import inputs
from ..options.topology_options import topology_of
from .gguf_info import describe_file, echo, show_file, show_types

if TYPE_CHECKING:
    from ...importers.gguf.read.loader import GgufFile
    from ...importers.gguf.vision.vision_model import VisionModel
    from ...plan.plan import Plan

USE = "vksched chat MODEL.gguf --mmproj {file} --image PICTURE"


def show_projector(
    file: GgufFile, as_json: bool, devices: str | None, topology_file: str | None
) -> None:
    """Print a description of a projector file, and its memory on the devices."""
    report = describe_projector(file)
    if report["projector"] is not None:
        report["memory"] = _memory(file, devices, topology_file)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    show_file(report)
    if report["projector"] is not None:
        _show_encoder(report["projector"])
    show_types(report)
    if report["projector"] is not None:
        _show_memory(report)
        echo(f"to use it: {USE.format(file=shlex.quote(str(file.path)))}")


def describe_projector(file: GgufFile) -> dict[str, Any]:
    """Return the contents of the file as plain data. projector: None if its kind is not
    supported.
    """
    from ...importers.gguf.vision.vision_hparams import PROJECTORS
    from ...importers.gguf.vision.vision_model import VisionModel

    report, notes = describe_file(file), []
    try:
        model = VisionModel(file)
        projector: dict[str, Any] | None = {
            **asdict(model.hyper),
            "language_models": list(PROJECTORS[model.hyper.projector]),
            "tokens": model.tokens,
            "token_width": model.width,
            "pixels_shape": list(model.pixels_shape),
            "any_size": model.hyper.is_qwen,
        }
    except ModelFormatError as error:
        projector = None
        notes.append(str(error))
    return {**report, "projector": projector, "notes": notes}


def _memory(file: GgufFile, devices: str | None, topology_file: str | None) -> dict[str, Any]:
    """Return the memory of the encoder on each device, for one picture of the usual size. why_not:
    the reason if it does not fit.
    """
    from ...importers.gguf.vision.vision_model import VisionModel

    try:
        plan = _plan(VisionModel(file).meta(), devices, topology_file)
    except (OutOfMemory, ModelFormatError) as error:
        return {"devices": [], "why_not": str(error)}
    nodes = {
        spec.name: sum(len(split.nodes) for split in plan.splits if split.device == index)
        for index, spec in enumerate(plan.topology.devices)
    }
    return {
        "devices": [
            {
                "device": name,
                "weight_bytes": sizes.weight_bytes,
                "work_bytes": sizes.total_bytes - sizes.weight_bytes,
                "total_bytes": sizes.total_bytes,
                "capacity_bytes": sizes.capacity_bytes,
            }
            for name, sizes in plan.buffers().items()
            if nodes[name]
        ],
        "why_not": None,
    }


def _plan(model: VisionModel, devices: str | None, topology_file: str | None) -> Plan:
    """Return the plan of the encoder, built as the scheduler builds it."""
    from ...engine.request import Request, plan_by_policy
    from ...ir.build_graph import build_graph
    from ...ir.tensor import input

    topology, _, with_cpu = topology_of(devices, topology_file)
    graph, _ = build_graph(model.encode(input("pixels", (1, *model.pixels_shape))))
    request = Request(graph, (), {}).optimized(topology)
    return plan_by_policy(request, topology, with_cpu=with_cpu)


def _show_encoder(projector: Mapping[str, Any]) -> None:
    heads = f"{projector['heads']} heads"
    echo(
        f"encoder of pictures: {projector['layers']} layers of width {projector['width']}, {heads}"
    )
    _, height, width = projector["pixels_shape"]
    tokens = f"{projector['tokens']:,} tokens of width {projector['token_width']:,}"
    if projector["any_size"]:
        least, most = projector["pixels"]
        echo(f"pictures: of {least:,} to {most:,} pixels, up to {tokens} each")
    else:
        echo(f"pictures: {height} x {width} pixels, {tokens} each")
    known = " or ".join(projector["language_models"])
    echo(f"language model: {known} of width {projector['text_width']:,}, in another file")


def _show_memory(report: Mapping[str, Any]) -> None:
    from ...common.formatting import format_bytes, format_share

    memory = report["memory"]
    _, height, width = report["projector"]["pixels_shape"]
    echo(f"with a picture of {height} x {width} pixels:")
    echo()
    if memory["why_not"] is not None:
        echo(f"it does not fit: {memory['why_not']}")
        return
    rows = inputs.table("device", "weights", "work", "of its memory")
    for held in memory["devices"]:
        sizes = (format_bytes(held[key]) for key in ("weight_bytes", "work_bytes"))
        share = format_share(held["total_bytes"], held["capacity_bytes"])
        rows.add_row(held["device"], *sizes, share)
    inputs.print_table(rows, wide=True)
