"""Functions of a model: how often they would be expanded, and for which opsets they are written.

graph -> outer -> inner      nodes(graph) = 1 + nodes(outer), nodes(outer) = 1 + nodes(inner)
      -> inner               counted once for each function: linear in the file, not the result
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import defs

from ..errors import ModelFormatError
from .limits import MAX_DEPTH, MAX_NODES
from .order import label, subgraphs

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""


def canonical_domain(domain: str) -> str:
    """Returns a domain by its one name; the default one has two."""
    return "" if domain == "ai.onnx" else domain


def function_key(item: onnx.NodeProto | onnx.FunctionProto) -> FunctionKey:
    """Returns what a function is called by."""
    name = item.op_type if isinstance(item, onnx.NodeProto) else item.name
    return canonical_domain(item.domain), name, item.overload


def expanded_nodes(
    graph: onnx.GraphProto, functions: Mapping[FunctionKey, onnx.FunctionProto]
) -> int:
    """Returns the number of nodes as if each call were replaced by the function's body.

    Raises:
        ModelFormatError: functions that call each other in a circle, or too many nodes.
    """
    return _Expansion(functions).body(graph.node, "", 0)[0]


def align_opsets(model: onnx.ModelProto, opsets: Mapping[str, int]) -> None:
    """Gives functions the opsets of the model where their ops are the same in both, so that bodies
    can take the place of calls. The model gets the domains that only functions import.

    Raises:
        ModelFormatError: an op of a function is another one in the model's opset.
    """
    opsets = dict(opsets)
    for function in model.functions:
        own = {o.domain: o.version for o in function.opset_import}
        for domain in sorted(own.keys() - opsets.keys()):
            opsets[domain] = own[domain]
            model.opset_import.add(domain=domain, version=own[domain])
        changed = {d: v for d, v in own.items() if v != opsets[d]}
        for node in _all_nodes(function.node) if changed else ():
            version = changed.get(node.domain)
            if version is None or not defs.has(node.op_type, version, node.domain):
                continue
            wanted = opsets[node.domain]
            if _since(node, version) != _since(node, wanted):
                raise ModelFormatError(
                    f"[onnx] function {function.name!r}, {label(node)}: expected an op that is the "
                    f"same in opset {version} of the function and {wanted} of the model, got one "
                    "that changed between; try onnx.version_converter"
                )
        for item in function.opset_import:
            item.version = opsets[item.domain]


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for _, graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _since(node: onnx.NodeProto, version: int) -> int:
    """Returns the opset that brought a node's op as it is at an opset, 0 where there is none."""
    if not defs.has(node.op_type, version, node.domain):
        return 0
    return int(defs.get_schema(node.op_type, version, node.domain).since_version)


@dataclass
class _Expansion:
    """Counts nodes as if each call were replaced by the function's body."""

    functions: Mapping[FunctionKey, onnx.FunctionProto]
    known: dict[FunctionKey, tuple[int, int]] = field(default_factory=dict)
    """Nodes and depth of each function."""
    open: list[FunctionKey] = field(default_factory=list)

    def body(self, nodes: Iterable[onnx.NodeProto], prefix: str, depth: int) -> tuple[int, int]:
        count = deepest = 0
        for node in nodes:
            where = f"{prefix}{label(node)}"
            count += 1
            inner = 0
            key = function_key(node)
            if key in self.functions:
                more, inner = self._function(key, where)
                count += more
                inner += 1
            for _, graph in subgraphs(node):
                more, levels = self.body(graph.node, prefix, depth + 1)
                count += more
                inner = max(inner, levels + 1)
            deepest = max(deepest, inner)
            if count > MAX_NODES or deepest > MAX_DEPTH:
                raise ModelFormatError(
                    f"[onnx] {where}: expected at most {MAX_NODES} nodes and {MAX_DEPTH} levels "
                    "with all functions expanded, got more"
                )
        return count, deepest

    def _function(self, key: FunctionKey, where: str) -> tuple[int, int]:
        if key in self.open:
            names = " -> ".join(repr(k[1]) for k in [*self.open[self.open.index(key) :], key])
            raise ModelFormatError(
                f"[onnx] {where}: expected functions that do not call themselves, got {names}"
            )
        if key not in self.known:
            if len(self.open) > MAX_DEPTH:
                raise ModelFormatError(
                    f"[onnx] {where}: expected at most {MAX_DEPTH} functions that call one "
                    "another, got more"
                )
            self.open.append(key)
            name = f"function {key[1]!r}, "
            self.known[key] = self.body(self.functions[key].node, name, 0)
            self.open.pop()
        return self.known[key]
