"""Products of weights of few bits on the CPU: native loops, as processors with wide vectors and as
others take them, and numpy where these are not built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.op import get_op
from vksched.ops.lowering import native_kernels
from vksched.ops.quantized.gguf_formats import FORMATS, repack, unpacked
from vksched.testing.op_cases.linalg.quantized_linear import blocks

native: Any = native_kernels.native
needs_native = pytest.mark.skipif(
    not native_kernels.has_quantized("q4_K"), reason="the native loops are not built"
)


def held(name: str, rows: int, columns: int) -> tuple[NDArray, NDArray]:
    """Return the words of a weight, and its values."""
    words = repack(name, blocks(name, rows, columns), (rows, columns))
    return words, unpacked(name, words, columns)


def lengths(name: str) -> tuple[int, ...]:
    """One block, rows that end within a tile, several tiles, an odd number of them."""
    each = FORMATS[name].step
    return each, *((288, 576) if each == 32 else (768,)), 2560


def check(got: NDArray, x: NDArray, values: NDArray, bias: NDArray | float = 0.0) -> None:
    """Assert that a product is exact but for some roundings of the largest part of a sum."""
    wanted = x.astype(np.float64) @ values.T.astype(np.float64) + bias
    most = np.abs(x) @ np.abs(values.T)
    assert (np.abs(got - wanted) <= 1e-6 * most + 1e-6).all()


@needs_native
def test_there_are_loops_for_all_formats() -> None:
    assert sorted(native.quant_formats) == sorted(FORMATS)


@needs_native
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_loops_are_exact(name: str, wide: bool) -> None:
    rng = np.random.default_rng(0)
    for columns in lengths(name):
        words, values = held(name, 13, columns)
        out = np.empty((13, columns), np.float32)
        native.dequantize(name, words, out, wide)
        np.testing.assert_allclose(out, values, 1e-6, 1e-6)
        for rows in (1, 3, 4, 7):
            x = rng.standard_normal((rows, columns), np.float32)
            bias = rng.standard_normal(13, np.float32)
            room = np.full((rows, 17), np.nan, np.float32)  # of which a part is the result
            native.quantized_linear(name, x, words, bias, room[:, 2:15], wide)
            check(room[:, 2:15], x, values, bias)
            assert np.isnan(room[:, :2]).all() and np.isnan(room[:, 15:]).all()


@needs_native
@pytest.mark.parametrize("wide", [True, False])
def test_all_bits_of_scales_mean_the_same(wide: bool) -> None:
    fp16 = np.arange(1 << 16, dtype=np.uint16)
    raw = np.zeros((1 << 16, 34), np.uint8)
    raw[:, :2], raw[:, 2:] = fp16.view(np.uint8).reshape(-1, 2), 1
    words = repack("q8_0", raw, (1 << 16, 32))
    out = np.empty((1 << 16, 32), np.float32)
    native.dequantize("q8_0", words, out, wide)
    with np.errstate(all="ignore"):
        wanted = fp16.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(out, np.repeat(wanted[:, None], 32, 1))


@needs_native
def test_all_powers_mean_the_same() -> None:
    raw = np.full((256, 17), 0x21, np.uint8)
    raw[:, 0] = np.arange(256)
    words = repack("mxfp4", raw, (256, 32))
    out = np.empty((256, 32), np.float32)
    native.dequantize("mxfp4", words, out)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, unpacked("mxfp4", words, 32))


@needs_native
def test_wrong_operands_are_refused() -> None:
    words, _ = held("q4_0", 3, 64)
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(KeyError):
        native.quantized_linear("q4_7", x, words, None, out)
    for values in (
        (x[:, :32], words, None, out),
        (x.astype(np.float64), words, None, out),
        (x, words[:, :-1], None, out),
        (x, words.view(np.int32), None, out),
        (x, words[:2], None, out),
        (x, words, np.zeros(2, np.float32), out),
        (x, words, None, out[:1]),
        (x, words, None, np.zeros((3, 2), np.float32).T),
    ):
        with pytest.raises(ValueError, match="expected"):
            native.quantized_linear("q4_0", *values)
    with pytest.raises(ValueError, match="expected"):
        native.dequantize("q4_0", words, np.zeros((3, 96), np.float32))
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        native.quantized_linear("q4_0", x, words, None, out)


@pytest.mark.parametrize("name", ["q8_0", "q3_K", "q6_K", "mxfp4"])
def test_modules_that_lay_words_out_otherwise_are_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those that do not tell: of most formats rows are as long as they were."""
    words, values = held(name, 5, 768)
    x = np.random.default_rng(0).standard_normal((2, 768), np.float32)
    for version in (native_kernels.QUANT_LAYOUT_VERSION + 1, None):
        old = Refusing(version)
        monkeypatch.setattr(native_kernels, "native", old)
        assert not native_kernels.has_quantized(name) and not native_kernels.has_q8(name)
        assert not native_kernels.has_repack_file()
        assert native_kernels.about() == "native loops of another version"
        np.testing.assert_array_equal(held(name, 5, 768)[0], words)
        host, out = get_op("quantized_linear").cpu, np.empty((2, 5), np.float32)
        assert host is not None
        host.compute((x, words), Attrs({"format": name}), out)
        check(out, x, values)


class Refusing:
    """A module with all loops, of which none may be called."""

    quant_formats = q8_formats = tuple(FORMATS)

    def __init__(self, quant_layout_version: int | None) -> None:
        if quant_layout_version is not None:
            self.quant_layout_version = quant_layout_version

    def _refuse(self, *_: object) -> None:
        raise AssertionError("expected numpy")

    quantized_linear = quantized_linear_q8 = dequantize = repack = repack_file = (
        quantize_rows_q8
    ) = _refuse


@pytest.mark.each_value
@pytest.mark.parametrize("way", ["native", "numpy"])
@pytest.mark.parametrize("name", FORMATS)
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
    for lead in ((1,), (2, 3), (11,), (3, 1, 5)):
        x = rng.standard_normal((*lead, 512), np.float32)
        out = np.empty((*lead, 2100), np.float32)
        operands, attrs = (x, words, bias), Attrs({"format": name})
        host.compute(operands, attrs, out)
        pieces = np.full_like(out, np.nan)
        cut = list(host.cut(operands, attrs, pieces))
        assert len(cut) > 1
        for inputs, part in cut:
            host.compute(inputs, attrs, part)
        check(out.reshape(-1, 2100), x.reshape(-1, 512), values, bias)
        check(pieces.reshape(-1, 2100), x.reshape(-1, 512), values, bias)


@pytest.mark.parametrize("gate", ["", "silu"])
def test_weights_side_by_side_are_the_same_in_pieces(gate: str) -> None:
    host = get_op("merged_linear").cpu
    assert host is not None
    rng = np.random.default_rng(0)
    counts = (2112, 2112) if gate else (2112, 2048, 16)
    weights = [held("q4_K", n, 512)[0] for n in counts]
    n = counts[0] if gate else sum(counts)
    attrs = Attrs({"format": "q4_K", "normed": True, "gate": gate, "eps": 1e-5})
    for lead in ((1,), (2, 3), (11,)):
        x = rng.standard_normal((*lead, 512), np.float32)
        operands = x, rng.standard_normal(512, np.float32), *weights
        out = np.empty((*lead, n), np.float32)
        host.compute(operands, attrs, out)
        pieces = np.full_like(out, np.nan)
        cut = list(host.cut(operands, attrs, pieces))
        assert len(cut) > len(weights)
        for inputs, part in cut:
            host.compute(inputs, attrs, part)
        most = float(np.abs(out).max())  # sums of parts this large come in another order in pieces
        np.testing.assert_allclose(pieces, out, rtol=1e-4, atol=1e-6 * most)
