"""The critical path of a run: which spans nothing else hides."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timelines import told_timeline

from vksched.view.critical import critical_spans
from vksched.view.value import HOST, Span


def span(lane: int, kind: str, start_s: float, end_s: float, split: int = -1) -> Span:
    row = "work" if kind == "split" else "host"
    return Span(lane, row, kind, f"{kind} {split}", start_s, end_s, 0, 0, split)


def test_a_chain_over_two_devices_is_critical_and_its_waits_are_not() -> None:
    spans = [
        span(HOST, "copy", 0, 1, 0),
        span(1, "split", 1, 5, 0),
        span(HOST, "wait", 1, 5, 0),
        span(HOST, "copy", 5, 6, 1),
        span(2, "split", 6, 9, 1),
        span(HOST, "wait", 6, 9, 1),
    ]
    assert critical_spans(spans) == {0, 1, 3, 4}


def test_the_faster_of_two_devices_is_hidden() -> None:
    spans = [
        span(HOST, "copy", 0, 1, 0),
        span(HOST, "copy", 1, 2, 1),
        span(1, "split", 1, 3, 0),
        span(2, "split", 2, 9, 1),
        span(HOST, "wait", 2, 3, 0),
        span(HOST, "wait", 3, 9, 1),
    ]
    assert critical_spans(spans) == {0, 1, 3}


def test_splits_in_one_queue_follow_each_other_without_the_host() -> None:
    spans = [
        span(HOST, "copy", 0, 1, 0),
        span(1, "split", 1, 4, 0),
        span(1, "split", 4, 8, 1),
        span(HOST, "wait", 1.5, 8, 1),
    ]
    assert critical_spans(spans) == {0, 1, 2}


def test_a_wait_for_what_is_done_already_hides_nothing() -> None:
    spans = [
        span(HOST, "copy", 0, 1, 0),
        span(1, "split", 1, 2, 0),
        span(2, "split", 1, 8, 1),
        span(HOST, "wait", 1, 8, 1),
        span(HOST, "wait", 8, 8, 0),
        span(HOST, "copy", 8, 9, 2),
    ]
    assert critical_spans(spans) == {0, 2, 5}


def test_runs_and_predictions_have_paths_of_their_own() -> None:
    timeline = told_timeline(2)
    found = {(timeline.spans[n].run, timeline.spans[n].row) for n in timeline.critical}
    rows = ("work", "host", "predicted")
    assert found == {(run, row) for run in (0, 1) for row in rows}
    # All four splits of the chain are on each path.
    work = [n for n in timeline.critical if timeline.spans[n].row == "work"]
    assert sorted((timeline.spans[n].run, timeline.spans[n].split) for n in work) == [
        (run, split) for run in (0, 1) for split in range(4)
    ]


SPANS = st.builds(
    lambda lane, kind, start, took, split: span(
        lane if kind == "split" else HOST, kind, start, start + took, split
    ),
    st.integers(1, 3),
    st.sampled_from(["split", "copy", "wait"]),
    st.integers(0, 50).map(float),
    st.integers(0, 20).map(float),
    st.integers(0, 5),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SPANS, min_size=1, max_size=30))
def test_any_spans_have_a_path_from_the_last_end_backwards(spans: list[Span]) -> None:
    path = sorted(critical_spans(spans), key=lambda n: spans[n].start_s)
    for before, after in zip(path, path[1:], strict=False):
        assert spans[before].start_s <= spans[after].start_s
    if any(s.kind != "wait" for s in spans):
        assert all(spans[n].kind != "wait" or spans[n].split not in _splits(spans) for n in path)


def _splits(spans: list[Span]) -> set[int]:
    return {s.split for s in spans if s.kind == "split"}
