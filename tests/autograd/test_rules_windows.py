"""Gradients of convolutions, pools, resize and grid_sample against central differences in float64,
of second order too; what they are at ties, at ends and for windows of nothing but padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.build_graph import build_graph
from vksched.testing.numeric_gradient import evaluate

Build = Callable[..., vs.Tensor]
RNG = np.random.default_rng(5)
STEP = 1e-6


def values(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape))


def apart(*shape: int) -> NDArray:
    """Values no two of which are equal, nor near 0."""
    size = int(np.prod(shape))
    signs = RNG.choice([-1, 1], size)
    return np.asarray(RNG.permutation(np.linspace(0.5, 2, size)) * signs).reshape(shape)


def grid_of(*shape: int) -> NDArray:
    """Coordinates within and outside of x, none at a place where a weight has a kink."""
    return np.asarray(RNG.integers(-13, 13, shape) / 10 + 0.0137)


def gradients(build: Build, arrays: Sequence[NDArray], order: int) -> list[NDArray]:
    """Return the gradients by all operands of sum(y * c), or with order 2 those of the sum of its
    gradients times other numbers.
    """
    inputs = [vs.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    built = _scalar(build(*inputs))
    if order == 2:
        built = _scalar(*vs.grad(built, inputs, missing="zeros"))
    pulled = vs.grad(built, inputs, missing="zeros")
    return run({f"g{i}": t for i, t in enumerate(pulled)}, arrays)


def scalar(build: Build, arrays: Sequence[NDArray], order: int) -> float:
    inputs = [vs.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    built = _scalar(build(*inputs))
    if order == 2:
        built = _scalar(*vs.grad(built, inputs, missing="zeros"))
    return float(run({"s": built}, arrays)[0])


def run(outputs: dict[str, vs.Tensor], arrays: Sequence[NDArray]) -> list[NDArray]:
    graph = build_graph(outputs)[0]
    found = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    return [found[name] for name in outputs]


def _scalar(*tensors: vs.Tensor) -> vs.Tensor:
    """The sum of all values, each times its own number."""
    parts = []
    for t in tensors:
        c = np.cos(1 + np.arange(t.size)).reshape(t.shape).astype(t.dtype)
        parts.append(vs.reduce_sum(t * vs.constant(c)))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def compare(build: Build, arrays: Sequence[NDArray], order: int) -> None:
    got = gradients(build, arrays, order)
    for number, (x, g) in enumerate(zip(arrays, got, strict=True)):
        assert g.shape == x.shape
        for _ in range(3):
            direction = RNG.standard_normal(x.shape)
            right, left = (
                scalar(
                    build,
                    [*arrays[:number], x + s * STEP * direction, *arrays[number + 1 :]],
                    order,
                )
                for s in (1, -1)
            )
            size = np.abs(g * direction).sum() + abs(right) + 1
            found, wanted = (g * direction).sum(), (right - left) / (2 * STEP)
            assert abs(found - wanted) < 1e-6 * size, (number, found, wanted)


# -- convolutions ------------------------------------------------------------------------------

CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 11), (4, 3, 3), {"stride": 2, "padding": (2, 1), "dilation": 2}),
    "steps that leave places": ((2, 3, 9, 8), (4, 3, 2, 3), {"stride": (3, 4)}),
    "uneven": ((1, 2, 7, 6), (3, 2, 3, 2), {"padding": (1, 0, 2, 3), "stride": 2}),
    "dilated": ((2, 2, 9, 8), (3, 2, 3, 2), {"dilation": (2, 3), "padding": 2, "stride": (3, 2)}),
    "3d": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"stride": (1, 2, 3), "padding": 1}),
    "groups": ((2, 6, 5, 4), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((2, 3, 6, 7), (3, 1, 3, 3), {"groups": 3, "stride": 2, "padding": 1}),
    "depthwise by two": ((2, 3, 6, 7), (6, 1, 3, 2), {"groups": 3, "dilation": 2}),
    "pointwise": ((2, 3, 4, 5), (4, 3, 1, 1), {}),
    "pointwise, few places": ((3, 5, 2), (7, 5, 1), {}),
    "pointwise by steps": ((2, 3, 5, 6), (4, 3, 1, 1), {"stride": 2}),
    "more padding than window": ((1, 2, 3), (2, 2, 2), {"padding": 5, "stride": 4}),
    "whole": ((2, 3, 4, 5), (4, 3, 4, 5), {}),
}
TRANSPOSES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 5), (3, 4, 3), {"stride": 2, "padding": (1, 0), "output_padding": 1}),
    "2d": ((2, 4, 4, 3), (4, 3, 3, 2), {"stride": (3, 2), "output_padding": (2, 1)}),
    "dilated": ((1, 2, 4, 5), (2, 3, 2, 3), {"dilation": 3, "output_padding": 2, "padding": 1}),
    "groups": ((2, 6, 3, 4), (6, 2, 3, 3), {"groups": 3, "stride": 2, "padding": 1}),
    "depthwise": ((2, 3, 4, 5), (3, 1, 3, 3), {"groups": 3, "stride": 2}),
    "same": ((1, 2, 4, 5), (2, 3, 2, 2), {"stride": 3, "padding": "same_upper"}),
    "3d": ((1, 2, 3, 2, 3), (2, 2, 2, 3, 2), {"stride": (1, 2, 3)}),
}


def conv_case(kind: str, name: str) -> tuple[Build, list[NDArray]]:
    x, w, more = (CONVS if kind == "conv" else TRANSPOSES)[name]
    bias = w[0] if kind == "conv" else w[1] * more.get("groups", 1)
    function = getattr(vs, kind)
    return lambda x, w, b: function(x, w, b, **more), [values(*x), values(*w), values(bias)]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("conv", name) for name in CONVS), *(("conv_transpose", name) for name in TRANSPOSES)],
)
def test_convolutions(kind: str, name: str, order: int) -> None:
    compare(*conv_case(kind, name), order)


def test_the_gradient_of_a_pointwise_convolution_is_a_product() -> None:
    x, w = vs.input("x", (2, 3, 4, 5)), vs.input("w", (6, 3, 1, 1))
    by_w = vs.grad(vs.reduce_sum(vs.conv(x, w)), w)
    ops = {node.op for node in build_graph({"w": by_w})[0].nodes}
    assert "matmul" in ops
    assert "conv" not in ops


def test_no_images_give_weights_a_gradient_of_zeros() -> None:
    arrays = [values(0, 3, 5), values(4, 3, 2), values(4)]
    by_x, by_w, by_bias = gradients(lambda *t: vs.conv(*t, padding=1), arrays, 1)
    assert by_x.shape == (0, 3, 5)
    assert not by_w.any()
    assert not by_bias.any()


# -- pools -------------------------------------------------------------------------------------

POOLS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "max": ("max_pool", (2, 3, 7, 6), {"kernel": 3, "stride": 2, "padding": 1}),
    "max apart": ("max_pool", (2, 3, 6, 6), {"kernel": 2}),
    "max only padding": ("max_pool", (1, 2, 5), {"kernel": 2, "padding": 1, "stride": 1}),
    "max 3d": ("max_pool", (1, 2, 4, 5, 4), {"kernel": (2, 3, 2), "dilation": (1, 2, 1)}),
    "max ceil": ("max_pool", (1, 2, 8, 7), {"kernel": 3, "stride": 2, "ceil_mode": True}),
    "mean": ("average_pool", (2, 3, 7, 6), {"kernel": 3, "stride": 2, "padding": 1}),
    "mean of padding": (
        "average_pool",
        (1, 2, 7, 6),
        {"kernel": 3, "stride": 2, "padding": (1, 0, 1, 1), "count_include_pad": True},
    ),
    "mean ceil": (
        "average_pool",
        (1, 2, 8, 7),
        {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": True},
    ),
    "mean 3d": ("average_pool", (1, 2, 4, 5, 6), {"kernel": (2, 3, 2), "stride": 1}),
    "mean long": ("average_pool", (1, 2, 70, 66), {"kernel": 65, "stride": 1}),
    "norm 1": ("lp_pool", (1, 2, 7, 6), {"kernel": 3, "p": 1, "stride": 2, "padding": 1}),
    "norm 2": ("lp_pool", (1, 2, 7, 6), {"kernel": 3, "stride": 2, "padding": 1}),
    "norm 3": ("lp_pool", (1, 2, 7, 6), {"kernel": 2, "p": 3.5}),
    "norm below 1": ("lp_pool", (1, 2, 7), {"kernel": 2, "p": 0.5}),
    "adaptive max": ("adaptive_max_pool", (2, 2, 7, 6), {"sizes": (3, 4)}),
    "adaptive max tiles": ("adaptive_max_pool", (2, 2, 8, 6), {"sizes": (4, 6)}),
    "adaptive max of fewer": ("adaptive_max_pool", (1, 2, 3), {"sizes": 7}),
    "adaptive mean": ("adaptive_average_pool", (2, 2, 7, 6), {"sizes": (3, 4)}),
    "adaptive mean of fewer": ("adaptive_average_pool", (1, 2, 3, 4), {"sizes": (5, 2)}),
    "global max": ("global_max_pool", (2, 2, 3, 4), {}),
    "global mean": ("global_average_pool", (2, 2, 3, 4), {}),
    "global norm": ("global_lp_pool", (2, 2, 3, 4), {}),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, order: int) -> None:
    function, shape, more = POOLS[name]
    compare(lambda x: getattr(vs, function)(x, **more), [apart(*shape)], order)


@pytest.mark.parametrize(
    "pool", [lambda x: vs.max_pool(x, 2, stride=1), lambda x: vs.adaptive_max_pool(x, 3)]
)
def test_of_equal_values_the_first_gets_the_gradient(pool: Build) -> None:
    x = np.asarray([[[1.0, 1, 1, 0]]])
    (got,) = gradients(pool, [x], 1)
    c = np.cos([1, 2, 3])  # what `_scalar` multiplies the results by
    np.testing.assert_allclose(got, [[[c[0], c[1], c[2], 0]]])


def test_windows_of_nothing_but_padding_give_nothing_back() -> None:
    x = vs.input("x0", (1, 1, 2), "float64")
    y = vs.max_pool(x, 2, padding=3, stride=1)
    (got,) = run({"g": vs.vjp(y, np.ones(y.shape), x)}, [np.asarray([[[2.0, 1]]])])
    np.testing.assert_array_equal(got, [[[2, 1]]])


@pytest.mark.parametrize("p", [0.5, 1, 2, 3])
def test_norms_of_zeros_give_no_nan(p: float) -> None:
    x = np.zeros((1, 1, 4))
    x[0, 0, 3] = 2
    (got,) = gradients(lambda x: vs.lp_pool(x, 2, p=p), [x], 1)
    np.testing.assert_allclose(got[0, 0], [0, 0, 0, np.cos(2)])


# -- resize ------------------------------------------------------------------------------------

RESIZES: dict[str, dict[str, Any]] = {
    "nearest": {"sizes": (7, 3)},
    "linear": {"sizes": (7, 3), "mode": "linear"},
    "linear aligned": {
        "sizes": (9, 8),
        "mode": "linear",
        "coordinate_transformation_mode": "align_corners",
    },
    "linear antialias": {"sizes": (3, 2), "mode": "linear", "antialias": True},
    "cubic": {"sizes": (7, 4), "mode": "cubic"},
    "cubic antialias": {"sizes": (2, 3), "mode": "cubic", "antialias": True},
    "cubic inside": {"scales": (1.7, 0.8), "mode": "cubic", "exclude_outside": True},
    "crop": {
        "sizes": (6, 6),
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "roi": (0.1, -0.2, 0.8, 1.3),
    },
}


@pytest.mark.parametrize("name", RESIZES)
def test_resize(name: str) -> None:
    compare(lambda x: vs.resize(x, axes=(2, 3), **RESIZES[name]), [values(2, 3, 5, 6)], 1)


def test_the_gradient_of_a_resize_of_squares() -> None:
    compare(lambda x: vs.resize(x * x, (7, 3), axes=(2, 3), mode="cubic"), [values(1, 2, 5, 6)], 2)


# -- grid_sample -------------------------------------------------------------------------------

SAMPLES = [
    (mode, padding, aligned, dims)
    for mode in ("nearest", "linear", "cubic")
    for padding in ("zeros", "border", "reflection")
    for aligned in (False, True)
    for dims in (2, 3)
    if not (mode == "cubic" and dims == 3)
]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("mode", "padding", "aligned", "dims"), SAMPLES)
def test_grid_sample(mode: str, padding: str, aligned: bool, dims: int, order: int) -> None:
    x, grid = values(2, 2, *(4, 5, 6)[:dims]), grid_of(2, *(2, 3, 3)[:dims], dims)
    compare(lambda x, grid: vs.grid_sample(x, grid, mode, padding, aligned), [x, grid], order)


def test_coordinates_that_are_undefined_get_no_gradient() -> None:
    x, grid = values(1, 1, 3, 3), np.full((1, 1, 2, 2), np.nan)
    grid[0, 0, 1] = 0.1
    for padding in ("zeros", "border", "reflection"):
        by_x, by_grid = gradients(
            lambda x, grid, padding=padding: vs.grid_sample(x, grid, padding_mode=padding),
            [x, grid],
            1,
        )
        assert np.isfinite(by_x).all()
        assert by_x.any()
        assert not by_grid[0, 0, 0].any()
        assert by_grid[0, 0, 1].all()


def test_the_gradient_of_an_affine_map() -> None:
    theta = values(1, 2, 3) * 0.3
    compare(
        lambda theta: vs.grid_sample(
            vs.constant(np.cos(np.arange(20.0)).reshape(1, 1, 4, 5)),
            vs.affine_grid(theta, (1, 1, 3, 3)),
            "cubic",
        ),
        [theta],
        1,
    )


@pytest.mark.parametrize(("stride", "padding", "op"), [(1, 1, "conv"), (2, 1, "conv_transpose")])
def test_with_steps_of_one_the_gradient_by_x_is_a_convolution(
    stride: int, padding: int, op: str
) -> None:
    """Devices have faster kernels for it: of depthwise ones some 20 times as fast."""
    x, w = vs.input("x", (1, 4, 7, 7)), vs.input("w", (4, 1, 3, 3))
    y = vs.conv(x, w, stride=stride, padding=padding, groups=4)
    graph, _ = vs.build_graph(vs.vjp(y, vs.input("g", y.shape), x))
    assert {node.op for node in graph.nodes} & {"conv", "conv_transpose"} == {op}
