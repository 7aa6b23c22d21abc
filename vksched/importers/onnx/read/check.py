"""Check the structure of a model: names, ops, attributes, subgraphs and functions.

The checks include those that the onnx package's checker leaves to the executor, and every message
names the node. Names are resolved as in the format: a subgraph sees the names of the enclosing
graphs, a function only its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, defs

from ....common.errors import ModelFormatError
from ..nodes.contrib_cpu import has_host_op
from ..nodes.functions import FunctionKey, canonical_domain, expanded_nodes, function_key
from ..nodes.limits import MAX_DEPTH
from ..nodes.message_tensors import is_external, messages_in, tensors_in
from ..nodes.schemas import find_schema, is_contrib
from ..nodes.topological_order import label, order, subgraphs
from ..rules import find_rule
from .tensors import TensorReader, check_element_type, checked_shape, text

DEPRECATED_LATER = frozenset(("GroupNormalization",))
"""Ops with a version that was deprecated while files already used it: its rule applies."""
_TRY = (
    "try a function of the model itself that stands for the op, or an op of ai.onnx, ai.onnx.ml or "
    "com.microsoft"
)

_FIELD_OF = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}
_LISTS = (
    AttributeProto.FLOATS,
    AttributeProto.INTS,
    AttributeProto.STRINGS,
    AttributeProto.TENSORS,
    AttributeProto.GRAPHS,
    AttributeProto.SPARSE_TENSORS,
    AttributeProto.TYPE_PROTOS,
)


@dataclass
class _Scope:
    """Names that are visible at a place, including those of enclosing graphs."""

    outer: _Scope | None
    names: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return True
            scope = scope.outer
        return False


def check_model(model: onnx.ModelProto, reader: TensorReader) -> int:
    """Check a model and return its number of nodes with all functions inlined.

    The check sorts nodes, replaces "ai.onnx" with "" as the default domain, and adds the opsets of
    the model to functions. It does not look at the data of the main graph's initializers.

    Raises
    ------
    ModelFormatError
        The model is invalid; the message names the node, initializer, input or output.
    """
    if not 0 < model.ir_version <= onnx.IR_VERSION:
        raise ModelFormatError(
            f"[onnx] expected an IR version of 1 to {onnx.IR_VERSION}, got {model.ir_version}; "
            "the file is no ONNX model, or newer than the installed onnx package"
        )
    if not model.HasField("graph"):
        raise ModelFormatError("[onnx] expected a graph in the model, got none")
    functions: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        where = f"function {function.name!r}"
        for value in (function.name, function.domain, function.overload):
            text(value, where)
        function.domain = canonical_domain(function.domain)
        if functions.setdefault(function_key(function), function) is not function:
            raise ModelFormatError(f"[onnx] {where}: expected one of this name, got two")
    if model.ir_version < 3 and not model.opset_import:
        model.opset_import.add(domain="", version=1)
    opsets = _opsets(model.opset_import, "model")
    checker = _Checker(reader, functions, opsets, "")
    checker.graph(model.graph, _Scope(None), 0, "", main=True)
    for function in model.functions:
        where = f"function {function.name!r}"
        inner = _opsets(function.opset_import, where) or opsets
        _Checker(reader, functions, inner, f"{where}, ", function).function(function)
    _embed_hidden(model, reader)
    return expanded_nodes(model.graph, functions)


def _embed_hidden(model: onnx.ModelProto, reader: TensorReader) -> None:
    """Embed external data in fields that the checks do not reach: defaults of functions, training
    graphs.

    Later readers of the model then never open a file that it names. The initializers of the main
    graph are left to `TensorReader.array`.
    """
    parts: list[Message] = []
    for message, left in (
        (model, ("graph",)),
        (model.graph, ("initializer", "sparse_initializer")),
    ):
        parts += messages_in(message, without=left)
    for part in parts:
        for tensor in tensors_in(part):
            if is_external(tensor):
                reader.embed(tensor, f"tensor {tensor.name!r}")


@dataclass
class _Checker:
    """Check nodes with common opsets: those of the main graph or of a function."""

    reader: TensorReader
    functions: Mapping[FunctionKey, onnx.FunctionProto]
    opsets: Mapping[str, int]
    prefix: str
    inside: onnx.FunctionProto | None = None

    def graph(
        self, graph: onnx.GraphProto, outer: _Scope, depth: int, prefix: str, main: bool = False
    ) -> None:
        """Check a graph and its nodes."""
        if depth > MAX_DEPTH:
            raise ModelFormatError(
                f"[onnx] {prefix}expected at most {MAX_DEPTH} graphs inside each other, got more"
            )
        scope = _Scope(outer if not main else None)
        self._names(scope.names, (i.name for i in graph.input), f"{prefix}input")
        for value in graph.input:
            check_type(value, f"{prefix}input {value.name!r}", required=main)
        for value in graph.output:
            check_type(value, f"{prefix}output {value.name!r}", required=False)
        for value in graph.value_info:
            check_type(value, f"{prefix}value {value.name!r}", required=False)
        constants: set[str] = set()
        self._names(constants, (t.name for t in graph.initializer), f"{prefix}initializer")
        sparse = (s.values.name for s in graph.sparse_initializer)
        self._names(constants, sparse, f"{prefix}initializer")
        scope.names |= constants
        if not main:
            for tensor in graph.initializer:
                self.reader.embed(tensor, f"{prefix}initializer {tensor.name!r}")
            for item in graph.sparse_initializer:
                self.reader.dense(item, f"{prefix}initializer {item.values.name!r}")
        self.nodes(graph, scope, depth, prefix)
        for value in graph.output:
            if value.name not in scope:
                raise ModelFormatError(
                    f"[onnx] {prefix}output {value.name!r}: expected the name of a value, got one "
                    "that no node produces"
                )
        if main:
            self._names(set(), (o.name for o in graph.output), "output")

    def function(self, function: onnx.FunctionProto) -> None:
        """Check the body of a function."""
        scope = _Scope(None)
        self._names(scope.names, function.input, f"{self.prefix}input")
        self.nodes(function, scope, 0, self.prefix)
        for name in function.output:
            if name not in scope:
                raise ModelFormatError(
                    f"[onnx] {self.prefix}output {name!r}: expected the name of a value, got one "
                    "that no node produces"
                )

    def nodes(
        self, graph: onnx.GraphProto | onnx.FunctionProto, scope: _Scope, depth: int, prefix: str
    ) -> None:
        """Check nodes in topological order, and sort them."""
        producers: dict[str, int] = {}
        for at, node in enumerate(graph.node):
            self._texts(node, prefix)
            node.domain = canonical_domain(node.domain)
            for name in node.output:
                if name and (name in producers or name in scope.names):
                    raise ModelFormatError(
                        f"[onnx] {prefix}{label(node)}: expected a result with a name of its own, "
                        f"got {name!r}, which is taken"
                    )
                if name:
                    producers[name] = at
        positions = order(graph.node, producers, prefix)
        if positions is not None:
            ordered = [graph.node[at] for at in positions]
            copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in ordered]
            del graph.node[:]
            graph.node.extend(copies)
        for node in graph.node:
            where = f"{prefix}{label(node)}"
            for name in node.input:
                if name and name not in scope:
                    raise ModelFormatError(
                        f"[onnx] {where}: expected inputs that exist, got {name!r}, which no "
                        "node, input or initializer defines"
                    )
            self._op(node, where)
            for attribute in node.attribute:
                self._attribute(attribute, where)
            for name, inner in subgraphs(node):
                self.graph(inner, scope, depth + 1, f"{where}, {name}: ")
            scope.names.update(o for o in node.output if o)

    def _texts(self, node: onnx.NodeProto, prefix: str) -> None:
        where = f"{prefix}node {node.name!r}"
        for value in (node.op_type, node.domain, node.name, node.overload):
            text(value, where)
        for value in (*node.input, *node.output):
            text(value, where)
        for attribute in node.attribute:
            text(attribute.name, where)
            for _, graph in subgraphs(node):
                for info in (*graph.input, *graph.output, *graph.initializer):
                    text(info.name, where)

    def _names(self, taken: set[str], names: Iterable[str], what: str) -> None:
        for name in names:
            if not text(name, what):
                raise ModelFormatError(f"[onnx] {what}: expected a name, got none")
            if name in taken:
                raise ModelFormatError(f"[onnx] {what} {name!r}: expected one, got two")
            taken.add(name)

    def _op(self, node: onnx.NodeProto, where: str) -> None:
        domain = node.domain
        function = self.functions.get(function_key(node))
        if function is not None:
            if len(node.input) > len(function.input) or len(node.output) > len(function.output):
                raise ModelFormatError(
                    f"[onnx] {where}: expected at most {len(function.input)} inputs and "
                    f"{len(function.output)} outputs of the function, got {len(node.input)} and "
                    f"{len(node.output)}"
                )
            return
        version = self.opsets.get(domain)
        schema: Any = None if version is None else find_schema(node.op_type, version, domain)
        if is_contrib(node.op_type, domain, schema):
            known = find_rule(domain, node.op_type) or has_host_op(node.op_type, domain)
            if not known:
                raise ModelFormatError(
                    f"[onnx] {where}: expected an op of domain {domain!r} that vksched knows, got "
                    f"{node.op_type!r}"
                )
            return
        if version is None:
            raise ModelFormatError(
                f"[onnx] {where}: expected an op of an imported domain "
                f"({', '.join(repr(d) for d in self.opsets) or 'none'}), got {domain!r}; {_TRY}"
            )
        if schema is None or (schema.deprecated and node.op_type not in DEPRECATED_LATER):
            raise ModelFormatError(
                f"[onnx] {where}: expected an op of domain {domain or 'ai.onnx'!r} at opset "
                f"{version}, got {node.op_type!r}, which is "
                + ("not among them" if schema is None else "no longer among them")
                + (f"; {_TRY}" if domain not in _schema_domains() else "")
            )
        _check_call(node, schema, where)

    def _attribute(self, attribute: onnx.AttributeProto, where: str) -> None:
        where = f"{where}, attribute {attribute.name!r}"
        if attribute.ref_attr_name:
            known = self.inside is not None and attribute.ref_attr_name in (
                *self.inside.attribute,
                *(a.name for a in self.inside.attribute_proto),
            )
            if not known:
                raise ModelFormatError(
                    f"[onnx] {where}: expected a reference to an attribute of the function, got "
                    f"{attribute.ref_attr_name!r}"
                )
            return
        name = _FIELD_OF.get(attribute.type)
        if name is None and attribute.type not in _LISTS:
            raise ModelFormatError(f"[onnx] {where}: expected a type, got {attribute.type}")
        if name is not None and not attribute.HasField(name):
            raise ModelFormatError(f"[onnx] {where}: expected a value, got none of its type")
        if attribute.HasField("t"):
            self.reader.embed(attribute.t, where)
        for tensor in attribute.tensors:
            self.reader.embed(tensor, where)
        if attribute.HasField("sparse_tensor"):
            self.reader.dense(attribute.sparse_tensor, where)
        for sparse in attribute.sparse_tensors:
            self.reader.dense(sparse, where)


@lru_cache(maxsize=1)
def _schema_domains() -> frozenset[str]:
    """Return the domains that have schemas in the onnx package."""
    return frozenset(schema.domain for schema in defs.get_all_schemas())


def check_type(value: onnx.ValueInfoProto, where: str, required: bool) -> None:
    """Check the declared type of an input, output or value.

    Negative dimensions become unknown, as in onnxruntime; 0 is a size.

    Raises
    ------
    ModelFormatError
        The type is missing or unknown, or has invalid dimensions.
    """
    text(value.name, where)
    _check_type_proto(value.type, where, required)


def _check_type_proto(
    kind: onnx.TypeProto, where: str, required: bool, inside: bool = False
) -> None:
    which = kind.WhichOneof("value")
    if which is None and (required or inside):
        raise ModelFormatError(f"[onnx] {where}: expected a type, got none")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        if required or tensor.elem_type:
            check_element_type(tensor.elem_type, where)
        for dim in tensor.shape.dim:
            text(dim.dim_param, where)
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
        checked_shape([d.dim_value for d in tensor.shape.dim], where)
    elif which == "map_type":
        _check_type_proto(kind.map_type.value_type, where, required, inside=True)
    elif which in ("sequence_type", "optional_type"):
        _check_type_proto(getattr(kind, which).elem_type, where, required, inside=True)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for item in imports:
        domain = item.domain = canonical_domain(text(item.domain, where))
        newest = defs.onnx_opset_version() if not domain else 1 << 31
        if not 0 < item.version <= newest:
            raise ModelFormatError(
                f"[onnx] {where}: expected an opset of 1 to {newest} for domain "
                f"{domain or 'ai.onnx'!r}, got {item.version}; try a newer onnx package, or "
                "onnx.version_converter"
            )
        if opsets.setdefault(domain, item.version) != item.version:
            raise ModelFormatError(
                f"[onnx] {where}: expected one opset for domain {domain or 'ai.onnx'!r}, got "
                f"{opsets[domain]} and {item.version}"
            )
    return opsets


def _check_call(node: onnx.NodeProto, schema: Any, where: str) -> None:
    """Check the inputs, outputs and attributes of a node against the op's schema."""
    for what, count, min_count, max_count in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not min_count <= count <= max_count:
            span = str(min_count) if min_count == max_count else f"{min_count} to {max_count}"
            if max_count >= 1 << 31 - 1:
                span = f"at least {min_count}"
            raise ModelFormatError(f"[onnx] {where}: expected {span} {what}, got {count}")
    single = defs.OpSchema.FormalParameterOption.Single
    for name, formal in zip(node.input, schema.inputs, strict=False):
        if not name and formal.option == single:
            raise ModelFormatError(f"[onnx] {where}: expected an input {formal.name}, got none")
    present: set[str] = set()
    known = schema.attributes
    for attribute in node.attribute:
        if attribute.name in present or attribute.name not in known:
            raise ModelFormatError(
                f"[onnx] {where}: expected attributes of {', '.join(known) or 'none'}, each at "
                f"most once, got {attribute.name!r}"
                + (" again" if attribute.name in present else "")
            )
        present.add(attribute.name)
        if attribute.type != known[attribute.name].type.value:
            raise ModelFormatError(
                f"[onnx] {where}, attribute {attribute.name!r}: expected "
                f"{known[attribute.name].type.name}, got type {attribute.type}"
            )
    for name, wanted in known.items():
        if wanted.required and name not in present:
            raise ModelFormatError(f"[onnx] {where}: expected an attribute {name!r}, got none")
