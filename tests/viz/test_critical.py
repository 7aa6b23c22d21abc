"""The critical path of a run: which spans nothing else hides."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timelines import copying_tape, sample_timeline

import vksched as vs
from vksched.viz.timeline.critical_path import critical_spans
from vksched.viz.timeline.timeline_types import HOST, Span


def span(lane: int, kind: str, start_s: float, end_s: float, split: int = -1) -> Span:
    row = {"split": "work", "transfer_queue": "transfer_queue"}.get(kind, "host")
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


def test_a_split_that_waits_for_its_copies_has_them_on_the_path_and_not_those_of_others() -> None:
    spans = [
        span(HOST, "submit", 0, 1, 0),
        span(1, "transfer_queue", 1, 3, 0),
        span(1, "transfer_queue", 3, 4, 1),
        span(1, "split", 3, 6, 0),
        span(1, "split", 6, 8, 1),
        span(1, "transfer_queue", 8, 9, 1),
        span(HOST, "wait", 1, 9, 1),
    ]
    assert critical_spans(spans) == {0, 1, 3, 4, 5}


def test_copies_that_end_long_before_their_split_are_not_on_the_path() -> None:
    spans = [
        span(1, "transfer_queue", 0, 1, 0),
        span(HOST, "copy", 0, 4, 0),
        span(HOST, "submit", 4, 5, 0),
        span(1, "split", 6, 8, 0),
        span(HOST, "wait", 5, 8, 0),
    ]
    assert critical_spans(spans) == {1, 2, 3}


def test_copies_out_that_begin_late_come_from_their_split() -> None:
    spans = [
        span(HOST, "submit", 0, 1, 0),
        span(1, "split", 1, 4, 0),
        span(1, "transfer_queue", 7, 7.5, 0),
        span(HOST, "wait", 1, 8, 0),
    ]
    assert critical_spans(spans) == {0, 1, 2}


def test_a_real_run_by_copy_queues_has_the_same_path_measured_and_predicted() -> None:
    timeline = vs.timeline(copying_tape())
    path = [timeline.spans[n] for n in sorted(timeline.critical)]

    def found(*rows: str) -> list[tuple[int, str, int, float]]:
        """Run, kind, split and seconds."""
        spans = (s for s in path if s.row in rows and s.kind in ("split", "transfer_queue"))
        return sorted((s.run, s.kind, s.split, round(s.seconds, 9)) for s in spans)

    measured = found("work", "transfer_queue")
    # x and w0 come before split 0, p1 and w2 before split 2; w1 and w3 come beside other splits
    asides = [(0, True), (1, False), (2, True), (3, False)]
    starts = {s.split: s.start_s for s in path if s.row == "work" and s.run == 1}
    came = [
        (s.split, s.start_s < starts[s.split])
        for s in path
        if s.row == "transfer_queue" and s.run == 1
    ]
    assert sorted(came) == asides
    assert [each[:3] for each in measured] == [
        (run, kind, split)
        for run in (0, 1)
        for kind in ("split", "transfer_queue")
        for split in range(4)
    ]
    assert measured == found("predicted", "transfer_queue predicted")


def test_a_take_leads_to_the_host_that_sent_the_value() -> None:
    near, far, sent = 3, 4, (7, "node1/host", "host")
    spans = [
        span(far, "copy", 1, 2, 0),
        span(far, "submit", 2, 3, 0),
        span(near, "split", 3, 6, 0),
        span(far, "wait", 3, 6, 0),
        span(far, "send", 6, 7, 0)._replace(between=sent),
        span(HOST, "copy", 0, 1, 1),
        span(HOST, "recv", 1, 8)._replace(between=sent),
        span(HOST, "submit", 8, 9, 1),
        span(1, "split", 9, 11, 1),
        span(HOST, "wait", 9, 11, 1),
    ]
    assert critical_spans(spans) == {0, 1, 2, 4, 5, 6, 7, 8}
    there = spans[6]._replace(start_s=7.5)  # the value was there before it was wanted
    assert critical_spans([*spans[:6], there, *spans[7:]]) == {5, 6, 7, 8}


def test_runs_and_predictions_have_paths_of_their_own() -> None:
    timeline = sample_timeline(2)
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
        lane if kind in ("split", "transfer_queue") else HOST, kind, start, start + took, split
    ),
    st.integers(1, 3),
    st.sampled_from(["split", "transfer_queue", "copy", "wait", "submit"]),
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
