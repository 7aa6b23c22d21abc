"""Block formats: the words hold what the file holds, in about its size, whoever repacks them."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from vksched.common.errors import ShapeError
from vksched.ops.lowering import native_kernels
from vksched.ops.quantized.gguf_formats import FORMATS, repack, unpacked
from vksched.testing.op_cases.linalg.quantized_linear import blocks

LARGER = {"q6_K": 54 * 4 / 210, "q3_K": 28 * 4 / 110, "q2_K": 22 * 4 / 84}
"""Formats whose words take more than the file, and how much."""


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_that_of_the_library(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    kind = FORMATS[name]
    type_ = gguf.GGMLQuantizationType(kind.number)
    assert type_.name.lower() == name.lower()
    assert gguf.GGML_QUANT_SIZES[type_] == (kind.values, kind.block_bytes)


@pytest.mark.parametrize("way", ["native", "numpy"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", [256, 768, 4096])
def test_all_bits_of_blocks_mean_the_same(
    name: str, columns: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "numpy":
        monkeypatch.setattr(native_kernels, "native", None)
    gguf = pytest.importorskip("gguf")
    kind = FORMATS[name]
    rng = np.random.default_rng(columns)
    raw = rng.integers(0, 256, (3, kind.row_bytes(columns)), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind.number))
        got = unpacked(name, repack(name, raw, (3, columns)), columns)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(got), ~numbers)
    assert np.array_equal(got[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.skipif(
    not native_kernels.has_quantized("q4_K"), reason="the native loops are not built"
)
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"f16", "bf16"}))
def test_native_words_are_those_of_numpy(name: str, wide: bool) -> None:
    kind, native = FORMATS[name], cast(Any, native_kernels.native)
    rng = np.random.default_rng(1)
    for columns in (kind.step, kind.step * (9 if kind.step == 32 else 3), 1280):
        raw = rng.integers(0, 256, (7, kind.row_bytes(columns)), np.uint8)
        room = np.full((9, kind.row_words(columns) + 5), 3, np.uint32)  # of which a part is written
        native.repack(name, raw, room[1:-1, 2:-3], wide)
        assert np.array_equal(room[1:-1, 2:-3], kind.pack_u32(raw, columns))
        room[1:-1, 2:-3] = 3
        assert (room == 3).all()
        for wrong in (raw[:, :-1], raw[:-1], raw.view(np.int8).astype(np.int16)):
            with pytest.raises(ValueError, match="expected"):
                native.repack(name, wrong, room[1:-1, 2:-3])
    with pytest.raises(KeyError):
        native.repack("q4_7", raw, room)


@pytest.mark.parametrize("name", FORMATS)
def test_words_take_as_much_as_the_file(name: str) -> None:
    raw = blocks(name, 4, 2048)
    words = repack(name, raw, (4, 2048))
    assert words.nbytes == pytest.approx(raw.nbytes * LARGER.get(name, 1.0))
    each = FORMATS[name].step
    for columns in range(each, 20 * each, each):  # rows start where four words are read at once
        assert FORMATS[name].row_words(columns) % 4 == 0


@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_are_not_of_whole_blocks_are_refused(name: str) -> None:
    kind = FORMATS[name]
    for columns in (0, kind.step + kind.step // 2):
        raw = np.zeros((2, kind.row_bytes(columns)), np.uint8)
        with pytest.raises(ShapeError, match=f"multiple of {kind.step} values, got {columns}"):
            repack(name, raw, (2, columns))


def test_threads_repack_as_one_does() -> None:
    raw = blocks("q4_K", 300, 4096)  # some pieces
    whole = repack("q4_K", raw, (300, 4096))
    rows = [repack("q4_K", raw[i : i + 1], (1, 4096)) for i in range(300)]
    assert np.array_equal(whole, np.concatenate(rows))


def test_blocks_may_be_any_bytes() -> None:
    raw = blocks("q5_0", 3, 96)
    expected = repack("q5_0", raw, (3, 96))
    for values in (
        raw.tobytes(),
        memoryview(raw.tobytes()),
        raw.reshape(3, -1)[:, :].view(np.int8),
    ):
        assert np.array_equal(repack("q5_0", values, (3, 96)), expected)
