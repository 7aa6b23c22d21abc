"""Networks in vksched, and the time and memory of their runs.

Each network runs as in user code, with inputs and outputs on the host, and also op by op for the
sum of its kernel times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..common.dtypes import NDArray
from ..importers import load_onnx
from ..ir.tensor import Tensor, input, weight
from ..ops import (
    attention,
    clip,
    conv,
    gather,
    gelu,
    layer_norm,
    matmul,
    max_pool,
    reduce_mean,
    relu,
    reshape,
    scatter_nd,
    transpose,
)
from ..ops.creation.state import state
from ..scheduler.scheduler import Scheduler
from .baseline_process import BaselineFailed, BaselineProcess
from .baselines.networks import build
from .baselines.numpy_functions import EPSILON
from .baselines.workloads import SINGLE, Spec, joined
from .extra_metrics import ExtraMetric

ROUNDS = 5


class Math:
    """Builder of tensors. updates: updates of its states."""

    def __init__(self) -> None:
        self.feeds: dict[str, NDArray] = {}
        self.updates: dict[Tensor, Tensor] = {}
        self._weights: dict[int, tuple[NDArray, Tensor]] = {}  # the array keeps its id valid
        self._at: Tensor | None = None

    def _weight(self, array: NDArray) -> Tensor:
        if id(array) not in self._weights:
            self._weights[id(array)] = array, weight(array)
        return self._weights[id(array)][1]

    def input(self, name: str, value: NDArray) -> Tensor:
        self.feeds[name] = value
        return input(name, value.shape, value.dtype.name)

    def embed(self, ids: Tensor, table: NDArray) -> Tensor:
        return gather(self._weight(table), ids)

    def linear(self, x: Tensor, w: NDArray, bias: NDArray | None) -> Tensor:
        if bias is None:
            return matmul(x, self._weight(w), transpose_b=True)
        return matmul(x, self._weight(w)) + self._weight(bias)

    def layer_norm(self, x: Tensor, scale: NDArray, shift: NDArray) -> Tensor:
        return layer_norm(x, self._weight(scale), self._weight(shift), eps=EPSILON)

    def gelu(self, x: Tensor) -> Tensor:
        return gelu(x)

    def relu(self, x: Tensor) -> Tensor:
        return relu(x)

    def relu6(self, x: Tensor) -> Tensor:
        return clip(x, 0.0, 6.0)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, batch: int, heads: int, causal: bool = False
    ) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return transpose(reshape(x, (batch, -1, heads, x.shape[1] // heads)), (0, 2, 1, 3))

        seen = attention(split(q), split(k), split(v), causal=causal)
        return reshape(transpose(seen, (0, 2, 1, 3)), q.shape)

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor, batch: int, heads: int) -> Tensor:
        return self.attention(q, k, v, batch, heads, causal=True)

    def last(self, x: Tensor) -> Tensor:
        return x[-1:]

    def mean(self, x: Tensor, batch: int) -> Tensor:
        return reduce_mean(reshape(x, (batch, -1, x.shape[1])), 1)

    def grow(self, past: NDArray, new: Tensor) -> Tensor:
        rows, columns = past.shape
        cache = state(np.concatenate([past, np.zeros((1, columns), np.float32)]), backup=False)
        if self._at is None:
            self._at = self.input("at", np.array([[rows]], np.int32))
        self.updates[cache] = scatter_nd(cache, self._at, new)
        return self.updates[cache]

    def conv(
        self, x: Tensor, w: NDArray, bias: NDArray, stride: int, pad: int, groups: int = 1
    ) -> Tensor:
        weights = self._weight(w), self._weight(bias)
        return conv(x, *weights, stride=stride, padding=pad, groups=groups)

    def max_pool(self, x: Tensor, kernel: int, stride: int, pad: int) -> Tensor:
        return max_pool(x, kernel, stride=stride, padding=pad)

    def pool(self, x: Tensor) -> Tensor:
        return reduce_mean(reshape(x, (1, x.shape[1], -1)), 2)


class FileRun:
    """An ONNX file compiled on one device. feeds: its inputs by name."""

    def __init__(self, sched: Scheduler, file: str, feeds: dict[str, NDArray]) -> None:
        self._run = sched.compile(load_onnx(file))
        self._feeds = feeds
        self.result()

    def result(self) -> NDArray:
        """Return the joined outputs of one run."""
        return joined(list(self._run(**self._feeds).values()))

    def seconds(self) -> float:
        """Return the seconds of one run."""
        start = time.perf_counter()
        self._run(**self._feeds)
        return time.perf_counter() - start

    @property
    def devices(self) -> set[str]:
        """Return the devices that run parts of it."""
        plans = self._run.plans
        return {plan.topology.devices[split.device].name for plan in plans for split in plan.splits}

    def close(self) -> None:
        self._run.close()


class NetworkRun:
    """A network compiled on one device."""

    def __init__(self, sched: Scheduler, spec: Spec) -> None:
        math = Math()
        start = time.perf_counter()
        word = spec.get("precision", SINGLE)
        self.compiled = sched.compile(
            build(spec.params, math), updates=math.updates, precision=word
        )
        self.feeds = math.feeds
        self.result()
        self.first_s = time.perf_counter() - start
        self._held, self._sched = list(math.updates), sched

    def result(self) -> NDArray:
        """Return the result of one run."""
        return np.array(self.compiled(**self.feeds))

    def seconds(self) -> float:
        """Return the seconds of one run."""
        start = time.perf_counter()
        self.compiled(**self.feeds)
        return time.perf_counter() - start

    def kernel_seconds(self) -> float:
        """Return the device seconds of the submissions in one run."""
        self.compiled(**self.feeds)
        assert self.compiled.stats is not None
        return sum(self.compiled.stats.device_seconds.values())

    @property
    def memory_bytes(self) -> float:
        """Return its peak memory on its device, including weights."""
        found = self._buffers()
        host = self._sched.devices[0].name == "cpu"  # whose plan excludes the user's arrays
        return float(found.peak_bytes + (found.weight_bytes if host else 0))

    @property
    def devices(self) -> set[str]:
        """Return the devices that run parts of it."""
        plan = self.compiled.plan
        return {plan.topology.devices[split.device].name for split in plan.splits}

    @property
    def weight_bytes(self) -> float:
        return float(self._buffers().weight_bytes)

    def _buffers(self) -> Any:
        return self.compiled.plan.buffers()[self._sched.devices[0].name]

    def close(self) -> None:
        self.compiled.close()
        for one in self._held:
            self._sched.delete_state(one)


def model_facts(device: str, spec: Spec, pythons: Sequence[str] = ()) -> Iterator[ExtraMetric]:
    """Yield metrics of a model on a device: run time and sum of kernel times, preparation time, and
    memory with that of onnxruntime if one of `pythons` has it.
    """
    with ExitStack() as stack:
        whole, single = (
            NetworkRun(
                stack.enter_context(
                    Scheduler(
                        [device], on_device_failure="raise", submit_granularity=submit_granularity
                    )
                ),
                spec,
            )
            for submit_granularity in ("split", {device: "op"} if device != "cpu" else "split")
        )
        taken, kernels = [], []
        for _ in range(ROUNDS):  # interleaved, so that noise affects both equally
            taken.append(whole.seconds())
            kernels.append(single.kernel_seconds())
    name = spec.name
    both = statistics.median(taken), statistics.median(kernels)
    yield ExtraMetric(device, f"{name}: a run, beside its kernels", both[0], "s", both[1])
    note = "planning, uploading and the tuner's measuring included"
    yield ExtraMetric(device, f"{name}: compile and first run", whole.first_s, "s", note=note)
    peak = whole.memory_bytes
    yield ExtraMetric(device, f"{name}: peak, beside weights", peak, "bytes", whole.weight_bytes)
    other = onnxruntime_bytes(spec, tuple(pythons))
    if other is not None:
        note = "by how much a fresh process grows, its file in memory included"
        yield ExtraMetric(device, f"{name}: peak, beside onnxruntime", peak, "bytes", other, note)


def onnxruntime_bytes(spec: Spec, pythons: tuple[str, ...]) -> float | None:
    """Return the memory of a model in onnxruntime, or None if it is not installed."""
    about = {"name": "numpy", "uuid": "", "index": 0, "type": "cpu"}
    if not pythons:
        return None
    try:
        worker = BaselineProcess("onnxruntime", about, pythons)
    except BaselineFailed:
        return None
    try:
        found = worker.prepare(spec).get("bytes")
        return None if found is None else float(found)
    finally:
        worker.close()
