"""Functions of float32 on the CPU: native loops, as processors with wide vectors and as others take
them, and numpy's passes where these are not built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs, AttrValue
from vksched.ir.op import all_ops
from vksched.ops.lowering import native_kernels
from vksched.runtime.vulkan.device_probe import cpu_device


def unaligned(values: NDArray) -> NDArray:
    """As files may hold values: at any byte."""
    memory = np.zeros(values.nbytes + 1, np.uint8)
    moved = memory[1:].view(np.float32).reshape(values.shape)
    moved[...] = values
    assert not moved.flags.aligned
    return moved


FUNCTIONS = [
    ("erf", 1e-6),
    ("gelu", 8e-6),
    ("gelu_tanh", 2e-5),
    ("sigmoid", 1e-5),
    ("silu", 1e-5),
]
"""With the relative error that float32 leaves them in the tails."""
WAYS = ("wide", "plain", "passes")

needs_native = pytest.mark.skipif(
    native_kernels.native is None, reason="the native loops are not built"
)


class Plain:
    """The native loops of a processor without wide vectors."""

    @staticmethod
    def unary(*args: object) -> None:
        loops_of_native.unary(*args, wide=False)

    @staticmethod
    def norm(*args: object) -> None:
        loops_of_native.norm(*args, wide=False)


loops_of_native: Any = native_kernels.native


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "passes" and native_kernels.native is None:
        pytest.skip("the native loops are not built")
    if request.param != "wide":
        monkeypatch.setattr(native_kernels, "native", Plain if request.param == "plain" else None)
    return str(request.param)


def computed(op: str, *inputs: NDArray, **attrs: AttrValue) -> NDArray:
    declared = all_ops()[op]
    assert declared.cpu is not None
    out = np.full(inputs[0].shape, 77, np.float32)
    with np.errstate(all="ignore"):
        declared.cpu.compute(inputs, Attrs(attrs), out)
    return out


@needs_native
@pytest.mark.parametrize("wide", [True, False])
def test_logarithms_have_their_digits(wide: bool) -> None:
    """Near 1 and of subnormal numbers; special values too."""
    near = 1 + np.linspace(-0.6, 0.9, 40001)
    x = np.concatenate([np.geomspace(1e-45, 3.4e38, 40001), near]).astype(np.float32)
    out = np.full_like(x, 77)
    loops_of_native.unary("log", x, out, wide)
    want = np.log(x.astype(np.float64))
    assert np.abs(out - want).max() < 1e-5
    assert (np.abs(out - want) <= 3e-7 * np.abs(want)).all()
    odd = np.array([0.0, -0.0, -1.0, -np.inf, np.inf, np.nan, 1.0], np.float32)
    loops_of_native.unary("log", odd, odd, wide)
    wanted = [-np.inf, -np.inf, np.nan, np.nan, np.inf, np.nan, 0.0]
    np.testing.assert_array_equal(odd, np.array(wanted, np.float32))


@pytest.mark.parametrize("op", ["gelu_backward", "gelu_tanh_backward"])
def test_slopes_have_their_digits(op: str, way: str) -> None:
    """Of the largest: they are 0 somewhere. Special values too."""
    x = np.concatenate([np.linspace(-12, 12, 40001), np.geomspace(1e-30, 1e3, 2001), [3e38]])
    x = np.concatenate([x, -x, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    got, declared = computed(op, x), all_ops()[op]
    want = declared.reference((x.astype(np.float64),), Attrs({}))
    assert np.allclose(got, want, rtol=0, atol=5e-7, equal_nan=True)
    tail = (x > -8) & (x < -5)
    assert np.allclose(got[tail], want[tail], rtol=4e-5, atol=0)


@pytest.mark.parametrize(("op", "tolerance"), FUNCTIONS)
def test_small_results_keep_their_digits(op: str, tolerance: float, way: str) -> None:
    """Over all magnitudes, relative to the result; special values too."""
    x = np.concatenate([np.linspace(-12, 12, 40001), np.geomspace(1e-30, 1e3, 2001), [3e38]])
    x = np.concatenate([x, -x, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    got = computed(op, x)
    with np.errstate(all="ignore"):
        wanted = all_ops()[op].reference((x.astype(np.float64),), Attrs())
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    known = np.isfinite(wanted) & (np.abs(wanted) > 1e-36)
    apart = np.abs(got[known] - wanted[known]) / np.abs(wanted[known])
    assert apart.max() < tolerance
    assert np.array_equal(np.isinf(got), np.isinf(wanted.astype(np.float32)))


@pytest.mark.parametrize("op", ["erf", "tanh"])
@pytest.mark.skipif(native_kernels.native is None, reason="the native loops are not built")
def test_odd_functions_keep_the_sign_of_zero(op: str) -> None:
    x = np.array([-0.0, 0.0] * 20, np.float32)
    for wide in (True, False):
        out = np.full(x.shape, 77, np.float32)
        native_kernels.native.unary(op, x, out, wide=wide)
        assert out.tobytes() == x.tobytes()


@pytest.mark.parametrize("op", [op for op, _ in FUNCTIONS])
def test_a_value_does_not_depend_on_its_neighbours(op: str, way: str) -> None:
    """Pieces may end anywhere: ends of loops give what their middles give."""
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32) * 6
    whole = computed(op, x)
    for start in range(9):
        for size in range(1, 36):
            piece = computed(op, x[start : start + size])
            assert piece.tobytes() == whole[start : start + size].tobytes(), (start, size)


@pytest.mark.parametrize("op", [op for op, _ in FUNCTIONS])
@pytest.mark.parametrize(
    "x",
    [
        np.float32(0.3),
        np.empty((0, 3), np.float32),
        np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.linspace(-3, 3, 24, dtype=np.float32)[::-2],
        np.broadcast_to(np.float32(1.5), (3, 4)),
        unaligned(np.linspace(-3, 3, 24, dtype=np.float32)),
        np.linspace(-3, 3, 24, dtype=">f4"),
        np.linspace(-3, 3, 24, dtype=np.dtype("f4").newbyteorder("<")),
    ],
    ids=[
        *("no axes", "no values", "turned", "every second", "broadcast", "unaligned"),
        *("high byte first", "low byte first"),
    ],
)
def test_operands_may_lie_anyhow(op: str, x: NDArray, way: str) -> None:
    before = np.array(x)
    wanted = all_ops()[op].reference((np.asarray(x, np.float32),), Attrs())
    np.testing.assert_allclose(computed(op, np.asarray(x)), wanted, rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("op", [op for op, _ in FUNCTIONS])
def test_results_at_the_ends_of_float32(op: str, way: str) -> None:
    """Where exp ends, where erf is 1, and far beyond: relative to the result or to the least normal
    number, and within what the function can be.
    """
    x = np.concatenate([np.linspace(3, 5, 2001), np.linspace(80, 110, 3001)])
    x = np.concatenate([x, np.geomspace(1e3, 3e38, 400)])
    x = np.concatenate([x, -x]).astype(np.float32)
    got = computed(op, x)
    with np.errstate(all="ignore"):
        wanted = all_ops()[op].reference((x.astype(np.float64),), Attrs())
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=4e-37)
    if op in ("erf", "sigmoid"):
        assert np.abs(got).max() <= 1


def test_unaligned_weights_of_norms(way: str) -> None:
    x, scale, shift = np.random.default_rng(0).standard_normal((3, 30)).astype(np.float32)
    attrs: dict[str, AttrValue] = {"axis": 0, "eps": 1e-5, "kind": "layer_norm"}
    attrs |= {"scaled": True, "shifted": True}
    wanted = computed("layer_norm", x, scale, shift, **attrs)
    got = computed("layer_norm", *map(unaligned, (x, scale, shift)), **attrs)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("kind", "shifted"), [("layer_norm", False), ("layer_norm", True), ("rms_norm", False)]
)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("columns", [1, 7, 8, 33, 70_001])
@pytest.mark.parametrize("transposed", [False, True])
def test_norms_are_exact_around_any_mean(
    kind: str, shifted: bool, scaled: bool, columns: int, transposed: bool, way: str
) -> None:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((columns, 3) if transposed else (3, columns)) * [[0.01]] + [[4.0]]
    x = (x.T if transposed else x).astype(np.float32)
    affine = [rng.standard_normal(columns).astype(np.float32) for _ in range(scaled + shifted)]
    attrs: dict[str, AttrValue] = {"axis": 1, "eps": 1e-5, "kind": kind}
    attrs |= {"scaled": scaled, "shifted": shifted}
    got = computed(kind, x, *affine, **attrs)
    exact = [values.astype(np.float64) for values in (x, *affine)]
    wanted = all_ops()[kind].reference(tuple(exact), Attrs(attrs))
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_norms_of_rows_with_odd_values(kind: str, odd: float, way: str) -> None:
    x = np.arange(40, dtype=np.float32).reshape(4, 10)
    x[2, 3] = odd
    attrs: dict[str, AttrValue] = {"axis": 1, "eps": 1e-5, "kind": kind}
    attrs |= {"scaled": False, "shifted": False}
    got = computed(kind, x, **attrs)
    with np.errstate(all="ignore"):
        wanted = all_ops()[kind].reference((x,), Attrs(attrs))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    ("scale", "eps"), [(1e20, 1e-5), (1e37, 1e-5), (1e-30, 0.0), (1e-18, 1e-36)]
)
def test_norms_of_rows_whose_squares_leave_float32(
    kind: str, scale: float, eps: float, way: str
) -> None:
    x = np.random.default_rng(0).standard_normal((3, 33)) * [[1.0], [scale], [1.0]]
    attrs: dict[str, AttrValue] = {"axis": 1, "eps": eps, "kind": kind}
    attrs |= {"scaled": False, "shifted": False}
    wide = x.astype(np.float32).astype(np.float64)
    centered = wide - wide.mean(1, keepdims=True) if kind == "layer_norm" else wide
    wanted = centered / np.sqrt(np.square(centered).mean(1, keepdims=True) + eps)
    got = computed(kind, x.astype(np.float32), **attrs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@needs_native
def test_native_loops_write_in_place_and_refuse_what_they_cannot_take() -> None:
    x = np.linspace(-4, 4, 101, dtype=np.float32)
    wanted = computed("silu", x)
    native_kernels.native.unary("silu", x, x)
    assert x.tobytes() == wanted.tobytes()
    fixed = np.zeros(4, np.float32)
    fixed.flags.writeable = False
    for operand, out, error in (
        (np.zeros(4), np.zeros(4, np.float32), "aligned float32"),
        (np.zeros(4, np.int32), np.zeros(4, np.float32), "aligned float32"),
        (np.zeros(8, np.float32)[::2], np.zeros(4, np.float32), "aligned float32"),
        (np.zeros(3, np.float32), np.zeros(4, np.float32), "as many values"),
        (np.zeros(4, np.float32), fixed, "read-only"),
    ):
        with pytest.raises((ValueError, BufferError), match=error):
            native_kernels.native.unary("gelu", operand, out)
    with pytest.raises(KeyError, match="sinc"):
        native_kernels.native.unary("sinc", x, x)
    with pytest.raises(ValueError, match="as many values"):
        native_kernels.native.norm(x[:10], None, None, x, 101, 1e-5, True)
    with pytest.raises(ValueError, match="aligned float32"):
        native_kernels.native.unary("gelu", unaligned(x), x.copy())
    for scale, columns, error in (
        (x[1:], 101, "each column"),
        (x[:10], 10, "whole"),
        (None, 0, "whole"),
    ):
        with pytest.raises(ValueError, match=error):
            native_kernels.native.norm(x, scale, None, x, columns, 1e-5, True)


@needs_native
def test_every_function_that_asks_for_a_loop_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the CPU says with what it computes."""
    asked: list[str] = []

    class Noting:
        @staticmethod
        def unary(function: str, *args: object) -> None:
            asked.append(function)
            loops_of_native.unary(function, *args)

    monkeypatch.setattr(native_kernels, "native", Noting)
    x = np.ones(3, np.float32)
    for op, _ in FUNCTIONS:
        computed(op, x)
    assert asked == [op for op, _ in FUNCTIONS]
    assert "native loops" in cpu_device().driver
    monkeypatch.setattr(native_kernels, "native", None)
    assert "native loops" not in cpu_device().driver
