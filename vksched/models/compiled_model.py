"""CompiledModel: an ONNX model on a scheduler, compiled for the shapes of its calls.

model = vs.load("model.onnx")
with vs.Scheduler() as sched:
    run = sched.compile(model)
    scores = run(x=batch)["scores"]
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import get_ident
from typing import Any

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import GraphError, PlanError, call_text
from ..common.fork_guard import Owner, ProcessBound
from ..engine.compile_options import CompileOptions
from ..engine.graph_registry import GraphRegistry
from ..engine.report.build_report import report_last
from ..engine.report.run_report import RunReport
from ..importers.onnx.lower.frame import NeedsInputs
from ..importers.onnx.model import Model, ModelValue, Types, types_of
from ..importers.onnx.nodes.values import CpuValue
from ..plan.plan import Plan
from ..trace import Tape
from .host_events import explain_segments
from .program import Program, SegmentCompiler
from .run_history import RunHistoryRecorder
from .segments import CLOSED, CompiledSegment, SegmentCache


class CompiledModel(ProcessBound):
    """A compiled model: call it with arrays by name, any number of times.

    Each new set of shapes is compiled at its first call and cached. The least recently used one is
    closed if there are more than `limit`, or if a device has no memory for the next.
    """

    _INSTEAD = "to send the path of the model, and to compile it in each process"

    def __init__(
        self,
        model: Model,
        graphs: GraphRegistry,
        options: CompileOptions,
        limit: int,
        warns: bool = True,
    ) -> None:
        if not isinstance(limit, int) or limit < 1:
            raise PlanError(f"[compile] expected a limit of at least 1, got {limit!r}")
        self.model = model
        self._cache = SegmentCache(limit)
        warned = graphs.warned if warns else None
        self._history = RunHistoryRecorder(graphs.preparing.trace)
        self._compiler = SegmentCompiler(graphs, options.copy(), warned, self._history)
        self._programs: dict[frozenset[str], Program] = {}
        self._owner = Owner()
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._workers: set[int] = set()
        self._submitted: set[Future[dict[str, CpuValue]]] = set()
        self._closed = False
        self._direct: DirectRun | None = None
        self._looked_at: object = None
        """The input types for which `_direct` was looked up."""

    @property
    def inputs(self) -> tuple[ModelValue, ...]:
        return self.model.inputs

    @property
    def outputs(self) -> tuple[ModelValue, ...]:
        return self.model.outputs

    def __call__(self, /, *unnamed: Any, **inputs: Any) -> dict[str, CpuValue]:
        """Run once and return the outputs by name.

        Raises
        ------
        ModelFormatError
            The model is invalid; the message names the node.
        ShapeError, DTypeError, GraphError
            The inputs do not match the model.
        """
        if unnamed:
            hint = call_text(value.name for value in self.inputs)
            raise GraphError(
                f"[run] expected inputs by name, got {len(unnamed)} without; try {hint}"
            )
        self._require_open()
        return self._run(inputs)

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, CpuValue]:
        direct = self._direct
        if direct is not None and direct.segment is self._cache.newest and direct.fits(inputs):
            try:
                return direct.run(inputs, self._history)
            except PlanError:
                if direct.segment is self._cache.newest:
                    raise  # otherwise another thread has closed it
        types = types_of(inputs)
        with self._history.one_run():
            arrays = self.model.check_inputs(inputs)
            program = self._program_of(frozenset(arrays.keys() & self.model.defaults.keys()))
            found = program(arrays)
            owned = [a for value in arrays.values() for a in _arrays(value)]
            results = {v.name: _owned(a, owned) for v, a in zip(self.outputs, found, strict=True)}
        if types is not None and (direct is not None or types != self._looked_at):
            segment = program.whole(arrays)
            self._direct = None if segment is None else DirectRun(types, segment, self.outputs)
            self._looked_at = types
        return results

    def submit(self, /, **inputs: Any) -> Future[dict[str, CpuValue]]:
        """Start a run and return its future at once; submitted runs execute in order."""
        self._require_open()
        copied = {name: _copied(value) for name, value in inputs.items()}
        with self._lock:
            self._require_open()
            if self._worker is None:
                workers = self._workers  # a running thread keeps its reference
                self._worker = ThreadPoolExecutor(
                    1, "vksched-model", initializer=lambda: workers.add(get_ident())
                )
            future = self._worker.submit(self._run, copied)
            self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    def synchronize(self) -> None:
        """Wait until all submitted runs have finished or failed; their futures hold the results."""
        self._owner.require("the compiled model")
        with self._lock:
            submitted = list(self._submitted)
        wait(submitted)

    def prepare(self, **shapes: Any) -> None:
        """Compile for input shapes by name without a run, as far as no shape depends on the inputs'
        elements.
        """
        self._require_open()
        with contextlib.suppress(NeedsInputs):  # then at the first run
            self._program_of(frozenset()).prepare(self.model.input_types(shapes))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all compiled graphs, the most recently used one last."""
        return tuple(s.run.plan for s in self._cache.segments if s.run is not None)

    @property
    def segments(self) -> tuple[CompiledSegment, ...]:
        """All cached segments, including those without a graph."""
        return self._cache.segments

    @property
    def plan(self) -> Plan:
        """The plan of the most recently used compiled graph: `print(run.plan.explain())`."""
        plans = self.plans
        if not plans:
            raise self._nothing_yet()
        return plans[-1]

    def explain(self) -> str:
        """Return a text about the last run, or about the prepared segments: their plans in order,
        and the CPU steps between them with the reasons.
        """
        with self._cache.lock, self._lock:
            segments = self._cache.segments
            age = {segment: number for number, segment in enumerate(segments)}
            used = [
                (age[segment], program.start)
                for program in self._programs.values()
                for segments in program.start.segments.values()
                for segment in segments
            ]
            if not used:
                raise self._nothing_yet()
            return explain_segments(max(used, key=lambda pair: pair[0])[1], segments)

    @property
    def trace(self) -> Tape:
        """The events of all graphs of the model and of its CPU steps, as recorded on the
        scheduler's tape: `run.trace.save("t.json")`.

        Raises
        ------
        PlanError
            The scheduler has no tape.
        """
        return self._history.trace

    def report(self, runs: int | None = None, advice: bool = True) -> RunReport:
        """Return a report of the last runs of the model, as medians over all graphs and CPU steps
        of a run. See `CompiledGraph.report`.

        Parameters
        ----------
        runs
            The maximum number of runs. None: all recorded ones, up to 32 with one set of plans.
            Runs that had to compile count only if there are no others.
        advice
            Simulate other devices, too.

        Raises
        ------
        PlanError
            There was no run yet.
        """
        return report_last(self._history.history, runs, advice)

    def close(self) -> None:
        """Wait for all runs, including submitted ones, and free the device memory; idempotent.

        A callback of a future may call it, too; runs that have not begun are then dropped. In a
        forked child it does nothing.
        """
        if self._owner.forked:  # the parent's lock may never be released
            return
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            is_worker = get_ident() in self._workers
            worker.shutdown(wait=not is_worker, cancel_futures=is_worker)
        self._cache.close()

    def _nothing_yet(self) -> PlanError:
        hint = call_text(value.name for value in self.inputs)
        return PlanError(
            f"[plan] expected a compiled model, got none yet; try {hint} or prepare first"
        )

    def _require_open(self) -> None:
        if self._closed:
            raise PlanError(CLOSED)
        self._owner.require("the compiled model")

    def _program_of(self, initializers: frozenset[str]) -> Program:
        """Return the program that has these initializers as inputs."""
        with self._lock:
            if initializers not in self._programs:
                frame = self.model.frame(initializers)
                self._programs[initializers] = Program(
                    self.model.context, frame, self._compiler, self._cache
                )
            return self._programs[initializers]


class DirectRun:
    """A run of the model that is one run of one graph, for fixed input types. types: as returned by
    `types_of`.
    """

    def __init__(
        self, types: Types, segment: CompiledSegment, outputs: Sequence[ModelValue]
    ) -> None:
        assert segment.run is not None
        self.segment = segment
        self._types = types
        self._run, self._reads = segment.run, segment.reads
        slots = [value.slot or "" for value in segment.lowered.results]
        self._reads_all = {name for name, *_ in types} == set(self._reads)
        self._names = [(v.name, slot) for v, slot in zip(outputs, slots, strict=True)]
        self._wanted = [v.name for v in outputs]

    def fits(self, inputs: Mapping[str, Any]) -> bool:
        """Return True if the inputs have these types."""
        if len(inputs) != len(self._types):
            return False
        for name, dtype, shape in self._types:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return False
        return True

    def run(self, inputs: Mapping[str, Any], history: RunHistoryRecorder) -> dict[str, CpuValue]:
        """Run once; segments that other threads drop meanwhile are closed at the end."""
        start_s = history.now()
        read = inputs if self._reads_all else {name: inputs[name] for name in self._reads}
        found, cost = self._run.run_with_stats(read)
        assert isinstance(found, dict)
        history.add_alone(start_s, cost)
        if list(found) == self._wanted:
            return found
        return {name: found[slot] for name, slot in self._names}


def _arrays(value: CpuValue) -> list[NDArray]:
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    return [value] if isinstance(value, np.ndarray) else []


def _owned(value: CpuValue, owned: list[NDArray]) -> CpuValue:
    """Return a result that shares no memory with the inputs, with other results or with the model's
    constants. owned: arrays whose memory it must not share; the result is appended.
    """
    if isinstance(value, list):
        return [_owned(item, owned) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.writeable or any(_shares(value, other) for other in owned):
        value = value.copy()
    owned.append(value)
    return value


def _shares(a: NDArray, b: NDArray) -> bool:
    if a.base is None and b.base is None:  # each owns its memory
        return a is b
    return np.may_share_memory(a, b)


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    copy = getattr(value, "copy", None)
    return copy() if copy is not None else value
