"""Weights in pages: how arrays are cut into uploads, and how words and arrays convert."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vksched.common.errors import DTypeError
from vksched.runtime.vulkan.staging import _pieces
from vksched.runtime.vulkan.weight_store import ALIGN_WORDS
from vksched.runtime.vulkan.word_view import read_words, write_words


@given(sizes=st.lists(st.integers(0, 70), max_size=8), chunk=st.integers(1, 6))
def test_pieces_put_every_word_at_its_place_once(sizes: list[int], chunk: int) -> None:
    arrays = [np.arange(n, dtype=np.float32) + 1000 * i + 1 for i, n in enumerate(sizes)]
    page = np.zeros(sum(-(-n // ALIGN_WORDS) * ALIGN_WORDS for n in sizes), np.uint32)
    covered = 0
    for start, words, parts in _pieces(arrays, chunk * ALIGN_WORDS):
        assert start == covered and 0 < words <= chunk * ALIGN_WORDS
        covered += words
        piece = page[start : start + words]
        for part in parts:
            assert part.at + part.end - part.start <= words
            assert not piece[part.at : part.at + part.end - part.start].any()
            part.write(piece)
    assert covered == page.size
    at = 0
    for array in arrays:
        assert np.array_equal(page[at : at + array.size].view(np.float32), array)
        at += -(-array.size // ALIGN_WORDS) * ALIGN_WORDS


def test_words_keep_bits_and_turn_bools_into_zero_and_one() -> None:
    words = np.full(4, 7, np.uint32)
    write_words(words, np.array([[True, False], [False, True]]))
    assert words.tolist() == [1, 0, 0, 1]
    assert read_words(words, np.dtype(bool), (2, 2)).tolist() == [[True, False], [False, True]]
    for array in (
        np.array([1, -1, 2**31 - 1, -(2**31)], np.int64),
        np.array([1, 2**32 - 1, 0, 5], np.uint32),
        np.array([1, -0.0, np.inf, 6e-8, 2, 3, 4], np.float16),
    ):
        write_words(words, array)
        back = read_words(words, array.dtype, array.shape)
        assert back.dtype == array.dtype and back.tobytes() == array.tobytes()
    for wrong, match in ((np.array([2**31]), "fit int32"), (np.array([1.0]), "float64")):
        with pytest.raises(DTypeError, match=match):
            write_words(words, wrong)
    odd = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    write_words(words, odd)
    assert read_words(words, odd.dtype, (4,)).tobytes() == odd.tobytes()
