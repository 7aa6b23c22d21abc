"""Program: an ONNX graph as stages on the scheduler, with steps of the host between them.

    frame --lower for the types seen--> stage 1 --host step--> frame --> stage 2 --> ... --> results
                                         |  other types, or other elements of a guard
                                         +-> stage 1' ...

A junction stands before each frame and keeps the stages lowered so far. A second run that meets the
same types and guards lowers, plans and allocates nothing.
Examples: tests/importers/test_program.py.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ..engine.run import Run
from ..errors import OutOfMemory
from ..importers.onnx.lower.context import Context
from ..importers.onnx.lower.lowering import (
    Frame,
    HostStep,
    Lowered,
    Lowering,
)
from ..importers.onnx.nodes.elements import from_storage, to_storage
from ..importers.onnx.nodes.host import WrongShape
from ..importers.onnx.nodes.names import item_slot, slots_of
from ..importers.onnx.nodes.values import HostType, HostValue, TypeKey, Value, type_of
from ..ops.core.tensor import Tensor
from ..trace import Trace
from ..types import NDArray
from .control import Step, make_step
from .telling import emit_step, warn_of_step

Compile = Callable[[Mapping[str, Tensor]], Run]


@dataclass(frozen=True)
class Services:
    """What programs have of a scheduler.

    compile: makes a Run of a stage's outputs. told: what a warning was given of; None where the
    host is all there is.
    """

    compile: Compile
    trace: Trace
    told: set[str] | None


@dataclass(eq=False)
class Stage:
    """A stage that is ready to run. run: None when its graph computes nothing. reads: the slots
    that are its inputs. keeps: those that it hands on as they are. doubted: how many nodes were
    known, when it was lowered, of which shape inference is wrong.
    """

    lowered: Lowered
    run: Run | None
    step: Step | None
    then: Junction | None
    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    doubted: int = 0

    def fits(self, arrays: Mapping[str, HostValue]) -> bool:
        """Returns whether the guards hold; where nothing is known of a slot they do not."""
        return all(_same(arrays.get(slot), array) for slot, array in self.lowered.guards.items())


@dataclass(eq=False)
class Junction:
    """The stages of one frame, by the types of its slots."""

    frame: Frame
    stages: dict[object, list[Stage]] = field(default_factory=dict)


LIGHTER = 16
"""How much less a stage without a compiled graph weighs."""
MOST = 64
"""So many compiled graphs that a single run uses are kept for each set of shapes."""


class StageCache:
    """The stages of a model that are kept, the one not used for longest first.

    limit: how many times the compiled graphs that one run has used at most, which are several where
    it has several stages or where shapes grow in a loop; of stages without a graph LIGHTER times as
    many. A stage in use stays.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.RLock()
        """Held for moments."""
        self.making = threading.RLock()
        """Held while a stage is lowered and compiled; taken before the other."""
        self._stages: OrderedDict[Stage, tuple[Junction, object]] = OrderedDict()
        self._users: Counter[Stage] = Counter()
        self._runs = threading.local()
        self._ended = threading.Condition(self.lock)
        self._active = 0
        self._most_used = 1

    @contextmanager
    def one_run(self) -> Iterator[None]:
        """Counts what is used inside as used by one run; runs inside one are a part of it."""
        if self._is_inside:
            yield
            return
        with self.lock:
            self._active += 1
        self._runs.used = set()
        try:
            yield
        finally:
            self._runs.used = None
            with self._ended:
                self._active -= 1
                self._ended.notify_all()

    @property
    def _is_inside(self) -> bool:
        """Whether the caller is itself part of a run."""
        return getattr(self._runs, "used", None) is not None

    def find(
        self, junction: Junction, key: object, arrays: Mapping[str, HostValue]
    ) -> Stage | None:
        """Returns a stage that serves a run, in use until it is given back."""
        with self.lock:
            for stage in junction.stages.get(key, ()):
                if stage.fits(arrays):
                    self._stages.move_to_end(stage)
                    self._use(stage)
                    return stage
        return None

    def add(self, junction: Junction, key: object, stage: Stage) -> None:
        """Keeps a new stage, in use until it is given back."""
        with self.lock:
            junction.stages.setdefault(key, []).append(stage)
            self._stages[stage] = (junction, key)
            self._use(stage)

    def _use(self, stage: Stage) -> None:
        self._users[stage] += 1
        used: set[Stage] | None = getattr(self._runs, "used", None)
        if used is not None and stage.run is not None:
            used.add(stage)
            self._most_used = max(self._most_used, min(len(used), MOST))

    def give_back(self, stage: Stage) -> None:
        """Ends a use; closes what is too much."""
        gone: list[Stage] = []
        with self.lock:
            self._users[stage] -= 1
            if not self._users[stage]:
                del self._users[stage]
                if stage not in self._stages:
                    gone.append(stage)  # dropped while it was in use
            compiled = [s for s in self._stages if s.run is not None]
            without = [s for s in self._stages if s.run is None]
            most = self.limit * self._most_used
            for stages, limit in ((compiled, most), (without, LIGHTER * most)):
                idle = (s for s in stages if s not in self._users)
                for old in itertools.islice(idle, max(0, len(stages) - limit)):
                    gone += self._drop(old)
        _close(gone)

    def forget(self, stage: Stage) -> None:
        """Drops a stage that is in use, and all that come after it."""
        with self.lock:
            gone = self._drop(stage)
        _close(gone)

    def _drop(self, stage: Stage) -> list[Stage]:
        """Forgets a stage and all that come after it; returns those that nobody uses."""
        out: list[Stage] = []
        todo = [stage]
        while todo:
            old = todo.pop()
            if old not in self._stages:
                continue
            junction, key = self._stages.pop(old)
            junction.stages[key].remove(old)
            if not junction.stages[key]:
                del junction.stages[key]
            bodies = [p.start for p in old.step.programs] if old.step else []
            for behind in [*bodies, old.then] if old.then else bodies:
                todo += [later for group in behind.stages.values() for later in group]
            if old not in self._users:
                out.append(old)
        return out

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that are kept, the one used last at the end."""
        with self.lock:
            return tuple(self._stages)

    def close_idle(self) -> bool:
        """Closes all that nobody uses now; returns whether a compiled graph was among it."""
        with self.lock:
            idle = [s for s in self._stages if s not in self._users]
            gone = [old for stage in idle for old in self._drop(stage)]
        _close(gone)
        return any(stage.run is not None for stage in gone)

    def close(self) -> None:
        """Waits for runs under way and closes all compiled graphs."""
        with self._ended:
            self._ended.wait_for(lambda: self._active <= self._is_inside)
            gone = [old for stage in list(self._stages) for old in self._drop(stage)]
        _close(gone)


def _close(stages: Iterable[Stage]) -> None:
    for stage in stages:
        if stage.run is not None:
            stage.run.close()


class Program:
    """A function of host values that an ONNX graph describes.

    context: of the model. frame: the graph; its slots are the program's inputs. cache: keeps the
    stages, of subgraphs too.
    """

    def __init__(
        self, context: Context, frame: Frame, services: Services, cache: StageCache
    ) -> None:
        self.context = context
        self.services = services
        self.cache = cache
        self.start = Junction(frame)

    def of(self, frame: Frame) -> Program:
        """Returns a program of another frame whose stages are kept beside those of this one."""
        return Program(self.context, frame, self.services, self.cache)

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
        """Notes a node of which inference is wrong; returns whether that is news to a stage."""
        if wrong.node is None:
            return False
        with self.cache.lock:
            doubted = self.context.not_inferable
            doubted.add(wrong.node.SerializeToString(deterministic=True))
            return stage.doubted < len(doubted)

    def prepare(self, types: Mapping[str, HostType]) -> Stage:
        """Lowers and compiles the first stage for given types.

        Raises:
            NeedsInputs: it depends on the elements of an input, too.
        """
        with self.cache.one_run():
            stage = self._find_or_make(self.start, types, None)
            self.cache.give_back(stage)
        return stage

    def _take(self, junction: Junction, held: Mapping[str, HostValue]) -> Stage:
        types = {slot: type_of(held[slot]) for slot in junction.frame.slots}
        return self._find_or_make(junction, types, held)

    def _find_or_make(
        self,
        junction: Junction,
        types: Mapping[str, TypeKey],
        held: Mapping[str, HostValue] | None,
    ) -> Stage:
        """Returns a stage, in use until it is given back. Others that are kept run meanwhile."""
        key = tuple(types[slot] for slot in junction.frame.slots)
        found = self.cache.find(junction, key, held or {})
        if found is not None:
            return found
        with self.cache.making:
            found = self.cache.find(junction, key, held or {})  # made by another thread by now
            return found or self._make(junction, key, types, held)

    def _make(
        self,
        junction: Junction,
        key: object,
        types: Mapping[str, TypeKey],
        held: Mapping[str, HostValue] | None,
    ) -> Stage:
        doubted = len(self.context.not_inferable)
        lowered = Lowering(self.context, junction.frame, types, held).run()
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

    def _compiled(self, outputs: Mapping[str, Tensor]) -> Run:
        try:
            return self.services.compile(outputs)
        except OutOfMemory:
            if not self.cache.close_idle():
                raise
            return self.services.compile(outputs)  # in the room of what was kept for other shapes

    def _advance(self, stage: Stage, held: Mapping[str, HostValue]) -> dict[str, HostValue]:
        """Runs one stage and its step; returns what the slots hold then."""
        lowered = stage.lowered
        out = {slot: held[slot] for slot in stage.keeps}
        if stage.run is not None:
            feeds = {slot: to_storage(held[slot]) for slot in stage.reads}
            found = stage.run(**feeds)
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
        trace, told = self.services.trace, self.services.told
        start_s = trace.clock.now()
        made = run.run(given, captured)
        if not run.programs:
            if trace.active:
                emit_step(trace, step, start_s)
            if told is not None:
                warn_of_step(stage, step, [*given, *made], told)
        return made


def _step_slots(step: HostStep | None) -> list[str]:
    if step is None:
        return []
    values = [v for v in step.inputs if v is not None] + list(step.captured.values())
    return [slot for value in values for slot in slots_of(value)]


def _same(a: HostValue, b: NDArray) -> bool:
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    return a.tobytes() == b.tobytes()  # NaN is the same NaN, -0 is not 0


def flatten(arrays: Mapping[str, HostValue]) -> dict[str, HostValue]:
    """Returns host values by slot, with the items of sequences beside the sequences."""
    out: dict[str, HostValue] = {}
    for name, value in arrays.items():
        out[name] = value
        if isinstance(value, (list, tuple)):
            out.update(flatten({item_slot(name, i): item for i, item in enumerate(value)}))
    return out


def host_of(value: Value, held: Mapping[str, HostValue]) -> HostValue:
    """Returns a known value, or what its slot holds."""
    if value.items is not None:
        return [host_of(item, held) for item in value.items]
    if value.slot is not None:
        return held[value.slot]
    return value.array
