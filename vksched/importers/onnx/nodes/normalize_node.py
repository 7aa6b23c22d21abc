"""Normalize nodes for the reference evaluator: make defaults explicit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, SparseTensorProto
from onnx.helper import make_attribute, make_node
from onnx.numpy_helper import from_array, to_array

from ....common.dtypes import NDArray

_LEFT_OUT: dict[str, dict[int, NDArray]] = {
    "NonMaxSuppression": {2: np.array([0]), 3: np.array([0], np.float32)}
}
"""Optional inputs that the evaluator requires, by position, with their defaults."""


def as_was_meant(node: NodeProto, opsets: Mapping[str, int]) -> NodeProto:
    """Return a node with explicit values for attributes whose meaning changed in a later op
    version, and with a dense constant in place of a sparse one.
    """
    attributes = {a.name: a for a in node.attribute}
    if node.op_type == "Constant" and "sparse_value" in attributes and not node.domain:
        dense = _dense(attributes["sparse_value"].sparse_tensor)
        return make_node("Constant", [], node.output, node.name, value=from_array(dense))
    if node.domain in ("", "ai.onnx") and node.op_type == "RoiAlign" and opsets.get("", 16) < 16:
        node = NodeProto.FromString(node.SerializeToString())
        mode = make_attribute("coordinate_transformation_mode", "output_half_pixel")
        node.attribute.append(mode)
    return node


def _dense(sparse: SparseTensorProto) -> NDArray:
    """Return a sparse tensor as a dense array; its indices were checked before."""
    values, places = to_array(sparse.values), to_array(sparse.indices)
    shape = tuple(sparse.dims)
    out = np.zeros(shape, values.dtype)
    if places.ndim == 2:
        places = np.ravel_multi_index(tuple(places.T), shape)
    out.reshape(-1)[places] = values
    return out


def with_defaults(node: NodeProto) -> tuple[NodeProto, dict[str, NDArray]]:
    """Return a node with names for omitted inputs that the evaluator requires, and their default
    values.
    """
    defaults: dict[str, NDArray] = {}
    inputs = list(node.input)
    for at, value in _LEFT_OUT.get(node.op_type if not node.domain else "", {}).items():
        inputs.extend([""] * (at + 1 - len(inputs)))
        if not inputs[at]:
            inputs[at] = f"default {at} of {node.output[0]}"
            defaults[inputs[at]] = value
    if defaults:
        node = NodeProto.FromString(node.SerializeToString())
        node.input[:] = inputs
    return node, defaults
