"""The numpy backend: the device that is always there, with one worker thread so that it overlaps
with others.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

from ...errors import DeviceTimeout, PlanError
from ...machine.links import Link
from ...machine.spec import DeviceSpec
from ...plan.value import CopyIn, PlanValue
from ...types import NDArray, Progress
from ..device import Gauge, Times
from ..fork import Owner
from ..states import HostStates
from ..vulkan.probe import host_memory_bytes, resident_bytes
from .evaluate import Host, HostWeights, Values, last_uses, run_split
from .threads import products_on
from .workers import Buffers, Workers


class CpuDevice:
    """The CPU as a device."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec
        self._owner = Owner()
        self.states = HostStates()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"vksched-{spec.name}")
        self._workers = Workers(f"vksched-{spec.name}-piece")

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        return self._spec

    def gauge(self) -> Gauge:
        """The computer's memory, and what all of this process takes of it."""
        total, free = host_memory_bytes()
        return Gauge(total, total - free, resident_bytes())

    @property
    def link(self) -> Link | None:
        return None

    def holds(self, key: object) -> bool:
        return self.states.holds(key)

    def prepare(self, plan: PlanValue, index: int, progress: Progress | None = None) -> CpuSession:
        self._owner.require(self.name)  # its thread is not in a forked child
        return CpuSession(plan, index, self._worker, self._workers, self.states)

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._workers.close()


class _Gate:
    """The states as one split sees them: given up, it goes on, but writes no more."""

    def __init__(self, states: HostStates) -> None:
        self._states = states
        self._lock = threading.Lock()
        self._open = True

    def view(self, key: object) -> NDArray:
        return self._states.view(key)

    def write(self, key: object, array: NDArray) -> None:
        with self._lock:
            if self._open:
                self._states.write(key, array)

    def change(self, key: object, write: Callable[[NDArray], None]) -> None:
        with self._lock:
            if self._open:
                self._states.change(key, write)

    def shut(self) -> None:
        with self._lock:
            self._open = False


def _weights_read(plan: PlanValue, index: int) -> set[int]:
    """Returns the weights and constants that a device's splits read."""
    graph = plan.graph
    nodes = (graph.nodes[n] for s in plan.splits if s.device == index for n in s.nodes)
    return {leaf for node in nodes for leaf in graph.leaves_read(node) if leaf in graph.data}


class CpuSession:
    """One plan's share of the CPU."""

    def __init__(
        self,
        plan: PlanValue,
        index: int,
        worker: ThreadPoolExecutor,
        workers: Workers,
        states: HostStates,
    ) -> None:
        self._plan = plan
        self._states = states
        self._worker = worker
        self._dead = last_uses(plan, index)
        self._buffers = Buffers()
        self._host = Host(workers, self._buffers)
        self._governor = workers.governor
        weights = HostWeights(plan.graph)
        workers.each(weights.make, [(leaf,) for leaf in sorted(_weights_read(plan, index))])
        self._values = [Values(plan.graph, weights) for _ in range(plan.copies)]
        self._pending: dict[tuple[int, int], Future[float]] = {}
        self._gates: dict[tuple[int, int], _Gate] = {}

    def begin(self, slot: int) -> None:
        self._values[slot].clear()

    def stage(self, slot: int, copy: CopyIn, array: NDArray) -> None:
        self._values[slot][copy.node] = array

    def submit(self, slot: int, split: int, ticket: int) -> None:
        gate = self._gates[slot, split] = _Gate(self._states)
        try:
            self._pending[slot, split] = self._worker.submit(self._run, slot, split, gate)
        except RuntimeError as error:
            raise PlanError(f"[submit] cpu: the interpreter is shutting down: {error}") from error

    def _run(self, slot: int, split: int, gate: _Gate) -> float:
        start = time.perf_counter()
        values, nodes = self._values[slot], self._plan.splits[split]
        with products_on(self._governor.threads(), self._governor.cores):
            run_split(self._plan, nodes, values, self._dead, gate, self._host.evaluate)
        return time.perf_counter() - start

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        try:
            self._pending[slot, split].result(min(timeout_s, threading.TIMEOUT_MAX))
        except FutureTimeout:
            self._pending[slot, split].cancel()
            self._gates[slot, split].shut()
            raise DeviceTimeout(
                f"[wait] split {split} on cpu did not finish in {timeout_s:g} s; "
                "try a larger timeout_s"
            ) from None

    def ends_s(self, slot: int, split: int) -> float | None:
        return -math.inf if self._pending[slot, split].done() else None

    def check(self, slot: int, split: int, ticket: int) -> None:
        future = self._pending[slot, split]
        if not future.done():
            raise PlanError(f"[check] split {split} on cpu was not waited for")
        future.result()

    def fetch(self, slot: int, node: int) -> NDArray:
        return self._values[slot][node]

    def times_s(self, slot: int, split: int) -> Times:
        return self._pending[slot, split].result(), None  # no driver ends what numpy does

    def close(self) -> None:
        for future in self._pending.values():
            if not future.cancel():
                future.exception()
        self._pending.clear()
        for values in self._values:
            values.clear()
        self._buffers.close()
