"""The structure of an ONNX model: all of it but large weights, which are drawn again from a seed.

    strip(model): a large weight loses its data and keeps how it was distributed
    fill(model):  numpy draws such data, from a seed that is a checksum of the weight's name

So a few KiB in the repository stand for a network of many MiB: graph, small constants and integers
are those of the exporter, and only the values of weights are others, of the same kind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

STORED_ELEMENTS = 64
"""A tensor of at most so many elements is kept as it is."""

SEVEN_BITS = 63
"""Processors without a dot product of bytes (VNNI) add two products of 8 bits in 16, which may
saturate: onnxruntime's results are then wrong. Two of these weights do not get there.
"""
FILLED = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8)
"""The element types of weights; tensors of others hold positions and shapes, and are kept."""

STORED_MAGNITUDE = 1000.0
"""Larger numbers are those of masks, not of weights."""

FILL = "fill"
"""Under this name a stripped tensor's metadata tells how it is drawn."""


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and those in the attributes of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs(inner)


def tensors(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield each initializer and constant of a model with its name."""
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            yield tensor.name, tensor
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.type == AttributeProto.TENSOR:
                    yield node.output[0], attribute.t


def fill_of(tensor: TensorProto) -> str | None:
    """Return how a tensor without its data is drawn, None for one that has it."""
    return next((p.value for p in tensor.metadata_props if p.key == FILL), None)


def strip(model: ModelProto) -> None:
    """Takes away the data of large weights, and all that tells of the machine of the export."""
    for _, tensor in tensors(model):
        if tensor.data_type in FILLED and np.prod(tensor.dims) > STORED_ELEMENTS:
            values = onnx.numpy_helper.to_array(tensor)
            if np.abs(values.astype(np.float64)).max() < STORED_MAGNITUDE:
                name, dims, kind = tensor.name, list(tensor.dims), tensor.data_type
                tensor.Clear()
                tensor.name, tensor.data_type = name, kind
                tensor.dims.extend(dims)
                tensor.metadata_props.add(key=FILL, value=describe(values))
    for graph in graphs(model.graph):
        for item in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
            item.ClearField("doc_string")
            item.ClearField("metadata_props")


def describe(values: np.ndarray) -> str:
    """Return how values are distributed: kind, mean, deviation, least and largest.

    Those of one sign, such as scales, are drawn evenly between their ends, others as a normal
    distribution within them.
    """
    exact = values.astype(np.float64)
    low, high = float(exact.min()), float(exact.max())
    kind = "uniform" if low > 0 or high < 0 else "normal"
    return " ".join([kind, *(f"{v:.3g}" for v in (exact.mean(), exact.std(), low, high))])


def draw(name: str, recipe: str, count: int) -> np.ndarray:
    """Return so many values for the tensor of this name, float32."""
    kind, *numbers = recipe.split()
    mean, deviation, low, high = map(float, numbers)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if kind == "uniform":
        return rng.random(count, dtype=np.float32) * np.float32(high - low) + np.float32(low)
    values = rng.standard_normal(count, dtype=np.float32)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return np.clip(values, low, high, out=values)


def fill(model: ModelProto) -> None:
    """Give every stripped tensor data that follows from its name alone."""
    for name, tensor in tensors(model):
        recipe = fill_of(tensor)
        if recipe is not None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            values = draw(name, recipe, int(np.prod(tensor.dims)))
            if dtype.kind in "iu":
                values = np.rint(values)
            if dtype == np.int8:
                values = np.clip(values, -SEVEN_BITS, SEVEN_BITS)
            tensor.raw_data = values.astype(dtype).tobytes()
            tensor.ClearField("metadata_props")


def same_structure(one: ModelProto, other: ModelProto) -> bool:
    """Tells whether two structures are the same, but for roundings of floating-point numbers."""
    left, right = ModelProto(), ModelProto()
    left.CopyFrom(one)
    right.CopyFrom(other)
    for (_, a), (_, b) in zip(tensors(left), tensors(right), strict=True):
        for x, y in zip(numbers_of(a), numbers_of(b), strict=True):
            if not np.allclose(x, y, rtol=0.02, atol=1e-4, equal_nan=True):
                return False
        for tensor in (a, b):
            if tensor.data_type in FILLED:
                tensor.ClearField("raw_data")
                tensor.ClearField("float_data")
                tensor.ClearField("int32_data")
                tensor.ClearField("metadata_props")
    return left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True)


def numbers_of(tensor: TensorProto) -> list[np.ndarray]:
    """Return the floating-point numbers of a tensor, from its data or its recipe."""
    recipe = fill_of(tensor)
    if recipe is not None:
        return [np.array(recipe.split()[1:], np.float64)]
    if tensor.data_type in FILLED:
        return [onnx.numpy_helper.to_array(tensor).astype(np.float64)]
    return []
