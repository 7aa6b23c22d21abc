"""Products by native loops: which there are, and that they compute what numpy does."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import TensorType, broadcast_shapes
from vksched.ir.attrs import Attrs
from vksched.ops.linalg.matmul_native import matmul_recipe
from vksched.ops.lowering import blas, native_kernels

needs_loops = pytest.mark.skipif(not native_kernels.conv_epilogue_ops(), reason="no native loops")
Shape = tuple[int, ...]
# a, b as (n, k)
FEW = [
    ((8, 512), (130, 512)),
    ((24, 512), (2048, 512)),
    ((1, 24, 512), (2, 301, 512)),
    ((3, 7, 640), (150, 640)),
    ((64, 129), (257, 129)),
    ((2, 1, 5, 300), (1, 1, 333, 300)),
]
LIBRARYS = [((7, 512), (1024, 512)), ((65, 512), (512, 512)), ((2, 24, 512), (2, 512, 512))]


def names(a: Shape, b: Shape, bias: bool) -> list[str] | None:
    output = (*broadcast_shapes("matmul", a[:-2], b[:-2]), a[-2], b[-2])
    types = [TensorType(a), TensorType(b), *([TensorType(b[-2:-1])] if bias else [])]
    attrs = Attrs({"transpose_a": False, "transpose_b": True})
    recipe = matmul_recipe(tuple(types), TensorType(output), attrs)
    return None if recipe is None else [loop.name for loop in recipe.loops]


@needs_loops
@pytest.mark.parametrize(("a", "b"), FEW)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("then", [False, True])
def test_few_rows(a: Shape, b: Shape, bias: bool, then: bool) -> None:
    several = len(b) > 2 and b[0] > 1
    assert names(a, b, bias) == (None if bias and several else ["copy", "conv", "copy"])
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    shift = rng.standard_normal(b[-2]).astype(np.float32) if bias else None
    expected = left.astype(np.float64) @ np.swapaxes(right, -1, -2).astype(np.float64)
    if shift is not None:
        expected += shift
    with vs.Scheduler(["cpu"]) as sched:
        x = vs.input("x", a)
        y = vs.matmul(x, vs.weight(right), shift, transpose_b=True)
        run = sched.compile(vs.relu(y) if then else y)
        found = [run(x=left) for _ in range(2)]
    for each in found:
        np.testing.assert_allclose(
            each, np.maximum(expected, 0) if then else expected, rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize(("a", "b"), LIBRARYS)
def test_others_are_the_librarys(a: Shape, b: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy's, where loops do not find its library."""
    assert names(a, b, bias=False) == (["gemm"] if blas.is_in_loops() else None)
    monkeypatch.setattr(blas, "is_in_loops", lambda: False)
    assert names(a, b, bias=False) is None


@needs_loops
def test_what_is_no_number_stays_where_it_is() -> None:
    left, right = np.ones((9, 256), np.float32), np.ones((600, 256), np.float32)
    left[3, 5], right[17, 200], right[18, 3] = np.nan, np.inf, -np.inf
    with vs.Scheduler(["cpu"]) as sched:
        x = vs.input("x", left.shape)
        found = sched.compile(vs.matmul(x, vs.weight(right), transpose_b=True))(x=left)
    np.testing.assert_array_equal(found, left @ right.T)
