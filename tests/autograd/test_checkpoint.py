"""Checkpointed functions: the same gradients, their values computed again and not kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.graphs import make_plan

import vksched as vs

N = 16
X = np.random.default_rng(0).standard_normal((4, N)).astype(np.float32) / 4
W = [np.random.default_rng(i).standard_normal((N, N)).astype(np.float32) / 8 for i in range(8)]


def block(x: vs.Tensor, first: int, count: int = 4) -> vs.Tensor:
    for i in range(first, first + count):
        x = vs.exp(-vs.matmul(x, vs.weight(W[i], f"w{i}"))) - 1.0
    return x


def values(loss: vs.Tensor, x: vs.Tensor, optimize: bool = True) -> np.ndarray:
    with vs.Scheduler(["cpu"], optimize=optimize) as sched:
        return np.asarray(sched.compile(vs.grad(loss, x))(x=X))


@pytest.mark.parametrize("optimize", [True, False])
def test_the_gradient_is_the_same(optimize: bool) -> None:
    x = vs.input("x", X.shape)
    plain = vs.reduce_sum(block(block(x, 0), 4))
    again = vs.checkpoint(lambda t: block(t, 0))
    again_less = vs.reduce_sum(vs.checkpoint(lambda t: block(t, 4))(again(x)))
    nested = vs.reduce_sum(vs.checkpoint(lambda t: block(again(t), 4))(x))
    expected = values(plain, x, optimize)
    np.testing.assert_array_equal(values(again_less, x, optimize), expected)
    np.testing.assert_array_equal(values(nested, x, optimize), expected)


def both(function: Callable[[vs.Tensor, int], vs.Tensor]) -> vs.Plan:
    """The plan of a loss of two blocks and its gradient."""
    x = vs.input("x", X.shape)
    loss = vs.reduce_sum(function(function(x, 0), 4))
    outputs = {"loss": loss, "grad": vs.grad(loss, x)}
    return make_plan(outputs, {"*": "null:0"})


def test_values_are_computed_twice_and_fewer_live_at_once() -> None:
    plain, again = both(block), both(vs.checkpoint(block))
    built = [sum(n.op == "matmul" for n in plan.graph.nodes) for plan in (plain, again)]
    assert built == [16, 24]
    plain_bytes, again_bytes = (plan.memory[0].peak_bytes for plan in (plain, again))
    assert again_bytes < plain_bytes


def test_results_may_be_several_and_arguments_nested() -> None:
    x = vs.input("x", X.shape)

    @vs.checkpoint
    def split(parts: list[vs.Tensor], *, by: float) -> tuple[vs.Tensor, ...]:
        """Doc."""
        return tuple(vs.exp(p * by) for p in parts)

    assert split.__doc__ == "Doc."
    a, b = split([x, x * 2.0], by=0.5)
    got = values(vs.reduce_sum(a * b), x)
    np.testing.assert_allclose(got, 1.5 * np.exp(1.5 * X), rtol=1e-5)


def test_what_returns_no_tensors_is_refused() -> None:
    with pytest.raises(vs.GradientError, match="returns tensors"):
        vs.checkpoint(lambda: None)()  # type: ignore[type-var]
    with pytest.raises(vs.GradientError, match="a function of tensors"):
        vs.checkpoint(vs.input("x", (2,)))  # type: ignore[type-var]
