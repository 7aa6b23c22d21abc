"""Run history: records the timings of a model's runs: its graphs and the CPU steps between them.

    run of the model  | segment 1 | Unique | segment 2 |       one WholeRun, when it is done

A run of a model stays on the calling thread, including the bodies of loops and branches, so each
thread has its own entries. A run that fails leaves no record.

Complexity: O(1) for each entry. Examples: tests/models/test_model_report.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..engine.report.run_history import CpuStepTime, GraphRun, RunHistory, WholeRun
from ..trace import Tape, Trace, find_tape


class _RunEntries:
    __slots__ = ("first", "graphs", "steps")

    def __init__(self) -> None:
        self.graphs: list[GraphRun] = []
        self.steps: list[CpuStepTime] = []
        self.first = False


class _OneRun:
    """The context manager of one run; a class, because a generator would be slower."""

    __slots__ = ("_before", "_history", "_entries", "_start_s", "_thread", "_trace")

    def __init__(self, thread: threading.local, trace: Trace, history: RunHistory) -> None:
        self._thread, self._trace, self._history = thread, trace, history

    def __enter__(self) -> None:
        self._before: _RunEntries | None = getattr(self._thread, "entries", None)
        self._entries = self._thread.entries = _RunEntries()
        self._start_s = self._trace.clock.now()

    def __exit__(self, error: object, *_: object) -> None:
        self._thread.entries = self._before
        if error is not None:
            return
        entries, end_s = self._entries, self._trace.clock.now()
        graphs, steps = tuple(entries.graphs), tuple(entries.steps)
        self._history.add(WholeRun(self._start_s, end_s, graphs, steps, entries.first))


class RunHistoryRecorder:
    """The finished runs of one model, and those in progress."""

    def __init__(self, trace: Trace) -> None:
        self.history = RunHistory()
        self._plans: list[Sequence[int]] = []
        """The lists of plan numbers of all graphs until now; they grow."""
        self._trace = trace
        self.now = trace.clock.now
        self._thread = threading.local()

    def one_run(self) -> _OneRun:
        """Record all entries inside the context as one run."""
        return _OneRun(self._thread, self._trace, self.history)

    def add_alone(self, start_s: float, run: GraphRun | None) -> None:
        """Add a finished run of the model that consisted of one graph."""
        graphs = (run,) if run is not None else ()
        self.history.add(WholeRun(start_s, self._trace.clock.now(), graphs))

    def add_graph(self, run: GraphRun | None) -> None:
        """Add a graph run; None if nothing was recorded."""
        entries = self._entries
        if entries is not None and run is not None:
            entries.graphs.append(run)

    def add_step(self, op: str, start_s: float) -> None:
        """Add a CPU step that ends now."""
        entries = self._entries
        if entries is not None:
            entries.steps.append(CpuStepTime(op, start_s, self._trace.clock.now()))

    @property
    def trace(self) -> Tape:
        """The events of the model's graphs and of its CPU steps; see `CompiledGraph.trace`."""
        plans = [number for numbers in self._plans.copy() for number in numbers]
        return find_tape(self._trace).of_plans(plans)

    def add_plans(self, numbers: Sequence[int]) -> None:
        """Add the list of a graph's plan numbers."""
        self._plans.append(numbers)

    def add_compiled(self) -> None:
        """Record that a segment was compiled in this run."""
        entries = self._entries
        if entries is not None:
            entries.first = True

    @property
    def _entries(self) -> _RunEntries | None:
        return getattr(self._thread, "entries", None)
