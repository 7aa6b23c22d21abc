"""Control flow: what the host does between the stages of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .errors import ModelFormatError
from .importers.host import describe
from .importers.lowering import HostStep, has_subgraphs
from .importers.values import HostValue

if TYPE_CHECKING:
    from .program import Program

Run = Callable[[Sequence[HostValue], Mapping[str, HostValue]], Sequence[HostValue]]


def make_step(program: Program, step: HostStep) -> Run:
    """Returns what a step computes, as a function of its operands and of what it captures."""
    node = step.node
    if has_subgraphs(node):
        raise ModelFormatError(f"[onnx] {describe(node)} cannot be run yet")
    evaluate = program.context.host_node(node.SerializeToString(deterministic=True))
    return lambda inputs, captured: evaluate(inputs)
