"""Evaluation of splits with the numpy references of ops, for simulated devices, and the values of a
run. The CPU device runs splits with split_program.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...common.dtypes import NDArray, numpy_dtype
from ...common.errors import PlanError, VkschedError
from ...ir.evaluate import compute
from ...ir.graph import Graph, Node
from ...plan.types.plan_types import PlanValue, Split
from ...storage.lazy_array import as_array, buffer_of
from ..state_store import CpuStateAccess


def named(error: VkschedError, node: Node) -> VkschedError:
    """Return a copy of an error that names the node."""
    named = type(error)(f"{error} (in {node.name})")
    named.__dict__.update(error.__dict__)  # copy its attributes
    return named


def evaluate_node(graph: Graph, node_id: int, operands: tuple[NDArray, ...]) -> NDArray:
    """Return the reference result of one node, in the node's type."""
    with np.errstate(all="ignore"):
        return evaluate_reference(graph, node_id, operands)


def evaluate_reference(graph: Graph, node_id: int, operands: tuple[NDArray, ...]) -> NDArray:
    """Return the reference result of one node; the caller silences numpy's warnings."""
    node = graph.nodes[node_id]
    try:
        result = compute(node.declaration, operands, node.attrs)
    except VkschedError as error:
        raise named(error, node) from None
    array = np.asarray(result, dtype=numpy_dtype(node.type.dtype))
    if array.shape != node.type.shape:
        raise PlanError(f"[{node.op}] {node.name}: reference gave {array.shape}, rule {node.type}")
    return array


class CpuWeights:
    """Weights and constants of a graph as arrays, cached at first use."""

    def __init__(self, graph: Graph) -> None:
        self._data = graph.data
        self._placed: dict[int, NDArray] = {}
        self._filled: dict[int, NDArray] = {}

    def __getitem__(self, node_id: int) -> NDArray:
        if node_id not in self._filled:
            self.make(node_id)
        return self._filled[node_id]

    def place(self, node_id: int) -> NDArray:
        """Return the array of a weight, which `make` fills later."""
        if node_id not in self._placed:
            found = buffer_of(self._data[node_id])
            # weights in a file may be unaligned, and numpy's matmul takes 50 times longer then
            self._placed[node_id] = found if found.flags.aligned else found.copy()
        return self._placed[node_id]

    def make(self, node_id: int) -> None:
        place = self.place(node_id)
        as_array(self._data[node_id])
        self._filled[node_id] = place


class Values:
    """The arrays of one run by node; views and weights are resolved on access."""

    def __init__(self, graph: Graph, weights: CpuWeights | None = None) -> None:
        self._graph = graph
        self._weights = CpuWeights(graph) if weights is None else weights
        self._arrays: dict[int, NDArray] = {}

    def __setitem__(self, node_id: int, array: NDArray) -> None:
        self._arrays[node_id] = array

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._arrays

    def __getitem__(self, node_id: int) -> NDArray:
        found = self._arrays.get(node_id)
        if found is not None:
            return found
        if node_id in self._graph.data:
            return self._weights[node_id]
        whole = self._full_view(node_id)
        return self._evaluate_view(node_id) if whole is None else whole

    def _full_view(self, node_id: int) -> NDArray | None:
        """Return a reshaped view of all of an array, if that is available."""
        root, offset = self._graph.views.get(node_id, (node_id, 0))
        array, type_ = self._arrays.get(root), self._graph.nodes[node_id].type
        if array is None or offset or array.size != type_.size:
            return None
        return array.reshape(type_.shape) if array.dtype == numpy_dtype(type_.dtype) else None

    def _evaluate_view(self, node_id: int) -> NDArray:
        """Return any view, evaluated from its closest available base."""
        chain: list[int] = []
        at = node_id
        while at in self._graph.views and at not in self._arrays:
            chain.append(at)
            at = self._graph.nodes[at].inputs[0]
        if chain and (at in self._arrays or at in self._graph.data):
            array = self[at]
            for view in reversed(chain):
                array = evaluate_node(self._graph, view, (array,))
            return array
        raise PlanError(f"[run] {self._graph.nodes[node_id].name} is not there when it is needed")

    def copy(self) -> Values:
        """Return a copy that shares the arrays; values are dropped separately."""
        out = Values(self._graph, self._weights)
        out._arrays.update(self._arrays)
        return out

    def drop(self, node_id: int) -> None:
        self._arrays.pop(node_id, None)

    def clear(self) -> None:
        self._arrays.clear()


def run_split(
    plan: PlanValue,
    split: Split,
    values: Values,
    dead: dict[int, tuple[int, ...]],
    states: CpuStateAccess,
) -> None:
    """Compute the nodes of a split into `values` with their references; drop dead values after each
    node.
    """
    graph = plan.graph
    with np.errstate(all="ignore"):
        for node_id in split.nodes:
            node = graph.nodes[node_id]
            if node.op == "state":
                values[node_id] = states.view(graph.keys[node_id])
            elif node.op == "assign":
                states.write(graph.keys[node.inputs[0]], values[node.inputs[1]])
            else:
                operands = tuple([values[i] for i in node.inputs])
                evaluate = partial(evaluate_reference, graph, node_id)
                if node_id in plan.in_place:
                    values[node_id] = next_value(plan, node, operands, states, evaluate)
                else:
                    values[node_id] = evaluate(operands)
                del operands
            for gone in dead.get(node_id, ()):
                values.drop(gone)


def next_value(
    plan: PlanValue,
    node: Node,
    operands: tuple[NDArray, ...],
    states: CpuStateAccess,
    evaluate: Callable[[tuple[NDArray, ...]], NDArray],
) -> NDArray:
    """Write a state's next value into its memory, as the plan has it, and return it.

    Parameters
    ----------
    evaluate
        Computes the node if it cannot be written into the state's array.
    """
    how, state = node.declaration.in_place, plan.graph.nodes[plan.in_place[node.id]]
    key = plan.graph.keys[state.id]
    if how is not None and (write := how.write) is not None:
        shape = node.type.shape
        states.change((key,), lambda held: write(operands, node.attrs, held[0].reshape(shape)))
        return states.view(key).reshape(shape)
    value = evaluate(operands)
    # its memory may have padding up to a whole word
    states.write(key, value.ravel()[: state.type.size].reshape(state.type.shape))
    return value


def last_uses(plan: PlanValue, device: int) -> dict[int, tuple[int, ...]]:
    """Return, for each node of a device, the values that are dead after it.

    If the plan is scheduled dynamically, uploaded and downloaded values stay live until the run
    ends.
    """
    graph, roots = plan.graph, plan.graph.view_bases
    retained = {
        graph.view_base(c.node) for s in plan.splits if s.device == device for c in s.downloads
    }
    if plan.any_order:
        own = [split for split in plan.splits if split.device == device]
        computed = {node for split in own for node in split.nodes}
        read = {graph.view_base(i) for node in computed for i in graph.nodes[node].inputs}
        retained |= read - computed
    last: dict[int, int] = {}
    for split in plan.splits:
        if split.device == device:
            for node_id in split.nodes:
                for value in (node_id, *graph.nodes[node_id].inputs):
                    # a transferred view is a separate value: it and its base are live equally long
                    last[value] = last[roots[value]] = node_id
    dead: dict[int, list[int]] = {}
    for value, node_id in last.items():
        if value not in retained and value not in graph.data:
            dead.setdefault(node_id, []).append(value)
    return {node_id: tuple(values) for node_id, values in dead.items()}
