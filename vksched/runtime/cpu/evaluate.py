"""Numpy evaluation of parts of a graph by the references of ops, as null devices run splits, and
the values of a run; the cpu's way to run a split is in program.py.
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
from ..state_store import CpuValues


def named(error: VkschedError, node: Node) -> VkschedError:
    """Return an error that names the node."""
    named = type(error)(f"{error} (in {node.name})")
    named.__dict__.update(error.__dict__)  # what it carries goes along
    return named


def evaluate_node(graph: Graph, node_id: int, operands: tuple[NDArray, ...]) -> NDArray:
    """Return the reference result of one node, in the node's own type."""
    with np.errstate(all="ignore"):
        return evaluate_reference(graph, node_id, operands)


def evaluate_reference(graph: Graph, node_id: int, operands: tuple[NDArray, ...]) -> NDArray:
    """The same, for a caller that silences numpy's warnings."""
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
    """Weights and constants of a graph as arrays, kept from when they are first asked for."""

    def __init__(self, graph: Graph) -> None:
        self._data = graph.data
        self._placed: dict[int, NDArray] = {}
        self._made: dict[int, NDArray] = {}

    def __getitem__(self, node_id: int) -> NDArray:
        if node_id not in self._made:
            self.make(node_id)
        return self._made[node_id]

    def place(self, node_id: int) -> NDArray:
        """Return the same array before `make` has filled it."""
        if node_id not in self._placed:
            found = buffer_of(self._data[node_id])
            # in a file they may lie at odd addresses, where numpy's products take 50 times longer
            self._placed[node_id] = found if found.flags.aligned else found.copy()
        return self._placed[node_id]

    def make(self, node_id: int) -> None:
        place = self.place(node_id)
        as_array(self._data[node_id])
        self._made[node_id] = place


class Values:
    """The arrays of one run, by node; views and weights are found without being stored."""

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
        whole = self._whole(node_id)
        return self._viewed(node_id) if whole is None else whole

    def _whole(self, node_id: int) -> NDArray | None:
        """Return a view of all of an array that is there, as reshape makes them."""
        root, offset = self._graph.views.get(node_id, (node_id, 0))
        array, type_ = self._arrays.get(root), self._graph.nodes[node_id].type
        if array is None or offset or array.size != type_.size:
            return None
        return array.reshape(type_.shape) if array.dtype == numpy_dtype(type_.dtype) else None

    def _viewed(self, node_id: int) -> NDArray:
        """Return any view, made of the nearest value that is there."""
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
        """Return the same arrays, to be dropped on their own."""
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
    states: CpuValues,
) -> None:
    """Compute the nodes of a split into `values` by their references; drops what nobody reads
    after each node.
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
    states: CpuValues,
    evaluate: Callable[[tuple[NDArray, ...]], NDArray],
) -> NDArray:
    """Give a state its next value, which the plan has in its place, and returns that. evaluate:
    computes the node, where it cannot be written into an array that holds the state.
    """
    how, state = node.declaration.in_place, plan.graph.nodes[plan.in_place[node.id]]
    key = plan.graph.keys[state.id]
    if how is not None and (write := how.write) is not None:
        shape = node.type.shape
        states.change((key,), lambda held: write(operands, node.attrs, held[0].reshape(shape)))
        return states.view(key).reshape(shape)
    value = evaluate(operands)
    # it may be longer by elements that share its last word
    states.write(key, value.ravel()[: state.type.size].reshape(state.type.shape))
    return value


def last_uses(plan: PlanValue, device: int) -> dict[int, tuple[int, ...]]:
    """Return for each node of a device the values that it needs no more once that node has run.

    What a policy that decides in each run has copied in or out is needed until the run ends.
    """
    graph, roots = plan.graph, plan.graph.view_bases
    kept = {graph.view_base(c.node) for s in plan.splits if s.device == device for c in s.downloads}
    if plan.any_order:
        own = [split for split in plan.splits if split.device == device]
        made = {node for split in own for node in split.nodes}
        read = {graph.view_base(i) for node in made for i in graph.nodes[node].inputs}
        kept |= read - made
    last: dict[int, int] = {}
    for split in plan.splits:
        if split.device == device:
            for node_id in split.nodes:
                for value in (node_id, *graph.nodes[node_id].inputs):
                    # a part that crossed on its own is a value beside its root: both live as long
                    last[value] = last[roots[value]] = node_id
    dead: dict[int, list[int]] = {}
    for value, node_id in last.items():
        if value not in kept and value not in graph.data:
            dead.setdefault(node_id, []).append(value)
    return {node_id: tuple(values) for node_id, values in dead.items()}
