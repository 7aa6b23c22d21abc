"""Graph registry: the compiled graphs of a scheduler, reference-counted by their handles.

    compile(outputs) --cached request?--> CompiledGraph of the existing graph
                     \\--new-------------> plan, allocate, record --> CompiledGraph

Requests with equal graphs, placements and observed values share one compiled graph; nothing is
planned or allocated again. Examples: tests/engine/test_reuse.py, tests/scheduler/test_closing.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..common.dtypes import NDArray, Progress
from ..common.errors import DeviceError, PlanError
from ..common.fork_guard import Owner
from ..ir.build_graph import Outputs, build_graph
from ..ir.early_writes import check_early_writes
from ..ir.tensor import Tensor
from ..passes import RewriteConstraints
from ..plan.explain.cpu_fallback import warn_of_fallbacks
from ..plan.plan import Plan
from ..planner.plan_cache import DamagedPlan
from ..storage.background_writes import WRITES
from .compile_options import CompileOptions, Placements
from .compiled_graph import GraphExecutionState
from .executable import CompiledGraph, Result, make_packer
from .fp16_overflow import OverflowWatch
from .graph_cache import (
    CachedGraph,
    DeferredGraph,
    depends_on_memory,
    describe_constraints,
    describe_graph,
    hash_of,
)
from .graph_document import SourceLeaves
from .plan_builder import PlanBuilder
from .request import Request, find_observers, find_pipeline_order, least_limits
from .request_precision import apply_precision

if TYPE_CHECKING:
    from .apply_config import ConfigApplier

DEFAULTS = CompileOptions()


@dataclass(eq=False)
class _Entry:
    """A compiled graph and the handles to it."""

    compiled: GraphExecutionState
    runs: list[CompiledGraph] = field(default_factory=list)


class GraphRegistry:
    """The compiled graphs of one scheduler.

    configuring: applies the scheduler's config, if there is one. warned: fallbacks that were warned
    about. lock: held while a graph is compiled, otherwise only briefly.
    """

    def __init__(self, preparing: PlanBuilder, configuring: ConfigApplier | None = None) -> None:
        self.preparing = preparing
        self.configuring = configuring
        self.warned: set[str] = set()
        self.lock = threading.RLock()
        self.owner = Owner()
        self.closing = False
        self.entries: dict[object, _Entry] = {}
        """The compiled graphs by request key."""
        self.compiled: list[GraphExecutionState] = []
        """The compiled graphs that are not closed."""

    def compile(
        self,
        outputs: Outputs | DeferredGraph,
        options: CompileOptions = DEFAULTS,
    ) -> CompiledGraph:
        """Return a handle to a compiled graph; compile it if it is new."""
        self.owner.require("the scheduler")  # in a forked child the lock may never be released
        self._require_open()
        self.preparing.opened.holders.free_unused()
        with self.lock:
            self._require_open()
            if isinstance(outputs, DeferredGraph):
                run = self._run_of_deferred(outputs, options)
            else:
                request = self._request(outputs, options)
                run = self._run_of(request, make_packer(outputs, request.graph), options.progress)
        return self._warn_of_fallbacks(run)

    @property
    def rewriting(self) -> str | None:
        """The options of the passes, as a cache key; None if a config takes part. Memory sizes are
        excluded; only convolutions depend on them.
        """
        if self.configuring is not None:
            return None
        preparing = self.preparing
        constraints = RewriteConstraints(limits=least_limits(preparing.topology()))
        options = preparing.optimizes, preparing.precision
        return repr(options) + describe_constraints(constraints, with_memory=False)

    def _run_of_deferred(self, deferred: DeferredGraph, options: CompileOptions) -> CompiledGraph:
        """Return a handle to the compiled graph of a deferred graph: the cached one, or a new one.
        Passes do not run again on a cached graph.
        """
        rewriting = None if deferred.key is None else self.rewriting
        inputs = None if deferred.key is None else (*deferred.key, repr(options.precision))
        file = CachedGraph(hash_of(inputs, rewriting), deferred.leaves)
        cached, progress = file.read(deferred.require_ends), options.progress
        if cached is not None:
            try:
                request = Request(cached.graph, (), {}, cached_plan=cached)
                return self._run_of(request, lambda arrays: arrays[0], progress, file)
            except DamagedPlan as error:  # a damaged plan makes its graph untrusted, too
                file.set_aside(error)
        outputs, updates = deferred.build()
        request = self._request(outputs, replace(options, updates=updates))
        if len(request.graph.outputs) != 1 or depends_on_memory(request.graph):
            file = CachedGraph(None, deferred.leaves)
        return self._run_of(request, make_packer(outputs, request.graph), progress, file)

    def _run_of(
        self,
        request: Request,
        pack: Callable[[tuple[NDArray, ...]], Result],
        progress: Progress | None,
        file: CachedGraph | None = None,
    ) -> CompiledGraph:
        """Return a handle to the compiled graph of a request; the caller holds the lock. file: the
        cached graph of a deferred one; by default that of the request's graph.
        """
        key = request.key()
        entry = self.entries.get(key)
        if entry is None:
            state = self._compile(request, progress, file)
            entry = self.entries[key] = _Entry(state)
            self.compiled.append(state)
        run = CompiledGraph(
            entry.compiled,
            pack,
            request.of_graph(entry.compiled.graph).observers,
            lambda closed: self._forget(closed, key, entry),
            self.preparing.trace,
            OverflowWatch(entry.compiled.graph, self.preparing.states.read),
        )
        entry.runs.append(run)
        return run

    def _compile(
        self, request: Request, progress: Progress | None, file: CachedGraph | None
    ) -> GraphExecutionState:
        """Compile a request that is not compiled yet, with the cached graph and plan if there are
        any; else cache them.
        """
        preparing, ready = self.preparing, request
        if request.cached_plan is None:
            is_deferred = file is not None
            file = file or self._file_of(request)
            cached = None if is_deferred else file.read(request.require_ends)
            ready = preparing.lighten(request, cached)
        assert file is not None
        try:
            state = GraphExecutionState(preparing, ready, progress)
        except DamagedPlan as error:
            if ready is request:
                raise
            file.set_aside(error)
            ready = preparing.lighten(request)
            state = GraphExecutionState(preparing, ready, progress)
        cached = ready.cached_plan
        if cached is None or not cached.taken:
            plan = preparing.serializer(state.plan, ready)
            file.write_later(ready.graph, plan, needs_plan=cached is not None)
        return state

    def _file_of(self, request: Request) -> CachedGraph:
        """Return the cached graph and plan of a request, which may not exist."""
        graph, key = request.graph, None
        if self.configuring is None and self.preparing.optimizes and not request.pipeline_order:
            described = describe_graph(graph)
            if described is not None:
                constraints = request.constraints(self.preparing.topology())
                by_memory = depends_on_memory(graph)
                key = hash_of(described, describe_constraints(constraints, by_memory))
        return CachedGraph(key, SourceLeaves(graph))

    def _warn_of_fallbacks(self, run: CompiledGraph) -> CompiledGraph:
        """Warn of CPU fallbacks in a compiled graph, and return it."""
        try:
            warn_of_fallbacks(run.plan, self.warned)
        except BaseException:  # warnings may be errors
            run.close()
            raise
        return run

    def reserve(
        self,
        outputs: Outputs,
        options: CompileOptions = DEFAULTS,
    ) -> Plan:
        """Return the plan that `compile` would execute; nothing is allocated."""
        self.owner.require("the scheduler")
        with self.lock:
            self._require_open()
            written = self._request(outputs, options)
            request = self.preparing.lighten(written)
        return self.preparing.plan(request, self.preparing.topology())

    def reconsider(self) -> None:
        """Plan each graph again at its next run, because a device has returned."""
        with self.lock:
            compiled = list(self.compiled)
        for each in compiled:
            each.reconsider()

    def synchronize(self) -> None:
        """Wait until all submitted runs have finished or failed."""
        with self.lock:
            compiled = list(self.compiled)
        for each in compiled:
            each.synchronize()

    def require_outside(self, what: str) -> None:
        """Raise if called by an observer or sink during a run, which would deadlock."""
        with self.lock:
            compiled = list(self.compiled)
        for each in compiled:
            each.require_outside(what)

    def close(self) -> bool:
        """Wait for accepted runs, then free all graphs; return True if none is left, False if
        another thread is still closing one.
        """
        with self.lock:
            compiled = list(self.compiled)
            self.require_outside("close")
            self.closing = True
        for each in compiled:
            # if another thread closes it: waits for that, or returns at once in a callback
            each.close()
        WRITES.wait()
        return all(each.closed for each in compiled)

    def _forget(self, run: CompiledGraph, key: object, entry: _Entry) -> None:
        """Close a compiled graph when its last handle is closed."""
        if self.owner.forked:
            return
        with self.lock:
            if run in entry.runs:
                entry.runs.remove(run)
            last = not entry.runs
            if last and self.entries.get(key) is entry:
                del self.entries[key]
        if last:
            entry.compiled.close()
            with self.lock:
                if entry.compiled in self.compiled:
                    self.compiled.remove(entry.compiled)

    def _request(
        self,
        outputs: Outputs,
        options: CompileOptions,
    ) -> Request:
        """Validate the arguments of `compile`, and return them as a request."""
        graph, ids = build_graph(outputs, options.updates)
        config = None if self.configuring is None else self.configuring.config
        graph = apply_precision(graph, ids, self.preparing.precision, options.precision, config)
        observers = find_observers(graph, ids, options.observe or {})
        if observers:  # without them, build_graph has checked it
            check_early_writes(graph, observers)
        request = Request(
            graph,
            self._overrides(options.placements, ids),
            observers,
            pipeline_order=find_pipeline_order(graph, ids),
            is_ahead=options.ahead,
        )
        if self.configuring is None:
            return request
        return self.configuring.apply(request, self.preparing.opened.resolve)

    def _require_open(self) -> None:
        if self.closing:
            raise DeviceError("[compile] the scheduler is closed; make a new one")

    def device_name(self, name: str) -> str:
        """Return the name of a device in plans, from a name as in a placement, also by UUID."""
        return self.preparing.opened.resolve(name)

    def _overrides(
        self, placements: Placements, ids: Mapping[Tensor, int]
    ) -> tuple[tuple[str | int, str], ...]:
        out: list[tuple[str | int, str]] = []
        for key, device in placements.items():
            if isinstance(key, Tensor) and key not in ids:
                raise PlanError(f"[placement] {key!r} is not part of this graph")
            target = ids[key] if isinstance(key, Tensor) else key
            out.append((target, self.device_name(device)))
        return tuple(out)
