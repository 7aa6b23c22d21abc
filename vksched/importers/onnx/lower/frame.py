"""Frame: the values of one graph body while it is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from onnx import NodeProto

from ....common.dtypes import NDArray
from ....common.errors import VkschedError
from ....ir.tensor import Tensor
from ..nodes.names import slots_of
from ..nodes.values import Value


class NeedsValue(Exception):
    """A rule asks for elements that are not known yet."""

    def __init__(self, value: Value) -> None:
        super().__init__("a value is needed before it is computed")
        self.value = value


class NeedsInputs(VkschedError):
    """The elements of an input are needed, and only types were given."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What is to be done: nodes in order, what they may read, and the results wanted.

    env: known values, and slots whose types are not known yet.
    """

    nodes: tuple[NodeProto, ...]
    env: Mapping[str, Value]
    outputs: tuple[str, ...]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """What must be there before this can be lowered."""
        return tuple(dict.fromkeys(s for v in self.env.values() for s in slots_of(v)))


@dataclass(frozen=True, eq=False)
class CpuStep:
    """One node that the host evaluates between two stages.

    inputs: known values and slots, None where one is left out. captured: what its subgraphs read of
    the graph around it. reason: why it is not part of a stage.
    """

    node: NodeProto
    inputs: tuple[Value | None, ...]
    captured: Mapping[str, Value]
    reason: str


@dataclass(frozen=True, eq=False)
class Lowered:
    """One stage. outputs: what its graph computes, by slot. elem_types: of these. guards: slots and
    the elements for which it was made. step, then: what follows; None at the end. results: at the
    end the results wanted, each known or in a slot. known: names of values that are the same in
    every run, computed on the host while lowering or given in the file.
    """

    outputs: Mapping[str, Tensor]
    elem_types: Mapping[str, int]
    guards: Mapping[str, NDArray]
    step: CpuStep | None = None
    then: Frame | None = None
    results: tuple[Value, ...] = ()
    known: frozenset[str] = frozenset()
