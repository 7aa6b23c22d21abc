"""Example inputs: sizes for free dimensions and plausible values.

    ids: int64[batch,sequence] -> Gather(word_embeddings [30522, 384], ids)    0 .. 30521
    attention_mask                                                             ones
    pixels: float[batch,3,224,224]                                             normally distributed

Examples: tests/cli/test_cli_run.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.dtypes import NDArray, Shape
from ...common.errors import GraphError, ShapeError, UnsupportedOp, close_text
from .model import Model, ModelValue
from .nodes.elements import INTS, element_name, numpy_of
from .nodes.values import CpuValue

SAME_ELEMENTS = frozenset(
    ("Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze")
    + ("Transpose", "Unsqueeze")
)
"""Ops whose result consists of elements of their first operand."""
SAME_SHAPE = frozenset(("Cast", "CastLike", "DequantizeLinear", "Identity"))
TABLES = {
    "Gather": ((1, 0),),
    "GatherBlockQuantized": ((1, 0),),
    "EmbedLayerNormalization": ((0, 2), (1, 4), (8, 3)),
}
"""For each op, the operands that are indices, each with the table that it indexes."""
FEW = 2
"""Integers without a known bound are drawn below this."""


@dataclass(frozen=True)
class Sizes:
    """Shapes of all inputs.

    Attributes
    ----------
    assumed
        The dimensions that were assumed to be 1.
    """

    shapes: dict[str, Shape]
    assumed: list[str] = field(default_factory=list)


def choose_shapes(
    model: Model,
    arrays: Mapping[str, Any],
    dims: Mapping[str, int],
    shapes: Mapping[str, Shape],
) -> Sizes:
    """Return shapes for the inputs of a model.

    Parameters
    ----------
    arrays
        Arrays supplied by the user, by input name.
    dims
        Sizes of named dimensions.
    shapes
        Shapes of inputs, by input name.

    Raises
    ------
    GraphError
        A name is not in the model.
    ShapeError
        A shape does not fit, or the rank is unknown.
    """
    inputs = {value.name: value for value in model.inputs}
    named = {d for v in inputs.values() for d in v.dims or () if isinstance(d, str)}
    _require(dims, named, "dimension")
    _require(shapes, inputs, "input")
    sizes = dict(dims)
    met: dict[str, set[int]] = {}
    array_shapes = {name: np.shape(a) for name, a in arrays.items() if name in inputs}
    for name, shape in array_shapes.items():
        if shapes.get(name, shape) != shape:
            raise ShapeError(
                f"[model] expected an array of shape {shapes[name]} for {name!r}, got {shape}"
            )
    fixed = {**shapes, **array_shapes}
    for name, shape in fixed.items():
        declared = inputs[name].dims
        for dim, size in zip(declared or (), shape, strict=False):
            if isinstance(dim, str) and dims.get(dim, size) != size:
                raise ShapeError(
                    f"[model] expected {dim}={dims[dim]}, got shape {shape} for {name!r}"
                )
        if declared is not None and len(declared) == len(shape):
            for dim, size in zip(declared, shape, strict=True):
                if isinstance(dim, str) and dim not in dims:
                    met.setdefault(dim, set()).add(size)
    # A name with two different sizes gives no size for a third occurrence.
    sizes.update({dim: size for dim, (size, *more) in met.items() if not more})
    assumed: dict[str, None] = {}
    out: dict[str, Shape] = {}
    for value in inputs.values():
        if value.name in fixed:
            out[value.name] = fixed[value.name]
            continue
        if value.dims is None:
            raise ShapeError(
                f"[model] the number of dimensions of input {value} is not known; try --shape "
                + shlex.quote(f"{value.name}=1,3,224,224")
            )
        for i, d in enumerate(value.dims):
            if d is None:
                assumed[f"dimension {i} of {value.name}"] = None
            elif isinstance(d, str):
                assumed.update(dict.fromkeys(n for n in _terms(d, named) if n not in sizes))
        out[value.name] = tuple(
            d if isinstance(d, int) else _size(d, sizes, named) for d in value.dims
        )
    return Sizes(out, list(assumed))


def _terms(dim: str, named: set[str]) -> list[str]:
    """Return the names that a dimension sums ("past + sequence"), or the dimension itself."""
    parts = [part.strip() for part in dim.split("+")]
    return parts if len(parts) > 1 and all(part in named for part in parts) else [dim]


def _size(dim: str | None, sizes: Mapping[str, int], named: set[str]) -> int:
    if dim is None:
        return 1
    if dim in sizes:
        return sizes[dim]
    return sum(sizes.get(name, 1) for name in _terms(dim, named))


def _require(names: Mapping[str, Any], known: Collection[str], what: str) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise GraphError(
            f"[model] expected {what}s of {sorted(known)}, got {', '.join(map(repr, unknown))}"
            + close_text(unknown[0], known)
        )


def example_inputs(
    model: Model, shapes: Mapping[str, Shape], seed: int, without: Sequence[str] = ()
) -> dict[str, CpuValue]:
    """Return inputs of the requested shapes, reproducible by seed.

    Parameters
    ----------
    without
        Names of inputs to leave out.

    Raises
    ------
    UnsupportedOp
        No example can be generated for an input, for instance for strings.
    """
    bounds = find_index_bounds(model)
    out: dict[str, CpuValue] = {}
    for number, value in enumerate(model.inputs):
        if value.name not in without:
            rng = np.random.default_rng((seed, number))
            out[value.name] = _example(value, shapes[value.name], bounds.get(value.name), rng)
    return out


def _example(
    value: ModelValue, shape: Shape, bound: int | None, rng: np.random.Generator
) -> CpuValue:
    if value.kind == "optional":
        return None
    kind = numpy_of(value.elem_type)
    if value.kind != "tensor" or kind.kind == "O":
        what = "texts" if value.kind == "tensor" else f"a {value.kind}"
        raise UnsupportedOp(f"[model] no example can be made of {what}, for input {value.name!r}")
    name = element_name(value.elem_type)
    array: NDArray
    if "mask" in value.name.lower() and (name == "bool" or value.elem_type in INTS):
        array = np.ones(shape)
    elif name == "bool":
        array = rng.integers(0, 2, shape)
    elif value.elem_type in INTS:
        usual = 256 if name == "uint8" else 128 if name == "int8" else FEW
        array = rng.integers(0, bound or usual, shape)
    else:
        array = rng.standard_normal(shape)
    return array.astype(kind)


def find_index_bounds(model: Model) -> dict[str, int]:
    """Return, for each input that indexes tables of the model, the length of the shortest table."""
    shapes: dict[str, Shape] = {n: a.shape for n, a in model.file.initializers.items()}
    source = {value.name: value.name for value in model.inputs}
    bounds: dict[str, int] = {}
    for node in model.nodes:
        first = node.input[0] if node.input else ""
        if node.op_type in SAME_ELEMENTS and first in source:
            source[node.output[0]] = source[first]
        if node.op_type in SAME_SHAPE and first in shapes:
            shapes[node.output[0]] = shapes[first]
        axis = next((a.i for a in node.attribute if a.name in ("axis", "gather_axis")), 0)
        for index, table in TABLES.get(node.op_type, ()):
            if len(node.input) <= max(index, table) or node.input[index] not in source:
                continue
            shape = shapes.get(node.input[table])
            if shape and -len(shape) <= axis < len(shape) and shape[axis]:
                name = source[node.input[index]]
                bounds[name] = min(shape[axis], bounds.get(name, shape[axis]))
    return bounds
