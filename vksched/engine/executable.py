"""CompiledGraph: the public interface of a compiled graph, with checks of its input arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import NDArray, numpy_dtype
from ..common.errors import (
    DTypeError,
    GraphError,
    IndexOutOfRange,
    PlanError,
    ShapeError,
    call_text,
    cast_text,
)
from ..common.fork_guard import ProcessBound
from ..ir.build_graph import Outputs
from ..ir.graph import Graph, Node
from ..ir.tensor import Tensor, convert
from ..plan.plan import Plan
from ..runtime.executors.ahead_runs import may_run_ahead
from ..runtime.executors.run_record import Observers
from ..runtime.run_stats import RunStats
from ..trace import Tape, Trace, find_tape
from .compiled_graph import GraphExecutionState
from .fp16_overflow import OverflowWatch
from .report.run_history import GraphRun

if TYPE_CHECKING:
    from .report.run_report import RunReport

Result = NDArray | tuple[NDArray, ...] | dict[str, NDArray]


class CompiledGraph(ProcessBound):
    """A compiled graph: call it with arrays by name, any number of times, from any thread."""

    _INSTEAD = "to send what its graph is built from, and to compile it in each process"

    def __init__(
        self,
        compiled: GraphExecutionState,
        pack: Callable[[tuple[NDArray, ...]], Result],
        observers: Observers,
        forget: Callable[[CompiledGraph], None],
        trace: Trace,
        overflow: OverflowWatch,
    ) -> None:
        self._compiled = compiled
        self._pack = pack
        self._observers = observers
        self._forget = forget
        self._trace = trace
        self._overflow = overflow
        self._closed = False
        self._inputs = {node.name: _Input(node) for node in compiled.graph.inputs}

    @property
    def plan(self) -> Plan:
        """The current plan: `print(run.plan.explain())`."""
        return self._compiled.plan

    @property
    def stats(self) -> RunStats | None:
        """The stats of the last finished run; None before the first."""
        return self._compiled.history.newest

    @property
    def trace(self) -> Tape:
        """The events of this graph on the scheduler's tape: `run.trace.save("t.json")`.

        Raises
        ------
        PlanError
            The scheduler has no tape.
        """
        return find_tape(self._trace).of_plans(self.plan_numbers)

    @property
    def plan_numbers(self) -> Sequence[int]:
        """The numbers of all plans until now, as used in events."""
        return self._compiled.plan_numbers

    def disable_overflow_check(self) -> None:
        """Do not warn of results that are not finite: the caller handles them."""
        self._overflow.disable_check()

    def report(self, runs: int | None = None, advice: bool = True) -> RunReport:
        """Return a report of the last runs, as medians: in total, on each device and for each op,
        with the predicted times. `print` shows tables, `draw` writes a picture.

        Parameters
        ----------
        runs
            The maximum number of runs. None: all recorded ones of the current plan, up to 32.
        advice
            Also simulate the graph on other devices, which takes as long as several plans; each
            plan is simulated once.

        Raises
        ------
        PlanError
            There was no run yet.
        """
        from .report.build_report import report_last  # imported on demand

        return report_last(self._compiled.history, runs, advice)

    def __call__(self, /, *unnamed: Any, **inputs: Any) -> Result:
        """Run once and return the outputs in the structure that was passed to `compile`."""
        feeds = self._feeds(unnamed, inputs, copy=False)
        outputs, _ = self._compiled.run(feeds, self._observers)
        return self._done(feeds, outputs)

    def run_with_stats(self, inputs: Mapping[str, Any]) -> tuple[Result, GraphRun | None]:
        """Run once and return the outputs and the recorded run, if known."""
        feeds = self._feeds((), inputs, copy=False)
        outputs, ran = self._compiled.run(feeds, self._observers)
        return self._done(feeds, outputs), self._compiled.history.graph_run(*ran) if ran else None

    @property
    def may_run_ahead(self) -> bool:
        """True if `run_ahead` submits runs before the results of earlier ones are read."""
        return may_run_ahead(self._compiled.plan)

    def run_ahead(
        self, inputs: Iterable[Mapping[str, Any]], take: Callable[[Result], bool]
    ) -> None:
        """Run once for each of some inputs. On one GPU, a run is submitted before the results of
        the one before are read, so that the device does not wait for the host.

        Values that a run needs from the one before must be states. The graph must be compiled with
        `ahead=True`, all of its indices need bounds, and no state may have a backup; otherwise the
        runs are one after the other. All of them together hold the states. After a device failure
        the call returns early, and the next use of the states raises StateLost. Observers are
        called as in other runs; a graph with observers has its runs one after the other, and so do
        runs with VKSCHED_FIND_OVERFLOW=1, which reads the states after each run.

        Parameters
        ----------
        inputs
            The arrays of each run by name. An array must not change before its run has ended.
        take
            Gets the outputs of each run. If it returns False, the runs end; one that was submitted
            ahead is complete then, and its outputs are dropped.
        """
        feeds = (self._feeds((), each, copy=False) for each in inputs)
        if self._overflow.searches:
            for each in feeds:
                outputs, _ = self._compiled.run(each, self._observers)
                if not take(self._done(each, outputs)):
                    return
            return

        def check_and_take(outputs: tuple[NDArray, ...]) -> bool:
            return take(self._done({}, outputs))  # only a search needs the inputs

        self._compiled.run_ahead(feeds, check_and_take, self._observers)

    def submit(self, /, *unnamed: Any, **inputs: Any) -> Future[Result]:
        """Start a run and return its future at once. Inputs are copied, so the caller may change
        them.
        """
        feeds = self._feeds(unnamed, inputs, copy=True)
        return self._compiled.submit(feeds, partial(self._done, feeds), self._observers)

    def _done(self, feeds: Mapping[int, NDArray], outputs: tuple[NDArray, ...]) -> Result:
        if self._overflow.rounds:
            self._overflow.look(feeds, outputs)
        return self._pack(outputs)

    def synchronize(self) -> None:
        """Wait until all submitted runs have finished or failed; their futures hold the results."""
        self._compiled.synchronize()

    def close(self) -> None:
        """Wait for all runs and free the device memory; idempotent.

        If the graph was compiled several times, the last `close` frees it.
        """
        self._closed = True
        self._forget(self)

    def _feeds(
        self, unnamed: tuple[Any, ...], inputs: Mapping[str, Any], copy: bool
    ) -> dict[int, NDArray]:
        if self._closed:
            raise PlanError(
                "[run] the compiled graph or its scheduler is closed; run it inside the "
                "scheduler's `with`, or compile it again"
            )
        if unnamed:
            raise GraphError(
                f"[run] expected inputs by name, got {len(unnamed)} without; try "
                f"{call_text(self._inputs)}"
            )
        if inputs.keys() != self._inputs.keys():
            raise GraphError(
                f"[run] expected inputs {sorted(self._inputs)}, got {sorted(inputs)}; "
                "try the names passed to vs.input"
            )
        feeds: dict[int, NDArray] = {}
        for name, value in inputs.items():
            input_ = self._inputs[name]
            array = input_.check(value)
            feeds[input_.id] = np.array(array, order="C", copy=True) if copy else array
        return feeds


class _Input:
    """An input of a compiled graph, with the type of its arrays."""

    __slots__ = ("_bounds", "_dtype", "_name", "_shape", "_type", "id")

    def __init__(self, node: Node) -> None:
        self.id = node.id
        self._name, self._type = node.name, node.type.dtype
        self._dtype, self._shape = numpy_dtype(node.type.dtype), node.type.shape
        low, high = node.attrs.get("low"), node.attrs.get("high")
        self._bounds = None if low is None or high is None else (low, high)

    def check(self, value: Any) -> NDArray:
        """Return a value as the array that a run expects."""
        name = self._name
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value, order="C")
            if array.dtype != self._dtype:
                raise DTypeError(
                    f"[run] expected {self._type} for input {name!r}, got {array.dtype}; "
                    f"try {cast_text(name, self._type)}"
                )
        else:
            array = np.asarray(convert(f"run: input {name!r}", value, self._type), order="C")
        if array.shape != self._shape:
            raise ShapeError(
                f"[run] expected shape {self._shape} for input {name!r}, got {array.shape}"
            )
        if self._bounds is not None and array.size:
            (low, high), smallest, largest = self._bounds, array.min(), array.max()
            if smallest < low or largest > high:
                raise IndexOutOfRange(
                    f"[run] expected values in {low}..{high} for input {name!r}, as its bounds "
                    f"say, got {smallest}..{largest}"
                )
        return array


def make_packer(outputs: Outputs, graph: Graph) -> Callable[[tuple[NDArray, ...]], Result]:
    """Return a function that packs the outputs of a run in the structure that was passed to
    `compile`.
    """
    if isinstance(outputs, Tensor):
        return lambda arrays: arrays[0]
    if isinstance(outputs, Mapping):
        names = [name for name, _ in graph.outputs]
        return lambda arrays: dict(zip(names, arrays, strict=True))
    return lambda arrays: arrays
