"""Program: an ONNX graph as stages on the scheduler, with steps of the host between them.

    frame --lower for the types seen--> stage 1 --host step--> frame --> stage 2 --> ... --> results
                                         |  other types, or other elements of a guard
                                         +-> stage 1' ...

A junction stands before each frame and keeps the stages lowered so far. A second run that meets the
same types and guards lowers, plans and allocates nothing.
Examples: tests/models/test_program.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.dtypes import Progress
from ..common.errors import OutOfMemory
from ..engine.executable import CompiledGraph
from ..engine.graph_registry import Graphs
from ..engine.request_precision import Precision
from ..importers.onnx.lower.frame import Frame, HostStep
from ..importers.onnx.lower.frame_lowering import FrameLowering
from ..importers.onnx.lower.model_context import ModelContext
from ..importers.onnx.nodes.cpu_node import WrongShape
from ..importers.onnx.nodes.elements import from_storage, to_storage
from ..importers.onnx.nodes.names import item_slot, slots_of
from ..importers.onnx.nodes.values import HostType, HostValue, TypeKey, Value, has_maps, type_of
from ..ir.build_graph import build_graph
from ..ir.tensor import Tensor
from ..plan.types.node_names import NameIndex
from ..trace import Trace
from .control_flow import make_step
from .host_events import emit_step, step_kind, warn_of_step
from .run_history import Diary
from .segments import Junction, Stage, StageCache, Step


@dataclass(frozen=True)
class StageCompiler:
    """Compiles the graphs of a model's stages, and tells of the host's work between them.

    placement, precision: may mean names of some stages only. told: what a warning was given of;
    None where the host is all there is. diary: is told what each part of a run took.
    """

    graphs: Graphs
    placement: Mapping[str | Tensor, str]
    progress: Progress | None
    told: set[str] | None
    diary: Diary
    precision: Precision | None = None

    @property
    def trace(self) -> Trace:
        return self.graphs.preparing.trace

    def compile(self, outputs: Mapping[str, Tensor]) -> CompiledGraph:
        """Returns a run of one stage's outputs."""
        placement, precision = self.placement, self.precision
        if placement or isinstance(precision, Mapping):
            names = NameIndex(build_graph(outputs)[0], "placement")
            placement = _of_stage(placement, names)
            if isinstance(precision, Mapping):
                precision = _of_stage(precision, names)
        run = self.graphs.compile(outputs, placement, self.progress, precision=precision)
        self.diary.add_plans(run.plan_numbers)
        return run


def _of_stage(given: Mapping[Tensor | str, str], names: NameIndex) -> dict[Tensor | str, str]:
    """Returns what is said of the values of one stage."""
    return {k: v for k, v in given.items() if not isinstance(k, str) or names.matches(k)}


class Program:
    """A function of host values that an ONNX graph describes.

    context: of the model. frame: the graph; its slots are the program's inputs. cache: keeps the
    stages, of subgraphs too.
    """

    def __init__(
        self, context: ModelContext, frame: Frame, compiler: StageCompiler, cache: StageCache
    ) -> None:
        self.context = context
        self.compiler = compiler
        self.cache = cache
        self.start = Junction(frame)

    def of(self, frame: Frame) -> Program:
        """Returns a program of another frame whose stages are kept beside those of this one."""
        return Program(self.context, frame, self.compiler, self.cache)

    def __call__(self, arrays: Mapping[str, HostValue]) -> list[HostValue]:
        """Runs once; returns the results in order.

        arrays: by slot, in their ONNX element types.
        """
        with self.cache.one_run():
            return self._run(flatten(arrays))

    def _run(self, held: dict[str, HostValue]) -> list[HostValue]:
        junction = self.start
        while True:
            stage = self._take(junction, held)
            try:
                held = self._advance(stage, held)
                if stage.then is None:
                    return [host_of(value, held) for value in stage.lowered.results]
                junction = stage.then
            except WrongShape as wrong:
                if not self._leave_to_host(wrong, stage):
                    raise
                self.cache.forget(stage)  # and lower again, without what inference says of it
            finally:
                self.cache.give_back(stage)

    def _leave_to_host(self, wrong: WrongShape, stage: Stage) -> bool:
        """Notes a node that inference is wrong about; returns whether a stage did not know that."""
        if wrong.node is None:
            return False
        with self.cache.lock:
            doubted = self.context.not_inferable
            doubted.add(wrong.node.SerializeToString(deterministic=True))
            return stage.doubted < len(doubted)

    def whole(self, arrays: Mapping[str, HostValue]) -> Stage | None:
        """Returns the stage that is all of a run with arrays of these types, whatever they hold;
        None where there is none such.
        """
        given = [arrays[slot] for slot in self.start.frame.slots]
        if any(not isinstance(a, np.ndarray) or to_storage(a) is not a for a in given):
            return None
        if any(a.dtype == np.int64 for a in given):  # their size is part of the type
            return None
        with self.cache.lock:
            stages = self.start.stages.get(tuple(map(type_of, given)), [])
        return stages[0] if len(stages) == 1 and stages[0].is_all else None

    def prepare(self, types: Mapping[str, HostType]) -> Stage:
        """Lowers and compiles the first stage for given types.

        Raises:
            NeedsInputs: it depends on the elements of an input, too.
        """
        with self.cache.one_run():
            key = tuple(types[slot] for slot in self.start.frame.slots)
            stage = self._find_or_make(self.start, key, None)
            self.cache.give_back(stage)
        return stage

    def _take(self, junction: Junction, held: Mapping[str, HostValue]) -> Stage:
        key = tuple([type_of(held[slot]) for slot in junction.frame.slots])
        return self._find_or_make(junction, key, held)

    def _find_or_make(
        self,
        junction: Junction,
        key: tuple[TypeKey, ...],
        held: Mapping[str, HostValue] | None,
    ) -> Stage:
        """Returns a stage, in use until it is given back. Others that are kept run meanwhile. key:
        the types of the frame's slots.
        """
        found = self.cache.find(junction, key, held or {})
        if found is not None:
            return found
        with self.cache.making:
            found = self.cache.find(junction, key, held or {})  # made by another thread by now
            return found or self._make(junction, key, held)

    def _make(
        self,
        junction: Junction,
        key: tuple[TypeKey, ...],
        held: Mapping[str, HostValue] | None,
    ) -> Stage:
        types = dict(zip(junction.frame.slots, key, strict=True))
        self.compiler.diary.add_compiled()
        doubted = len(self.context.not_inferable)
        lowered = FrameLowering(self.context, junction.frame, types, held).run()
        run = self._compiled(lowered.outputs) if lowered.outputs else None
        made = dict(lowered.outputs)
        handed = [*(lowered.then.slots if lowered.then else ()), *_step_slots(lowered.step)]
        handed += [slot for value in lowered.results for slot in slots_of(value)]
        later = set(lowered.step.node.output) if lowered.step else set()
        stage = Stage(
            lowered,
            run,
            make_step(self, lowered.step) if lowered.step else None,
            Junction(lowered.then) if lowered.then else None,
            tuple(node.name for node in run.plan.graph.inputs) if run else (),
            tuple(s for s in dict.fromkeys(handed) if s not in made and s not in later),
            doubted,
        )
        self.cache.add(junction, key, stage)
        return stage

    def _compiled(self, outputs: Mapping[str, Tensor]) -> CompiledGraph:
        try:
            return self.compiler.compile(outputs)
        except OutOfMemory:
            if not self.cache.close_idle():
                raise
            return self.compiler.compile(outputs)  # in the room of what was kept for other shapes

    def _advance(self, stage: Stage, held: Mapping[str, HostValue]) -> dict[str, HostValue]:
        """Runs one stage and its step; returns what the slots hold then."""
        lowered = stage.lowered
        out = {slot: held[slot] for slot in stage.keeps}
        if stage.run is not None:
            feeds = {slot: to_storage(held[slot]) for slot in stage.reads}
            found, cost = stage.run.run_told(feeds)
            self.compiler.diary.add_graph(cost)
            assert isinstance(found, dict)
            out.update({s: from_storage(a, lowered.elem_types[s]) for s, a in found.items()})
        if stage.step is not None and lowered.step is not None:
            step = lowered.step
            given = [None if v is None else host_of(v, out) for v in step.inputs]
            captured = {name: host_of(v, out) for name, v in step.captured.items()}
            made = self._run_step(stage, stage.step, step, given, captured)
            named = zip(step.node.output, made, strict=False)
            out.update(flatten({name: value for name, value in named if name}))
        return out

    def _run_step(
        self,
        stage: Stage,
        run: Step,
        step: HostStep,
        given: Sequence[HostValue],
        captured: Mapping[str, HostValue],
    ) -> Sequence[HostValue]:
        """Runs a step, and tells of it unless it is control flow."""
        trace, told = self.compiler.trace, self.compiler.told
        start_s = trace.clock.now()
        made = run.run(given, captured)
        if not run.programs:
            self.compiler.diary.add_step(step_kind(step), start_s)
            if trace.active:
                emit_step(trace, step, start_s, stage.run.plan_numbers[-1] if stage.run else -1)
            if told is not None:
                warn_of_step(stage, step, [*given, *made], told)
        return made


def _step_slots(step: HostStep | None) -> list[str]:
    if step is None:
        return []
    values = [v for v in step.inputs if v is not None] + list(step.captured.values())
    return [slot for value in values for slot in slots_of(value)]


def flatten(arrays: Mapping[str, HostValue]) -> dict[str, HostValue]:
    """Returns host values by slot, with the items of sequences beside the sequences."""
    out: dict[str, HostValue] = {}
    for name, value in arrays.items():
        out[name] = value
        if isinstance(value, (list, tuple)) and not has_maps(value):
            out.update(flatten({item_slot(name, i): item for i, item in enumerate(value)}))
    return out


def host_of(value: Value, held: Mapping[str, HostValue]) -> HostValue:
    """Returns a known value, or what its slot holds."""
    if value.items is not None:
        return [host_of(item, held) for item in value.items]
    if value.slot is not None:
        return held[value.slot]
    return value.array
