"""Frame: the values of one graph body during lowering."""

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
    """A rule needs elements that are not computed yet."""

    def __init__(self, value: Value) -> None:
        super().__init__("a value is needed before it is computed")
        self.value = value


class NeedsInputs(VkschedError):
    """The elements of an input are needed, but only types are available."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Work that remains to be lowered: sorted nodes, their operands, and the requested results.

    Attributes
    ----------
    env
        Known values, and slots whose types are still unknown.
    """

    nodes: tuple[NodeProto, ...]
    env: Mapping[str, Value]
    outputs: tuple[str, ...]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Return the slots that must be filled before this frame can be lowered."""
        return tuple(dict.fromkeys(s for v in self.env.values() for s in slots_of(v)))


@dataclass(frozen=True, eq=False)
class CpuStep:
    """One node that the CPU evaluates between two segments.

    Attributes
    ----------
    inputs
        Known values and slots; None for an omitted input.
    captured
        Values of the enclosing graph that the node's subgraphs read.
    reason
        Why the node is not part of a segment.
    """

    node: NodeProto
    inputs: tuple[Value | None, ...]
    captured: Mapping[str, Value]
    reason: str


@dataclass(frozen=True, eq=False)
class LoweredSegment:
    """One segment.

    Attributes
    ----------
    outputs
        Tensors that the graph of the segment computes, by slot.
    elem_types
        ONNX element types of the outputs, by slot.
    guards
        Slots with the elements for which the segment was lowered.
    step, then
        The CPU step and the frame that follow; None at the end.
    results
        At the end, the requested results, each known or in a slot.
    known
        Names of values that are equal in every run: initializers and folded constants.
    """

    outputs: Mapping[str, Tensor]
    elem_types: Mapping[str, int]
    guards: Mapping[str, NDArray]
    step: CpuStep | None = None
    then: Frame | None = None
    results: tuple[Value, ...] = ()
    known: frozenset[str] = frozenset()
