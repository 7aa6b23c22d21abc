"""Products of weights of few bits and rows rounded to 8 bits: how rows are rounded, and native
loops beside numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.op import get_op
from vksched.ir.precision import BYTES, PRECISION
from vksched.ops.linalg.matmul_kernels import MAX_GEMV_ROWS
from vksched.ops.lowering import native_kernels
from vksched.ops.quantized.gguf_formats import FORMATS, repack, unpacked
from vksched.ops.quantized.q8_activations import fake_quantize_q8, has_int8_activations, quantize_q8
from vksched.testing.op_cases.linalg.quantized_linear import blocks

native: Any = native_kernels.native
NAMES = [name for name in FORMATS if has_int8_activations(name)]
WAYS = getattr(native, "q8_targets", [])
needs_native = pytest.mark.skipif(not WAYS, reason="the native loops are not built")


def held(name: str, rows: int, columns: int) -> tuple[NDArray, NDArray]:
    """Return the words of a weight, and its values."""
    words = repack(name, blocks(name, rows, columns), (rows, columns))
    return words, unpacked(name, words, columns)


def check(got: NDArray, x: NDArray, values: NDArray, bias: NDArray | float = 0.0) -> None:
    """Assert that a product of x, rounded, is exact but for roundings of sums as large as the
    largest value of each run would make them.
    """
    seen = fake_quantize_q8(x)
    wanted = seen.astype(np.float64) @ values.T.astype(np.float64) + bias
    runs = np.abs(values).reshape(len(values), -1, 32)
    largest = np.broadcast_to(runs.max(-1, keepdims=True), runs.shape).reshape(values.shape)
    most = np.abs(seen) @ largest.T + np.abs(bias)
    assert (np.abs(got - wanted) <= 2e-6 * most + 1e-6).all()


def rows_of(rows: int, columns: int) -> NDArray:
    """Rows of which runs are of all sizes, some of zeros."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-20, 20, (rows, columns))
    x.reshape(-1, 32)[::7] = 0
    x[:, 5] = -3e5
    return x.astype(np.float32)


def test_values_are_off_by_half_a_step() -> None:
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    codes, scale = quantize_q8(x)
    assert codes.shape == (5, 3, 32) and codes.dtype == np.int8 and np.abs(codes).max() == 127
    step = np.abs(x.reshape(5, 3, 32)).max(-1, keepdims=True) / 127
    np.testing.assert_allclose(scale, step, 1e-6)
    lost = np.abs(fake_quantize_q8(x).reshape(5, 3, 32) - x.reshape(5, 3, 32))
    assert (lost <= 0.5001 * step).all()
    assert len(set(codes.reshape(-1).tolist())) > 100


def test_runs_without_a_scale() -> None:
    x = np.ones((6, 32), np.float32)
    x[0, 3], x[1, 4], x[2] = np.inf, np.nan, 0
    x[3], x[4, 9] = 1e-38, 3.4e38
    built = fake_quantize_q8(x)
    assert np.isnan(built[:2]).all() and not built[2:4].any()
    assert built[4, 9] == pytest.approx(3.4e38) and not built[4, :9].any()
    np.testing.assert_array_equal(built[5], x[5])


@needs_native
def test_there_are_loops_for_all_codes() -> None:
    assert sorted(native.q8_formats) == sorted(NAMES)


@needs_native
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_loops_are_exact(name: str, way: str) -> None:
    each = FORMATS[name].step
    for columns in (each, each * (9 if each == 32 else 3), 2048):
        words, values = held(name, 37, columns)
        bias = np.random.default_rng(1).standard_normal(37, np.float32)
        for rows in (1, 3, 4, 9, 12, 15, 19):
            x = rows_of(rows, columns)
            codes = np.empty((rows, native.q8_row_words(columns)), np.uint32)
            native.quantize_rows_q8(name, x, codes, way)
            room = np.full((rows, 41), np.nan, np.float32)  # of which a part is the result
            native.quantized_linear_q8(name, codes, words, bias, room[:, 2:39], way)
            check(room[:, 2:39], x, values, bias)
            assert np.isnan(room[:, :2]).all() and np.isnan(room[:, 39:]).all()


@needs_native
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_few_rows_have_the_bits_that_each_has_alone(name: str, way: str) -> None:
    columns = FORMATS[name].step * (21 if FORMATS[name].step == 32 else 3)
    words, _ = held(name, 37, columns)
    bias = np.random.default_rng(1).standard_normal(37, np.float32)

    def product(x: NDArray) -> NDArray:
        codes = np.empty((len(x), native.q8_row_words(columns)), np.uint32)
        native.quantize_rows_q8(name, x, codes, way)
        room = np.full((len(x), 41), np.nan, np.float32)  # of which a part is the result
        native.quantized_linear_q8(name, codes, words, bias, room[:, 2:39], way)
        return room[:, 2:39].copy()

    x = rows_of(MAX_GEMV_ROWS, columns)
    alone = np.concatenate([product(row[None]) for row in x])
    for rows in range(2, MAX_GEMV_ROWS + 1):
        assert product(x[:rows]).tobytes() == alone[:rows].tobytes(), rows


@needs_native
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_largest_codes_do_not_overflow(name: str, way: str) -> None:
    """All bits of a weight set, or none, and x of one size."""
    each = FORMATS[name].step
    for byte in (0xFF, 0x80, 0x00, 0x88, 0x77):
        raw = blocks(name, 17, each)
        raw[..., 4:-18] = byte
        words = repack(name, raw, (17, each))
        values = unpacked(name, words, each)
        for rows, sign in ((1, 1), (5, -1)):
            x = np.full((rows, each), sign, np.float32)
            codes = np.empty((rows, native.q8_row_words(each)), np.uint32)
            native.quantize_rows_q8(name, x, codes, way)
            out = np.empty((rows, 17), np.float32)
            native.quantized_linear_q8(name, codes, words, None, out, way)
            check(out, x, values)


@needs_native
@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_finite_is_not_hidden(way: str) -> None:
    words, values = held("q4_K", 20, 512)
    for rows in (1, 6):
        x = rows_of(rows, 512)
        x[-1, 300] = np.nan if rows == 1 else -np.inf
        codes = np.empty((rows, native.q8_row_words(512)), np.uint32)
        native.quantize_rows_q8("q4_K", x, codes, way)
        out = np.empty((rows, 20), np.float32)
        native.quantized_linear_q8("q4_K", codes, words, None, out, way)
        assert np.isnan(out[-1]).all() and np.isfinite(out[:-1]).all()
        check(out[:-1], x[:-1], values)


@needs_native
def test_wrong_operands_are_refused() -> None:
    words, _ = held("q4_0", 3, 64)
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 3), np.float32)
    codes = native_kernels.quantize_rows_q8("q4_0", x)
    assert codes is not None
    with pytest.raises(KeyError):
        native.quantized_linear_q8("f16", codes, words, None, out)
    with pytest.raises(KeyError):
        native.quantized_linear_q8("q4_0", codes, words, None, out, "none")
    for values in (
        (codes[:, :32], words, None, out),
        (codes.view(np.float32), words, None, out),
        (codes, words[:, :-1], None, out),
        (codes, np.zeros((3, 4), np.uint32), None, out),
        (codes, words[:2], None, out),
        (codes, words, np.zeros(2, np.float32), out),
        (codes, words, None, out[:1]),
        (codes, words, None, np.zeros((3, 2), np.float32).T),
    ):
        with pytest.raises(ValueError, match="expected"):
            native.quantized_linear_q8("q4_0", *values)
    for other in (np.zeros((2, 33), np.float32), np.zeros((3, 64), np.float32), x.astype(int)):
        with pytest.raises(ValueError, match="expected"):
            native.quantize_rows_q8("q4_0", other, codes)


@pytest.mark.parametrize("way", ["native", "numpy"])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q5_1", "q4_K", "q6_K", "iq4_nl", "f16"])
def test_calls_in_pieces_are_the_whole(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "numpy":
        monkeypatch.setattr(native_kernels, "native", None)
    host = get_op("quantized_linear").cpu
    assert host is not None
    rng = np.random.default_rng(0)
    words, values = held(name, 2100, 512)
    bias = rng.standard_normal(2100, np.float32)
    for lead in ((1,), (2, 3), (3, 1, 5)):
        x = rng.standard_normal((*lead, 512), np.float32)
        out = np.empty((*lead, 2100), np.float32)
        operands, attrs = (x, words, bias), Attrs({"format": name, PRECISION: BYTES})
        host.compute(operands, attrs, out)
        pieces = np.full_like(out, np.nan)
        cut = list(host.cut(operands, attrs, pieces))
        assert len(cut) > 1
        for inputs, part in cut:
            host.compute(inputs, attrs, part)
        for built in (out, pieces):
            rows, got = x.reshape(-1, 512), built.reshape(-1, 2100)
            if name == "f16":  # no codes: nothing is rounded
                np.testing.assert_allclose(got, rows @ values.T + bias, 1e-4, 1e-4)
            else:
                check(got, rows, values, bias)
                assert np.abs(got - rows @ values.T - bias).max() > 1e-3
