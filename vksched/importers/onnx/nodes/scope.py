"""Protocols of the lowering that a rule may use: its module is a level above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from onnx import GraphProto, NodeProto

from ....common.dtypes import NDArray
from ....ir.tensor import Tensor
from .cpu_node import CpuNode
from .values import Value


class ConstantBudget(Protocol):
    """Memory budget for values computed during lowering."""

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a result of this size may be computed."""


class ModelScope(Protocol):
    """State shared by all nodes of a model.

    Attributes
    ----------
    opsets
        The version of each domain that the model imports.
    budget
        Memory budget of lowering.
    """

    opsets: dict[str, int]

    @property
    def budget(self) -> ConstantBudget: ...

    def host_node(self, serialized: bytes) -> CpuNode:
        """Return the function that evaluates a node on the CPU."""

    def prefix(self, node: NodeProto) -> str:
        """Return the prefix of names derived from a node."""

    def graph_initializers(self, graph: GraphProto) -> dict[str, Value]:
        """Return the initializers of a subgraph as values, cached."""

    def fold(
        self,
        node: bytes,
        operands: Sequence[Value | None],
        make: Callable[[], list[Value | None] | None],
    ) -> list[Value | None] | None:
        """Return results computed from known operands, cached by node."""


class NodeScope(Protocol):
    """The walk over the nodes of a frame; `env` holds the values by name."""

    env: dict[str, Value]

    @property
    def context(self) -> ModelScope: ...

    def tensor(self, value: Value) -> Tensor:
        """Return a value as a Tensor in its storage type."""

    def demand(self, value: Value) -> NDArray:
        """Return the elements of a value; if they are not known yet, the segment ends here."""

    def splice(self, nodes: Iterable[NodeProto], env: Mapping[str, Value]) -> None:
        """Insert nodes in place of the current one, with values that they read."""
