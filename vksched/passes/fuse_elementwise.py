"""Fuse elementwise: consecutive elementwise ops become one op.

    a -> add -> gelu -> mul -> ...        a, b, c -> fused_elementwise -> ...
         b             c

Problem: choose the nodes to fuse. Method: visit the nodes from the results backwards. A node joins
the fused op of its readers if all of them are in that op, if it has their shape and device, and if
the result fits the shaders and buffers of every device. Operands of any shape that broadcasts
become operands of the fused op; scalars become its constants. Observed values and outputs are not
fused into their readers. Integer ops are not fused, because their value ranges are known per op.

Complexity: O(nodes + edges). Examples: tests/passes/test_fuse_elementwise.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..common.dtypes import BOOL, FLOAT16, FLOAT32, INT32, NDArray, Shape, TensorType
from ..ir.graph import Graph, Node
from ..ops.elementwise.fused_elementwise import (
    MAX_AXES,
    MAX_COST,
    MAX_INPUTS,
    Instr,
    cost_of,
    function_of,
    program_attrs,
    shader_inputs,
)
from ..ops.lowering.strides import broadcast_strides, collapse
from ..storage.lazy_array import as_array
from ..topology.limits import Limits
from .constraints import RewriteConstraints
from .rewrite import Rewriter, rewrite

MIN_STEPS, MAX_VALUES = 8, 1 << 32
"""Limits the work of a fused op, which is one dispatch, because drivers kill dispatches that take
seconds: large tensors get at most MAX_VALUES values times steps, or MIN_STEPS steps.
"""
JUMPS = frozenset(
    "cast equal not_equal less less_equal greater greater_equal floor ceil round trunc sign".split()
)
"""Ops that are not fused in float16, because they are discontinuous: a fused op does not round
their operands to float16, and a difference in the last digit changes the result.
"""


@dataclass
class _Group:
    """A fused elementwise op while it grows.

    `dtype` is its float type, `members` are node ids, the last node first, and `inputs` are the
    operands of members that are not members.
    """

    dtype: str
    shape: Shape
    pinned_device: str | None
    members: list[int] = field(default_factory=list)
    inputs: dict[int, None] = field(default_factory=dict)
    cost: int = 0


def fuse_elementwise_ops(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Fuse consecutive elementwise ops."""
    groups = _Finder(graph, constraints).find()
    if not groups:
        return graph

    def rule(r: Rewriter, node: Node) -> int | None:
        group = groups.get(node.name)
        return None if group is None else _emit(r, graph, group)

    ops = {graph.nodes[group.members[0]].op for group in groups.values()}
    return rewrite(graph, dict.fromkeys(ops, (rule,)), constraints, whole=True)


class _Finder:
    """Find the groups of elementwise ops to fuse."""

    def __init__(self, graph: Graph, constraints: RewriteConstraints) -> None:
        self.graph = graph
        self.pinned_devices = constraints.pinned_devices
        self.most = _most_inputs(constraints.limits)
        self.not_fused = {node_id for _, node_id in graph.outputs}
        if constraints.observed:
            self.not_fused |= {n.id for n in graph.nodes if n.name in constraints.observed}
        calls = graph.calls
        dtypes = [_float_of(graph.input_types(n), n) for n in calls]
        self.dtypes = [dtypes[call] for call in graph.signatures]

    def find(self) -> Mapping[str, _Group]:
        """Return the groups of two or more ops with an operand, by the name of their last op."""
        nodes, found = self.graph.nodes, list[_Group]()
        reader: dict[int, _Group | None] = {}
        # maps a value to the group of all its readers; None if they are not in one group
        for node in reversed(nodes):
            group = reader.get(node.id) if node.id not in self.not_fused else None
            dtype, pinned_device = self.dtypes[node.id], self.pinned_devices.get(node.name)
            if dtype is None:
                group = None
            elif (
                group is None
                or (group.dtype, group.shape, group.pinned_device)
                != (dtype, node.type.shape, pinned_device)
                or not self._join(group, node)
            ):
                group = _Group(dtype, node.type.shape, pinned_device)
                if self._join(group, node):
                    found.append(group)
                else:
                    group = None
            for operand in node.inputs:
                if reader.setdefault(operand, group) is not group:
                    reader[operand] = None
        return {nodes[g.members[0]].name: g for g in found if g.inputs and len(g.members) > 1}

    def _join(self, group: _Group, node: Node) -> bool:
        """Add a node to a group if the fused op fits the limits; return True if it was added."""
        nodes = self.graph.nodes
        inputs = {i: None for i in group.inputs if i != node.id}
        for operand in node.inputs:
            if not _is_number(self.graph, node, operand):
                inputs[operand] = None
        cost = group.cost + cost_of(node.op)
        most = max(MIN_STEPS, MAX_VALUES // node.type.size)
        fits = cost <= MAX_COST and len(group.members) < most and len(inputs) <= self.most
        if group.members and any(self._is_far(i, group) for i in inputs):
            return False
        if not fits or not _has_few_axes((nodes[i].type.shape for i in inputs), group.shape):
            return False
        group.members.append(node.id)
        group.inputs, group.cost = inputs, cost
        return True

    def _is_far(self, value: int, group: _Group) -> bool:
        """Return True if a value is transferred: fusing would delay independent ops."""
        node = self.graph.nodes[value]
        pinned_device = self.pinned_devices.get(node.name)
        return (
            pinned_device is not None
            and pinned_device != group.pinned_device
            and not node.declaration.leaf
        )


def _most_inputs(limits: Limits | None) -> int:
    """Return the maximum number of operands of a fused op that every device supports."""
    buffers = MAX_INPUTS + 1 if limits is None else limits.storage_buffers
    return max((n for n in range(MAX_INPUTS + 1) if shader_inputs(n, buffers)), default=0)


def _float_of(types: Sequence[TensorType], node: Node) -> str | None:
    """Return the float type in which a fused op computes a node; None if it cannot."""
    if node.declaration.leaf or node.op == "chain" or not node.type.size:
        return None
    seen = {t.dtype for t in (*types, node.type)}
    if not seen <= {FLOAT32, FLOAT16, BOOL, INT32} or node.type.dtype == INT32:
        return None
    if FLOAT16 in seen and (node.op in JUMPS or FLOAT32 in seen):
        return None
    wide = [t.as_dtype(FLOAT32) if t.dtype == FLOAT16 else t for t in types]
    if function_of(node.op, wide, node.attrs) is None:
        return None
    return FLOAT16 if FLOAT16 in seen else FLOAT32


def _is_number(graph: Graph, node: Node, operand: int) -> bool:
    """Return True if an operand is a scalar constant that the fused program can hold."""
    leaf = graph.nodes[operand]
    if leaf.op != "constant" or leaf.type.size != 1:
        return False
    others = (graph.nodes[i].type for i in node.inputs if i != operand)
    return not leaf.type.rank or any(t.rank >= leaf.type.rank and t.size > 1 for t in others)


def _has_few_axes(inputs: Iterable[Shape], shape: Shape) -> bool:
    strides = [broadcast_strides(s, shape) for s in set(inputs) if s != shape]
    if not strides:
        return True
    strides.append(broadcast_strides(shape, shape))
    return len(collapse(shape, strides)[0]) <= MAX_AXES


def _emit(r: Rewriter, graph: Graph, group: _Group) -> int:
    """Emit the fused op of a group, whose members are already in the new graph as single nodes."""
    members = sorted(group.members)
    registers = {node_id: number for number, node_id in enumerate(group.inputs)}
    constants: dict[tuple[str, int], int] = {}
    members_with_operands: list[tuple[Node, list[int | tuple[str, int]]]] = []
    for node_id in members:
        node = graph.nodes[node_id]
        operands: list[int | tuple[str, int]] = []
        for operand in node.inputs:
            if operand in registers or operand in group.members:
                operands.append(operand)
            else:
                number = word_of(as_array(graph.data[operand]))
                constants.setdefault(number, len(registers) + len(constants))
                operands.append(number)
        members_with_operands.append((node, operands))
    first = len(registers) + len(constants)
    registers.update((node_id, first + number) for number, node_id in enumerate(members))
    steps: list[Instr] = [
        (
            node.op,
            tuple(constants[o] if isinstance(o, tuple) else registers[o] for o in operands),
            tuple(node.attrs.items()),
        )
        for node, operands in members_with_operands
    ]
    return r.emit(
        "fused_elementwise", [r.of(i) for i in group.inputs], program_attrs(steps, list(constants))
    )


def word_of(array: NDArray) -> tuple[str, int]:
    """Return the element type of a scalar and its bits; float16 is widened to float32."""
    value = array.reshape(-1)[0]
    if array.dtype == np.float16:
        value = value.astype(np.float32)
    word = int(value) if array.dtype == np.bool_ else int(value.view(np.uint32))
    return str(value.dtype), word
