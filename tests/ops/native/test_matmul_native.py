"""Products by native loops: which there are, and that they compute what numpy does."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import TensorType, broadcast_shapes
from vksched.ir.attrs import Attrs
from vksched.ops.linalg.matmul_native import matmul_program
from vksched.ops.lowering import blas, native_kernels

needs_loops = pytest.mark.skipif(not native_kernels.conv_epilogue_ops(), reason="no native loops")
Shape = tuple[int, ...]
# a, b as (n, k)
FEW = [
    ((9, 512), (130, 512)),
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
    native_program = matmul_program(tuple(types), TensorType(output), attrs)
    return None if native_program is None else [loop.name for loop in native_program.loops]


@needs_loops
@pytest.mark.parametrize(("a", "b"), FEW)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("epilogue", [False, True])
def test_few_rows(a: Shape, b: Shape, bias: bool, epilogue: bool) -> None:
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
        run = sched.compile(vs.relu(y) if epilogue else y)
        found = [run(x=left) for _ in range(2)]
    for each in found:
        np.testing.assert_allclose(
            each, np.maximum(expected, 0) if epilogue else expected, rtol=1e-4, atol=1e-3
        )


@needs_loops
def test_a_row_has_the_same_bits_in_products_of_up_to_eight_rows() -> None:
    """As large as the matrix that selects among 128 experts."""
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(n).astype(np.float32) for n in ((8, 2048), (128, 2048)))
    shift = rng.standard_normal(128).astype(np.float32)
    found = []
    with vs.Scheduler(["cpu"]) as sched:
        for rows in (1, 2, 5, 8):
            assert names((rows, 1, 2048), right.shape, bias=True) == ["matmul"]
            x = vs.input("x", (rows, 1, 2048))
            run = sched.compile(vs.matmul(x, vs.weight(right), shift, transpose_b=True))
            each = [run(x=left[at : at + rows, None]) for at in range(0, 8 - rows + 1, rows)]
            found.append(np.concatenate(each)[:, 0])
    expected = left.astype(np.float64) @ right.T.astype(np.float64) + shift
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-3)
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0][: len(each)])


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
