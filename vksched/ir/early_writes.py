"""Check of early writes: rows that a call writes into a state before the run updates it.

    state --> attention(pending rows, start) --> ...          writes the rows at start
      '-----> dynamic_update_slice(the same rows, start) --> next value

Kernels of Vulkan devices write pending rows into the memory of the state, and others do not. The
planner does not order these writes. A graph therefore has the same results on all devices only if
its update writes the same rows, and nothing else reads the state. Complexity: O(edges).
Examples: tests/scheduler/test_pending_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..common.errors import GraphError
from ..storage.lazy_array import as_array
from .graph import Graph, Node
from .op import EarlyWrite

UPDATE = "dynamic_update_slice"


def check_early_writes(graph: Graph, observed: Iterable[int] = ()) -> None:
    """Check the states that calls write early.

    observed: the nodes whose values callbacks get.

    Raises
    ------
    GraphError
        The state is not updated with the same rows, or something else reads it.
    """
    writers = dict(_writers(graph))
    if not writers:
        return
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for operand in dict.fromkeys(node.inputs):
            readers.setdefault(operand, []).append(node)
    returned = {*observed, *(value for _, value in graph.outputs)}
    for state, calls in writers.items():
        _check_state(graph, graph.nodes[state], calls, readers[state])
        if state in returned:
            raise GraphError(
                f"{_expected(calls[0][0], graph.nodes[state])} to be neither an output nor observed"
                ", got it as one; try the pending rows instead"
            )


def _writers(graph: Graph) -> Iterator[tuple[int, list[tuple[Node, EarlyWrite]]]]:
    """Yield the states that calls write early, with these calls."""
    found: dict[int, list[tuple[Node, EarlyWrite]]] = {}
    for node in graph.ops:
        types = tuple(graph.nodes[i].type for i in node.inputs)
        for write in node.declaration.early_writes(types):
            state = node.inputs[write.state]
            if graph.nodes[state].op == "state":
                found.setdefault(state, []).append((node, write))
    yield from found.items()


def _check_state(
    graph: Graph, state: Node, calls: list[tuple[Node, EarlyWrite]], readers: list[Node]
) -> None:
    first, write = calls[0]
    wanted = _expected(first, state)
    rows, start = first.inputs[write.rows], first.inputs[write.start]
    updates = [n.inputs[1] for n in readers if n.op == "assign" and n.inputs[0] == state.id]
    if not updates:
        raise GraphError(
            f"{wanted} to be updated with the pending rows, got no update; try updates="
            f"{{state: vs.{UPDATE}(state, pending, kv_len, axis={write.axis}, slots=slots)}}"
        )
    update = graph.nodes[updates[0]]
    writes_same = (
        update.op == UPDATE
        and update.inputs[0] == state.id
        and update.attrs.as_int("axis") == write.axis
        and _are_equal(graph, update.inputs[1], rows)
        and _are_equal(graph, update.inputs[2], start)
    )
    if not writes_same:
        raise GraphError(
            f"{wanted} to be updated with the pending rows at kv_len, got another update, "
            f"{update.name}; try the tensors of the call in vs.{UPDATE}"
        )
    for node, own in calls:
        same_rows = _are_equal(graph, node.inputs[own.rows], rows)
        if not (same_rows and _are_equal(graph, node.inputs[own.start], start)):
            raise GraphError(
                f"{wanted} to have the same pending rows in all calls, got others in {node.name}"
            )
    known = {update.id: [0]}
    for node, own in calls:
        known.setdefault(node.id, []).append(own.state)
    for node in readers:
        operands = [i for i, operand in enumerate(node.inputs) if operand == state.id]
        if node.op != "assign" and not set(operands) <= set(known.get(node.id, ())):
            raise GraphError(
                f"{wanted} to be read by calls with these pending rows only, got {node.name}; try "
                "to read the pending rows instead"
            )


def _expected(call: Node, state: Node) -> str:
    return f"[{call.name}] expected the state {state.name}, which has pending rows,"


def _are_equal(graph: Graph, one: int, other: int) -> bool:
    """Return True if two nodes compute the same values from the same leaves."""
    seen: set[tuple[int, int]] = set()
    pairs = [(one, other)]
    while pairs:
        pair = pairs.pop()
        if pair[0] == pair[1] or pair in seen:
            continue
        seen.add(pair)
        a, b = (graph.nodes[i] for i in pair)
        if (a.op, a.type, len(a.inputs)) != (b.op, b.type, len(b.inputs)):
            return False
        if a.op == "constant":
            if as_array(graph.data[a.id]).tobytes() != as_array(graph.data[b.id]).tobytes():
                return False
        elif _is_own(a) or a.attrs != b.attrs:
            return False
        pairs += zip(a.inputs, b.inputs, strict=True)
    return True


def _is_own(node: Node) -> bool:
    """Return True if another node of this kind may have other values."""
    of_op = node.declaration
    return of_op.leaf or of_op.stateful or of_op.opaque
