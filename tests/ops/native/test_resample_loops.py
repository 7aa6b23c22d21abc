"""The native loop of resampling against numpy: drawn axes, taps and special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.op import all_ops
from vksched.ops.lowering import native_kernels

native: Any = native_kernels.native

pytestmark = pytest.mark.skipif(
    not hasattr(native, "resample"), reason="the loop of resampling is not built"
)


def drawn(seed: int) -> tuple[NDArray, NDArray, NDArray, int]:
    """x, indices of which some lie beyond the axis, weights of which some are 0, and the axis."""
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(1, 9, seed % 4 + 1)]
    axis = int(rng.integers(len(shape)))
    if seed % 5 == 0:
        shape[-1] = 700
    outs, taps = (int(n) for n in rng.integers(1, (20, 5)))
    indices = rng.integers(-2, shape[axis] + 2, (outs, taps)).astype(np.int32)
    weights = rng.standard_normal((outs, taps)).astype(np.float32)
    weights[rng.random((outs, taps)) < 0.2] = 0
    return rng.standard_normal(shape).astype(np.float32), indices, weights, axis


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_drawn_sums(seed: int, wide: bool) -> None:
    x, indices, weights, axis = drawn(seed)
    places = np.clip(indices, 0, x.shape[axis] - 1)
    moved = np.moveaxis(x.astype(np.float64), axis, 0)
    sums = np.einsum("it,it...->i...", weights.astype(np.float64), moved[places])
    wanted = np.moveaxis(sums, 0, axis)
    out = np.full(wanted.shape, 77, np.float32)
    inner = int(np.prod(x.shape[axis + 1 :]))
    native.resample(x, indices, weights, out, x.shape[axis], inner, wide)
    assert np.allclose(out, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_of_weight_0_are_not_read(axis: int) -> None:
    x = np.array([[1, np.inf], [np.nan, 2]], np.float32)
    indices = np.array([[0, 1], [1, 0]], np.int32)
    weights = np.array([[1, 0], [0.5, 0]], np.float32)
    attrs, out = Attrs({"axis": axis}), np.full((2, 2), 77, np.float32)
    declared = all_ops()["resample"]
    assert declared.cpu is not None
    declared.cpu.compute((x, indices, weights), attrs, out)
    with np.errstate(all="ignore"):
        wanted = declared.reference((x, indices, weights), attrs)
    assert np.array_equal(out, wanted, equal_nan=True)


def test_other_shapes_are_refused() -> None:
    x, out = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    indices, weights = np.zeros((4, 2), np.int32), np.ones((4, 2), np.float32)
    native.resample(x, indices, weights, out, 3, 1)
    for change in ({"weights": weights[:3]}, {"indices": weights}, {"out": x}, {"size": 4}):
        feeds = {"x": x, "indices": indices, "weights": weights, "out": out}
        with pytest.raises(ValueError, match="expected"):
            native.resample(**{**feeds, "size": 3, "inner": 1, **change})
