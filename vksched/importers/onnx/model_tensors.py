"""ModelTensors: an ONNX model as tensors, to train it, add a loss or combine it with other graphs.

    model.tensors({"x": (8, 3, 224, 224)}, trainable="fc.*")
      .inputs["x"]   .outputs["logits"]   .params["fc.weight"]

The model must be one graph for these shapes, without segments that wait for values. Trainable
initializers become states with their name and value. All others stay weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from ...common.errors import GraphError, UnsupportedOp, close_text
from ...ir.tensor import Tensor
from ...ops.creation.state import state
from .lower.frame import Frame, NeedsInputs
from .lower.frame_lowering import FrameLowering
from .lower.model_context import ModelContext
from .nodes.cpu_node import describe
from .nodes.elements import to_storage
from .nodes.values import CpuValueType, Value


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Tensors of a model, by the names in the file.

    Attributes
    ----------
    inputs
        Inputs that a run needs.
    outputs
        Outputs of the model.
    params
        States of the trainable initializers.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    params: Mapping[str, Tensor]


def tensors_of(
    context: ModelContext,
    frame: Frame,
    types: Mapping[str, CpuValueType],
    trainable: str | Sequence[str],
    initializers: Collection[str],
) -> ModelTensors:
    """Return the whole graph of a model as tensors, for inputs of these types; see `Model.tensors`.

    Parameters
    ----------
    initializers
        Names of initializers; other values of the file are constant nodes.
    """
    patterns = _patterns(trainable)
    params = _params(frame.env, patterns, initializers)
    while True:
        env = {
            name: replace(v, tensor=params[name], array=None) if name in params else v
            for name, v in frame.env.items()
        }
        lowering = FrameLowering(context, replace(frame, env=env), types, None)
        try:
            lowered = lowering.run()
        except NeedsInputs as error:
            raise UnsupportedOp(
                f"{error}, so it is no single graph; try sched.compile(model)"
            ) from None
        shapes = _params_of(lowering.needed, params)
        if not shapes or lowered.then is None:
            break
        params = _without(params, shapes, patterns, describe(lowered.then.nodes[0]))
    if lowered.step is not None or lowered.then is not None:
        why = lowered.step.reason if lowered.step else "a later shape depends on computed values"
        raise UnsupportedOp(
            f"[model] expected a model that is one graph for these shapes, got stages: {why}; try "
            "other shapes, or sched.compile(model)"
        )
    outputs: dict[str, Tensor] = {}
    for name, result in zip(frame.outputs, lowered.results, strict=True):
        output = lowered.outputs.get(result.slot or "")
        outputs[name] = lowering.tensor(result) if output is None else output
    inputs = {name: tensor for name, tensor in lowering.inputs.items() if tensor.op == "input"}
    return ModelTensors(*map(MappingProxyType, (inputs, outputs, params)))


def _params_of(needed: Value | None, params: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the parameters from which alone a value is computed.

    The result is empty if the value depends on anything else.
    """
    if needed is None or needed.tensor is None:
        return set()
    names = {id(tensor): name for name, tensor in params.items()}
    found: set[str] = set()
    seen, left = set(), [needed.tensor]
    while left:
        tensor = left.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if id(tensor) in names:
            found.add(names[id(tensor)])
        elif tensor.op == "input":
            return set()
        left += tensor.inputs
    return found


def _without(
    params: Mapping[str, Tensor], shapes: Collection[str], patterns: Collection[str], node: str
) -> dict[str, Tensor]:
    """Return the parameters without those on which a shape depends.

    Parameters
    ----------
    node
        Name of the node that needs the shape.

    Raises
    ------
    GraphError
        Such a parameter is named explicitly, or a pattern matches no other one.
    """
    left = {name: tensor for name, tensor in params.items() if name not in shapes}
    for pattern in patterns:
        if not any(pattern == name or fnmatchcase(name, pattern) for name in left):
            needed = ", ".join(map(repr, sorted(shapes)))
            raise GraphError(
                f"[model] expected trainable initializers on which no shape depends, got "
                f"{pattern!r}, and {node} needs {needed} for a shape; try the names of others"
            )
    return left


def _patterns(trainable: str | Sequence[str]) -> Collection[str]:
    patterns = (trainable,) if isinstance(trainable, str) else trainable
    if not isinstance(patterns, Collection) or not all(isinstance(p, str) for p in patterns):
        raise GraphError(
            f"[model] expected names or patterns of initializers as trainable, got {trainable!r}"
        )
    return patterns


def _params(
    env: Mapping[str, Value], patterns: Collection[str], initializers: Collection[str]
) -> dict[str, Tensor]:
    """Return a state for each float initializer that a pattern matches, and for each constant node
    that is named explicitly.

    "*" does not match constant nodes: most of them are exponents and similar attributes.
    """
    floats = {
        name: value.array
        for name, value in env.items()
        if value.array is not None and value.array.dtype.kind == "f" and value.array.size
    }
    wanted: set[str] = set()
    for pattern in patterns:
        like = [name for name in floats if name in initializers and fnmatchcase(name, pattern)]
        if pattern not in floats and not like:
            raise GraphError(
                f"[model] expected names of initializers of floats as trainable, got {pattern!r}, "
                f"which none has{close_text(pattern, floats)}"
            )
        wanted.update([pattern] if pattern in floats else like)
    out: dict[str, Tensor] = {}
    for name, array in floats.items():
        if name in wanted:
            out[name] = output = state(to_storage(array), name)
            output.name = name
    return out
