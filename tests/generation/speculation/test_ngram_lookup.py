"""Guesses from the text itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vksched.generation.batching.cached_prefix import common_prefix
from vksched.generation.sampling import Sampling
from vksched.generation.speculation import ngram_lookup
from vksched.generation.speculation.ngram_lookup import SIZES, NgramLookup


def guess(lookup: NgramLookup, text: list[int], count: int, slot: int = 0) -> list[int]:
    return lookup.propose(slot, text, 0, Sampling(), count)


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ([1, 2, 3, 4, 9, 1, 2], 3, [3, 4, 9]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, [4, 1]),  # the latest place
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1, [3]),  # the longest match
        ([5, 5, 5, 5], 4, [5, 5, 5, 5]),  # a text that repeats itself
        ([1, 2, 1, 2, 1], 4, [2, 1, 2, 1]),
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([1, 1], 4, []),
    ],
)
def test_the_text_goes_on_as_before(text: list[int], count: int, wanted: list[int]) -> None:
    assert guess(NgramLookup(1), text, count) == wanted


def test_a_list_that_grows_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def noted(known: list[int], text: list[int]) -> int:
        compared.append(len(known))
        return common_prefix(known, text)

    monkeypatch.setattr(ngram_lookup, "common_prefix", noted)
    lookup, text = NgramLookup(1), [1, 2]
    for token in [3, 4, 1, 2] * 5:
        assert guess(lookup, text, 3) == by_search(text, 3)
        text.append(token)
    assert compared == [0]
    assert guess(lookup, [*text, 9], 3) == by_search([*text, 9], 3)
    assert guess(lookup, [5, 6, 5, 6], 3) == [5, 6, 5]
    assert compared == [0, len(text) - 1, len(text) + 1]


def by_search(text: list[int], count: int) -> list[int]:
    """The definition, by a search of the whole text."""
    for size in SIZES:
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                longer = list(text)
                for at in range(end, end + count):
                    longer.append(longer[at])
                return longer[len(text) :]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_an_index_that_grows_finds_what_a_search_finds(
    text: list[int], data: st.DataObject
) -> None:
    lookup, end = NgramLookup(2), 0
    while end < len(text):
        end += data.draw(st.integers(1, len(text) - end))
        assert guess(lookup, text[:end], 5, slot=1) == by_search(text[:end], 5)
    other = [3, *text]
    assert guess(lookup, other, 5, slot=1) == by_search(other, 5)
    lookup.close()
    assert guess(lookup, other, 5) == by_search(other, 5)
