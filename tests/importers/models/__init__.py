"""Networks as PyTorch exports them, rebuilt from their committed structure with numpy alone.

`export.py` made the structures, `structure.py` tells what is in them, `networks.py` what they are
of.

    path = make_model("resnet18", folder)
    inputs = example_inputs("resnet18", seed=0, batch=4)
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .structure import fill

FOLDER = Path(__file__).parent / "structures"

EXAMPLE = "example"
"""Under this name a structure's metadata holds what `example_inputs` needs, as JSON."""

NAMES = tuple(sorted(p.stem for p in FOLDER.glob("*.onnx")))


def make_model(name: str, folder: Path) -> Path:
    """Write a network with all its weights as `<name>.onnx` into a folder, and returns where."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    fill(model)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@cache
def _example(name: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    model = onnx.load(FOLDER / f"{name}.onnx")
    texts = {p.key: p.value for p in model.metadata_props}
    return model, json.loads(texts[EXAMPLE])


def dimensions(name: str) -> dict[str, int]:
    """Return the symbolic dimensions of a network with the sizes that `example_inputs` gives."""
    sizes: dict[str, int] = _example(name)[1]["dims"]
    return dict(sizes)


def example_inputs(name: str, seed: int, **sizes: int) -> dict[str, np.ndarray]:
    """Return random inputs of a network by name.

    sizes: symbolic dimensions that are to be of another size than the usual one. Masks are of ones,
    with zeros at the end of all rows but the first.
    """
    model, example = _example(name)
    known = {**example["dims"], **sizes}
    rng = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        dims = value.type.tensor_type.shape.dim
        shape = tuple(known[d.dim_param] if d.dim_param else d.dim_value for d in dims)
        high = example["high"].get(value.name)
        if high is None:
            out[value.name] = rng.standard_normal(shape, dtype=np.float32)
        elif "mask" in value.name:
            lengths = rng.integers(1, shape[1], shape[0], endpoint=True)
            lengths[0] = shape[1]
            out[value.name] = (np.arange(shape[1]) < lengths[:, None]).astype(np.int64)
        else:
            out[value.name] = rng.integers(0, high, shape)
    return out
