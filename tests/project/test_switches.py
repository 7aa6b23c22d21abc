"""Switches of the environment: words that people write mean what they say."""

from __future__ import annotations

import pytest

import vksched as vs
from vksched.common.env import is_on, word_of
from vksched.tuning.measurement import mode_of


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("on", True), ("YES", True), ("0", False), ("off", False), (" False ", False)],
)
def test_words_of_both_kinds(value: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_TUNE", value)
    assert is_on("VKSCHED_TUNE") is is_on("VKSCHED_TUNE", True) is on
    assert mode_of("auto").reads is on


@pytest.mark.parametrize("default", [True, False])
def test_what_is_not_set_or_empty_is_the_default(
    default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VKSCHED_TUNE", raising=False)
    assert is_on("VKSCHED_TUNE", default) is default
    monkeypatch.setenv("VKSCHED_TUNE", "")
    assert is_on("VKSCHED_TUNE", default) is default


def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_OPTIMIZE", "maybe")
    with pytest.raises(vs.VkschedError, match=r"VKSCHED_OPTIMIZE to be 1 or 0, got 'maybe'"):
        vs.Scheduler(["cpu"])


def test_what_is_refused_says_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_SOFTWARE", "maybe")
    with pytest.raises(vs.VkschedError) as refused:
        is_on("VKSCHED_SOFTWARE")
    assert str(refused.value) == (
        "[environment] expected VKSCHED_SOFTWARE to be 1 or 0, got 'maybe'; try one of 1, on, "
        "true, yes to switch it on, one of 0, off, false, no to switch it off, or leave it out"
    )


def test_a_word_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, word in (("", ""), (" inprocess ", "inprocess")):
        monkeypatch.setenv("VKSCHED_PROBE", value)
        assert word_of("VKSCHED_PROBE", ("inprocess",)) == word
    monkeypatch.setenv("VKSCHED_PROBE", "in-process")
    with pytest.raises(vs.VkschedError) as refused:
        word_of("VKSCHED_PROBE", ("inprocess",))
    assert str(refused.value) == (
        "[environment] expected VKSCHED_PROBE to be inprocess, got 'in-process'; try "
        "VKSCHED_PROBE=inprocess, or leave it out"
    )
