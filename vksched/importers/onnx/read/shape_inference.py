"""Check with onnx's shape inference that the types and shapes of a whole model are consistent.

It uses the model's inputs and its small constants, but not the declared shapes of intermediate
values: exporters get these hints wrong, and they do not affect execution. Unknown nodes are
skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError
from ..nodes.elements import element_name
from ..nodes.functions import canonical_domain
from ..nodes.limits import MAX_INFERRED_BYTES, MAX_INFERRED_NODES
from ..nodes.schemas import CONTRIB_DOMAINS
from ..nodes.topological_order import label, subgraphs

MAX_SHOWN_BYTES = 4096
"""Larger constants are not shapes."""
_PASSED_OVER = "vksched.passed_over"
"""A domain without schemas."""
_ERROR = re.compile(r"\(op_type:[^,]*, node name: (.*?)\): (?:\[\w*Error\] )?(.*)")


def check_inference(
    model: onnx.ModelProto, arrays: Mapping[str, NDArray], expanded_nodes: int
) -> None:
    """Infer all shapes from those of the inputs, and discard them.

    Raises
    ------
    ModelFormatError
        Two types or shapes are contradictory; the message names the node.
    """
    if expanded_nodes > MAX_INFERRED_NODES or model.ByteSize() > MAX_INFERRED_BYTES:
        return
    if model.functions:
        return  # opsets differ from those of the model: onnx would reject them
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    graph = stripped.graph
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {s.values.name: s.values.data_type for s in graph.sparse_initializer}
    del graph.initializer[:], graph.sparse_initializer[:], graph.value_info[:]
    declared = {value.name for value in graph.input}
    for name, array in arrays.items():
        if array.nbytes <= MAX_SHOWN_BYTES and array.dtype != object:
            graph.initializer.append(numpy_helper.from_array(array, name))
        elif name not in declared:
            graph.input.append(helper.make_tensor_value_info(name, types[name], array.shape))
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for function in stripped.functions:
        _prepare(function, _versions(function.opset_import))
    _prepare(graph, _versions(stripped.opset_import))
    for opsets in (stripped.opset_import, *(f.opset_import for f in stripped.functions)):
        missing = {_PASSED_OVER, *CONTRIB_DOMAINS, *(f.domain for f in stripped.functions)}
        opsets.extend(
            helper.make_opsetid(domain, 1) for domain in missing - {o.domain for o in opsets}
        )
    # from IR version 4 on initializers need not be inputs
    stripped.ir_version = max(stripped.ir_version, 4)
    message = _failure(stripped)
    if message:
        found = _ERROR.search(message)
        where, what = (found[1], found[2]) if found else (_blamed(stripped), message)
        raise ModelFormatError(f"[onnx] {where}: {what}{_operands(stripped, where)}")


def _failure(model: onnx.ModelProto) -> str:
    """Return the error of shape inference for a model, or ""."""
    try:
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception as error:  # raised in several types, none of them documented
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _operands(model: onnx.ModelProto, name: str) -> str:
    """Return a description of the types that a node of the main graph reads, if they are known."""
    node = next((n for n in model.graph.node if n.name == name), None)
    if node is None:
        return ""
    try:
        graph = shape_inference.infer_shapes(model).graph
    except Exception:  # see above
        graph = model.graph
    types = {v.name: _type_text(v.type.tensor_type) for v in (*graph.input, *graph.value_info)}
    types |= {
        t.name: f"{element_name(t.data_type)}[{','.join(map(str, t.dims))}]"
        for t in graph.initializer
    }
    shown = ", ".join(f"{n} {types[n]}" for n in node.input if types.get(n))
    return f", of {shown}" if shown else ""


def _type_text(tensor: onnx.TypeProto.Tensor) -> str:
    if not tensor.elem_type or not tensor.HasField("shape"):
        return ""
    dims = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
    return f"{element_name(tensor.elem_type)}[{','.join(d or '?' for d in dims)}]"


def _blamed(model: onnx.ModelProto) -> str:
    """Return the first node without which shape inference succeeds, found by bisection."""
    nodes = list(model.graph.node)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.output[:]
    fails, passes = len(nodes) + 1, 0
    while fails - passes > 1:
        count = (fails + passes) // 2
        del part.graph.node[:]
        part.graph.node.extend(nodes[:count])
        if _failure(part):
            fails = count
        else:
            passes = count
    return nodes[fails - 1].name if fails <= len(nodes) else "outputs"


def _prepare(graph: onnx.GraphProto | onnx.FunctionProto, opsets: Mapping[str, int]) -> None:
    """Set the name of each node to its label for messages, and hide nodes that onnx would infer
    through a function body: these bodies fail at older opsets (MeanVarianceNormalization at 9 in
    onnx 1.23).
    """
    for node in graph.node:
        node.name = label(node)
        for _, inner in subgraphs(node):
            del inner.value_info[:]
            _prepare(inner, opsets)
        version = opsets.get(canonical_domain(node.domain))
        if version is not None and defs.has(node.op_type, version, node.domain):
            schema: Any = defs.get_schema(node.op_type, version, canonical_domain(node.domain))
            if schema.has_function and not schema.has_type_and_shape_inference_function:
                node.domain = _PASSED_OVER


def _versions(opsets: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {canonical_domain(o.domain): o.version for o in opsets}
