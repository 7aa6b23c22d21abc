"""Networks in PyTorch, for inference, and for training with the mean square of the result as the
loss.

Layers are eager functions. On request matmuls, convolutions and attention use float16 with
`torch.autocast`, with weights converted to float16 in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .networks import build
from .workloads import EPSILON, RATE, Array, Spec


class Steps:
    """A builder of a list of calls; a value is its index. Inputs are uploaded in each run; weights
    and caches stay on the device. factors: element type of matmul weights.
    """

    def __init__(self, device: torch.device, factors: torch.dtype = torch.float32) -> None:
        self._device, self._factors = device, factors
        self._calls: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        # keeps the ids of arrays valid
        self._held: dict[tuple[int, torch.dtype], tuple[Array, int]] = {}

    def run(self) -> Any:
        """Return the last value."""
        values: list[Any] = []
        for function, operands in self._calls:
            values.append(function(*(values[i] for i in operands)))
        return values[-1]

    def _call(self, function: Callable[..., Any], *operands: int) -> int:
        self._calls.append((function, operands))
        return len(self._calls) - 1

    def _weight(self, array: Array, dtype: torch.dtype = torch.float32) -> int:
        if (id(array), dtype) not in self._held:
            parameter = self._parameter(array, dtype)
            self._held[id(array), dtype] = array, self._call(lambda: parameter)
        return self._held[id(array), dtype][1]

    def _factor(self, array: Array) -> int:
        return self._weight(array, self._factors)

    def _parameter(self, array: Array, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(array, device=self._device, dtype=dtype)

    def input(self, name: str, value: Array) -> int:
        held = torch.from_numpy(value)
        return self._call(lambda: held.to(self._device))

    def embed(self, ids: int, table: Array) -> int:
        return self._call(functional.embedding, ids, self._weight(table))

    def linear(self, x: int, w: Array, bias: Array | None) -> int:
        if bias is None:
            return self._call(functional.linear, x, self._factor(w))
        return self._call(
            lambda x, w, b: torch.addmm(b, x, w), x, self._factor(w), self._factor(bias)
        )

    def layer_norm(self, x: int, scale: Array, shift: Array) -> int:
        size, weights = scale.shape, (self._weight(scale), self._weight(shift))
        return self._call(
            lambda x, w, b: functional.layer_norm(x, size, w, b, EPSILON), x, *weights
        )

    def gelu(self, x: int) -> int:
        return self._call(functional.gelu, x)

    def relu(self, x: int) -> int:
        return self._call(torch.relu, x)

    def relu6(self, x: int) -> int:
        return self._call(functional.relu6, x)

    def add(self, a: int, b: int) -> int:
        return self._call(torch.add, a, b)

    def attention(
        self, q: int, k: int, v: int, batch: int, heads: int, causal: bool = False
    ) -> int:
        def seen(q: Any, k: Any, v: Any) -> Any:
            shape = batch, -1, heads, q.shape[1] // heads
            parts = [x.reshape(shape).permute(0, 2, 1, 3) for x in (q, k, v)]
            out = functional.scaled_dot_product_attention(*parts, is_causal=causal)
            return out.permute(0, 2, 1, 3).reshape(q.shape)

        return self._call(seen, q, k, v)

    def causal_attention(self, q: int, k: int, v: int, batch: int, heads: int) -> int:
        return self.attention(q, k, v, batch, heads, causal=True)

    def last(self, x: int) -> int:
        return self._call(lambda x: x[-1:], x)

    def mean(self, x: int, batch: int) -> int:
        return self._call(lambda x: x.reshape(batch, -1, x.shape[1]).mean(1), x)

    def grow(self, past: Array, new: int) -> int:
        rows, columns = past.shape
        cache = torch.empty((rows + 1, columns), device=self._device, dtype=self._factors)
        cache[:rows] = torch.from_numpy(past)

        def grown(new: Any) -> Any:
            cache[rows:] = new
            return cache

        return self._call(grown, new)

    def conv(self, x: int, w: Array, bias: Array, stride: int, pad: int, groups: int = 1) -> int:
        weights = self._factor(w), self._factor(bias)
        return self._call(
            lambda x, w, b: functional.conv2d(x, w, b, stride, pad, 1, groups), x, *weights
        )

    def max_pool(self, x: int, kernel: int, stride: int, pad: int) -> int:
        return self._call(lambda x: functional.max_pool2d(x, kernel, stride, pad), x)

    def pool(self, x: int) -> int:
        return self._call(lambda x: x.mean((2, 3)), x)


class TrainingSteps(Steps):
    """Calls of a network to train. params: its weights. Its inputs are on the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.params: list[torch.Tensor] = []

    def _parameter(self, array: Array, dtype: torch.dtype) -> torch.Tensor:
        self.params.append(super()._parameter(array, dtype).requires_grad_())
        return self.params[-1]

    def input(self, name: str, value: Array) -> int:
        constant = torch.tensor(value, device=self._device)
        return self._call(lambda: constant)

    def grow(self, past: Array, new: int) -> int:
        raise ValueError("[bench] expected a network to train, got one with a cache")


def network(spec: Spec, device: torch.device, factors: torch.dtype) -> Callable[[], Any]:
    """Return a function that runs a network, from inputs on the host to its result on the
    device.
    """
    steps = Steps(device, factors)
    build(spec.params, steps)
    return steps.run


def training(spec: Spec, device: torch.device) -> Callable[[], Any]:
    """Return a function that computes the loss once, and with phase "step" takes an SGD step."""
    steps = TrainingSteps(device)
    build(spec.params, steps)

    def forward() -> Any:
        with torch.inference_mode():
            return steps.run().square().mean()

    def step() -> Any:
        for parameter in steps.params:
            parameter.grad = None
        loss = steps.run().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = torch.optim.SGD(steps.params, lr=RATE)
    return forward if spec["phase"] == "forward" else step
