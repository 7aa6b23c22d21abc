"""Bodies: ops that ONNX itself declares as functions of other ops, as the nodes of these functions.

    y = Gelu(x)  ->  y/half = Constant, y/scaled = Mul(x, ...), ..., y = Mul(...)

An op without a rule runs where those of its body run. Complexity: O(nodes of the body).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto

Names = Mapping[str, str]
Schema = Any
"""onnx.defs.OpSchema, whose stub lacks what is asked of it here."""


def body_of(
    node: NodeProto, schema: Schema, version: int, types: Sequence[TypeProto]
) -> tuple[list[NodeProto], dict[str, int]] | None:
    """Returns the nodes that a node stands for, with names of their own, and the opsets they are
    of; None where ONNX gives no body for this call.

    version: the opset of the node's domain. types: of the inputs, one without a value where an
    input is left out.
    """
    function = _function(node, schema, version, types)
    if function is None:
        return None
    prefix = next(o for o in node.output if o) + "/"
    names = dict(zip(function.input, node.input, strict=False))
    names.update(dict.fromkeys(function.input[len(node.input) :], ""))
    names.update({f: o for f, o in zip(function.output, node.output, strict=False) if o})
    given = {a.name: a for a in node.attribute}
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    attributes = {**defaults, **{a.name: a for a in function.attribute_proto}, **given}
    nodes = [_renamed(inner, names, prefix, attributes) for inner in function.node]
    return nodes, {o.domain: o.version for o in function.opset_import}


def _function(
    node: NodeProto, schema: Schema, version: int, types: Sequence[TypeProto]
) -> FunctionProto | None:
    if schema.has_function:
        fitting = [v for v in schema.function_opset_versions if v <= version]
        if fitting:
            return _parsed(schema.get_function_with_opset_version(max(fitting)))
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        fitting = [v for v in versions if v <= version]
        if fitting:
            complete = _with_defaults(node, schema)
            made = schema.get_context_dependent_function_with_opset_version(
                max(fitting), complete.SerializeToString(), [t.SerializeToString() for t in types]
            )
            return _parsed(made) if made else None
    return None


def _parsed(data: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _with_defaults(node: NodeProto, schema: Schema) -> NodeProto:
    given = {a.name for a in node.attribute}
    complete = NodeProto()
    complete.CopyFrom(node)
    for name, declared in schema.attributes.items():
        if name not in given and declared.default_value.name:
            complete.attribute.append(declared.default_value)
    return complete


def _renamed(
    node: NodeProto, names: Names, prefix: str, attributes: Mapping[str, AttributeProto]
) -> NodeProto:
    """Returns a node of a body with the names and the attributes of the call."""
    out = NodeProto()
    out.CopyFrom(node)
    out.name = prefix + (node.name or next((o for o in node.output if o), ""))
    out.ClearField("input")
    out.ClearField("output")
    out.ClearField("attribute")
    out.input.extend(_name(n, names, prefix) for n in node.input)
    out.output.extend(_name(n, names, prefix) for n in node.output)
    for attribute in node.attribute:
        made = _bound(attribute, attributes)
        if made is None:
            continue
        if made.type == AttributeProto.GRAPH and not attribute.ref_attr_name:
            made.g.CopyFrom(_renamed_graph(made.g, names, prefix, attributes))
        out.attribute.append(made)
    return out


def _bound(
    attribute: AttributeProto, attributes: Mapping[str, AttributeProto]
) -> AttributeProto | None:
    """Returns an attribute with the value of the call; None where the call gives none."""
    source = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
    if source is None:
        return None
    out = AttributeProto()
    out.CopyFrom(source)
    out.name = attribute.name
    return out


def _renamed_graph(
    graph: GraphProto, names: Names, prefix: str, attributes: Mapping[str, AttributeProto]
) -> GraphProto:
    """Returns a subgraph of a body; what it reads of the body has the names of the call."""
    out = GraphProto()
    out.CopyFrom(graph)
    for info in (*out.input, *out.output, *out.initializer, *out.value_info):
        info.name = _name(info.name, names, prefix)
    out.ClearField("node")
    out.node.extend(_renamed(inner, names, prefix, attributes) for inner in graph.node)
    return out


def _name(name: str, names: Names, prefix: str) -> str:
    return names.get(name, prefix + name if name else "")


def has_body(schema: Schema) -> bool:
    """Returns whether ONNX may declare an op as a function."""
    return bool(schema and (schema.has_function or schema.has_context_dependent_function))
