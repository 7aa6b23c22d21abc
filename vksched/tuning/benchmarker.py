"""Device benchmarker: measures a device through the prepared plans that also run graphs.

    one call, one split      d1 = start + launch
    n calls in one split     dn = start + n launch                (d: on the device's own clock)
    n calls in n splits      waits for each: host time of a submission

A call that is repeated at once finds its weights in the cache and its threads awake. In a model it
does not. Therefore calls are measured with other calls in between, and rotate over sets of weights:

    call other call other call other   less   other other other
    set 0      set 1      set 0                                     more sets than fit into a cache

This measures numpy and simulated devices. Vulkan devices have their own benchmarker for calls and
transfers (vulkan_benchmarker.py). Examples: tests/tuning/test_calibrate.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ..common.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    NDArray,
    TensorType,
    numpy_dtype,
)
from ..common.errors import UnsupportedOp
from ..ir.build_graph import build_graph
from ..ir.graph import Graph
from ..ir.op import Call, Op, get_op
from ..ir.tensor import Tensor, apply, input, weight
from ..ops.elementwise.activation import gelu
from ..ops.elementwise.unary import relu
from ..ops.layout.index import gather
from ..ops.layout.reshape import transpose
from ..ops.linalg.matmul import matmul
from ..ops.reduction.softmax import softmax
from ..planner.planner import plan_graph
from ..runtime.device import Device
from ..runtime.executors.executor_context import ExecutorContext
from ..runtime.executors.plan_executor import PlanExecutor
from ..topology.device_spec import DeviceSpec
from ..topology.links import Links
from ..topology.perf_model import MIN_S, PerfModel
from ..topology.topology import Topology
from ..trace import Clock, Recorder, Trace
from .calibration_types import Overheads

TIMEOUT_S = 60.0
TINY_CALLS = 8
"""Number of tiny calls or splits in addition to the first one."""
ROUNDS = 5
"""Number of transfers of each size."""
MIN_ROUNDS, MAX_ROUNDS = 12, 40
MIN_TOTAL_S, MAX_TOTAL_S = 0.01, 0.1
"""Runs of a graph are repeated until there are MIN_ROUNDS that took MIN_TOTAL_S, or MAX_ROUNDS, or
they took MAX_TOTAL_S. There are always at least two.
"""
SPAN_S = 0.02
"""Time for which a call is repeated in one submission."""
MAX_CALLS = 24
"""Maximum number of repetitions in one submission."""
SPAN_ROUNDS = 8
"""Number of runs of a submission."""
QUICK_SPAN_S, QUICK_ROUNDS = 0.005, 4
"""SPAN_S and SPAN_ROUNDS of a quick measurement."""
COLD_BYTES = 1 << 27
"""Total weights of the calls, so that no cache holds them."""
SHARE = 8
"""The sets of weights may use 1/SHARE of the free memory."""
BLOCK = 1 << 16
"""Operands repeat a block of this many numbers."""
SEED = 11


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds of one transfer between host and device memory: host time and device time. None if it
    cannot be measured separately.
    """

    host_s: float
    device_s: float | None


@dataclass(frozen=True, slots=True)
class _RunTimes:
    """Seconds of one run: total, device time, and host time waiting for it."""

    run_s: float
    device_s: float
    waited_s: float


class DeviceBenchmarker:
    """Measures one device.

    Parameters
    ----------
    host
        The CPU of the device's host.
    clock
        The clock that times runs.
    quick
        Whether rough results are enough: fewer runs, and no other calls in between.

    Attributes
    ----------
    readied_s
        Seconds that a quick measurement waited for a software driver to compile kernels, as the
        first run of a graph on the device would have.
    """

    def __init__(self, device: Device, host: Device, clock: Clock, quick: bool = False) -> None:
        self.device = device
        self.quick = quick
        self.readied_s = 0.0
        self.spec: DeviceSpec = replace(device.spec, costs=PerfModel(), slowdown=1.0)
        self._devices = (device,) if device is host else (device, host)
        self._clock = clock
        self._others_s: dict[int, float] = {}

    @property
    def name(self) -> str:
        return self.device.name

    def overheads(self) -> Overheads:
        """Measure the overheads of calls and submissions."""
        few = self._taken(_tiny_graph(1))
        many = self._taken(_tiny_graph(1 + TINY_CALLS))
        apart = self._taken(_tiny_graph(1 + TINY_CALLS), submit_granularity="op")
        launch_s = max(0.0, many.device_s - few.device_s) / TINY_CALLS
        start_s = max(0.0, few.device_s - launch_s)
        around_s = (apart.run_s - apart.device_s) - (many.run_s - many.device_s)
        around_s = max(0.0, around_s) / TINY_CALLS
        waited_s = (apart.waited_s - apart.device_s) / (1 + TINY_CALLS)
        fence_s = min(around_s, max(0.0, waited_s))
        alone_s = few.run_s - few.device_s
        run_s = max(0.0, alone_s - around_s)
        return Overheads(launch_s, start_s, around_s - fence_s, fence_s, run_s, max(0.0, alone_s))

    def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float:
        """Measure one call including its launch.

        Parameters
        ----------
        weights
            Positions of operands that calls read from memory, as in a model.

        Raises
        ------
        VkschedError
            The call cannot be measured here.
        DeviceError
            The device failed.
        """
        once_s = self._taken(_graph_of(op, call, 1), rounds=1).device_s
        span_s = QUICK_SPAN_S if self.quick else SPAN_S
        times = max(1, min(MAX_CALLS, math.ceil(span_s / max(once_s, MIN_S))))
        sets = min(times, self._sets([call.inputs[position] for position in weights]))
        if self.quick:
            again = _graph_of(op, call, times, weights, sets)
            taken_s = self._taken(again, rounds=QUICK_ROUNDS).device_s if times > 1 else once_s
            return taken_s / times
        if times not in self._others_s:
            self._others_s[times] = self._taken(_others(times), rounds=SPAN_ROUNDS).device_s
        with_others = _graph_of(op, call, times, weights, sets, apart=True)
        taken_s = self._taken(with_others, rounds=SPAN_ROUNDS).device_s
        return max(0.0, taken_s - self._others_s[times]) / times

    def _sets(self, weights: Sequence[TensorType]) -> int:
        """Return the number of weight sets of a call. Together they need at most COLD_BYTES, unless
        a single set is larger.
        """
        in_all = sum(type_.host_bytes for type_ in weights)
        return max(1, min(COLD_BYTES, self.spec.memory_bytes // SHARE) // in_all) if in_all else 1

    def transfers(self, size_bytes: int) -> tuple[Transfer, Transfer | None]:
        """Measure an upload and a download. The download is None if it cannot be measured; it
        counts as equal then.
        """
        rows = max(1, size_bytes // 256)
        x = input("x", (rows, 64))
        graph, _ = build_graph(gather(x, weight(np.zeros(1, np.int32))))
        recorder = Recorder()
        feeds = {graph.inputs[0].id: np.ones((rows, 64), np.float32)}
        times = []
        with self._executor(graph, recorder) as executor:
            for _ in range(ROUNDS):
                executor.run(feeds)
        for event in recorder.select("copy"):
            if event.fields["way"] == "in" and event.fields["bytes"] == rows * 256:
                times.append(event.end_s - event.start_s)
        if not times:
            raise UnsupportedOp(f"[calibrate] nothing is copied to {self.name}")
        return Transfer(lower_quartile(times), None), None

    def close(self) -> None:
        """Release the memory of the benchmarks."""

    def _taken(
        self, graph: Graph, submit_granularity: str = "split", rounds: int = MIN_ROUNDS
    ) -> _RunTimes:
        """Run a graph at least `rounds` times and return the times of a run."""
        recorder = Recorder()
        found: list[_RunTimes] = []
        spent_s = 0.0
        with self._executor(graph, recorder, submit_granularity) as executor:
            while len(found) < 2 or _needs_more_rounds(len(found), spent_s, rounds):
                recorder.events.clear()
                executor.run({})
                stats = executor.last_stats
                assert stats is not None
                waited_s = sum(event.end_s - event.start_s for event in recorder.select("wait"))
                device_s = sum(stats.device_seconds.values())
                found.append(_RunTimes(stats.seconds, device_s, waited_s))
                spent_s += stats.seconds
        # the first runs touch memory and pay for lazy work of drivers and processors
        warm = found[min(len(found) - 1, 1 + len(found) // 4) :]
        return _RunTimes(
            lower_quartile([each.run_s for each in warm]),
            lower_quartile([each.device_s for each in warm]),
            lower_quartile([each.waited_s for each in warm]),
        )

    @contextmanager
    def _executor(
        self, graph: Graph, recorder: Recorder, submit_granularity: str = "split"
    ) -> Iterator[PlanExecutor]:
        spec = replace(self.spec, submit_granularity=submit_granularity)
        others = tuple(device.spec for device in self._devices[1:])
        own = self.device.link  # a simulated device reports its link
        pairs = ((spec.name, others[-1].name, own),) if own is not None and others else ()
        topology = Topology((spec, *others), Links(pairs))
        placed = [(node.id, spec.name) for node in graph.ops]
        plan = plan_graph(graph, topology, overrides=placed)
        if {split.device for split in plan.splits} != {0}:
            raise UnsupportedOp(f"[calibrate] expected a call that {self.name} runs itself")
        trace = Trace(self._clock, [recorder])
        executor = PlanExecutor(plan, ExecutorContext(self._devices, trace, TIMEOUT_S))
        try:
            yield executor
        finally:
            executor.close()


def lower_quartile(times: Sequence[float]) -> float:
    """Return the lower quartile of some times: other programs make times longer, never shorter."""
    return sorted(times)[(len(times) - 1) // 4]


def _needs_more_rounds(rounds: int, spent_s: float, min_rounds: int) -> bool:
    enough = rounds >= min_rounds and spent_s >= MIN_TOTAL_S
    return not enough and rounds < MAX_ROUNDS and spent_s < MAX_TOTAL_S


def _tiny_graph(count: int) -> Graph:
    """Return a chain of calls with almost no work."""
    at: Tensor = weight(np.ones(4, np.float32))
    for _ in range(count):
        at = relu(at)
    return build_graph(at)[0]


def _graph_of(
    op: Op,
    call: Call,
    times: int,
    weights: Collection[int] = (),
    sets: int = 1,
    apart: bool = False,
) -> Graph:
    """Return a graph that repeats a call on operands that are on the device already. sets: number
    of sets of the operands in `weights`, over which calls rotate. apart: True for other calls in
    between.
    """
    numbers = [numbers_of(op, call, i) for i in range(len(call.inputs))]
    first = [weight(array) for array in numbers]
    others = [
        [weight(numbers[i].copy()) if i in weights else x for i, x in enumerate(first)]
        for _ in range(1, sets)
    ]
    operands = (first, *others)
    out: list[Tensor] = []
    for turn in range(times):
        out.append(apply(op.name, operands[turn % sets], call.attrs))
        out += _filler_calls(turn) if apart else ()
    return build_graph(out)[0]


def _others(times: int) -> Graph:
    """Return a graph of the calls in between alone."""
    return build_graph([each for turn in range(times) for each in _filler_calls(turn)])[0]


def _filler_calls(turn: int) -> list[Tensor]:
    """Return calls of several families: a matmul, a reduction, a data movement and an elementwise
    op.
    """
    rng = np.random.default_rng(SEED + turn)
    a, b = (weight(rng.standard_normal(shape, np.float32)) for shape in ((64, 256), (256, 64)))
    return [softmax(a), matmul(a, b), transpose(a, (1, 0)), gelu(a)]


def numbers_of(op: Op, call: Call, position: int) -> NDArray:
    """Return operand values of typical size; indices are 0, which is valid on every axis."""
    type_, counts = call.inputs[position], op.typical_counts(call.inputs, call.attrs)
    rng, dtype = np.random.default_rng(SEED + position), numpy_dtype(type_.dtype)
    count = max(1, min(BLOCK, math.prod(type_.shape)))
    if position in counts:
        block = np.resize(np.array(counts[position][0], dtype), count)
    elif position in get_op(op.name).indices:
        block = np.zeros(count, dtype)
    elif type_.dtype in (FLOAT16, FLOAT32, FLOAT64):
        block = rng.standard_normal(count).astype(dtype)
    else:
        block = rng.integers(0, 2 if type_.dtype == BOOL else 8, count).astype(dtype)
    return np.resize(block, type_.shape)
