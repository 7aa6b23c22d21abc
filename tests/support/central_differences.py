"""First and second derivatives of any function of tensors against central differences, in float64:
for what the case table does not hold, such as inputs chosen away from kinks or at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.build_graph import build_graph
from vksched.testing.numeric_gradient import evaluate

Build = Callable[..., vs.Tensor]
STEP, TOLERANCE = 1e-5, 1e-6


def gradients(
    build: Build, arrays: Sequence[NDArray], c: NDArray, order: int = 1
) -> tuple[list[NDArray], list[vs.Tensor]]:
    """Return the gradients of sum(build(x0, x1, ...) * c), and their tensors; of order 2 those of
    the sum of the first ones, each times cosines.
    """
    inputs = [vs.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    output = vs.vjp(build(*inputs), c, inputs, missing="zeros")
    if order == 2:
        weights = [np.cos(np.arange(g.size)).reshape(g.shape).astype(c.dtype) for g in output]
        output = vs.vjp(output, weights, inputs, missing="zeros")
    graph = build_graph({f"g{i}": t for i, t in enumerate(output)})[0]
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    return [values[f"g{i}"] for i in range(len(output))], list(output)


def check(build: Build, *arrays: NDArray, second: bool = True) -> None:
    """Compare the gradients by float64 arrays with differences of the function, and with second
    those of second order with differences of the gradients.
    """
    inputs = [vs.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    c = np.asarray(np.random.default_rng(7).standard_normal(build(*inputs).shape))
    graph = build_graph({"y": build(*inputs)})[0]

    def value(*at: NDArray) -> float:
        return float((evaluate(graph, {f"x{i}": a for i, a in enumerate(at)})["y"] * c).sum())

    def of_first(*at: NDArray) -> float:
        firsts, _ = gradients(build, at, c)
        return float(sum((g.ravel() * np.cos(np.arange(g.size))).sum() for g in firsts))

    _compare(value, arrays, gradients(build, arrays, c)[0])
    if second:
        _compare(of_first, arrays, gradients(build, arrays, c, order=2)[0])


def _compare(
    value: Callable[..., float], arrays: Sequence[NDArray], got: Sequence[NDArray]
) -> None:
    rng = np.random.default_rng(3)
    for number, (x, g) in enumerate(zip(arrays, got, strict=True)):
        assert g.shape == x.shape
        assert np.isfinite(g).all(), (number, g)
        for _ in range(2):
            d = rng.standard_normal(x.shape)
            right, left = (
                value(*arrays[:number], x + s * STEP * d, *arrays[number + 1 :]) for s in (1, -1)
            )
            size = float(np.abs(g * d).sum()) + abs(right) * 1e-4 + 1e-3
            np.testing.assert_allclose(
                (g * d).sum(), (right - left) / (2 * STEP), atol=TOLERANCE * size
            )
