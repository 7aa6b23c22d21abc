"""Output of `vksched info` for a GGUF language model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import ModelFormatError
from ...common.formatting import printable
from ..options import inputs

if TYPE_CHECKING:
    from ...importers.gguf.architectures.family import Family
    from ...importers.gguf.model import LanguageModel
    from ...importers.gguf.read.loader import GgufFile


Place = tuple[str | None, str | None, int | None, str | None]
"""Devices, a topology file, a context length in tokens, and the element type of the KV cache."""


def show_language_model(model: LanguageModel, as_json: bool, place: Place | None = None) -> None:
    """Print a description of a model. place: where it should fit."""
    from .memory_fit import MemoryFit

    report = describe_language_model(model)
    memory_fit = None if place is None else MemoryFit(model, *place)
    if as_json:
        more = {} if memory_fit is None else {"memory_fit": memory_fit.as_dict()}
        click.echo(json.dumps({**report, **more}, indent=2))
        return
    _show(report)
    if memory_fit is not None:
        memory_fit.show()


def describe_language_model(model: LanguageModel) -> dict[str, Any]:
    """Return the contents of the file as plain data. hyper: None if hyperparameters are missing."""
    from ...importers.gguf.architectures import architecture
    from ...importers.gguf.hparams.hparams import read_hyper

    file, hyper, recurrent = model.file, None, None
    notes: list[str] = []
    try:
        family: Family | None = architecture(model.architecture)
    except ModelFormatError as error:
        family = None
        notes.append(str(error))
    try:
        hyper = asdict(read_hyper(file))
        if not notes and (skipped := hyper["predicting_layers"]):
            notes.append(
                f"skipped at the end: {skipped} of {skipped + hyper['layers']} layers, which only "
                "predict further tokens"
            )
        if not notes and model.is_recurrent:
            layers = sum(architecture(model.architecture).with_state(model.hyper))
            recurrent = {"layers": layers, "bytes_per_slot": model.recurrent_bytes}
    except ModelFormatError as error:
        # missing hyperparameters of an unknown architecture are no error
        notes = notes or [str(error)]
    return {
        **describe_file(file),
        "hyper": hyper,
        "positions": _positions(family, hyper) if family else "rotary",
        "recurrent": recurrent,
        "tokenizer": {
            "model": _text(file, "tokenizer.ggml.model"),
            "pre": _text(file, "tokenizer.ggml.pre"),
            "chat_template": bool(_text(file, "tokenizer.chat_template")),
        },
        "notes": notes,
    }


def describe_file(file: GgufFile) -> dict[str, Any]:
    """Return the name, sizes and element types of a file as plain data."""
    types = _types(file)
    return {
        "model": file.name,
        "architecture": _text(file, "general.architecture"),
        "version": file.version,
        "parts": [path.name for path in file.parts],
        "file_bytes": file.file_bytes,
        "parameters": sum(row["parameters"] for row in types),
        "parameter_bytes": sum(row["bytes"] for row in types),
        "types": types,
    }


def _positions(family: Family, hyper: Mapping[str, Any] | None) -> str:
    """Return the kind of positions that a family's layers have."""
    if family.learned_positions:
        return "learned"
    if hyper is not None and hyper["alibi"]:
        return "alibi"
    return "none" if family.unturned_every == 1 else "rotary"


def is_projector(file: GgufFile) -> bool:
    """Return True for a projector file (mmproj)."""
    from ...importers.gguf.vision.vision_hparams import ARCHITECTURE

    return _text(file, "general.architecture") == ARCHITECTURE


def _text(file: GgufFile, key: str) -> str:
    found = file.metadata.get(key)
    return found if isinstance(found, str) else ""


def _types(file: GgufFile) -> list[dict[str, Any]]:
    """Return the number of tensors of each element type, the one with most bytes first."""
    rows: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors.values():
        empty = {"type": tensor.type, "tensors": 0, "parameters": 0, "bytes": 0}
        row = rows.setdefault(tensor.type, empty)
        row["tensors"] += 1
        row["parameters"] += tensor.size
        row["bytes"] += tensor.nbytes
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["type"]))


# -- text output -----------------------------------------------------------------------------------


def show_file(report: Mapping[str, Any]) -> None:
    """Print the name and the size of a file."""
    from ...common.formatting import count_of, format_bytes

    parts = report["parts"]
    parts_text = f", in {count_of(len(parts), 'part')}" if len(parts) > 1 else ""
    version = f"GGUF version {report['version']}{parts_text}"
    echo(f"{report['model']}: {report['architecture']}, {version}")
    bits = 8 * report["parameter_bytes"] / max(1, report["parameters"])
    held = format_bytes(report["parameter_bytes"])
    echo(f"parameters: {report['parameters']:,} ({held}, {bits:.3g} bits each)")


def show_types(report: Mapping[str, Any]) -> None:
    """Print the element types of a file, its parts, and notes."""
    from ...common.formatting import format_bytes

    echo()
    rows = inputs.table("type", "tensors", "parameters", "bytes")
    for row in report["types"]:
        counts = f"{row['parameters']:,}", format_bytes(row["bytes"])
        rows.add_row(row["type"], str(row["tensors"]), *counts)
    inputs.print_table(rows)
    if len(report["parts"]) > 1:
        echo(f"parts: {' '.join(report['parts'])}")
    for note in report["notes"]:
        echo(f"note: {note}")


def _show(report: Mapping[str, Any]) -> None:
    from ...common.formatting import format_bytes

    show_file(report)
    if report["hyper"]:
        _show_hyper(report["hyper"], report["positions"])
    if report["recurrent"]:
        layers, held = (report["recurrent"][key] for key in ("layers", "bytes_per_slot"))
        of_all = f"{layers} of {report['hyper']['layers']} layers"
        echo(f"recurrent states: in {of_all}, {format_bytes(held)} for each slot")
    tokenizer = report["tokenizer"]
    if tokenizer["model"]:
        pre = f" ({tokenizer['pre']})" if tokenizer["pre"] else ""
        chat = "with" if tokenizer["chat_template"] else "without"
        echo(f"tokenizer: {tokenizer['model']}{pre}, {chat} a chat template")
    show_types(report)


def _show_hyper(hyper: Mapping[str, Any], positions: str) -> None:
    rope, inner = hyper["rope"], _span(hyper, "feed_forward")
    echo(f"layers: {hyper['layers']} of width {hyper['width']}, {inner} inside")
    has_attention = any(hyper["kv_heads"])
    if has_attention:
        echo(
            f"heads: {_span(hyper, 'heads')} of size {hyper['key_length']}, "
            f"{_span(hyper, 'kv_heads')} for keys and values"
        )
    if hyper["experts"]:
        echo(f"experts: {hyper['experts']}, of which {hyper['experts_used']} are used")
    seen = f", {hyper['window']} seen" if hyper["window"] else ""
    scaled = f", {rope['scaling']} by {rope['factor']:g}" if rope["factor"] != 1 else ""
    rotary = f"rotary base {rope['base']:g}, {rope['dims']} dimensions{scaled}"
    texts = {"learned": "learned positions", "none": "no rotary embedding", "rotary": rotary}
    texts["alibi"] = f"ALiBi, bias up to {hyper['alibi']:g}"
    text = f"; {texts[positions]}" if has_attention else ""
    echo(f"context: {hyper['context']:,} tokens{seen}{text}")
    if hyper["pooling"]:
        echo(f"pooling: {hyper['pooling']}")
    echo(f"vocabulary: {hyper['vocabulary']:,} tokens")


def _span(hyper: Mapping[str, Any], name: str) -> str:
    """Return a hyperparameter of each layer, as one number or a range."""
    each: Sequence[int] = hyper[name]
    low, high = min(each), max(each)
    return str(low) if low == high else f"{low} to {high}"


def echo(text: str = "") -> None:
    """Print a line; control characters and invalid letters of the file are escaped."""
    click.echo(printable(text, one_line=True))
