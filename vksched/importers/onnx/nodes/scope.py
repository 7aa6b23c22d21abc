"""What a rule may ask of the lowering around its node, which stands above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from onnx import GraphProto, NodeProto

from ....common.dtypes import NDArray
from ....ir.tensor import Tensor
from .cpu_node import CpuNode
from .values import Value


class Room(Protocol):
    """What all values take that are made while a model is lowered."""

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a result of so many bytes may be made."""


class ModelScope(Protocol):
    """What all nodes of a model share.

    opsets: the version of each domain that the model imports. budget: for what lowering makes.
    """

    opsets: dict[str, int]

    @property
    def budget(self) -> Room: ...

    def host_node(self, serialized: bytes) -> CpuNode:
        """Returns what evaluates a node on the host."""

    def prefix(self, node: NodeProto) -> str:
        """Return the beginning of the names of what is made of a node."""

    def graph_initializers(self, graph: GraphProto) -> dict[str, Value]:
        """Return the initializers of a subgraph as values, the same ones every time."""

    def fold(
        self,
        node: bytes,
        operands: Sequence[Value | None],
        make: Callable[[], list[Value | None] | None],
    ) -> list[Value | None] | None:
        """Returns what a node makes of known operands, computed once."""


class NodeScope(Protocol):
    """The walk over the nodes around one. env: the values by name."""

    env: dict[str, Value]

    @property
    def context(self) -> ModelScope: ...

    def tensor(self, value: Value) -> Tensor:
        """Return a value as a Tensor in its storage."""

    def demand(self, value: Value) -> NDArray:
        """Return the elements of a value; where they are not known yet, the model is cut here."""

    def splice(self, nodes: Iterable[NodeProto], env: Mapping[str, Value]) -> None:
        """Put nodes in the place of one, with values that they read."""
