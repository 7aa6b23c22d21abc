"""Save a PyTorch model ahead of time: torch.export -> ATen graph -> Tensors -> model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..common.errors import UnsupportedOp, VkschedError
from ..ir.tensor import Tensor, weight
from .convert import storage_of, to_array
from .decompositions import decompositions
from .lower import CallLowering, declare_input, op_name, value_of
from .model_file import write_model
from .partition import find_unsupported
from .weights import key_of


def save(
    model: Any,
    example: Sequence[Any],
    path: str | PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Save a model for the sizes of example arguments, so that it runs without PyTorch.

    Parameters
    ----------
    model
        An `nn.Module`, best in `eval()` mode.
    example, kwargs
        Positional and keyword arguments of `model`.
    path
        The file, for example "model.vks"; `vksched.torch.load` reads it. Its outputs have the keys
        of a dict that the model returns, otherwise the names output_0, ... by position.

    Raises
    ------
    UnsupportedOp
        The model has ops that run in eager PyTorch only, or changes its buffers.
    """
    if not isinstance(model, torch.nn.Module):
        raise VkschedError(f"[save] expected an nn.Module, got {type(model).__name__}")
    exported = torch.export.export(model, tuple(example), dict(kwargs or {}))
    exported = exported.run_decompositions(decompositions())
    module, signature = exported.graph_module, exported.graph_signature
    changed = [s for s in signature.output_specs if s.kind is not OutputKind.USER_OUTPUT]
    if changed:
        raise UnsupportedOp(
            f"[save] expected a model without changes of buffers or inputs, got one of "
            f"{changed[0].target}; try model.eval()"
        )
    unsupported = find_unsupported(module)
    if unsupported:
        first, reason = next(iter(unsupported.items()))
        raise UnsupportedOp(
            f"[save] expected ops with rules, got {len(unsupported)} others, first "
            f"{op_name(first)}: {reason}; try torch.compile, which runs them in eager PyTorch"
        )
    lowering, inputs = CallLowering(module), list[Tensor]()
    weights: dict[Any, Tensor] = {}  # by identity: tied parameters are stored once
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    held = {**exported.state_dict, **exported.constants}
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is not InputKind.USER_INPUT:
            tensor = held[str(spec.target)]
            key = key_of(tensor) or str(spec.target)
            if key not in weights:
                weights[key] = _weight(tensor, str(spec.target))
            lowering.values[node] = weights[key]
        elif isinstance(value_of(node), torch.Tensor):
            lowering.values[node] = declare_input(node.name, value_of(node))
            inputs.append(lowering.values[node])
        else:
            lowering.values[node] = value_of(node)
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            lowering.lower(node)
    if lowering.seed is not None:
        inputs.append(lowering.seed)
    (results,) = next(n for n in module.graph.nodes if n.op == "output").args
    places = zip(_result_names(exported.call_spec.out_spec), results, strict=True)
    outputs = {name: lowering.values[r] for name, r in places if isinstance(r, torch.fx.Node)}
    write_model(path, inputs, outputs)


def _result_names(spec: Any) -> list[str]:
    """Return the names of results: keys of a dict, otherwise output_0, ... by position."""
    if spec.type is dict and spec.num_leaves == len(spec.context):
        return [str(key) for key in spec.context]
    return [f"output_{i}" for i in range(spec.num_leaves)]


def _weight(tensor: Any, name: str) -> Tensor:
    if storage_of(tensor) is None:
        raise UnsupportedOp(f"[save] expected weights of 32 bits, got {name} of {tensor.dtype}")
    return weight(np.ascontiguousarray(to_array(tensor)), name)
