"""Loops of native programs that several threads share: in any number of pieces they make what the
references make; what is large, and special values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import IndexOutOfRange
from vksched.ir.attrs import Attrs
from vksched.ir.native_program import NativeProgram
from vksched.ir.op import all_ops
from vksched.ops.conv import conv_native
from vksched.ops.lowering import fused_loop, native_kernels

pytestmark = pytest.mark.skipif(
    not native_kernels.has_programs(), reason="native programs are not built"
)
native: Any = native_kernels.native


def node(outputs: vs.Tensor) -> NativeProgram:
    """The recipe of what a builder makes."""
    make = all_ops()[outputs.op].native_program
    found = make and make(tuple(t.type for t in outputs.inputs), outputs.type, outputs.attrs)
    assert found
    return found


def ran(outputs: vs.Tensor, native_program: NativeProgram, *args: NDArray) -> NDArray:
    """Run the native program of one loop."""
    (loop,) = native_program.loops
    out = np.full(outputs.shape, 77, np.float32)
    arrays = [*args, out]
    slots = list(range(len(arrays)))
    reported = (loop.name, slots, loop.int_params, loop.float_params, loop.pieces)
    native.Program([reported], [array.nbytes for array in arrays], slots).run(arrays)
    return out


def cases() -> Iterator[tuple[vs.Tensor, tuple[NDArray, ...]]]:
    rng = np.random.default_rng(0)

    def values(*shape: int) -> NDArray:
        return rng.standard_normal(shape).astype(np.float32)

    x, row, column = values(3, 7, 300), values(300), values(7, 1)
    x[0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    a, b, c = (vs.input(n, v.shape) for n, v in zip("abc", (x, row, column), strict=True))
    for built in (a + b, a * c, c - b, vs.maximum(b, a), vs.hard_swish(a), vs.clip(a, -1, 0.5)):
        by_name = {"a": x, "b": row, "c": column}
        yield built, tuple(by_name[str(t.name)] for t in built.inputs)
    for moved in (
        vs.transpose(a, (2, 0, 1)),
        a[:, ::-2, 5:205:3],
        vs.expand(vs.reshape(c, (7, 1)), (2, 7, 300)),
        vs.reduce_mean(a, (1,)),
        vs.reduce_sum(a, (0, 1)),
        vs.reduce_max(a, 2),
        vs.reduce_min(a, 1),
    ):
        yield moved, (column if moved.op == "expand" else x,)
    image = values(2, 5, 40, 30)
    i = vs.input("i", image.shape)
    yield vs.max_pool(i, 3, stride=2, padding=1), (image,)
    yield vs.average_pool(i, 2, stride=1, padding=1), (image,)


@pytest.mark.parametrize("pieces", [1, 2, 3, 64])
def test_pieces_make_what_the_references_make(pieces: int) -> None:
    for built, values in cases():
        native_program = node(built)
        cut = NativeProgram((replace(native_program.loops[0], pieces=pieces),))
        with np.errstate(all="ignore"):
            wanted = all_ops()[built.op].reference(values, built.attrs)
        np.testing.assert_allclose(ran(built, cut, *values), wanted, 1e-6, 1e-6, err_msg=built.op)


@pytest.mark.parametrize("groups", [1, 3, 12])
def test_pieces_of_convolutions(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 12, 20, 9)).astype(np.float32)
    w = rng.standard_normal((36, 12 // groups, 3, 3)).astype(np.float32)
    bias = rng.standard_normal(36).astype(np.float32)
    leaves = [vs.input(n, v.shape) for n, v in zip("xwb", (x, w, bias), strict=True)]
    output = vs.conv(*leaves, stride=2, padding=1, groups=groups)
    whole = ran(output, node(output), x, w, bias)
    np.testing.assert_allclose(
        whole, all_ops()["conv"].reference((x, w, bias), output.attrs), 1e-4, 1e-4
    )
    for shares in (2, 5, 100):
        monkeypatch.setattr(conv_native, "PIECE", 1)
        monkeypatch.setattr(conv_native, "SHARES", shares)
        native_program = node(output)
        assert native_program.loops[0].pieces > 2
        assert ran(output, native_program, x, w, bias).tobytes() == whole.tobytes()


@pytest.mark.parametrize("seed", range(12))
def test_transposed_convolutions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn windows, in pieces of any size."""
    rng = np.random.default_rng(seed)
    axes, groups = seed % 3 + 1, seed % 2 + 1

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(low, high, axes)))

    x = rng.standard_normal((2, 3 * groups, *some(3, 9))).astype(np.float32)
    w = rng.standard_normal((3 * groups, 5, *some(2, 4))).astype(np.float32)
    bias = rng.standard_normal(5 * groups).astype(np.float32)
    leaves = [vs.input(n, v.shape) for n, v in zip("xwb", (x, w, bias), strict=True)]
    more = {"stride": some(1, 4), "dilation": some(1, 3), "padding": some(0, 2)}
    output = vs.conv_transpose(*leaves[: 2 + seed % 2], groups=groups, **more)
    inputs = (x, w, bias)[: 2 + seed % 2]
    wanted = all_ops()["conv_transpose"].reference(inputs, output.attrs)
    for shares in (1, 3, 100):
        monkeypatch.setattr(conv_native, "PIECE", 1)
        monkeypatch.setattr(conv_native, "SHARES", shares)
        np.testing.assert_allclose(ran(output, node(output), *inputs), wanted, 1e-4, 1e-4)


def test_a_chain_of_few_values_a_line_is_numpys() -> None:
    many = fused_loop.MANY_LINES + 1
    x, column = vs.input("x", (many, 2)), vs.input("c", (many, 1))
    make, built = all_ops()["add"].native_program, x + column
    assert make is not None
    assert make((x.type, column.type), built.type, Attrs({})) is None
    assert make((x.type, x.type), built.type, Attrs({})) is not None  # one line


def test_an_index_outside_its_axis_names_its_node() -> None:
    x, at = vs.input("x", (3, 4)), vs.input("at", (2,), "int32")
    picked = vs.gather(vs.relu(x), at, 0, name="picked")
    values = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.neg(picked))
        got = run(x=values, at=np.array([-1, 0], np.int32))
        np.testing.assert_array_equal(got, -np.maximum(values, 0)[[2, 0]])
        with pytest.raises(IndexOutOfRange, match=r"-3\.\.2, got 3.*picked"):
            run(x=values, at=np.array([1, 3], np.int32))
        got = run(x=values, at=np.array([1, 1], np.int32))  # and goes on
        np.testing.assert_array_equal(got, -np.maximum(values, 0)[[1, 1]])
