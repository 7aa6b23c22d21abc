"""Model files (.vks): a graph and its weights, which run without PyTorch.

    model.vks, a zip file without compression
      graph.json       format, nodes in topological order, outputs
      weights/0        the bytes of a weight or constant; its node has shape and type

Each node is created by its op's own type rule, so a damaged file raises an error when it is loaded.
Examples: tests/torch_backend/test_torch_export.py.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .. import ops  # noqa: F401 - declares the ops that a file may name
from ..common.dtypes import NARROW, NDArray, canonical_dtype, numpy_dtype
from ..common.errors import ModelFormatError, VkschedError
from ..common.formatting import printable
from ..ir.graph import topological_order
from ..ir.op import get_op
from ..ir.tensor import Tensor, apply, constant, input, weight

FORMAT = 1
"""The number of the format; it grows with each change that older versions cannot read."""
GRAPH = "graph.json"


@dataclass(frozen=True)
class ExportedModel:
    """A model of a file, as tensors: `sched.compile(model.outputs)` runs it.

    Attributes
    ----------
    inputs, outputs
        The tensors by name, in the order of the arguments and results of the PyTorch model.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def write_model(
    path: str | PathLike[str], inputs: Sequence[Tensor], outputs: Mapping[str, Tensor]
) -> None:
    """Write tensors as a model file, replacing an existing one once it is complete."""
    order = topological_order([*inputs, *outputs.values()])
    ids = {tensor: position for position, tensor in enumerate(order)}
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            nodes = [_encode(archive, tensor, ids) for tensor in order]
            document = {
                "format": FORMAT,
                "nodes": nodes,
                "inputs": [ids[tensor] for tensor in inputs],
                "outputs": {name: ids[tensor] for name, tensor in outputs.items()},
            }
            archive.writestr(GRAPH, json.dumps(document, separators=(",", ":")))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _encode(archive: zipfile.ZipFile, tensor: Tensor, ids: Mapping[Tensor, int]) -> list[Any]:
    own_name = tensor.name if tensor.named else None
    if tensor.op in ("weight", "constant"):
        array = np.ascontiguousarray(tensor.data)
        with archive.open(f"weights/{ids[tensor]}", "w", force_zip64=True) as out:
            out.write(array.reshape(-1).view(np.uint8).data)
    return [tensor.op, [ids[t] for t in tensor.inputs], dict(tensor.attrs), own_name]


def load(path: str | PathLike[str]) -> ExportedModel:
    """Return the model of a file that `vksched.torch.save` wrote. PyTorch is not needed.

    Raises
    ------
    ModelFormatError
        The file is damaged, or of another version.
    FileNotFoundError
        There is no file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _decode(archive)
    except ModelFormatError:
        raise
    except FileNotFoundError:
        raise
    except (
        *(zipfile.BadZipFile, KeyError, ValueError, TypeError, IndexError, EOFError),
        *(OSError, VkschedError, AttributeError, RecursionError, OverflowError, MemoryError),
    ) as error:
        raise ModelFormatError(
            f"[load] expected a file of vksched.torch.save, got {Path(path).name}: "
            f"{printable(str(error))}; try to save the model again"
        ) from error


def _decode(archive: zipfile.ZipFile) -> ExportedModel:
    document = json.loads(_read(archive, GRAPH))
    if document["format"] != FORMAT:
        raise ModelFormatError(
            f"[load] expected a file of format {FORMAT}, got {document['format']}; try to save "
            "the model again with this version"
        )
    tensors: list[Tensor] = []
    for position, (op, inputs, attrs, name) in enumerate(document["nodes"]):
        values = {key: _attribute(value) for key, value in attrs.items()}
        operands = [_node(tensors, i) for i in inputs]
        if op == "input":
            bounds = (values["low"], values["high"]) if "low" in values else None
            tensors.append(input(name, values["shape"], values["dtype"], bounds))
        elif op in ("weight", "constant"):
            array = _array(archive, f"weights/{position}", values)
            tensors.append((weight if op == "weight" else constant)(array, name))
        elif "." in op or get_op(op).stateful:  # those of other packages have no limits
            raise ModelFormatError(f"[load] expected ops without states, got {op!r}")
        else:
            tensors.append(apply(op, operands, values, name))
    inputs = {t.name: t for t in (_node(tensors, i) for i in document["inputs"])}
    outputs = {str(name): _node(tensors, i) for name, i in document["outputs"].items()}
    if set(inputs.values()) != {t for t in tensors if t.op == "input"}:
        raise ModelFormatError("[load] expected a list of all inputs, with different names")
    return ExportedModel(inputs, outputs)


def _node(tensors: Sequence[Tensor], position: Any) -> Tensor:
    """Return a node that is already read."""
    if type(position) is not int or not 0 <= position < len(tensors):
        raise ModelFormatError(
            f"[load] expected a node from 0 to {len(tensors) - 1}, got {position!r}"
        )
    return tensors[position]


def _array(archive: zipfile.ZipFile, name: str, attrs: Mapping[str, Any]) -> NDArray:
    dtype = numpy_dtype(canonical_dtype(attrs["dtype"], NARROW))
    shape = attrs["shape"]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ModelFormatError(f"[load] expected sizes of 0 or more in {name}, got {shape}")
    values = np.frombuffer(_read(archive, name), np.uint8)
    if dtype == np.bool_ and values.size and values.max() > 1:
        raise ModelFormatError(f"[load] expected bools in {name}")
    array: NDArray = values.view(dtype).reshape(shape)
    return array


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member of the file, whose size limits what is allocated."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ModelFormatError(f"[load] expected {name} without compression")
    return archive.read(name)


def _attribute(value: Any) -> Any:
    return tuple(map(_attribute, value)) if isinstance(value, list) else value
