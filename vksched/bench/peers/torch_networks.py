"""Networks in PyTorch, to train them as vksched does: the loss is the mean square of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .networks import build
from .specs import EPSILON, RATE, Array, Spec


class Steps:
    """The builder of a list of calls. A value is its position; weights are parameters."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._calls: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self._held: dict[int, tuple[Array, int]] = {}  # the array keeps its id its own
        self.params: list[torch.Tensor] = []

    def run(self) -> Any:
        """Returns the last value."""
        values: list[Any] = []
        for function, operands in self._calls:
            values.append(function(*(values[i] for i in operands)))
        return values[-1]

    def _call(self, function: Callable[..., Any], *operands: int) -> int:
        self._calls.append((function, operands))
        return len(self._calls) - 1

    def _weight(self, array: Array) -> int:
        if id(array) not in self._held:
            made = torch.tensor(array, device=self._device, requires_grad=True)
            self.params.append(made)
            self._held[id(array)] = array, self._call(lambda: made)
        return self._held[id(array)][1]

    def input(self, name: str, value: Array) -> int:
        made = torch.tensor(value, device=self._device)
        return self._call(lambda: made)

    def embed(self, ids: int, table: Array) -> int:
        return self._call(functional.embedding, ids, self._weight(table))

    def linear(self, x: int, w: Array, bias: Array | None) -> int:
        if bias is None:
            return self._call(functional.linear, x, self._weight(w))
        return self._call(
            lambda x, w, b: torch.addmm(b, x, w), x, self._weight(w), self._weight(bias)
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

    def mean(self, x: int, batch: int) -> int:
        return self._call(lambda x: x.reshape(batch, -1, x.shape[1]).mean(1), x)

    def grow(self, kept: Array, new: int) -> int:
        raise ValueError("[bench] expected a network to train, got one with a cache")

    def conv(self, x: int, w: Array, bias: Array, stride: int, pad: int) -> int:
        weights = self._weight(w), self._weight(bias)
        return self._call(lambda x, w, b: functional.conv2d(x, w, b, stride, pad), x, *weights)

    def max_pool(self, x: int, kernel: int, stride: int, pad: int) -> int:
        return self._call(lambda x: functional.max_pool2d(x, kernel, stride, pad), x)

    def pool(self, x: int) -> int:
        return self._call(lambda x: x.mean((2, 3)), x)


def training(spec: Spec, device: torch.device) -> Callable[[], Any]:
    """Returns what computes the loss once, and takes a step where the phase is one."""
    steps = Steps(device)
    build(spec.params, steps)

    def forward() -> Any:
        with torch.inference_mode():
            return steps.run().square().mean()

    def step() -> Any:
        for made in steps.params:
            made.grad = None
        loss = steps.run().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = torch.optim.SGD(steps.params, lr=RATE)
    return forward if spec["phase"] == "forward" else step
