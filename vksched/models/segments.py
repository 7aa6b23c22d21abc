"""Segments: caches the compiled graphs of a model between its CPU steps.

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
from ..importers.onnx.lower.frame import Frame, LoweredSegment
from ..importers.onnx.lower.model_context import ModelContext
from ..importers.onnx.nodes.elements import numpy_of
from ..importers.onnx.nodes.values import CpuValue


class AnyProgram(Protocol):
    """A function over host arrays that a graph of the file describes; see program.py."""

    context: ModelContext
    start: BranchPoint

    def of(self, frame: Frame) -> AnyProgram:
        """Return a program of another frame whose segments share this program's cache."""

    def __call__(self, arrays: Mapping[str, CpuValue]) -> list[CpuValue]:
        """Run once and return the results in order."""


StepFn = Callable[[Sequence[CpuValue], Mapping[str, CpuValue]], Sequence[CpuValue]]
"""The computation of a step, as a function of its operands and captured values."""


@dataclass(frozen=True)
class CpuStepFunction:
    """A CPU step between two segments.

    programs: its subgraphs.
    """

    run: StepFn
    programs: tuple[AnyProgram, ...] = ()


@dataclass(eq=False)
class CompiledSegment:
    """A compiled segment. run: None if its graph computes nothing. reads: the slots that are its
    inputs. keeps: the slots that it passes on unchanged. doubted: the number of nodes with known
    wrong shape inference when the segment was lowered.
    """

    lowered: LoweredSegment
    run: CompiledGraph | None
    step: CpuStepFunction | None
    then: BranchPoint | None
    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    doubted: int = 0

    @property
    def is_all(self) -> bool:
        """Return True if a run of the model is one run of this graph, whatever the inputs hold.

        No step may follow it, and each result must be its own output of the graph, in the result's
        element type.
        """
        lowered = self.lowered
        if self.run is None or self.step or self.then or lowered.guards:
            return False
        slots = [value.slot for value in lowered.results if value.slot is not None]
        if len(set(slots)) < len(lowered.results) or not lowered.outputs.keys() >= set(slots):
            return False
        stored = {n: numpy_dtype(t.dtype) for n, t in lowered.outputs.items()}
        return all(stored[slot] == numpy_of(lowered.elem_types[slot]) for slot in slots)

    def fits(self, arrays: Mapping[str, CpuValue]) -> bool:
        """Return True if all guards hold; unknown slots fail."""
        guards = self.lowered.guards
        return not guards or all(_same(arrays.get(slot), array) for slot, array in guards.items())


@dataclass(eq=False)
class BranchPoint:
    """The segments of one frame, by the types of its slots."""

    frame: Frame
    segments: dict[object, list[CompiledSegment]] = field(default_factory=dict)


GRAPHLESS_FACTOR = 16
"""The weight of a segment without a compiled graph is 1 / GRAPHLESS_FACTOR."""
CLOSED = "[run] the model or its scheduler is closed; compile it again"
MAX_GRAPHS = 64
"""The maximum number of compiled graphs of a single run that are cached for each set of shapes."""


class _OneRun:
    """The context manager of one run; a class, because a generator would be slower."""

    __slots__ = ("_cache", "_inner")

    def __init__(self, cache: SegmentCache) -> None:
        self._cache = cache

    def __enter__(self) -> None:
        self._inner = self._cache.begin()

    def __exit__(self, *_: object) -> None:
        if not self._inner:
            self._cache.end()


class SegmentCache:
    """The cached segments of a model, the least recently used one first.

    limit: the number of runs whose compiled graphs are cached. A run uses several graphs if it has
    several segments, or if shapes grow in a loop; the largest number of a run counts. Segments
    without a graph may be GRAPHLESS_FACTOR times as many. A segment in use is not evicted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.RLock()
        """The lock of the tables; held briefly."""
        self.making = threading.RLock()
        """Held while a segment is lowered and compiled; acquired before the other lock."""
        self._segments: OrderedDict[CompiledSegment, tuple[BranchPoint, object]] = OrderedDict()
        self._users: Counter[CompiledSegment] = Counter()
        self._runs = threading.local()
        self._ended = threading.Condition(self.lock)
        self._active = 0
        self._closing = False
        self._most_used = 1
        self.newest: CompiledSegment | None = None
        """The most recently used segment; None if it was evicted."""

    def one_run(self) -> _OneRun:
        """Count segments used inside the context as used by one run; nested runs are part of it."""
        return _OneRun(self)

    def begin(self) -> bool:
        """Begin a run; return True if it is nested in another one.

        Raises
        ------
        PlanError
            The cache is closed, maybe by another thread.
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
        """End an outermost run."""
        self._runs.used = None
        with self.lock:
            self._active -= 1
            if self._closing:
                self._ended.notify_all()

    @property
    def _is_inside(self) -> bool:
        """Return True if the calling thread is inside a run."""
        return getattr(self._runs, "used", None) is not None

    def find(
        self, branch_point: BranchPoint, key: object, arrays: Mapping[str, CpuValue]
    ) -> CompiledSegment | None:
        """Return a segment that matches the arrays, marked as in use until it is released."""
        with self.lock:
            for segment in branch_point.segments.get(key, ()):
                if segment.fits(arrays):
                    self._segments.move_to_end(segment)
                    self._use(segment)
                    return segment
        return None

    def add(self, branch_point: BranchPoint, key: object, segment: CompiledSegment) -> None:
        """Add a new segment, marked as in use until it is released."""
        with self.lock:
            branch_point.segments.setdefault(key, []).append(segment)
            self._segments[segment] = (branch_point, key)
            self._use(segment)

    def _use(self, segment: CompiledSegment) -> None:
        self.newest = segment
        self._users[segment] += 1
        used: set[CompiledSegment] | None = getattr(self._runs, "used", None)
        if used is not None and segment.run is not None:
            used.add(segment)
            self._most_used = max(self._most_used, min(len(used), MAX_GRAPHS))

    def release(self, segment: CompiledSegment) -> None:
        """End a use, and close evicted segments."""
        gone: list[CompiledSegment] = []
        with self.lock:
            self._users[segment] -= 1
            if not self._users[segment]:
                del self._users[segment]
                if segment not in self._segments:
                    gone.append(segment)  # evicted while it was in use
            if len(self._segments) > self.limit * self._most_used:
                gone += self._drop_oldest()
        _close(gone)

    def _drop_oldest(self) -> list[CompiledSegment]:
        """Evict unused segments over the limit; return those to close."""
        gone: list[CompiledSegment] = []
        compiled = [s for s in self._segments if s.run is not None]
        without = [s for s in self._segments if s.run is None]
        max_graphs = self.limit * self._most_used
        for segments, limit in ((compiled, max_graphs), (without, GRAPHLESS_FACTOR * max_graphs)):
            idle = (s for s in segments if s not in self._users)
            for old in itertools.islice(idle, max(0, len(segments) - limit)):
                gone += self._drop(old)
        return gone

    def forget(self, segment: CompiledSegment) -> None:
        """Remove a segment that is in use, and all that follow it."""
        with self.lock:
            gone = self._drop(segment)
        _close(gone)

    def _drop(self, segment: CompiledSegment) -> list[CompiledSegment]:
        """Remove a segment and all that follow it; return those that are not in use."""
        out: list[CompiledSegment] = []
        todo = [segment]
        while todo:
            old = todo.pop()
            if old not in self._segments:
                continue
            branch_point, key = self._segments.pop(old)
            if old is self.newest:
                self.newest = None
            branch_point.segments[key].remove(old)
            if not branch_point.segments[key]:
                del branch_point.segments[key]
            bodies = [p.start for p in old.step.programs] if old.step else []
            for behind in [*bodies, old.then] if old.then else bodies:
                todo += [later for group in behind.segments.values() for later in group]
            if old not in self._users:
                out.append(old)
        return out

    @property
    def segments(self) -> tuple[CompiledSegment, ...]:
        """The cached segments, the most recently used one last."""
        with self.lock:
            return tuple(self._segments)

    def close_idle(self) -> bool:
        """Close all unused segments; return True if one of them had a compiled graph."""
        with self.lock:
            idle = [s for s in self._segments if s not in self._users]
            gone = [old for segment in idle for old in self._drop(segment)]
        _close(gone)
        return any(segment.run is not None for segment in gone)

    def close(self) -> None:
        """Wait for runs in progress and close all compiled graphs."""
        with self._ended:
            self._closing = True
            self._ended.wait_for(lambda: self._active <= self._is_inside)
            gone = [old for segment in list(self._segments) for old in self._drop(segment)]
        _close(gone)


def _close(segments: Iterable[CompiledSegment]) -> None:
    for segment in segments:
        if segment.run is not None:
            segment.run.close()


def _same(a: CpuValue, b: NDArray) -> bool:
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    return a.tobytes() == b.tobytes()  # bytes: equal NaNs match, -0 and 0 differ
