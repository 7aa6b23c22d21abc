"""The CPU program of a split: its nodes as steps, with everything resolved that does not change
between runs: kernels, attributes, memory of operands and results, and dead values.

    nodes    gather   dequantize   rms_norm   linear   add   ...   softmax
    steps    [gather] [dequantize] [one call of native loops   ]   [softmax]

Memory is assigned once (buffer_layout.py). Live-in and live-out values have new arrays in each run,
in `Values`. Examples: tests/runtime/test_host_program.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from ...common.dtypes import FLOAT16, NDArray, numpy_dtype
from ...common.errors import VkschedError
from ...ir import cpu_kernel
from ...ir.evaluate import compute_into
from ...ir.graph import Node
from ...ir.native_program import NativeProgram
from ...ir.precision import (
    as_factor,
    precision_of,
    round_result,
    rounded_operands,
    rounds_operands,
)
from ...plan.types.plan_types import PlanValue, Split
from ..state_store import CpuStateAccess
from .buffer_layout import Layout, Memory, lay_out, live_out
from .constants import make_constants
from .evaluate import CpuWeights, Values, evaluate_reference, last_uses, named, next_value
from .native_segment import Segment, native_programs_of, writes_state
from .worker_pool import Buffers, Workers

Step = Callable[[Values, CpuStateAccess], None]


class Program:
    """The steps of one split.

    Parameters
    ----------
    read
        The states that it reads, with their keys.
    shown
        Fixed values that have views in a run.
    by_numpy
        Nodes that numpy computes, not native loops.
    by_blas
        Nodes of `by_numpy`, and nodes whose loops call numpy's BLAS.
    """

    def __init__(
        self,
        steps: list[Step],
        read: Mapping[int, object],
        shown: Mapping[int, NDArray],
        by_numpy: tuple[int, ...] = (),
        by_blas: tuple[int, ...] = (),
    ) -> None:
        self.by_numpy, self.by_blas = by_numpy, by_blas
        self._steps = steps
        self._read = tuple(read.items())
        self._shown = tuple(shown.items())

    def run(self, values: Values, states: CpuStateAccess) -> None:
        """Compute the nodes of the split: `values` holds its live-in values before, and its
        live-out values after. Programs of a prepared plan share memory, therefore one of them runs
        at a time.
        """
        for node_id, array in self._shown:
            values[node_id] = array
        for node_id, key in self._read:
            values[node_id] = states.view(key)
        if not self.by_numpy:
            self._run_steps(values, states)
            return
        with np.errstate(all="ignore"):
            self._run_steps(values, states)

    def _run_steps(self, values: Values, states: CpuStateAccess) -> None:
        for step in self._steps:
            step(values, states)


def make_programs(
    plan: PlanValue, device: int, weights: CpuWeights, workers: Workers, buffers: Buffers
) -> dict[int, Program]:
    """Return the program of each split of a device, by split id."""
    own = [split for split in plan.splits if split.device == device]
    graph, leaves, dead = plan.graph, live_out(plan, device), last_uses(plan, device)
    live_in = {copy.node for split in own for copy in split.uploads}
    read = {leaf for s in own for n in s.nodes for leaf in graph.leaves_read(graph.nodes[n])}
    known = {leaf: weights.place(leaf) for leaf in read & graph.data.keys() - live_in}
    constants = make_constants(plan, own, weights, known, leaves)
    own = [replace(s, nodes=tuple(n for n in s.nodes if n not in constants)) for s in own]
    operands = {graph.view_bases[i] for s in own for n in s.nodes for i in graph.nodes[n].inputs}
    known |= {n: array for n, array in constants.items() if n in operands}
    natives = [native_programs_of(plan, split, known) for split in own]
    layouts = [
        lay_out(
            plan,
            split,
            leaves,
            {n for n in split.nodes if n in native or _writes_result(plan, graph.nodes[n])},
            {n: [loop.elements for loop in r.loops[:-1]] for n, r in native.items() if r.loops[1:]},
        )
        for split, native in zip(own, natives, strict=True)
    ]
    memory = Memory(layouts)
    programs: dict[int, Program] = {}
    for split, native, layout in zip(own, natives, layouts, strict=True):
        arrays = _Arrays(plan, weights, {**known, **memory.arrays(graph, layout)})
        steps = _SplitProgramBuilder(plan, split, arrays, native, layout, workers, buffers).steps(
            dead
        )
        states = {n: graph.keys[n] for n in split.nodes if graph.nodes[n].op == "state"}
        others = tuple(n for n in split.nodes if n not in native and graph.nodes[n].op != "state")
        by_blas = (
            *others,
            *(n for n, native_program in native.items() if native_program.calls_blas),
        )
        programs[split.id] = Program(steps, states, arrays.shown, others, by_blas)
    return programs


def _writes_result(plan: PlanValue, node: Node) -> bool:
    """Return True if a CPU kernel or a state write computes a node, so that its result is no view
    of its operands.
    """
    in_state = node.id in plan.in_place and writes_state(node)
    return (node.declaration.cpu is not None or in_state) and node.type.size > 0


class _Arrays:
    """Arrays that are fixed for all runs; weights may not be filled yet. shown: fixed arrays that
    have views in a run, which numpy cannot show in the same memory.
    """

    def __init__(self, plan: PlanValue, weights: CpuWeights, fixed: dict[int, NDArray]) -> None:
        self._graph, self._weights = plan.graph, weights
        self._found: dict[int, NDArray | None] = {**fixed}
        self._rounded: dict[tuple[int, str], NDArray] = {}
        self.shown: dict[int, NDArray] = {}

    def __call__(self, value: int) -> NDArray | None:
        if value not in self._found:
            whole = self._found.get(self._graph.view_bases[value])
            self._found[value] = None if whole is None else self._view(value, whole)
            if whole is not None and self._found[value] is None:
                self.shown[self._graph.view_bases[value]] = whole
        return self._found[value]

    def rounded(self, weight: int, word: str) -> NDArray:
        """Return a weight rounded to a precision mode, computed once."""
        key = weight, word
        if key not in self._rounded:
            self._rounded[key] = as_factor(self._weights[weight], word)
        return self._rounded[key]

    def is_part(self, value: int) -> bool:
        """Return True if a view shares memory with its base once that is available."""
        type_ = self._graph.nodes[self._graph.view_bases[value]].type
        whole = np.empty(type_.shape, numpy_dtype(type_.dtype))
        return self._view(value, whole) is not None

    def _view(self, value: int, whole: NDArray) -> NDArray | None:
        """Return a view of an array, or None if numpy would copy."""
        values = Values(self._graph)
        values[self._graph.view_bases[value]] = whole
        array = values[value]
        return array if np.may_share_memory(array, whole) else None


class _SplitProgramBuilder:
    """Builds the steps of a split."""

    def __init__(
        self,
        plan: PlanValue,
        split: Split,
        arrays: _Arrays,
        native: Mapping[int, NativeProgram],
        layout: Layout,
        workers: Workers,
        buffers: Buffers,
    ) -> None:
        self._plan, self._graph, self._split, self._arrays = plan, plan.graph, split, arrays
        self._native, self._layout = native, layout
        self._workers, self._buffers = workers, buffers

    def steps(self, dead: Mapping[int, tuple[int, ...]]) -> list[Step]:
        """Return the steps.

        Parameters
        ----------
        dead
            The dead values after each node.
        """
        steps: list[Step] = []
        for ids in self._group_nodes():
            native = ids[0] in self._native
            steps.append(self._segment(ids) if native else self._step(ids[0]))
            gone = [v for n in ids for v in dead.get(n, ()) if self._is_fresh(v)]
            if gone:
                steps.append(partial(_drop, tuple(gone)))
        return steps

    def _is_fresh(self, value: int) -> bool:
        """Return True if a value has a new array in each run."""
        return value not in self._layout.spans and self._arrays(value) is None

    def _group_nodes(self) -> list[list[int]]:
        """Return the nodes grouped into steps."""
        runs: list[list[int]] = []
        run: set[int] = set()
        for node_id in self._split.nodes:
            if self._graph.nodes[node_id].op == "state":
                continue
            if runs and self._joins(run, runs[-1][-1], node_id):
                runs[-1].append(node_id)
                run.add(node_id)
            else:
                runs.append([node_id])
                run = {node_id}
        return runs

    def _joins(self, run: Collection[int], last: int, node_id: int) -> bool:
        """Return True if a node can join a segment: it writes states if the segment does, and reads
        no copy of a value of the segment. last: the last node of the segment.
        """
        native, graph, in_place = self._native, self._graph, self._plan.in_place
        if last not in native or node_id not in native:
            return False
        if (node_id in in_place) != (last in in_place):
            return False
        read = [i for i in graph.nodes[node_id].inputs if i in graph.views]
        return all(self._arrays.is_part(i) for i in read if graph.view_bases[i] in run)

    def _segment(self, ids: list[int]) -> Step:
        fresh = [n for n in ids if self._arrays(n) is None and n not in self._plan.in_place]
        takes = {n: self._take(self._graph.nodes[n]) for n in fresh}
        native_programs = {n: self._native[n] for n in ids}
        scratch = self._layout.scratch
        return Segment(self._plan, native_programs, self._arrays, scratch, takes, self._workers)

    def _step(self, node_id: int) -> Step:
        plan, node = self._plan, self._graph.nodes[node_id]
        if node.op == "assign":
            return self._assign_step(node)
        weights = self._rounded_weights(node)
        operands = self._operands(node, weights)
        evaluate = self._evaluation(node, weights)

        def change(values: Values, states: CpuStateAccess) -> None:
            values[node_id] = next_value(plan, node, operands(values), states, evaluate)

        def compute(values: Values, states: CpuStateAccess) -> None:
            evaluate(operands(values))

        def make(values: Values, states: CpuStateAccess) -> None:
            values[node_id] = evaluate(operands(values))

        if node_id in plan.in_place:
            return change
        return make if self._arrays(node_id) is None else compute

    def _assign_step(self, node: Node) -> Step:
        key, operands = self._graph.keys[node.inputs[0]], self._operands(node)

        def assign(values: Values, states: CpuStateAccess) -> None:
            states.write(key, operands(values)[1])

        return assign

    def _rounded_weights(self, node: Node) -> dict[int, NDArray]:
        """Return, by position, the weight operands rounded once, which numpy would round in each
        run.
        """
        graph, found = self._graph, dict[int, NDArray]()
        word = precision_of(node.attrs)
        for number in rounded_operands(node.declaration, node.attrs):
            value = node.inputs[number] if number < len(node.inputs) else -1
            if value in graph.data and self._arrays(value) is not None:
                found[number] = self._arrays.rounded(value, word)
        return found

    def _operands(
        self, node: Node, instead: Mapping[int, NDArray] = MappingProxyType({})
    ) -> Callable[[Values], tuple[NDArray, ...]]:
        """Return a function that looks up the operands. instead: replacements for some of them, by
        position.
        """
        found = [
            (instead[number] if number in instead else self._arrays(value), value)
            for number, value in enumerate(node.inputs)
        ]
        fixed = tuple([array for array, _ in found if array is not None])
        if len(fixed) == len(found):
            return lambda values: fixed
        return lambda values: tuple([values[v] if a is None else a for a, v in found])

    def _evaluation(
        self, node: Node, rounded: Collection[int]
    ) -> Callable[[tuple[NDArray, ...]], NDArray]:
        """Return a function that computes a node with its CPU kernel, else with its reference.
        rounded: positions of operands that are rounded already, by the node's precision mode.
        """
        op, attrs, types = node.declaration, node.attrs, self._graph.input_types(node)
        kernel = op.cpu
        if kernel is None or not node.type.size:
            return partial(evaluate_reference, self._graph, node.id)
        halves = not op.any_dtype and any(t.dtype == FLOAT16 for t in (node.type, *types))
        compute = partial(compute_into, op) if halves else kernel.compute
        large = max(t.size for t in (node.type, *types)) > kernel.least
        long = op.work(types, node.type, attrs).flops > cpu_kernel.LONG
        cut = kernel.cut if large or long else None
        out, take, each = self._arrays(node.id), self._take(node), self._workers.each
        rounds, word = rounds_operands(attrs), precision_of(attrs)
        left = [i for i in rounded_operands(op, attrs) if i not in rounded]

        def in_piece(inputs: tuple[NDArray, ...], part: NDArray) -> None:
            compute(inputs, attrs, part)

        def evaluate(operands: tuple[NDArray, ...]) -> NDArray:
            result = take() if out is None else out
            if rounds:
                operands = tuple(
                    [as_factor(x, word) if i in left else x for i, x in enumerate(operands)]
                )
            try:
                if cut is None:
                    compute(operands, attrs, result)
                else:
                    each(in_piece, cut(operands, attrs, result))
            except VkschedError as error:
                raise named(error, node) from None
            if rounds:
                np.copyto(result, round_result(op, result, attrs))
            return result

        return evaluate

    def _take(self, node: Node) -> Callable[[], NDArray]:
        return self._buffers.taker(node.type.shape, numpy_dtype(node.type.dtype))


def _drop(gone: tuple[int, ...], values: Values, states: CpuStateAccess) -> None:
    for value in gone:
        values.drop(value)
