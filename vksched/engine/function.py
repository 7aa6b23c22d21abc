"""Function: compiles a graph for each set of input shapes at its first call.

    f = sched.function(lambda x: vs.softmax(x @ w))
    f(x=a)  shapes cached? --yes--> run      --no--> build, compile, run

Examples: tests/engine/test_reuse.py.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import GraphError
from ..common.fork_guard import Owner, ProcessBound
from ..ir.build_graph import Outputs, Updates
from ..ir.tensor import Tensor, constant, input
from ..trace import Tape, find_tape
from .compile_options import CompileOptions
from .executable import CompiledGraph, Result
from .graph_registry import GraphRegistry

Build = Callable[..., Outputs | tuple[Outputs, Updates]]
_Key = tuple[tuple[str, tuple[int, ...], str], ...]


class Function(ProcessBound):
    """A function of arrays of any shape, whose graph `build` creates.

    Parameters
    ----------
    build
        Called with one input Tensor per argument by name, once per set of shapes. It returns
        outputs, or a pair of outputs and a dict of state updates. Weights and states are created
        outside of it, so that all shapes share them.
    graphs
        The registry that compiles the graphs.
    options
        The options of each graph, as in `Scheduler.compile`; `build` returns the updates.
    bounds
        The value ranges of integer inputs by name; see `vs.input`.
    limit
        The maximum number of cached sets of shapes; the least recently used one is closed.
    """

    _INSTEAD = "to send the Python function, and to compile it in each process"

    def __init__(
        self,
        build: Build,
        graphs: GraphRegistry,
        options: CompileOptions,
        bounds: Mapping[str, tuple[int, int]],
        limit: int,
    ) -> None:
        if not isinstance(limit, int) or limit < 1:
            raise GraphError(f"[function] expected a limit of at least 1, got {limit!r}")
        self._build = build
        self._graphs = graphs
        self._options = options
        self._bounds = dict(bounds)
        self._limit = limit
        self._runs: OrderedDict[_Key, CompiledGraph] = OrderedDict()
        self._busy: Counter[_Key] = Counter()
        self._plan_numbers: list[Sequence[int]] = []
        self._lock = threading.RLock()
        self._owner = Owner()

    def __call__(self, /, **inputs: Any) -> Result:
        """Run once, as `CompiledGraph` does."""
        arrays = _as_arrays(inputs)
        key, run = self._acquire(arrays)
        try:
            return run(**arrays)
        finally:
            self._release(key)

    def submit(self, /, **inputs: Any) -> Future[Result]:
        """Start a run as `CompiledGraph.submit` does, after compilation if needed."""
        arrays = _as_arrays(inputs)
        key, run = self._acquire(arrays)
        try:
            future = run.submit(**arrays)
        except BaseException:
            self._release(key)
            raise
        future.add_done_callback(lambda _: self._release(key))
        return future

    @property
    def trace(self) -> Tape:
        """The events of the graphs of all shapes on the scheduler's tape; see
        `CompiledGraph.trace`.
        """
        with self._lock:
            plans = [number for numbers in self._plan_numbers for number in numbers]
        return find_tape(self._graphs.preparing.trace).of_plans(plans)

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """The cached sets of shapes, the most recently used one last."""
        with self._lock:
            return tuple({name: shape for name, shape, _ in key} for key in self._runs)

    def _acquire(self, arrays: Mapping[str, NDArray]) -> tuple[_Key, CompiledGraph]:
        """Return the key and the compiled graph for the arrays' shapes and element types; it stays
        cached until it is released.
        """
        self._owner.require("the function")
        key = tuple((name, arrays[name].shape, str(arrays[name].dtype)) for name in sorted(arrays))
        with self._lock:
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = self._make(arrays)
            self._runs.move_to_end(key)
            self._busy[key] += 1
        return key, run

    def _release(self, key: _Key) -> None:
        with self._lock:
            self._busy[key] -= 1
            idle = [k for k in self._runs if not self._busy[k]]
            spare = idle[: max(0, len(self._runs) - self._limit)]
            unused = [self._runs.pop(k) for k in spare]
        for old in unused:
            old.close()

    def close(self) -> None:
        """Close the graphs of all shapes; the next call compiles again."""
        if self._owner.forked:
            return
        with self._lock:
            runs = list(self._runs.values())
            self._runs.clear()
        for run in runs:
            run.close()

    def _make(self, arrays: Mapping[str, NDArray]) -> CompiledGraph:
        unknown = self._bounds.keys() - arrays.keys()
        if unknown:
            raise GraphError(
                f"[function] expected bounds of inputs {sorted(arrays)}, got {sorted(unknown)}"
            )
        outputs = self._build(
            **{
                name: input(name, array.shape, array.dtype, self._bounds.get(name))
                for name, array in arrays.items()
            }
        )
        options = self._options
        if isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[1], Mapping):
            outputs, updates = outputs
            options = replace(options, updates=updates)
        if not isinstance(outputs, (Tensor, Mapping, tuple, list)):
            raise GraphError(
                f"[function] expected outputs, or outputs and updates, got {type(outputs).__name__}"
            )
        run = self._graphs.compile(outputs, options)
        self._plan_numbers.append(run.plan_numbers)
        return run


def _as_arrays(inputs: Mapping[str, Any]) -> dict[str, NDArray]:
    """Return inputs as arrays; Python floats become float32, Python ints int32."""
    out: dict[str, NDArray] = {}
    for name, value in inputs.items():
        array = value if isinstance(value, (np.ndarray, np.generic)) else constant(value).data
        out[name] = np.asarray(array)
    return out
