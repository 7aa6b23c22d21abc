"""Program: executes an ONNX graph as compiled segments with CPU steps between them.

    frame --lower for the types--> segment 1 --CPU step--> frame --> segment 2 --> ... --> results
                                   |  other types, or other elements of a guard
                                   +-> segment 1' ...

A branch point precedes each frame and caches its lowered segments. A run with cached types and
guards lowers, plans and allocates nothing. Examples: tests/models/test_program.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..common.errors import OutOfMemory
from ..engine.compile_options import CompileOptions, Placements
from ..engine.executable import CompiledGraph
from ..engine.graph_registry import GraphRegistry
from ..importers.onnx.lower.frame import CpuStep, Frame
from ..importers.onnx.lower.frame_lowering import FrameLowering
from ..importers.onnx.lower.model_context import ModelContext
from ..importers.onnx.nodes.cpu_node import WrongShape
from ..importers.onnx.nodes.elements import from_storage, to_storage
from ..importers.onnx.nodes.names import item_slot, slots_of
from ..importers.onnx.nodes.values import CpuValue, CpuValueType, TypeKey, Value, has_maps, type_of
from ..ir.build_graph import build_graph
from ..ir.tensor import Tensor
from ..plan.types.node_names import NameIndex
from ..trace import Trace
from .control_flow import make_step
from .host_events import emit_step, step_kind, warn_of_step
from .run_history import RunHistoryRecorder
from .segments import BranchPoint, CompiledSegment, CpuStepFunction, SegmentCache


@dataclass(frozen=True)
class SegmentCompiler:
    """Compiles the graphs of a model's segments, and reports the CPU steps between them.

    options: placement and precision may contain names that only some segments have. warned: kinds
    that were warned about; None if only the CPU is used. history: records the time of each part of
    a run.
    """

    graphs: GraphRegistry
    options: CompileOptions
    warned: set[str] | None
    history: RunHistoryRecorder

    @property
    def trace(self) -> Trace:
        return self.graphs.preparing.trace

    def compile(self, outputs: Mapping[str, Tensor]) -> CompiledGraph:
        """Return the compiled graph of one segment's outputs."""
        options, precision = self.options, self.options.precision
        if options.placements or isinstance(precision, Mapping):
            names = NameIndex(build_graph(outputs)[0], "placement")
            if isinstance(precision, Mapping):
                precision = _of_segment(precision, names)
            placement = _of_segment(options.placements, names)
            options = replace(options, placement=placement, precision=precision)
        run = self.graphs.compile(outputs, options)
        self.history.add_plans(run.plan_numbers)
        return run


def _of_segment(options: Placements, names: NameIndex) -> dict[Tensor | str, str]:
    """Return the options whose patterns or tensors match values of one segment."""
    return {k: v for k, v in options.items() if not isinstance(k, str) or names.matches(k)}


class Program:
    """A function over host arrays that an ONNX graph describes.

    context: the model's context. frame: the graph; its slots are the program's inputs. cache: holds
    the segments, including those of subgraphs.
    """

    def __init__(
        self, context: ModelContext, frame: Frame, compiler: SegmentCompiler, cache: SegmentCache
    ) -> None:
        self.context = context
        self.compiler = compiler
        self.cache = cache
        self.start = BranchPoint(frame)

    def of(self, frame: Frame) -> Program:
        """Return a program of another frame whose segments share this program's cache."""
        return Program(self.context, frame, self.compiler, self.cache)

    def __call__(self, arrays: Mapping[str, CpuValue]) -> list[CpuValue]:
        """Run once and return the results in order.

        arrays: by slot, in their ONNX element types.
        """
        with self.cache.one_run():
            return self._run(flatten(arrays))

    def _run(self, held: dict[str, CpuValue]) -> list[CpuValue]:
        branch_point = self.start
        while True:
            segment = self._acquire(branch_point, held)
            try:
                held = self._advance(segment, held)
                if segment.then is None:
                    return [cpu_value_of(value, held) for value in segment.lowered.results]
                branch_point = segment.then
            except WrongShape as wrong:
                if not self._leave_to_cpu(wrong, segment):
                    raise
                self.cache.forget(segment)  # lower again, without the inferred shapes of this node
            finally:
                self.cache.release(segment)

    def _leave_to_cpu(self, wrong: WrongShape, segment: CompiledSegment) -> bool:
        """Mark a node whose inferred shape is wrong; return True if the segment was lowered before
        that was known.
        """
        if wrong.node is None:
            return False
        with self.cache.lock:
            doubted = self.context.not_inferable
            doubted.add(wrong.node.SerializeToString(deterministic=True))
            return segment.doubted < len(doubted)

    def whole(self, arrays: Mapping[str, CpuValue]) -> CompiledSegment | None:
        """Return the segment that is a complete run for arrays of these types, whatever their
        elements are; None if there is none.
        """
        operands = [arrays[slot] for slot in self.start.frame.slots]
        if any(not isinstance(a, np.ndarray) or to_storage(a) is not a for a in operands):
            return None
        if any(a.dtype == np.int64 for a in operands):  # their elements are part of the key
            return None
        with self.cache.lock:
            segments = self.start.segments.get(tuple(map(type_of, operands)), [])
        return segments[0] if len(segments) == 1 and segments[0].is_all else None

    def prepare(self, types: Mapping[str, CpuValueType]) -> CompiledSegment:
        """Lower and compile the first segment for these types.

        Raises
        ------
        NeedsInputs
            The segment also depends on the elements of an input.
        """
        with self.cache.one_run():
            key = tuple(types[slot] for slot in self.start.frame.slots)
            segment = self._find_or_compile(self.start, key, None)
            self.cache.release(segment)
        return segment

    def _acquire(self, branch_point: BranchPoint, held: Mapping[str, CpuValue]) -> CompiledSegment:
        key = tuple([type_of(held[slot]) for slot in branch_point.frame.slots])
        return self._find_or_compile(branch_point, key, held)

    def _find_or_compile(
        self,
        branch_point: BranchPoint,
        key: tuple[TypeKey, ...],
        held: Mapping[str, CpuValue] | None,
    ) -> CompiledSegment:
        """Return a segment, marked as in use until it is released. Other cached segments can run
        meanwhile.

        key: the types of the frame's slots.
        """
        found = self.cache.find(branch_point, key, held or {})
        if found is not None:
            return found
        with self.cache.making:
            found = self.cache.find(
                branch_point, key, held or {}
            )  # another thread may have added it
            return found or self._make(branch_point, key, held)

    def _make(
        self,
        branch_point: BranchPoint,
        key: tuple[TypeKey, ...],
        held: Mapping[str, CpuValue] | None,
    ) -> CompiledSegment:
        types = dict(zip(branch_point.frame.slots, key, strict=True))
        self.compiler.history.add_compiled()
        doubted = len(self.context.not_inferable)
        lowered = FrameLowering(self.context, branch_point.frame, types, held).run()
        run = self._compiled(lowered.outputs) if lowered.outputs else None
        results = dict(lowered.outputs)
        handed = [*(lowered.then.slots if lowered.then else ()), *_step_slots(lowered.step)]
        handed += [slot for value in lowered.results for slot in slots_of(value)]
        later = set(lowered.step.node.output) if lowered.step else set()
        segment = CompiledSegment(
            lowered,
            run,
            make_step(self, lowered.step) if lowered.step else None,
            BranchPoint(lowered.then) if lowered.then else None,
            tuple(node.name for node in run.plan.graph.inputs) if run else (),
            tuple(s for s in dict.fromkeys(handed) if s not in results and s not in later),
            doubted,
        )
        self.cache.add(branch_point, key, segment)
        return segment

    def _compiled(self, outputs: Mapping[str, Tensor]) -> CompiledGraph:
        try:
            return self.compiler.compile(outputs)
        except OutOfMemory:
            if not self.cache.close_idle():
                raise
            return self.compiler.compile(outputs)  # in the memory of segments for other shapes

    def _advance(
        self, segment: CompiledSegment, held: Mapping[str, CpuValue]
    ) -> dict[str, CpuValue]:
        """Run one segment and its step; return the values of all slots afterwards."""
        lowered = segment.lowered
        out = {slot: held[slot] for slot in segment.keeps}
        if segment.run is not None:
            feeds = {slot: to_storage(held[slot]) for slot in segment.reads}
            found, cost = segment.run.run_with_stats(feeds)
            self.compiler.history.add_graph(cost)
            assert isinstance(found, dict)
            out.update({s: from_storage(a, lowered.elem_types[s]) for s, a in found.items()})
        if segment.step is not None and lowered.step is not None:
            step = lowered.step
            operands = [None if v is None else cpu_value_of(v, out) for v in step.inputs]
            captured = {name: cpu_value_of(v, out) for name, v in step.captured.items()}
            results = self._run_step(segment, segment.step, step, operands, captured)
            named = zip(step.node.output, results, strict=False)
            out.update(flatten({name: value for name, value in named if name}))
        return out

    def _run_step(
        self,
        segment: CompiledSegment,
        run: CpuStepFunction,
        step: CpuStep,
        operands: Sequence[CpuValue],
        captured: Mapping[str, CpuValue],
    ) -> Sequence[CpuValue]:
        """Run a step, and report it unless it is control flow."""
        trace, warned = self.compiler.trace, self.compiler.warned
        start_s = trace.clock.now()
        results = run.run(operands, captured)
        if not run.programs:
            self.compiler.history.add_step(step_kind(step), start_s)
            if trace.active:
                emit_step(trace, step, start_s, segment.run.plan_numbers[-1] if segment.run else -1)
            if warned is not None:
                warn_of_step(segment, step, [*operands, *results], warned)
        return results


def _step_slots(step: CpuStep | None) -> list[str]:
    if step is None:
        return []
    values = [v for v in step.inputs if v is not None] + list(step.captured.values())
    return [slot for value in values for slot in slots_of(value)]


def flatten(arrays: Mapping[str, CpuValue]) -> dict[str, CpuValue]:
    """Return host values by slot, with the items of sequences as further slots."""
    out: dict[str, CpuValue] = {}
    for name, value in arrays.items():
        out[name] = value
        if isinstance(value, (list, tuple)) and not has_maps(value):
            out.update(flatten({item_slot(name, i): item for i, item in enumerate(value)}))
    return out


def cpu_value_of(value: Value, held: Mapping[str, CpuValue]) -> CpuValue:
    """Return a constant value, or the value of its slot."""
    if value.items is not None:
        return [cpu_value_of(item, held) for item in value.items]
    if value.slot is not None:
        return held[value.slot]
    return value.array
