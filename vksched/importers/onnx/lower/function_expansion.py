"""Function expansion: replace ops that no rule expresses with their ONNX function bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto
from onnx.defs import OpSchema

from ..nodes.elements import NARROW_FLOATS
from ..nodes.inline_subgraph import copy_body, hand_over, node_count
from ..nodes.names import has_subgraphs, subgraphs
from ..nodes.values import Value
from ..rules import find_rule
from .model_context import ModelContext, type_proto

MAX_NODES = 512
"""Maximum number of nodes of an expanded function."""


def expand(
    context: ModelContext, node: NodeProto, inputs: Sequence[Value | None], schema: OpSchema | None
) -> list[NodeProto] | None:
    """Return the nodes of the function that defines an op in ONNX.

    Return None if there is no function, if it is not valid at the opsets of the model, or if it
    would leave more work to the CPU than the node itself.
    """
    if any(v is not None and v.elem_type in NARROW_FLOATS for v in inputs):
        return None  # each rounding is visible in few digits: the evaluator is the reference
    function = _function(context, node, inputs, schema)
    if function is None or schema is None or node_count(function.node) > MAX_NODES:
        return None
    if not _holds(context, function, function.node):
        return None
    if not has_subgraphs(node) and not _is_expressed(context, function.node):
        return None
    attributes_of_node = {a.name: a for a in node.attribute}
    defaults = {
        name: a.default_value
        for name, a in schema.attributes.items()
        if a.default_value.type != AttributeProto.UNDEFINED
    }
    body = [_bound(inner, {**defaults, **attributes_of_node}) for inner in function.node]
    names = [*node.input, *[""] * len(function.input)]
    arguments = dict(zip(function.input, names, strict=False))
    copy = copy_body(body, list(function.output), context.prefix(node), arguments)
    return [*copy.nodes, *hand_over(copy.outputs, node.output)]


def _function(
    context: ModelContext, node: NodeProto, inputs: Sequence[Value | None], schema: OpSchema | None
) -> FunctionProto | None:
    """Return the body of the newest version that the model's opset can refer to."""
    if schema is None:
        return None
    opset = context.version(node.domain)
    for versions, needs_types in (
        (schema.function_opset_versions, False),  # type: ignore[attr-defined]
        (schema.context_dependent_function_opset_versions, True),  # type: ignore[attr-defined]
    ):
        # a body of a later opset is valid, too, if its ops have not changed since
        for version in sorted(versions, key=lambda v: (v > opset, abs(v - opset))):
            try:
                if needs_types:
                    types = [TypeProto() if v is None else type_proto(v) for v in inputs]
                    found = schema.get_context_dependent_function_with_opset_version(  # type: ignore[attr-defined]
                        version, node.SerializeToString(), [t.SerializeToString() for t in types]
                    )
                else:
                    found = schema.get_function_with_opset_version(version)  # type: ignore[attr-defined]
                function = FunctionProto()
                function.ParseFromString(found)
            except Exception:  # raised by the C++ library if it cannot build a body
                continue
            if function.node:
                return function
    return None


def _holds(context: ModelContext, function: FunctionProto, nodes: Iterable[NodeProto]) -> bool:
    """Return True if the ops of a body have, at the model's opsets, the versions it was written
    for.
    """
    versions = {o.domain: o.version for o in function.opset_import}
    for node in nodes:
        meant = context.schema(node)
        # a function takes opsets that it does not import from the model
        written = context.schema(node, versions.get(node.domain))
        if meant is None or written is None or not _is_form_of(written, meant):
            return False
        if not all(_holds(context, function, graph.node) for graph in subgraphs(node)):
            return False
    return True


def _is_form_of(old: OpSchema, new: OpSchema) -> bool:
    """Return True if calls of one op version mean the same in another one.

    The versions may differ in types only, or in inputs and attributes that the calls omit.
    """
    if old.since_version == new.since_version:
        return True
    more = new.inputs[len(old.inputs) :]
    return (
        [i.name for i in old.inputs] == [i.name for i in new.inputs[: len(old.inputs)]]
        and all(i.option != OpSchema.FormalParameterOption.Single for i in more)
        and len(old.outputs) == len(new.outputs)
        and all(
            name in new.attributes and new.attributes[name].default_value == a.default_value
            for name, a in old.attributes.items()
        )
    )


def _is_expressed(context: ModelContext, nodes: Iterable[NodeProto]) -> bool:
    """Return True if each op has a rule or a function."""
    for node in nodes:
        schema = context.schema(node)
        known = node.op_type == "Constant" or find_rule(node.domain, node.op_type) is not None
        if not known and (schema is None or not _has_function(schema)):
            return False
        if not all(_is_expressed(context, graph.node) for graph in subgraphs(node)):
            return False
    return True


def _has_function(schema: OpSchema) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _bound(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a node of a function body with the attributes of the call."""
    out = NodeProto()
    out.CopyFrom(node)
    _bind(out, attributes)
    return out


def _bind(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    bound: list[AttributeProto] = []
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
            for inner in graph.node:
                _bind(inner, attributes)
        if not attribute.ref_attr_name:
            bound.append(attribute)
        elif attribute.ref_attr_name in attributes:
            value = AttributeProto()
            value.CopyFrom(attributes[attribute.ref_attr_name])
            value.name = attribute.name
            bound.append(value)
    copies = [AttributeProto.FromString(a.SerializeToString()) for a in bound]
    del node.attribute[:]
    node.attribute.extend(copies)
