"""Whole models, built by code with random weights: a sentence encoder, ResNet-18, a decoder's step.

Sizes are those of MiniLM-L6 (8 texts of 32 tokens), ResNet-18 (one image of 224 x 224) and a small
GPT-2 (one token against a cache of 128). Each is run as a user runs it, inputs and outputs on the
host, and once more one op at a time: the sum of its own kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import VkschedError
from ..ops import (
    attention,
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
from ..ops.state import state
from ..ops.tensor import Tensor, input, weight
from ..scheduler import Scheduler
from ..types import NDArray
from .facts import Fact
from .peers.specs import nmse_of

NMSE = 1e-6
ROUNDS = 5


@dataclass
class Model:
    """A graph with inputs for one run. updates: of its states."""

    outputs: Tensor
    feeds: dict[str, NDArray]
    updates: dict[Tensor, Tensor] = field(default_factory=dict)


class _Weights:
    """Random weights of such sizes that values stay near 1."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(5)

    def __call__(self, *shape: int) -> Tensor:
        inward = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        values = self._rng.random(shape, dtype=np.float32) - np.float32(0.5)
        return weight(values * np.float32((12 / inward) ** 0.5))

    def bias(self, size: int) -> Tensor:
        return weight(self._rng.random(size, dtype=np.float32) * np.float32(0.1))


def minilm(batch: int = 8, tokens: int = 32, layers: int = 6, width: int = 384) -> Model:
    """ids (batch, tokens) -> (batch, width): the mean of the last layer."""
    w, heads = _Weights(), 12
    ids = input("ids", (batch, tokens), "int32")
    x = gather(w(30522, width) * 10.0, ids) + w.bias(width)

    def norm(value: Tensor) -> Tensor:
        return layer_norm(value, w.bias(width) + 1.0, w.bias(width))

    def linear(value: Tensor, size: int) -> Tensor:
        return matmul(value, w(value.shape[-1], size)) + w.bias(size)

    def split(value: Tensor) -> Tensor:
        return transpose(reshape(value, (batch, tokens, heads, width // heads)), (0, 2, 1, 3))

    for _ in range(layers):
        parts = [split(linear(x, width)) for _ in range(3)]
        seen = transpose(attention(*parts), (0, 2, 1, 3))
        x = norm(x + linear(reshape(seen, (batch, tokens, width)), width))
        x = norm(x + linear(gelu(linear(x, 4 * width)), width))
    numbers = np.random.default_rng(1).integers(0, 30522, (batch, tokens)).astype(np.int32)
    return Model(reduce_mean(x, 1), {"ids": numbers})


def resnet18(size: int = 224) -> Model:
    """image (1, 3, size, size) -> (1, 1000), norms folded into the convolutions."""
    w = _Weights()

    def layer(x: Tensor, out: int, kernel: int, stride: int) -> Tensor:
        filters = w(out, x.shape[1], kernel, kernel)
        return conv(x, filters, w.bias(out), stride=stride, padding=kernel // 2)

    x = relu(layer(input("image", (1, 3, size, size)), 64, 7, 2))
    x = max_pool(x, 3, stride=2, padding=1)
    for out in (64, 128, 256, 512):
        for first in (True, False):
            stride = 2 if first and out > 64 else 1
            short = layer(x, out, 1, stride) if stride > 1 else x
            x = relu(layer(relu(layer(x, out, 3, stride)), out, 3, 1) * 0.5 + short)
    pooled = reduce_mean(reshape(x, (1, 512, -1)), 2)
    image = np.random.default_rng(1).random((1, 3, size, size), dtype=np.float32)
    return Model(matmul(pooled, w(512, 1000)) + w.bias(1000), {"image": image})


def gpt2_mini(past: int = 128, layers: int = 6, width: int = 384, words: int = 50257) -> Model:
    """id (1), at (1, 1) -> (1, words): one step, which writes its keys and values into states."""
    w, heads = _Weights(), 6
    table = w(words, width)
    at = input("at", (1, 1), "int32")
    x = gather(table * 10.0, input("id", (1,), "int32"))
    updates: dict[Tensor, Tensor] = {}

    def linear(value: Tensor, size: int) -> Tensor:
        return matmul(value, w(value.shape[-1], size)) + w.bias(size)

    def split(value: Tensor) -> Tensor:
        rows = value.shape[0]
        return transpose(reshape(value, (1, rows, heads, width // heads)), (0, 2, 1, 3))

    for _ in range(layers):
        h = layer_norm(x, w.bias(width) + 1.0, w.bias(width))
        q, k, v = (linear(h, width) for _ in range(3))
        grown = []
        for new in (k, v):
            cache = state(np.full((past, width), 0.1, np.float32), backup=False)
            updates[cache] = scatter_nd(cache, at, new)
            grown.append(updates[cache])
        seen = attention(split(q), split(grown[0]), split(grown[1]))
        x = x + linear(reshape(transpose(seen, (0, 2, 1, 3)), (1, width)), width)
        h = layer_norm(x, w.bias(width) + 1.0, w.bias(width))
        x = x + linear(gelu(linear(h, 4 * width)), width)
    feeds = {"id": np.array([7], np.int32), "at": np.array([[past - 1]], np.int32)}
    return Model(matmul(x, table, transpose_b=True), feeds, updates)


MODELS: Mapping[str, Callable[[], Model]] = {
    "MiniLM, 8 x 32 tokens": minilm,
    "ResNet-18, 1 image": resnet18,
    "GPT-2-mini, 1 token": gpt2_mini,
}


def model_facts(device: str, name: str, build: Callable[[], Model]) -> Iterator[Fact]:
    """Yields time beside the sum of its kernels, and memory, of one model on one device.

    Raises:
        VkschedError: its result is not numpy's.
    """
    model = build()
    with Scheduler([device], on_fault="raise") as sched:
        start = time.perf_counter()
        run = sched.compile(model.outputs, updates=model.updates)
        got = np.array(run(**model.feeds))
        first_s = time.perf_counter() - start
        _check(name, model, got)
        taken = [_seconds(run, model.feeds) for _ in range(ROUNDS)]
        held = run.plan.buffers()[device]
        elsewhere = {run.plan.machine.devices[s.device].name for s in run.plan.splits} - {device}
    kernels_s = _sum_of_kernels(device, model)
    note = f"numpy takes a part: {', '.join(sorted(elsewhere))}" if elsewhere else ""
    seconds = statistics.median(taken)
    yield Fact(device, f"{name}: a run, beside its kernels", seconds, "s", kernels_s, note)
    yield Fact(device, f"{name}: compile and first run", first_s, "s")
    weights = float(held.weight_bytes)
    yield Fact(device, f"{name}: peak, beside weights", held.peak_bytes, "bytes", weights)


def _check(name: str, model: Model, got: NDArray) -> None:
    with Scheduler(["cpu"]) as numpy_only:
        run = numpy_only.compile(model.outputs, updates=model.updates)
        error = nmse_of(got, np.array(run(**model.feeds)))
    if not error <= NMSE:
        raise VkschedError(f"[bench] {name}: wrong result: normalised squared error {error}")


def _sum_of_kernels(device: str, model: Model) -> float:
    """Returns the time on the device of all ops, each submitted alone."""
    sync = {device: "op"} if device != "cpu" else "split"
    sums = []
    with Scheduler([device], on_fault="raise", sync=sync) as sched:
        run = sched.compile(model.outputs, updates=model.updates)
        for _ in range(ROUNDS):
            run(**model.feeds)
            assert run.stats is not None
            sums.append(sum(run.stats.device_seconds.values()))
    return statistics.median(sums[1:])


def _seconds(run: Any, feeds: Mapping[str, NDArray]) -> float:
    start = time.perf_counter()
    run(**feeds)
    return time.perf_counter() - start
