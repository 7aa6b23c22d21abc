"""Gradients of what works on rows: ties, zeros, masks, rows of -infinity, norms of every kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
from central_differences import Build, check, gradients
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.build_graph import build_graph
from vksched.testing.check_gradients import on_device
from vksched.testing.numeric_gradient import evaluate
from vksched.testing.op_table import CASES

RNG = np.random.default_rng(11)
MASK = np.asarray([[True, False, True, True], [False, True, True, False]])


def normal(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape))


def of_rows(build: Build, x: object, c: object) -> NDArray:
    """Return the gradient by one array of float64."""
    (got,), _ = gradients(build, (np.asarray(x, np.float64),), np.asarray(c, np.float64))
    return got


SMOOTH: dict[str, Build] = {
    "mean": lambda x: vs.reduce_mean(x, (0, 2)),
    "mean of all": vs.reduce_mean,
    "product": lambda x: vs.reduce_prod(x, 1),
    "product, the first and last axis": lambda x: vs.reduce_prod(x, (0, 2), True),
    "product of all": vs.reduce_prod,
    "largest": lambda x: vs.reduce_max(x * x, (1, 2)),
    "least": lambda x: vs.reduce_min(vs.exp(x), 0, True),
    "absolute values": lambda x: vs.reduce_l1(x * x * x, 1),
    "squares": lambda x: vs.reduce_sum_square(x, (0, 1)),
    "length": lambda x: vs.reduce_l2(x, 2),
    "variance": lambda x: vs.reduce_var(x, (1, 2), correction=1),
    "deviation": lambda x: vs.reduce_std(x, 0),
    "logarithm of sums of exponentials": lambda x: vs.reduce_logsumexp(x * 3.0, (0, 2)),
    "sums": lambda x: vs.cumsum(x * x, 1),
    "sums, from the end": lambda x: vs.cumsum(x * x, 2, exclusive=True, reverse=True),
    "products": lambda x: vs.cumprod(x, 2),
    "products before": lambda x: vs.cumprod(x, 1, exclusive=True),
    "products from the end": lambda x: vs.cumprod(x, 2, reverse=True),
    "products behind": lambda x: vs.cumprod(x, 0, exclusive=True, reverse=True),
    "softmax": lambda x: vs.softmax(x * 2.0, 1),
    "softmax, masked": lambda x: vs.softmax(x, -1, vs.constant(MASK)),
    "softmax, mask added": lambda x: vs.softmax(x, -1, x[1:2, :1] * 2.0),
    "log softmax": lambda x: vs.log_softmax(x * 2.0, 0),
    "log softmax, mask added": lambda x: vs.log_softmax(x, -1, x[:1] * 2.0),
    "layer norm": lambda x: vs.layer_norm(x),
    "layer norm, two axes": lambda x: vs.layer_norm(x, x[0] * x[0], x[1] * x[1], axis=1),
    "layer norm, shifted only": lambda x: vs.layer_norm(x, None, x[1, 0] * x[1, 1]),
    "RMS norm": lambda x: vs.rms_norm(x),
    "RMS norm, scaled": lambda x: vs.rms_norm(x, x[1, 1] * x[0, 0]),
    "sorted": lambda x: vs.sort(x * x * x, 1, descending=True),
    "the first ones": lambda x: vs.topk(x * x, 2, 2)[0],
    "group norm": lambda x: vs.group_norm(x.reshape(3, 4, 2), 2, x[0, 0], x[1, 1]),
    "instance norm": lambda x: vs.instance_norm(x, x[1, :, 0], x[0, :, 1]),
    "batch norm": lambda x: vs.batch_norm(x, *(x[i, :, i] for i in range(3)), x[1, :, 3] ** 2.0),
    "batch norm in training": lambda x: vs.concat(
        [vs.flatten(t) for t in vs.batch_norm_training(x, *(x[i % 3, :, i] for i in range(4)))]
    ),
    "by the length": lambda x: vs.lp_normalize(x, 1),
    "by the sum": lambda x: vs.lp_normalize(x * x, 2, p=1),
    "by mean and variance": lambda x: vs.mean_variance_normalize(x, (0, 2)),
}


TOLERANCES = {"float16": 2e-2, "float32": 1e-5}


@pytest.mark.parametrize("name", SMOOTH)
def test_first_and_second_derivatives(name: str) -> None:
    check(SMOOTH[name], normal(3, 2, 4))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_have_the_type_of_their_operands(name: str, dtype: str) -> None:
    x = (np.arange(24).reshape(3, 2, 4) % 7 / 4 - 0.6).astype(dtype)
    shape = SMOOTH[name](vs.input("x", x.shape, dtype)).shape
    c = np.asarray(np.cos(np.arange(math.prod(shape))).reshape(shape), dtype)
    (got,), _ = gradients(SMOOTH[name], (x,), c)
    assert got.dtype == dtype
    (exact,), _ = gradients(SMOOTH[name], (x.astype(np.float64),), c.astype(np.float64))
    least = 1e-7 + np.abs(exact).max() * TOLERANCES[dtype]
    np.testing.assert_allclose(got, exact, atol=least)


def test_equal_largest_and_least_values_share_the_gradient() -> None:
    rows = [[3, 1, 3, 3], [2, 2, 2, 2]]
    np.testing.assert_allclose(
        of_rows(lambda x: vs.reduce_max(x, 1), rows, [6, 8]), [[2, 0, 2, 2], [2, 2, 2, 2]]
    )
    np.testing.assert_allclose(
        of_rows(lambda x: vs.reduce_min(x, 1), rows, [6, 8]), [[0, 6, 0, 0], [2, 2, 2, 2]]
    )


def test_equal_values_go_back_in_their_order() -> None:
    x, c = [2, 1, 2, 1], [1, 2, 3, 4]
    np.testing.assert_array_equal(of_rows(vs.sort, x, c), [3, 1, 4, 2])
    descending = of_rows(lambda x: vs.sort(x, descending=True), x, c)
    np.testing.assert_array_equal(descending, [1, 3, 2, 4])
    np.testing.assert_array_equal(of_rows(lambda x: vs.topk(x, 2)[0], x, [5, 7]), [5, 0, 7, 0])


@pytest.mark.parametrize(
    ("build", "x", "c", "expected"),
    [
        (vs.reduce_l1, [0, -2, 3], 2, [0, -2, 2]),
        (vs.reduce_prod, [2, 0, 5], 3, [0, 30, 0]),
        (vs.reduce_prod, [0, 0, 5], 3, [0, 0, 0]),
        (lambda x: vs.cumprod(x, 0), [2, 0, 5, 7], [1, 1, 1, 1], [1, 2 + 10 + 70, 0, 0]),
        (lambda x: vs.cumprod(x, 0), [2, 0, 0, 7], [1, 1, 1, 1], [1, 2, 0, 0]),
        (vs.reduce_logsumexp, [-np.inf, -np.inf], 1, [0, 0]),
        (vs.reduce_logsumexp, [-np.inf, 800, 800], 2, [0, 1, 1]),
        (vs.softmax, [5000, -5000], [1, 2], [0, 0]),
        (vs.log_softmax, [5000, -5000], [1, 2], [-2, 2]),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_where_a_quotient_would_not_do(
    build: Build, x: list[float], c: object, expected: list[float]
) -> None:
    np.testing.assert_allclose(of_rows(build, x, c), expected)


def test_second_derivatives_of_products_with_zeros() -> None:
    for build in (vs.reduce_prod, lambda x: vs.cumprod(x, 0)):
        check(build, np.asarray([2.0, 0, 5, 0]))


def test_no_gradient_comes_from_what_a_mask_leaves_out() -> None:
    x = [[1, 2, 3, 4], [5, 6, 7, 8]]
    mask = vs.constant(MASK)
    of_log = of_rows(lambda x: vs.log_softmax(x, -1, mask), x, np.ones((2, 4)))
    of_plain = of_rows(lambda x: vs.softmax(x, -1, mask), x, np.arange(8).reshape(2, 4))
    for got in (of_log, of_plain):
        assert (got[~MASK] == 0).all()
        assert (got[MASK] != 0).all()
        np.testing.assert_allclose(got.sum(1), 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_of_nothing(shape: tuple[int, ...]) -> None:
    for build in (
        vs.reduce_mean,
        vs.reduce_var,
        lambda x: vs.reduce_prod(x, 1),
        lambda x: vs.reduce_logsumexp(x, 1),
        lambda x: vs.cumprod(x, 1),
        vs.softmax,
        vs.layer_norm,
        vs.rms_norm,
        vs.sort,
    ):
        x = vs.input("x", shape, np.float64)
        y = build(x)
        (got,), _ = gradients(build, (np.zeros(shape),), np.ones(y.shape))
        assert got.shape == shape


NORMS: list[tuple[Build, NDArray]] = [
    (vs.layer_norm, 300 * normal(2, 64) + 500),
    (vs.rms_norm, 300 * normal(2, 64) + 500),
    (vs.reduce_logsumexp, 200 + normal(2, 9)),
    (lambda x: vs.reduce_prod(x, 1), np.exp(0.2 * normal(2, 9))),
]


@pytest.mark.parametrize("number", range(len(NORMS)))
def test_float16_is_computed_in_float32(number: int) -> None:
    build, x = NORMS[number]
    half = x.astype(np.float16)
    c = np.ones(build(vs.input("x", x.shape)).shape)
    c.flat[::2] = -1
    (got,), (tensor,) = gradients(build, (half,), c.astype(np.float16))
    (exact,), _ = gradients(build, (half.astype(np.float64),), c)
    assert tensor.dtype == "float16"
    np.testing.assert_allclose(got, exact, rtol=2e-3, atol=2e-3 * np.abs(exact).max())


def test_positions_and_bools_stop_a_gradient() -> None:
    x = vs.input("x", (3, 4))
    for built, reason in (
        (vs.argmax(x, 1), "argmax, which gives positions"),
        (vs.argsort(x, 1), "argsort, which gives positions"),
        (vs.reduce_any(x > 0, 1), "gives bool"),
    ):
        loss = vs.reduce_sum(vs.cast(built, "float32"))
        with pytest.raises(vs.GradientError, match=reason):
            vs.grad(loss, x)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_without_eps_have_gradients_of_tiny_and_huge_rows(name: str) -> None:
    """1 / size: the squares of such rows have no place in float32."""
    row = np.linspace(-1, 2, 16, dtype=np.float32)
    sizes = np.asarray([[1e-34], [1e-22], [1.0], [1e20], [1e36]], np.float32)
    x = vs.input("x", (5, 16))
    y = vs.reduce_sum(getattr(vs, name)(x, eps=0.0) * vs.constant(np.cos(row)))
    graph = build_graph({"g": vs.grad(y, [x])[0]})[0]
    got = evaluate(graph, {"x": row * sizes})["g"].astype(np.float64) * sizes
    np.testing.assert_allclose(got, np.broadcast_to(got[2], got.shape), rtol=2e-4)
    assert np.abs(got[2]).max() > 0.1


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_with_a_tiny_eps_have_gradients_on_each_device(name: str) -> None:
    """Also where a driver has no numbers below 1e-38, as SwiftShader."""
    cases = [case for case in CASES if case.op == name and case.name == "small eps"]
    assert cases
    for device in ("cpu", *vulkan_names()):
        assert [found.wrong for found in on_device(device, cases)] == [""], device
