"""Stop strings in text that arrives in pieces: the same text comes out, however it is cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vksched.common.errors import SamplingError
from vksched.generation.stop_matcher import MAX_STOP_CHARS, StopMatcher


def emitted(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = "".join(map(matcher.add, pieces)) + matcher.end()
    return text, matcher.found


def expected(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Look at each beginning of the text, from the shortest."""
    for end in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            longest = max(ends, key=len)
            return text[: end - len(longest)], longest
    return text, None


letters = st.text(st.sampled_from("abé"), max_size=12)


@given(
    pieces=st.lists(letters, max_size=6),
    stops=st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=5), max_size=4),
)
def test_text_ends_before_the_first_stop_string(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    assert emitted(pieces, stops) == emitted(list(text), stops) == expected(text, stops)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["STOP", "\n\n"])
    assert [matcher.add(each) for each in ("one t", "wo ST", "O", "X\n", "y ", "STOP x", "z")] == [
        *("one t", "wo ", "", "STOX", "\ny ", "", ""),
    ]
    assert matcher.found == "STOP" and matcher.end() == "" and matcher.rest == " x"


def test_held_text_comes_at_the_end() -> None:
    matcher = StopMatcher("STOP")
    assert matcher.add("a STO") == "a " and matcher.end() == "STO" and matcher.found is None


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopMatcher().add("abc") == "abc"


@pytest.mark.parametrize("stop", [[""], "", [1], 5, None, b"a", ["a", None]])
def test_stop_strings_are_texts(stop: object) -> None:
    with pytest.raises(SamplingError, match="expected stop as texts of at least one character"):
        if stop == "":
            StopMatcher([stop])
        StopMatcher(stop)  # type: ignore[arg-type]


def test_stop_strings_have_a_limit() -> None:
    with pytest.raises(SamplingError, match="at most"):
        StopMatcher(["a" * MAX_STOP_CHARS, "b"])
