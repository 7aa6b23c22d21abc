"""Events of one thread, as long as somebody gathers them."""

from __future__ import annotations

import threading

from vksched.trace import Event, GatheredTrace


def event(name: str) -> Event:
    return Event(name, "host", 0.0, 1.0)


def test_only_a_thread_that_gathers_is_notified_and_of_its_own_events_alone() -> None:
    trace, both = GatheredTrace(), threading.Barrier(2)
    found: dict[str, list[Event]] = {}

    def work(name: str) -> None:
        with trace.gathering(True) as events:
            both.wait()
            assert trace.active
            trace.emit(event(name))
            both.wait()
        found[name] = events

    threads = [threading.Thread(target=work, args=(name,)) for name in ("copy", "wait")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {name: [e.name for e in events] for name, events in found.items()} == {
        "copy": ["copy"],
        "wait": ["wait"],
    }
    trace.emit(event("copy"))
    assert not trace.active


def test_nothing_is_gathered_where_nobody_wants_it() -> None:
    trace = GatheredTrace()
    with trace.gathering(False) as events:
        assert not trace.active
        trace.emit(event("copy"))
    assert events == []
