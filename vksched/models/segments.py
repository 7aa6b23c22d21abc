"""Stages: compiled graphs of a model between steps of the host, and how long they are kept.

Examples: tests/models/test_program.py.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..common.dtypes import NDArray, numpy_dtype
from ..common.errors import PlanError
from ..engine.executable import CompiledGraph
from ..importers.onnx.lower.frame import Frame, Lowered
from ..importers.onnx.lower.model_context import ModelContext
from ..importers.onnx.nodes.elements import numpy_of
from ..importers.onnx.nodes.values import HostValue


class AnyProgram(Protocol):
    """A function of host values that a graph of the file describes: see program.py."""

    context: ModelContext
    start: Junction

    def of(self, frame: Frame) -> AnyProgram:
        """Returns a program of another frame, whose stages are kept beside those of this one."""

    def __call__(self, arrays: Mapping[str, HostValue]) -> list[HostValue]:
        """Runs once; returns the results in order."""


StepFunction = Callable[[Sequence[HostValue], Mapping[str, HostValue]], Sequence[HostValue]]
"""What a step computes, as a function of its operands and of what it captures."""


@dataclass(frozen=True)
class Step:
    """What the host does between two stages.

    programs: its subgraphs.
    """

    run: StepFunction
    programs: tuple[AnyProgram, ...] = ()


@dataclass(eq=False)
class Stage:
    """A stage that is ready to run. run: None when its graph computes nothing. reads: the slots
    that are its inputs. keeps: those that it hands on as they are. doubted: how many nodes
    shape inference was known to be wrong about, when this was lowered.
    """

    lowered: Lowered
    run: CompiledGraph | None
    step: Step | None
    then: Junction | None
    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    doubted: int = 0

    @property
    def is_all(self) -> bool:
        """Whether a run of the model is a run of this graph, whatever is in its inputs: nothing
        comes after it, and each result is made by it, for that result alone, in its own element
        type.
        """
        lowered = self.lowered
        if self.run is None or self.step or self.then or lowered.guards:
            return False
        slots = [value.slot for value in lowered.results if value.slot is not None]
        if len(set(slots)) < len(lowered.results) or not lowered.outputs.keys() >= set(slots):
            return False
        stored = {n: numpy_dtype(t.dtype) for n, t in lowered.outputs.items()}
        return all(stored[slot] == numpy_of(lowered.elem_types[slot]) for slot in slots)

    def fits(self, arrays: Mapping[str, HostValue]) -> bool:
        """Returns whether the guards hold; where nothing is known of a slot they do not."""
        guards = self.lowered.guards
        return not guards or all(_same(arrays.get(slot), array) for slot, array in guards.items())


@dataclass(eq=False)
class Junction:
    """The stages of one frame, by the types of its slots."""

    frame: Frame
    stages: dict[object, list[Stage]] = field(default_factory=dict)


LIGHTER = 16
"""How much less a stage without a compiled graph weighs."""
CLOSED = "[run] the model or its scheduler is closed; compile it again"
MOST = 64
"""So many compiled graphs that a single run uses are kept for each set of shapes."""


class _OneRun:
    """Is entered for each run, so it takes no generator."""

    __slots__ = ("_cache", "_inner")

    def __init__(self, cache: StageCache) -> None:
        self._cache = cache

    def __enter__(self) -> None:
        self._inner = self._cache.begin()

    def __exit__(self, *_: object) -> None:
        if not self._inner:
            self._cache.end()


class StageCache:
    """The stages of a model that are kept, the one not used for longest first.

    limit: how many times the compiled graphs of one run are kept. A run uses several where it has
    several stages, or where shapes grow in a loop; the run that used most counts. Of stages without
    a graph, LIGHTER times as many are kept. A stage in use stays.
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
        self._closing = False
        self._most_used = 1
        self.newest: Stage | None = None
        """The stage that a run took last; None where that was dropped since."""

    def one_run(self) -> _OneRun:
        """Counts what is used inside as used by one run; runs inside one are a part of it."""
        return _OneRun(self)

    def begin(self) -> bool:
        """Notes that a run begins; returns whether it is part of another one.

        Raises:
            PlanError: all is closed, maybe by another thread a moment ago.
        """
        if self._is_inside:
            return True
        with self.lock:
            if self._closing:
                raise PlanError(CLOSED)
            self._active += 1
        self._runs.used = set()
        return False

    def end(self) -> None:
        """Notes that a run ends that is part of no other."""
        self._runs.used = None
        with self.lock:
            self._active -= 1
            if self._closing:
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
        self.newest = stage
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
            if len(self._stages) > self.limit * self._most_used:
                gone += self._drop_oldest()
        _close(gone)

    def _drop_oldest(self) -> list[Stage]:
        """Forgets what is too much, as far as nobody uses it; returns what is to be closed."""
        gone: list[Stage] = []
        compiled = [s for s in self._stages if s.run is not None]
        without = [s for s in self._stages if s.run is None]
        most = self.limit * self._most_used
        for stages, limit in ((compiled, most), (without, LIGHTER * most)):
            idle = (s for s in stages if s not in self._users)
            for old in itertools.islice(idle, max(0, len(stages) - limit)):
                gone += self._drop(old)
        return gone

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
            if old is self.newest:
                self.newest = None
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
            self._closing = True
            self._ended.wait_for(lambda: self._active <= self._is_inside)
            gone = [old for stage in list(self._stages) for old in self._drop(stage)]
        _close(gone)


def _close(stages: Iterable[Stage]) -> None:
    for stage in stages:
        if stage.run is not None:
            stage.run.close()


def _same(a: HostValue, b: NDArray) -> bool:
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    return a.tobytes() == b.tobytes()  # NaN is the same NaN, -0 is not 0
