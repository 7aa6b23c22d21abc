"""Exports the networks with PyTorch and keeps their structures: a developer's tool.

    pip install -e '.[dev,models]'
    python tests/importers/models/export.py [--output FOLDER] [NAME ...]

Some leave by the exporter on torch.export, some by the older one on TorchScript, as users have
both. Beside them stand what onnxruntime's tools make of them: fused for transformers, quantised.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime import quantization as quant
from onnxruntime.transformers.optimizer import optimize_model

sys.path.insert(0, str(Path(__file__).parents[1]))

from models import EXAMPLE, FOLDER
from models.balance import balance
from models.networks import NETWORKS, Export, Wrapped, build
from models.structure import strip


def export_network(export: Export, path: Path) -> None:
    """Write a network as PyTorch exports it."""
    options: dict[str, Any] = {"dynamic_axes": dict(export.axes)}
    if export.dynamo:
        shapes = tuple(dict(export.axes.get(name, {})) for name in export.args)
        packed = (shapes,) if isinstance(export.module, Wrapped) else shapes
        options = {"dynamic_shapes": packed, "external_data": False, "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            export.module,
            tuple(export.args.values()),
            path,
            input_names=list(export.args),
            output_names=list(export.outputs),
            opset_version=export.opset,
            dynamo=export.dynamo,
            **options,
        )


class Calibration(quant.CalibrationDataReader):  # type: ignore[misc]
    """Random images from a fixed seed."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.images: Iterator[dict[str, np.ndarray]] = iter(
            [{"image": rng.standard_normal((2, 3, 32, 32), dtype=np.float32)} for _ in range(8)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.images, None)


def fused(kind: str) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        options = {"num_heads": 4, "hidden_size": 128, "opt_level": 0}
        optimize_model(str(source), kind, **options).save_model_to_file(str(target))

    return make


def static(form: quant.QuantFormat, per_channel: bool) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        quant.quantize_static(
            source, target, Calibration(), quant_format=form, per_channel=per_channel
        )

    return make


def dynamic(source: Path, target: Path) -> None:
    quant.quantize_dynamic(source, target)


DERIVED: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "bert_mini_fused": ("bert_mini", fused("bert")),
    "gpt2_mini_fused": ("gpt2_mini", fused("gpt2")),
    "bert_mini_dynamic": ("bert_mini", dynamic),
    "lstm_tagger_dynamic": ("lstm_tagger", dynamic),
    "small_conv_qdq": ("small_conv", static(quant.QuantFormat.QDQ, True)),
    "small_conv_qoperator": ("small_conv", static(quant.QuantFormat.QOperator, False)),
}
"""What onnxruntime's tools make of a network: which one, and how."""


def structure_of(name: str, folder: Path) -> onnx.ModelProto:
    """Return the structure of a network, exported anew; a folder keeps the files of the way."""
    origin, derive = DERIVED.get(name, (name, None))
    path = folder / f"{origin}.onnx"
    export = build(origin)
    if not path.exists():
        export_network(export, path)
    if derive is not None:
        source, path = path, folder / f"{name}.onnx"
        derive(source, path)
    model = onnx.load(path)
    full = onnx.load(path)
    strip(model)
    balance(model, full, {name: value.numpy() for name, value in export.args.items()})
    del model.metadata_props[:]
    example = {"dims": dict(export.dims), "high": dict(export.high)}
    model.metadata_props.add(key=EXAMPLE, value=json.dumps(example, sort_keys=True))
    return model


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is that of some nodes and names
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("names", nargs="*", default=[*NETWORKS, *DERIVED])
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            data = structure_of(name, Path(folder)).SerializeToString(deterministic=True)
            (options.output / f"{name}.onnx").write_bytes(data)
            print(f"{name:24} {len(data):8} bytes")


if __name__ == "__main__":
    main()
