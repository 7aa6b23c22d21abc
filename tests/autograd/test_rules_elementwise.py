"""Gradient rules of the elementwise ops away from the case table: conventions at kinks, as PyTorch
has them, no NaN where the gradient is finite, second derivatives, and float16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

Function = Callable[..., vs.Tensor]


def run(
    values: list[vs.Tensor], arrays: list[NDArray], results: Sequence[vs.Tensor]
) -> list[NDArray]:
    feeds = {t.name: a for t, a in zip(values, arrays, strict=True)}
    with vs.Scheduler(["cpu"]) as sched:
        result = sched.compile(tuple(results))(**feeds)
    assert isinstance(result, tuple)
    return list(result)


def evaluated(function: Function, arrays: list[NDArray]) -> NDArray:
    inputs = [vs.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    return run(inputs, arrays, [function(*inputs)])[0]


def slopes(
    function: Function, *values: Sequence[float] | NDArray, dtype: str = "float32", order: int = 1
) -> list[NDArray]:
    """Return the gradients of the sum of a function's results by each operand.

    order: 2 for the gradients of the sum of these.
    """
    arrays = [np.asarray(v, dtype) for v in values]
    inputs = [vs.input(f"x{i}", a.shape, dtype) for i, a in enumerate(arrays)]
    result = function(*inputs)
    built: tuple[vs.Tensor, ...] = (result,)
    for _ in range(order):
        ones = [np.ones(y.shape, y.dtype) for y in built]
        built = vs.vjp(built, ones, inputs, missing="zeros")
    # the result is there so that each input is read
    return run(inputs, arrays, (result, *built))[1:]


def slope(
    function: Function, x: Sequence[float] | NDArray, dtype: str = "float32", order: int = 1
) -> NDArray:
    (built,) = slopes(function, x, dtype=dtype, order=order)
    return built


# -- kinks ---------------------------------------------------------------------------------------

KINKS: dict[str, tuple[Function, list[float], list[float]]] = {
    "relu": (vs.relu, [-1, 0, 2], [0, 0, 1]),
    "abs": (vs.abs, [-1, 0, 2], [-1, 0, 1]),
    "clip": (lambda x: vs.clip(x, 0, 1), [-1, 0, 0.5, 1, 2], [0, 1, 1, 1, 0]),
    "leaky_relu": (lambda x: vs.leaky_relu(x, 0.5), [-1, 0, 2], [0.5, 0.5, 1]),
    "elu": (lambda x: vs.elu(x, 2.0), [0, 2], [2, 1]),
    "celu": (vs.celu, [0, 2], [1, 1]),
    "selu": (lambda x: vs.selu(x, 2.0, 3.0), [0, 2], [6, 3]),
    "thresholded_relu": (vs.thresholded_relu, [0, 1, 2], [0, 0, 1]),
    "hard_sigmoid": (lambda x: vs.hard_sigmoid(x, 0.25), [-2, 0, 2], [0, 0.25, 0]),
    "hard_swish": (vs.hard_swish, [-4, -3, 0, 3, 4], [0, 0, 0.5, 1, 1]),
    "relu6": (vs.relu6, [-1, 0, 3, 6, 7], [0, 1, 1, 1, 0]),
    "prelu": (lambda x: vs.prelu(x, 0.5), [-1, 0, 2], [0.5, 0.5, 1]),
    "reduce_precision": (
        lambda x: vs.reduce_precision(x, 3, -6, 448.0, "saturate"),
        [-500, 1.01, 448, 449],
        [0, 1, 1, 0],
    ),
    "reduce_precision to inf": (
        lambda x: vs.reduce_precision(x, 7, -126, 3e38),
        [1.001, -2.1],
        [1, 1],
    ),
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


@pytest.mark.parametrize("op", ["floor", "ceil", "trunc", "round", "sign"])
def test_steps_are_an_error(op: str) -> None:
    x = vs.input("x", (2,))
    with pytest.raises(vs.GradientError, match=f"{op}, which is flat wherever it is smooth"):
        vs.grad(vs.reduce_sum(getattr(vs, op)(x)), x)


def test_fractions_have_a_slope_next_to_steps() -> None:
    np.testing.assert_array_equal(slope(lambda x: (x - vs.floor(x)) * 3.0, [0.5, 1.25]), [3, 3])


# -- away from kinks: central differences ----------------------------------------------------------

X = [-1.7, -0.6, -0.2, 0.3, 0.8, 1.4]
INSIDE = [-0.9, -0.4, 0.1, 0.7]
ABOVE = [1e-3, 0.4, 1.6, 7.0]
AROUND = [-4.2, -2.0, -0.5, 0.4, 2.5, 3.7]
FUNCTIONS: dict[str, tuple[Function, tuple[list[float], ...]]] = {
    **{
        op: (getattr(vs, op), (X,))
        for op in (
            "neg positive abs square relu exp expm1 sin cos tan atan sinh cosh tanh asinh erf erfc "
            "reciprocal sigmoid silu gelu mish softplus softsign elu celu selu leaky_relu"
        ).split()
    },
    **{op: (getattr(vs, op), (INSIDE,)) for op in ("asin", "acos", "atanh", "log1p")},
    **{op: (getattr(vs, op), (ABOVE,)) for op in ("sqrt", "rsqrt", "log", "log2", "log10")},
    "acosh": (vs.acosh, ([1.1, 2.0, 9.0],)),
    "gelu_tanh": (lambda x: vs.gelu(x, "tanh"), (AROUND,)),
    "hard_swish": (vs.hard_swish, (AROUND,)),
    "hard_sigmoid": (lambda x: vs.hard_sigmoid(x, 0.3, 0.4), (AROUND,)),
    "thresholded_relu": (lambda x: vs.thresholded_relu(x, -1.0), (X,)),
    "elu with alpha": (lambda x: vs.elu(x, 0.3), (X,)),
    "celu with alpha": (lambda x: vs.celu(x, 0.3), (X,)),
    "celu with alpha below 0": (lambda x: vs.celu(x, -1.5), (X,)),
    "clip": (lambda x: vs.clip(x, -0.5, 1.0), (X,)),
    **{
        op: (getattr(vs, op), (AROUND, X))
        for op in (
            "add sub mul div remainder fmod maximum minimum atan2 hypot logaddexp copysign prelu"
        ).split()
    },
    "pow": (vs.pow, (ABOVE, [-1.5, 0.5, 2.0, 0.0])),
    "addcmul": (lambda x, a, b: vs.addcmul(x, a, b, 0.7), (X, AROUND, X)),
}


def differences(values: Callable[[list[NDArray]], NDArray], at: list[NDArray], i: int) -> NDArray:
    """Return the slopes of an elementwise function by one operand, all at once."""
    step = 1e-6 * np.maximum(np.abs(at[i]), 0.01)
    ahead, behind = (
        values([v + s * step if k == i else v for k, v in enumerate(at)]) for s in (1, -1)
    )
    return np.asarray((ahead - behind) / (2 * step))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules_agree_with_differences(name: str, order: int) -> None:
    function, operands = FUNCTIONS[name]
    at = [np.asarray(x, np.float64) for x in operands]

    def values(arrays: list[NDArray]) -> NDArray:
        if order == 1:
            return evaluated(function, arrays)
        return np.asarray(sum(slopes(function, *arrays, dtype="float64")))

    for i, got in enumerate(slopes(function, *at, dtype="float64", order=order)):
        np.testing.assert_allclose(got, differences(values, at, i), rtol=1e-6, atol=1e-7)


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
    "mish": (vs.mish, 0, 1),
    "softplus": (vs.softplus, 0, 1),
    "softsign": (vs.softsign, 0, 0),
    "erf": (vs.erf, 0, 0),
    "elu": (vs.elu, 0, 1),
    "celu": (lambda x: vs.celu(x, 0.01), 0, 1),
    "logaddexp": (lambda x: vs.logaddexp(x, 0.0), 0, 1),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", TAILS)
def test_activations_far_from_0(name: str, dtype: str) -> None:
    function, left, right = TAILS[name]
    far = float(np.finfo(dtype).max) * 0.4
    got = slope(function, [-far, far], dtype)
    np.testing.assert_allclose(got, [left, right], atol=1e-8)
    np.testing.assert_allclose(slope(function, [-far, far], dtype, order=2), [0, 0], atol=1e-8)


def test_slopes_of_large_values_do_not_overflow() -> None:
    x = np.asarray([-1e25, 1e25], np.float32)
    np.testing.assert_allclose(slope(vs.asinh, x), 1e-25, rtol=1e-6)
    np.testing.assert_allclose(slope(vs.acosh, x[1:]), 1e-25, rtol=1e-6)
    of_a, of_b = slopes(vs.hypot, x, -x)
    np.testing.assert_allclose([of_a, of_b], np.sqrt([[0.5] * 2] * 2) * [[-1, 1], [1, -1]], 1e-6)
    of_a, of_b = slopes(vs.atan2, x, x)
    np.testing.assert_allclose([of_a, of_b], [[-5e-26, 5e-26], [5e-26, -5e-26]], rtol=1e-6)


@pytest.mark.parametrize("function", [vs.hypot, vs.atan2])
def test_angles_and_lengths_of_the_origin(function: Function) -> None:
    np.testing.assert_array_equal(slopes(function, [0], [0]), [[0], [0]])


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


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_operands(shape: tuple[int, ...]) -> None:
    a, b = slopes(lambda a, b: vs.silu(a) * vs.hypot(a, b), np.ones(shape), np.ones(()))
    assert a.shape == shape and b.shape == () and np.isfinite([*a.ravel(), b]).all()


def test_float16_is_rounded_once() -> None:
    x = np.asarray([300.0, -40.0], np.float16)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(slope(vs.atan, x, "float16"), (1 / (1 + wide**2)).astype("e"))
    alike = slope(lambda x: vs.leaky_relu(x, 1e-30), x, "float16")
    np.testing.assert_array_equal(alike, [1, 0])


@pytest.mark.parametrize(
    ("scale", "zero", "axis"), [(np.ones(3), 1, 1), (np.ones(()), [1, 2], 0), (np.ones(1), None, 0)]
)
def test_a_scale_of_narrow_weights_is_wanted(scale: NDArray, zero: object, axis: int) -> None:
    stored = np.asarray([[1, -2, 3], [100, 5, -6]], np.int8)
    point = None if zero is None else np.asarray(zero, np.int32)
    c = np.asarray([[1, 2, 3], [4, 5, 6]], np.float32)
    built = slopes(
        lambda s: vs.dequantize_linear(vs.weight(stored), s, point, axis=axis) * c, scale
    )
    offset = 0 if zero is None else np.reshape(point, (-1, 1)) if axis == 0 else point
    terms = c * (stored - offset)
    expected = terms.sum(0) if scale.size == 3 else terms.sum().reshape(scale.shape)
    np.testing.assert_array_equal(built[0], expected)


def test_a_cast_to_integers_stops_it() -> None:
    x = vs.input("x", (2,))
    with pytest.raises(vs.GradientError, match="cast, which gives int32"):
        vs.grad(vs.reduce_sum(vs.cast(vs.cast(x, "int32"), "float32")), x)
