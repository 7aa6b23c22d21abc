"""A function of the user's is told of what goes on; only who waits for it is kept waiting."""

from __future__ import annotations

import threading

import pytest

from vksched.distributed.driver.progress import MAX_KINDS, ProgressReporter

WAIT_S = 60.0


def test_the_newest_of_each_kind_is_told_and_nobody_waits() -> None:
    begun, go_on, told = threading.Event(), threading.Event(), []

    def slow(what: str, done: int, total: int) -> None:
        told.append((what, done, total))
        begun.set()
        assert go_on.wait(WAIT_S)

    with ProgressReporter(slow) as reporter:
        reporter.put("weights", 1, 9)
        assert begun.wait(WAIT_S)
        for done in range(2, 10):
            reporter.put("weights", done, 9)  # returns, whatever the function does
        reporter.put("kernels", 1, 1)
        go_on.set()
    assert told == [("weights", 1, 9), ("weights", 9, 9), ("kernels", 1, 1)]
    reporter.put("weights", 0, 0)
    assert len(told) == 3


def test_what_it_raises_ends_the_block_and_it_is_called_no_more() -> None:
    told = []

    def fails(*said: object) -> None:
        told.append(said)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ProgressReporter(fails) as reporter:
        while not reporter._raised:
            reporter.put("weights", 1, 2)
        reporter.put("weights", 2, 2)
    assert len(told) == 1


def test_an_error_of_the_block_is_that_error() -> None:
    with pytest.raises(KeyError), ProgressReporter(lambda *said: 1 / 0) as reporter:  # type: ignore[arg-type]
        reporter.put("weights", 1, 2)
        raise KeyError
    with ProgressReporter(None) as reporter:
        reporter.put("weights", 1, 2)


def test_news_of_more_kinds_than_there_are_does_not_pile_up() -> None:
    told, go_on, begun = list[str](), threading.Event(), threading.Event()

    def slowly(what: str, done: int, total: int) -> None:
        begun.set()
        assert go_on.wait(60)
        told.append(what)

    with ProgressReporter(slowly) as reporter:
        reporter.put("first", 0, 1)
        assert begun.wait(60)
        for number in range(1000):
            reporter.put(str(number), 0, 1)
        assert len(reporter._new) == MAX_KINDS
        go_on.set()
    assert told == ["first", *map(str, range(MAX_KINDS))]
