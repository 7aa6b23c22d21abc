"""Gradient rules of the elementwise ops away from the case table: conventions at kinks, as PyTorch
has them, no NaN where the gradient is finite, second derivatives, and float16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import vksched as vs
from vksched.types import NDArray

Function = Callable[..., vs.Tensor]


def slopes(
    function: Function, *values: Sequence[float] | NDArray, dtype: str = "float32", order: int = 1
) -> list[NDArray]:
    """Returns the gradients of the sum of a function's results by each operand.

    order: 2 for the gradients of the sum of these.
    """
    arrays = [np.asarray(v, dtype) for v in values]
    given = [vs.input(f"x{i}", a.shape, dtype) for i, a in enumerate(arrays)]
    result = function(*given)
    made: tuple[vs.Tensor, ...] = (result,)
    for _ in range(order):
        ones = [np.ones(y.shape, y.dtype) for y in made]
        made = vs.vjp(made, ones, given, missing="zeros")
    with vs.Scheduler(["cpu"]) as sched:
        feeds = {f"x{i}": a for i, a in enumerate(arrays)}
        results = sched.compile((result, *made))(**feeds)
    assert isinstance(results, tuple)
    return list(results[1:])


def slope(
    function: Function, x: Sequence[float] | NDArray, dtype: str = "float32", order: int = 1
) -> NDArray:
    (made,) = slopes(function, x, dtype=dtype, order=order)
    return made


# -- kinks ---------------------------------------------------------------------------------------

KINKS: dict[str, tuple[Function, list[float], list[float]]] = {
    "relu": (vs.relu, [-1, 0, 2], [0, 0, 1]),
    "abs": (vs.abs, [-1, 0, 2], [-1, 0, 1]),
    "clip": (lambda x: vs.clip(x, 0, 1), [-1, 0, 0.5, 1, 2], [0, 1, 1, 1, 0]),
    "clip below": (lambda x: vs.clip(x, 0), [-1, 0, 2], [0, 1, 1]),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_are_as_in_pytorch(name: str) -> None:
    function, x, expected = KINKS[name]
    np.testing.assert_array_equal(slope(function, x), expected)


@pytest.mark.parametrize(
    ("function", "of_a"), [(vs.maximum, [1, 0.5, 0]), (vs.minimum, [0, 0.5, 1])]
)
def test_equal_operands_share(function: Function, of_a: list[float]) -> None:
    a, b = slopes(function, [3, 2, 1], [1, 2, 3])
    np.testing.assert_array_equal(a, of_a)
    np.testing.assert_array_equal(b, 1 - np.asarray(of_a))


# -- no NaN, no overflow -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_norm_at_0_has_the_slope_0(dtype: str) -> None:
    def norm(x: vs.Tensor) -> vs.Tensor:
        return vs.sqrt(vs.square(x)) * 10.0

    np.testing.assert_array_equal(slope(norm, [0], dtype), [0])


def test_a_branch_that_is_not_taken_gives_no_nan() -> None:
    def function(x: vs.Tensor) -> vs.Tensor:
        return vs.where(x > 0.0, vs.sqrt(vs.relu(x)), 0.0)

    np.testing.assert_allclose(slope(function, [-1, 0, 4]), [0, 0, 0.25])


def test_powers_at_0() -> None:
    a, b = slopes(vs.pow, [0, 0, 0, 2], [0, 1, 2, 3])
    np.testing.assert_allclose(a, [0, 1, 0, 12], rtol=1e-6)
    np.testing.assert_allclose(b, [0, 0, 0, 8 * np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0])
def test_constant_powers_of_both_orders(exponent: float) -> None:
    x = np.asarray([-2.0, 0.0, 1.5])
    first = exponent * x ** max(exponent - 1, 0)
    second = exponent * (exponent - 1) * x ** max(exponent - 2, 0)
    np.testing.assert_allclose(slope(lambda x: x**exponent, x), first, rtol=1e-6)
    np.testing.assert_allclose(slope(lambda x: x**exponent, x, order=2), second, rtol=1e-6)


TAILS: dict[str, tuple[Function, float, float]] = {
    "sigmoid": (vs.sigmoid, 0, 0),
    "silu": (vs.silu, 0, 1),
    "gelu": (vs.gelu, 0, 1),
    "gelu_tanh": (lambda x: vs.gelu(x, "tanh"), 0, 1),
    "tanh": (vs.tanh, 0, 0),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", TAILS)
def test_activations_far_from_0(name: str, dtype: str) -> None:
    function, left, right = TAILS[name]
    far = float(np.finfo(dtype).max) * 0.9
    np.testing.assert_array_equal(slope(function, [-far, far], dtype), [left, right])
    np.testing.assert_array_equal(slope(function, [-far, far], dtype, order=2), [0, 0])


# -- operands that repeat, types -------------------------------------------------------------------


def test_operands_that_were_broadcast_get_sums() -> None:
    a, b = np.ones((2, 1, 3)) * 6, np.ones((4, 1)) * 2
    of_a, of_b = slopes(vs.div, a, b)
    np.testing.assert_array_equal(of_a, np.full(a.shape, 4 * 0.5))
    np.testing.assert_array_equal(of_b, np.full(b.shape, 6 * -1.5))


def test_where_parts_the_gradient() -> None:
    taken = np.asarray([True, False, True])
    a, b = slopes(lambda a, b: vs.where(taken, a * 2.0, b * 3.0), [1, 2, 3], [4])
    np.testing.assert_array_equal(a, [2, 0, 2])
    np.testing.assert_array_equal(b, [3])


def test_a_cast_passes_the_gradient_in_the_operands_type() -> None:
    got = slope(lambda x: vs.cast(x * 3.0, "float16") * 2.0, [1, 2])
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [6, 6])


def test_a_cast_to_integers_stops_it() -> None:
    x = vs.input("x", (2,))
    with pytest.raises(vs.GradientError, match="cast, which gives int32"):
        vs.grad(vs.reduce_sum(vs.cast(vs.cast(x, "int32"), "float32")), x)
