"""The CPU device: always available, with one worker thread so that it overlaps with other devices.

Submitting a split to another thread takes longer than a small network. A plan of a single CPU split
has nothing to overlap with. Therefore the waiting thread computes it if the last run was brief: it
need not be abandoned after a timeout or an interrupt. State writes are a separate split after it,
which the worker computes, because an interrupt must not cut it short.

    several splits, or long, or writes:   submit --> worker computes     wait: for the worker
    one brief split:                      submit notes it                wait: computes it itself

One thread computes at a time. Examples: tests/runtime/test_own_thread.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceTimeout, PlanError
from ...common.fork_guard import Owner
from ...plan.costs.node_cost import call_of, call_work, family_of
from ...plan.types.plan_types import PlanValue, Upload
from ...topology.device_spec import DeviceSpec
from ...topology.links import Link
from ..device import MemoryUsage, Times, TransferTimes
from ..state_store import CpuStates
from .evaluate import CpuWeights, Values
from .host_memory import host_memory_bytes, resident_bytes
from .split_program import make_programs
from .split_task import ComputeLock, StateGate, Task
from .thread_governor import products_alone
from .worker import Worker
from .worker_pool import Buffers, Workers

BRIEF_S = 0.01
"""Maximum time of a split that the waiting thread computes, and so the maximum delay of Ctrl-C."""
TIMEOUT_FACTOR = 100
"""The timeout of the waiting thread must be this many times the split's time."""
MAX_GROWTH = 4
"""One run raises the estimated time of a split by at most this factor."""
BLAS_FAMILIES = ("attention", "conv", "linalg", "quantized", "reduction", "rnn")
"""The families of ops (folders of vksched/ops) that may call numpy's BLAS."""
MIN_FLOPS = 1 << 14
"""Smaller ops use one BLAS thread anyway."""


class CpuDevice:
    """The CPU as a device."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec
        self._owner = Owner()
        self.states = CpuStates()
        self._worker = Worker(f"vksched-{spec.name}")
        self._workers = Workers(f"vksched-{spec.name}-piece")
        self._compute_lock = ComputeLock()

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        return self._spec

    def memory_usage(self) -> MemoryUsage:
        """The memory of the host, and the part of this process."""
        total, free = host_memory_bytes()
        return MemoryUsage(total, total - free, resident_bytes())

    @property
    def link(self) -> Link | None:
        return None

    def holds(self, key: object) -> bool:
        return self.states.holds(key)

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> CpuPreparedPlan:
        self._owner.require(self.name)  # a forked child has no worker thread
        return CpuPreparedPlan(
            plan, index, self._worker, self._workers, self.states, self._compute_lock
        )

    def close(self) -> None:
        self._worker.close()
        self._workers.close()


def _weights_read(plan: PlanValue, index: int) -> set[int]:
    """Return the weights and constants that a device's splits read."""
    graph = plan.graph
    nodes = (graph.nodes[n] for s in plan.splits if s.device == index for n in s.nodes)
    return {leaf for node in nodes for leaf in graph.leaves_read(node) if leaf in graph.data}


def _uses_blas(plan: PlanValue, index: int, nodes: Iterable[int]) -> bool:
    """Return True if nodes may call numpy's BLAS with several threads."""
    graph, spec = plan.graph, plan.topology.devices[index]
    return any(
        family_of(node.declaration) in BLAS_FAMILIES
        and call_work(spec, node.declaration, call_of(spec, graph, node)).flops >= MIN_FLOPS
        for node in map(graph.nodes.__getitem__, nodes)
    )


def _single_split(plan: PlanValue) -> int | None:
    """Return the only split of a plan that writes no states; None if there are several."""
    splits = plan.splits[: len(plan.splits) - len(plan.commits)]
    return splits[0].id if len(splits) == 1 and not plan.any_order else None


class CpuPreparedPlan:
    """The state of one plan on the CPU."""

    def __init__(
        self,
        plan: PlanValue,
        index: int,
        worker: Worker,
        workers: Workers,
        states: CpuStates,
        compute_lock: ComputeLock,
    ) -> None:
        self._plan = plan
        self._states = states
        self._no_states = None if plan.graph.states else StateGate(states)
        self._worker = worker
        self._compute_lock = compute_lock
        self._alone = _single_split(plan)
        self._usual_s = math.inf
        """The usual time of the split; outliers count little, as when other programs use the
        core.
        """
        self._buffers = Buffers()
        weights = CpuWeights(plan.graph)
        self._programs = make_programs(plan, index, weights, workers, self._buffers)
        workers.each(weights.make, [(leaf,) for leaf in _weights_read(plan, index)])
        self._with_products = {
            split_id
            for split_id, program in self._programs.items()
            if _uses_blas(plan, index, program.by_blas)
        }
        self._values = [Values(plan.graph, weights) for _ in range(plan.copies)]
        self._tasks: dict[tuple[int, int], Task] = {}

    def begin(self, slot: int) -> None:
        self._values[slot].clear()

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        self._values[slot][copy.node] = array

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        task = self._tasks[slot, split] = Task(self._no_states or StateGate(self._states))
        if split != self._alone:
            self._hand_over(slot, split, task)

    def _hand_over(self, slot: int, split: int, task: Task) -> None:
        self._compute_lock.release()  # an interrupt may have stopped this thread from releasing it
        task.job = self._worker.submit(partial(self._run_on_worker, slot, split, task.gate))

    def _run_on_worker(self, slot: int, split: int, gate: StateGate) -> float:
        self._compute_lock.wait()
        try:
            return self._run(slot, split, gate)
        finally:
            self._compute_lock.release()

    def _run(self, slot: int, split: int, gate: StateGate) -> float:
        start = time.perf_counter()
        program, values = self._programs[split], self._values[slot]
        with products_alone() if split in self._with_products else nullcontext():
            program.run(values, gate)
        taken_s = time.perf_counter() - start
        if split == self._alone:
            self._usual_s = min(taken_s, MAX_GROWTH * self._usual_s)
        return taken_s

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        task = self._tasks[slot, split]
        if task.job is None and not task.done:
            brief = self._usual_s <= BRIEF_S and self._usual_s * TIMEOUT_FACTOR <= timeout_s
            if brief and self._run_here(slot, split, task):
                if task.result() > timeout_s:
                    raise _timeout_error(split, timeout_s)
                return
            self._hand_over(slot, split, task)
        if task.job is not None and not task.job.wait(timeout_s):
            task.job.cancel()
            task.gate.shut()
            raise _timeout_error(split, timeout_s)
        task.result()

    def _run_here(self, slot: int, split: int, task: Task) -> bool:
        """Compute a split on this thread unless another one does."""
        try:
            if not self._compute_lock.take():
                return False
            task.seconds = self._run(slot, split, task.gate)
            return True
        except Exception as error:
            task.error = error
            raise
        except BaseException:
            task.error = PlanError(f"[wait] split {split} on cpu was interrupted")
            raise
        finally:
            self._compute_lock.release()

    def ends_s(self, slot: int, split: int) -> float | None:
        return -math.inf if self._tasks[slot, split].done else None

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        task = self._tasks[slot, split]
        if not task.done:
            raise PlanError(f"[check] split {split} on cpu was not waited for")
        task.result()

    def fetch(self, slot: int, node: int) -> NDArray:
        return self._values[slot][node]

    def times_s(self, slot: int, split: int) -> Times:
        # numpy has no submissions that a driver could end
        return self._tasks[slot, split].result(), None

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        return {}

    def close(self) -> None:
        for job in [task.job for task in self._tasks.values() if task.job is not None]:
            job.cancel()
            job.wait()
        self._tasks.clear()
        for values in self._values:
            values.clear()
        self._buffers.close()


def _timeout_error(split: int, timeout_s: float) -> DeviceTimeout:
    return DeviceTimeout(
        f"[wait] split {split} on cpu did not finish in {timeout_s:g} s; try a larger timeout_s"
    )
