"""Local functions of a model: the number of nodes after inlining.

graph -> outer -> inner      nodes(graph) = 1 + nodes(outer), nodes(outer) = 1 + nodes(inner)
      -> inner               counted once for each function: linear in the file, not the result
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from ....common.errors import ModelFormatError
from .limits import MAX_DEPTH, MAX_NODES
from .topological_order import label, subgraphs

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function."""


def canonical_domain(domain: str) -> str:
    """Return the canonical name of a domain; the default domain has two names."""
    return "" if domain == "ai.onnx" else domain


def function_key(item: onnx.NodeProto | onnx.FunctionProto) -> FunctionKey:
    """Return the key that calls of a function refer to."""
    name = item.op_type if isinstance(item, onnx.NodeProto) else item.name
    return canonical_domain(item.domain), name, item.overload


def expanded_nodes(
    graph: onnx.GraphProto, functions: Mapping[FunctionKey, onnx.FunctionProto]
) -> int:
    """Return the number of nodes with all calls replaced by their function bodies.

    Raises
    ------
    ModelFormatError
        Functions call each other in a cycle, or there are too many nodes.
    """
    return _Expansion(functions).body(graph.node, "", 0)[0]


@dataclass
class _Expansion:
    """Count nodes with all calls replaced by their function bodies."""

    functions: Mapping[FunctionKey, onnx.FunctionProto]
    known: dict[FunctionKey, tuple[int, int]] = field(default_factory=dict)
    """Number of nodes and depth of each function."""
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
