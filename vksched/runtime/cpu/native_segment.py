"""A segment: consecutive nodes of a split that native loops run in one call.

    nodes    rms_norm   quantized_linear + add   rotary_embedding ...
    slots    x 0, scale 1, result 2 | words 3, product 4 (scratch), sum 5 | ...

Slots of weights and of fixed memory are bound once; slots of live-in values, live-out values and
states are bound in each run. Nodes that write to states are separate segments: they write under a
lock that an abandoned run cannot get. Examples: tests/runtime/test_host_program.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ...common.dtypes import BOOL, WORD_BYTES, NDArray, TensorType
from ...common.errors import IndexOutOfRange
from ...ir.graph import Graph, Node
from ...ir.native_program import NativeProgram
from ...ir.precision import rounds_operands
from ...ops.lowering import native_kernels
from ...plan.types.plan_types import PlanValue, Split
from ..state_store import CpuStateAccess
from .evaluate import Values, named
from .worker_pool import Workers

HELP_WORK = 1 << 20
"""Minimum work of loops with several pieces, in values read or multiplied, at which other threads
are woken.
"""


def writes_state(node: Node) -> bool:
    """Return True if a node writes its result into the array of an operand."""
    how = node.declaration.in_place
    return how is not None and how.write is not None


def native_programs_of(
    plan: PlanValue, split: Split, known: Mapping[int, NDArray]
) -> dict[int, NativeProgram]:
    """Return the native programs of the nodes of a split that native loops can run.

    Parameters
    ----------
    known
        The arrays of its weights.
    """
    graph, found = plan.graph, dict[int, NativeProgram]()
    if not native_kernels.has_programs():
        return found
    by_call: dict[int, NativeProgram | None] = {}
    for node_id in split.nodes:
        node, call = graph.nodes[node_id], graph.signatures[node_id]
        if call not in by_call:
            by_call[call] = _native_program_of(node, graph.input_types(node))
        native_program = by_call[call]
        if native_program is not None and _is_supported(plan, node, known):
            found[node_id] = native_program
    return found


def _native_program_of(node: Node, types: tuple[TensorType, ...]) -> NativeProgram | None:
    """Return the native program of all nodes with equal calls; None if operands are rounded or a
    tensor is empty.
    """
    native_program = node.declaration.native_program
    if native_program is None or rounds_operands(node.attrs):
        return None
    whole = all(t.size for t in (node.type, *types))
    return native_program(types, node.type, node.attrs) if whole else None


def _is_supported(plan: PlanValue, node: Node, known: Mapping[int, NDArray]) -> bool:
    """Return True if the result owns its memory or overwrites a state without other readers, and
    all weight operands are contiguous.
    """
    graph = plan.graph
    in_state = node.id in plan.in_place
    if in_state != writes_state(node) or (in_state and node.id not in graph.overwritten):
        return False
    for i in node.inputs:
        root = graph.view_bases[i]
        if root in known and not _is_contiguous(known[root]):
            return False
        if i in graph.views and graph.nodes[i].type.dtype == BOOL:
            if graph.views[i][1] % WORD_BYTES:
                return False  # a view of bools can start at any byte
    return True


def _is_contiguous(array: NDArray) -> bool:
    """Return True if an array is contiguous and starts at a whole word."""
    if not array.flags.c_contiguous:
        return False
    if array.itemsize % WORD_BYTES == 0:
        return array.flags.aligned
    return array.ctypes.data % WORD_BYTES == 0  # slower by a factor of ten


class Segment:
    """A step that runs several nodes.

    Parameters
    ----------
    fixed
        Returns the array of a value, or None if it differs between runs.
    scratch
        Numbers of the scratch values of each node's loops except the last one.
    takes
        The allocators for the results of nodes that are not fixed.
    """

    def __init__(
        self,
        plan: PlanValue,
        native_programs: Mapping[int, NativeProgram],
        fixed: Callable[[int], NDArray | None],
        scratch: Mapping[int, Sequence[int]],
        takes: Mapping[int, Callable[[], NDArray]],
        workers: Workers,
    ) -> None:
        graph = plan.graph
        self._takes = tuple(takes.items())
        self._states = tuple(
            graph.keys[plan.in_place[node_id]]
            for node_id in native_programs
            if node_id in plan.in_place
        )
        self._bound: list[NDArray] = []  # arrays that slots are bound to
        slots = _Slots(graph)
        steps = []
        self._nodes_of_loops: list[Node] = []  # the node of each loop
        for node_id, native_program in native_programs.items():
            steps += slots.steps(graph.nodes[node_id], native_program, scratch.get(node_id, ()))
            self._nodes_of_loops += [graph.nodes[node_id]] * len(native_program.loops)
        own: dict[int, NDArray] = {}
        for value, slot in slots.by_value.items():
            if (array := fixed(value)) is not None:
                own[slot] = array
        written = [slots.by_value[plan.in_place[n]] for n in native_programs if n in plan.in_place]
        open_ = {slot: v for v, slot in slots.by_value.items() if slot not in own}
        for slot in written:
            open_.pop(slot)
        self._open = tuple(open_.values())
        self._native = native_kernels.native.Program(steps, slots.sizes, [*written, *open_])
        for slot, array in own.items():
            self._native.bind(slot, array)
            self._bound.append(array)
        shared = sum(p.work for r in native_programs.values() for p in r.loops if p.pieces > 1)
        helped = shared >= HELP_WORK and workers.count > 1
        self._begin = partial(workers.help, self._native.help) if helped else None
        self._most, self._paused = workers.count - 1, workers.paused

    def __call__(self, values: Values, states: CpuStateAccess) -> None:
        for node_id, take in self._takes:
            values[node_id] = take()
        arrays = [values[value] for value in self._open]
        if self._states:
            states.change(self._states, lambda written: self._run([*written, *arrays]))
        else:
            self._run(arrays)

    def _run(self, arrays: list[NDArray], again: bool = True) -> None:
        try:
            if self._begin is None or not self._paused.helpers(self._most):
                self._native.run(arrays)
            else:
                self._paused.tell(self._native.run(arrays, self._begin))
        except (BufferError, ValueError):  # an array has a layout that loops cannot read
            if not again:
                raise
            plain = [a if _is_contiguous(a) else np.array(a, order="C") for a in arrays]
            self._run(plain, again=False)
        except IndexError as error:
            number, _, text = str(error).partition(" ")
            raise named(IndexOutOfRange(text), self._nodes_of_loops[int(number)]) from None


class _Slots:
    """Slot numbers of values. by_value: the slots of nodes and of their scratch values."""

    def __init__(self, graph: Graph) -> None:
        of_call = [node.type.host_bytes for node in graph.calls]
        self._bytes = [of_call[call] for call in graph.signatures]
        self.by_value: dict[int, int] = {}
        self.sizes: list[int] = []

    def steps(
        self, node: Node, native_program: NativeProgram, scratch: Sequence[int]
    ) -> list[tuple[str, list[int], tuple[int, ...], tuple[float, ...], int]]:
        """Return the loops of a node as arguments of the native program."""
        registers = [self._of(value, self._bytes[value]) for value in node.inputs]
        calls = []
        for number, loop in enumerate(native_program.loops):
            if number < len(scratch):
                result = self._of(scratch[number], loop.elements * WORD_BYTES)
            elif writes_state(node):
                result = registers[0]
            else:
                result = self._of(node.id, self._bytes[node.id])
            registers.append(result)
            at = [*(registers[r] for r in loop.operands), result]
            calls.append((loop.name, at, loop.int_params, loop.float_params, loop.pieces))
        return calls

    def _of(self, value: int, size_bytes: int) -> int:
        slot = self.by_value.get(value)
        if slot is None:
            slot = self.by_value[value] = len(self.sizes)
            self.sizes.append(size_bytes)
        return slot
