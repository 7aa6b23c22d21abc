"""A function of the user's is told of what goes on; only who waits for it is kept waiting."""

from __future__ import annotations

import threading

import pytest

from vksched.distributed.driver.progress import MAX_KINDS, ProgressReporter

WAIT_S = 60.0


def test_the_newest_of_each_kind_is_reported_and_nobody_waits() -> None:
    begun, go_on, reported = threading.Event(), threading.Event(), []

    def slow(what: str, done: int, total: int) -> None:
        reported.append((what, done, total))
        begun.set()
        assert go_on.wait(WAIT_S)

    with ProgressReporter(slow) as reporter:
        reporter.put("weights", 1, 9)
        assert begun.wait(WAIT_S)
        for done in range(2, 10):
            reporter.put("weights", done, 9)  # returns, whatever the function does
        reporter.put("kernels", 1, 1)
        go_on.set()
    assert reported == [("weights", 1, 9), ("weights", 9, 9), ("kernels", 1, 1)]
    reporter.put("weights", 0, 0)
    assert len(reported) == 3


def test_what_it_raises_ends_the_block_and_it_is_called_no_more() -> None:
    reported = []

    def fails(*args: object) -> None:
        reported.append(args)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ProgressReporter(fails) as reporter:
        while not reporter._raised:
            reporter.put("weights", 1, 2)
        reporter.put("weights", 2, 2)
    assert len(reported) == 1


def test_an_error_of_the_block_is_that_error() -> None:
    with pytest.raises(KeyError), ProgressReporter(lambda *message: 1 / 0) as reporter:  # type: ignore[arg-type]
        reporter.put("weights", 1, 2)
        raise KeyError
    with ProgressReporter(None) as reporter:
        reporter.put("weights", 1, 2)


def test_news_of_more_kinds_than_there_are_does_not_pile_up() -> None:
    reported, go_on, begun = list[str](), threading.Event(), threading.Event()

    def slowly(what: str, done: int, total: int) -> None:
        begun.set()
        assert go_on.wait(60)
        reported.append(what)

    with ProgressReporter(slowly) as reporter:
        reporter.put("first", 0, 1)
        assert begun.wait(60)
        for number in range(1000):
            reporter.put(str(number), 0, 1)
        assert len(reporter._new) == MAX_KINDS
        go_on.set()
    assert reported == ["first", *map(str, range(MAX_KINDS))]
