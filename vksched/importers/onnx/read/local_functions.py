"""Inline local functions before lowering.

onnx's inliner is used, after calls got all attributes with a default and functions got the imports
of the model. Functions that it skips, because ops changed between the function's opset and the
model's, are evaluated as a whole on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto
from onnx.defs import SchemaError, get_schema
from onnx.helper import make_opsetid
from onnx.inliner import inline_local_functions

from ..nodes.functions import FunctionKey, canonical_domain, function_key
from ..nodes.names import subgraphs


def inline_functions(model: ModelProto) -> ModelProto:
    """Return a model with its functions inlined; functions that cannot be inlined remain.

    If a function has the name of an op of its domain, calls refer to the op, as in onnxruntime.
    """
    if not model.functions:
        return model
    out = ModelProto()
    out.CopyFrom(model)
    versions = _versions(out)
    remaining = [f for f in out.functions if _since(f.name, f.domain, versions) is None]
    functions = [FunctionProto.FromString(f.SerializeToString()) for f in remaining]
    del out.functions[:]
    by_key = {function_key(f): f for f in functions}
    for nodes in (out.graph.node, *(f.node for f in functions)):
        _give_defaults(nodes, by_key)
    for function in functions:
        for opset in function.opset_import:
            if canonical_domain(opset.domain) not in versions:
                out.opset_import.append(make_opsetid(opset.domain, opset.version))
                versions[canonical_domain(opset.domain)] = opset.version
    for function in functions:
        written = _versions(function)
        if all(_since(*op, written) == _since(*op, versions) for op in _ops(function.node)):
            for opset in function.opset_import:
                opset.version = versions[canonical_domain(opset.domain)]
    out.functions.extend(functions)
    try:
        return inline_local_functions(out, convert_version=True)
    except Exception:  # raised by onnx's converter for ops that it cannot convert
        return inline_local_functions(out)


def _versions(of: ModelProto | FunctionProto) -> dict[str, int]:
    return {canonical_domain(o.domain): o.version for o in of.opset_import}


def _since(op_type: str, domain: str, versions: Mapping[str, int]) -> int | None:
    """Return the opset that introduced the current version of an op, or None if there is no such
    op.
    """
    canonical = canonical_domain(domain)
    if canonical not in versions:
        return None
    try:
        return int(get_schema(op_type, versions[canonical], canonical).since_version)
    except SchemaError:
        return None


def _ops(nodes: Iterable[NodeProto]) -> set[tuple[str, str]]:
    out: set[tuple[str, str]] = set()
    for node in nodes:
        out.add((node.op_type, node.domain))
        for graph in subgraphs(node):
            out |= _ops(graph.node)
    return out


def _give_defaults(
    nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, FunctionProto]
) -> None:
    for node in nodes:
        for graph in subgraphs(node):
            _give_defaults(graph.node, functions)
        called = functions.get(function_key(node))
        if called is not None:
            present = {a.name for a in node.attribute}
            node.attribute.extend(
                AttributeProto.FromString(a.SerializeToString())
                for a in called.attribute_proto
                if a.name not in present
            )
