"""Diary: what was measured of a model's runs: its graphs, and the host's steps between them.

    run of the model  | stage 1 | Unique | stage 2 |       one WholeRun, when it is done

A run of a model stays on the thread that asked for it, bodies of loops and branches too, so each
thread writes on a page of its own. A run that fails leaves nothing.
Complexity: O(1) for each entry. Examples: tests/importers/test_model_report.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..engine.report.runs import GraphRun, HostStep, ModelHistory, WholeRun
from ..trace import Tape, Trace, find_tape


@dataclass(slots=True)
class _Page:
    graphs: list[GraphRun] = field(default_factory=list)
    steps: list[HostStep] = field(default_factory=list)
    first: bool = False


class Diary:
    """The runs of one model that are done, and those under way."""

    def __init__(self, trace: Trace) -> None:
        self.history = ModelHistory()
        self._plans: list[Sequence[int]] = []
        """Of each graph so far the numbers of its plans, which grow."""
        self._trace = trace
        self._thread = threading.local()

    @contextmanager
    def one_run(self) -> Iterator[None]:
        """Keeps what is added inside as one run."""
        before, page = self._page, _Page()
        self._thread.page = page
        start_s = self._trace.clock.now()
        try:
            yield
        finally:
            self._thread.page = before
        end_s = self._trace.clock.now()
        graphs, steps = tuple(page.graphs), tuple(page.steps)
        self.history.add(WholeRun(start_s, end_s, graphs, steps, page.first))

    def add_graph(self, run: GraphRun | None) -> None:
        """Adds a graph that has run; None: nothing is known of it."""
        page = self._page
        if page is not None and run is not None:
            page.graphs.append(run)

    def add_step(self, op: str, start_s: float) -> None:
        """Adds what the host did until now."""
        page = self._page
        if page is not None:
            page.steps.append(HostStep(op, start_s, self._trace.clock.now()))

    @property
    def trace(self) -> Tape:
        """The events of the model's graphs and of the steps between them; see `Run.trace`."""
        plans = [number for numbers in self._plans.copy() for number in numbers]
        return find_tape(self._trace).of_plans(plans)

    def add_plans(self, numbers: Sequence[int]) -> None:
        """Notes the numbers of a graph's plans."""
        self._plans.append(numbers)

    def add_compiled(self) -> None:
        """Notes that a stage had to be made."""
        page = self._page
        if page is not None:
            page.first = True

    @property
    def _page(self) -> _Page | None:
        return getattr(self._thread, "page", None)
