"""Long sums in products and convolutions: how many digits they lose to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import floats

pytestmark = pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")


def one_by_one(x: NDArray, w: NDArray) -> NDArray:
    """Every row of x times every row of w, each sum step after step in float32."""
    products = x[:, None] * w[None]
    return np.asarray(np.add.accumulate(products, axis=-1, dtype=np.float32)[..., -1])


def error_of(got: NDArray, x: NDArray, w: NDArray) -> float:
    """The root of the mean squared error."""
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    return float(np.sqrt(np.mean((got.reshape(wanted.shape) - wanted) ** 2)))


def operands(images: int, steps: int, rows: int) -> tuple[NDArray, NDArray]:
    """Values of one sign, as behind a ReLU, so that partial sums are large; weights of both."""
    x = np.abs(floats(images, steps)) + np.float32(0.5)
    return np.asarray(x, np.float32), floats(rows, steps, seed=1)


# 480 to 120 is the squeeze of PP-OCR's recogniser, whose gate makes its rounding ten times as large
@pytest.mark.parametrize("device", vulkan_names())
@pytest.mark.parametrize(
    ("images", "steps", "rows"), [(1, 480, 120), (2, 480, 120), (1, 2048, 64), (1, 481, 120)]
)
def test_a_convolution_to_one_place_is_no_single_long_sum(
    device: str, images: int, steps: int, rows: int
) -> None:
    x, w = operands(images, steps, rows)
    with vs.Scheduler([device]) as sched:
        got = sched.compile(vs.conv(vs.input("x", (images, steps, 1, 1)), w[:, :, None, None]))(
            x=x[:, :, None, None]
        )
    assert error_of(got, x, w) < 0.7 * error_of(one_by_one(x, w), x, w)


@pytest.mark.parametrize("device", vulkan_names())
@pytest.mark.parametrize(("rows", "steps", "columns"), [(120, 481, 1), (7, 301, 9), (1, 1025, 15)])
def test_a_product_of_odd_sizes_is_no_single_long_sum(
    device: str, rows: int, steps: int, columns: int
) -> None:
    x, w = operands(rows, steps, columns)
    with vs.Scheduler([device]) as sched:
        got = sched.compile(vs.matmul(vs.input("x", x.shape), vs.weight(w.T.copy())))(x=x)
    assert error_of(got, x, w) < 0.7 * error_of(one_by_one(x, w), x, w)
