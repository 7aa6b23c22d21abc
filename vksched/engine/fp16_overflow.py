"""FP16 overflow: finds ops whose operands or results exceed the range of float16.

    results not finite -> one warning      VKSCHED_FIND_OVERFLOW=1 -> the first node, by numpy
    (unless the caller checks results)

The maximum of float16 is 65,504: a larger operand becomes infinite, and so does a larger result in
mode "float16". The check of results costs one pass over them, only in graphs with matmuls in a
float16 mode. The search computes every node again after each run. Examples:
tests/engine/test_overflow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..common.dtypes import NDArray
from ..common.env import is_on
from ..common.user_warning import warn_user
from ..ir.graph import Graph, Node
from ..ir.precision import SINGLE, allows_half, as_half, with_word
from ..ir.tensor import Tensor
from ..passes.fp16_rows import keep_rows_in_float32
from ..runtime.cpu.evaluate import evaluate_node

SWITCH = "VKSCHED_FIND_OVERFLOW"
MAX_FLOAT16 = 65504.0
"""The largest finite float16."""


@dataclass(frozen=True)
class Overflow:
    """An op that exceeds the range of float16. node: its name. op: its kind. what: the value that
    is too large.
    """

    node: str
    op: str
    what: str

    def __str__(self) -> str:
        remedy = f'try precision={{"{self.node}": "{SINGLE}"}}'
        return f"[precision] {self.node} ({self.op}) overflows float16: {self.what}; {remedy}"


class OverflowWatch:
    """Checks the runs of one graph. read: returns the value of a state."""

    def __init__(self, graph: Graph, read: Callable[[Tensor], NDArray]) -> None:
        self._graph = graph
        self._read = read
        self.rounds = any(allows_half(node.attrs) for node in graph.nodes)
        """True if the graph has ops that may be rounded to float16."""
        self.searches = self.rounds and is_on(SWITCH)
        """True if each run is searched for an overflow, which needs its inputs and states."""
        self._is_checked = False
        self._reported: set[str] = set()

    def disable_check(self) -> None:
        """Do not check results, because the caller does; a search is not affected."""
        self._is_checked = True
        self.rounds = self.searches

    def look(self, feeds: Mapping[int, NDArray], results: Sequence[NDArray]) -> None:
        """Warn of each overflow once. feeds: the inputs of a run by node."""
        if self.searches:
            found = find_overflow(self._graph, feeds, self._states())
            if found is not None:
                self._warn_once(str(found), found.node)
            elif not self._is_checked:
                self._warn_once(self._hint(results, "numpy finds no product that overflows"))
        else:
            self._warn_once(self._hint(results, f"try {SWITCH}=1, which finds the first product"))

    def _hint(self, results: Sequence[NDArray], more: str) -> str:
        """Return a warning of a result that is not finite; "" if all are finite."""
        for (name, _), array in zip(self._graph.outputs, results, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return (
                    f"[precision] {name} has values that are not finite, and its matmuls may "
                    f"be rounded to float16, whose maximum is {MAX_FLOAT16:.0f}; {more}"
                )
        return ""

    def _warn_once(self, text: str, about: str = "") -> None:
        """Warn once per topic, by default the text."""
        if text and (about or text) not in self._reported:
            self._reported.add(about or text)
            warn_user(text)

    def _states(self) -> dict[int, NDArray]:
        """Return the current values of states, or the initial values of sharded ones."""
        out: dict[int, NDArray] = {}
        for node_id, first in self._graph.initial.items():
            key = self._graph.keys[node_id]
            out[node_id] = self._read(key) if isinstance(key, Tensor) else first
        return out


def find_overflow(
    graph: Graph, feeds: Mapping[int, NDArray], states: Mapping[int, NDArray]
) -> Overflow | None:
    """Return the first op that exceeds the range of float16, computed by numpy; None if there is
    none.

    feeds, states: values by node.

    Raises
    ------
    VkschedError
        A node cannot be computed.
    """
    values: dict[int, NDArray] = {**graph.arrays(), **feeds, **states}
    graph = keep_rows_in_float32(graph)
    for node in graph.nodes:
        if node.op == "assign":
            values[node.id] = values[node.inputs[1]]
        if node.id in values:
            continue
        operands = tuple(values[i] for i in node.inputs)
        values[node.id] = evaluate_node(graph, node.id, operands)
        if allows_half(node.attrs):
            what = _overflow_of(graph, node, operands, values[node.id])
            if what:
                return Overflow(node.name, node.op, what)
    return None


def _overflow_of(graph: Graph, node: Node, operands: tuple[NDArray, ...], result: NDArray) -> str:
    """Return the value of a node that becomes infinite by rounding to float16; "" if there is
    none.
    """
    for i in node.declaration.roundable_operands:
        if i < len(operands) and operands[i].dtype.kind == "f":
            lost = np.isfinite(operands[i]) & ~np.isfinite(as_half(operands[i]))
            if lost.any():
                largest = np.abs(operands[i][lost]).max()
                name = graph.nodes[node.inputs[i]].name
                return f"its operand {name} holds {largest:g}, over {MAX_FLOAT16:.0f}"
    if np.isfinite(result).all():
        return ""
    exact = replace(node, attrs=with_word(node.attrs, SINGLE))
    nodes = (*graph.nodes[: node.id], exact, *graph.nodes[node.id + 1 :])
    whole = evaluate_node(replace(graph, nodes=nodes), node.id, operands)
    lost = np.isfinite(whole) & ~np.isfinite(result)
    return (
        f"its result is {np.abs(whole[lost]).max():g}, over {MAX_FLOAT16:.0f}" if lost.any() else ""
    )
