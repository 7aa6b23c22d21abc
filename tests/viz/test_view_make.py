"""Timelines of plans and of recorded runs: spans, links, memory, rows."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timelines import (
    COPY_S,
    LANES,
    SPLITS,
    STEP_S,
    copying_tape,
    sample_events,
    sample_plan,
    sample_timeline,
)

import vksched as vs
from vksched.trace import Event
from vksched.viz.timeline.build import MAX_PREDICTIONS, plan_timeline, run_timeline
from vksched.viz.timeline.row_layout import lay_out
from vksched.viz.timeline.timeline_types import HOST, ROWS, Span


def of(timeline, row: str, kind: str = "") -> list[Span]:
    return [s for s in timeline.spans if s.row == row and kind in ("", s.kind)]


def test_a_plan_has_predicted_splits_and_their_ops_and_nothing_measured() -> None:
    timeline = plan_timeline(sample_plan(), LANES)
    assert {s.row for s in timeline.spans} == {"predicted", "ops"}
    splits = of(timeline, "predicted", "split")
    assert [(s.lane, s.split) for s in splits] == [(1, 0), (2, 1), (1, 2), (2, 3)]
    assert {s.lane for s in of(timeline, "predicted") if s.kind != "split"} == {HOST}
    first = [s for s in of(timeline, "ops") if s.split == 0]
    assert [s.name for s in first] == ["layer0", "layer1", "layer2"]
    assert first[-1].end_s == pytest.approx(STEP_S)  # what a split takes beside comes first
    assert first[0].seconds == pytest.approx(20e-6)
    assert "nothing has run" in timeline.summary and "12 nodes in 4 splits" in timeline.title


def test_measured_spans_lie_where_they_happened_with_what_was_predicted_next_to() -> None:
    events = sample_events(2)
    timeline = run_timeline(events, [sample_plan()], LANES)
    work = of(timeline, "work")
    reported = [e for e in events if e.name == "split"]
    assert [s.seconds for s in work] == pytest.approx([e.end_s - e.start_s for e in reported])
    assert [LANES[s.lane].name for s in work] == [e.device for e in reported]
    assert [s.expected_s for s in work] == pytest.approx([STEP_S - COPY_S] * len(work))
    assert [s.expected_s for s in of(timeline, "run")] == [SPLITS * STEP_S] * 2
    assert min(s.start_s for s in timeline.spans) == 0.0
    copies = of(timeline, "host", "copy")
    assert copies[0].name == "copy layer1 to gpu:0" and copies[0].bytes == 4096
    assert copies[0].details == "4.0 KiB"


def test_each_run_has_its_prediction_from_its_own_start() -> None:
    timeline = sample_timeline(3)
    starts = {s.run: s.start_s for s in of(timeline, "run")}
    for run, start_s in starts.items():
        own = [s for s in of(timeline, "predicted") if s.run == run]
        assert min(s.start_s for s in own) == pytest.approx(start_s)


def test_predictions_of_many_overlapping_runs_do_not_fill_the_screen() -> None:
    events = [Event("run", "host", k * 1e-6, k * 1e-6 + 5e-6, k, {}, 0) for k in range(500)]
    timeline = run_timeline(events, [sample_plan()], LANES)
    tracks = lay_out(timeline.lanes, timeline.spans)
    assert sum(t.row == "ops" and t.lane == 1 for t in tracks) <= MAX_PREDICTIONS
    assert any("overlap" in note for note in timeline.notes)


def test_links_say_what_waited_for_what() -> None:
    timeline = sample_timeline(1)
    spans = timeline.spans
    reported = set()
    for link in timeline.links:
        source, target = spans[link.source], spans[link.target]
        if source.row in ("work", "host"):
            reported.add((source.kind, source.split, target.kind, target.split, link.kind))
    for split in range(SPLITS):
        assert ("split", split, "wait", split, "fence") in reported
        assert ("copy", split, "split", split, "copy") in reported
    for split in range(1, SPLITS):
        assert ("split", split - 1, "split", split, "copy") in reported
    assert len(reported) == 3 * SPLITS - 1
    between = [at for at in timeline.links if at.name.startswith("h")]
    assert {at.bytes for at in between} == {4096}
    assert all(spans[at.source].run == spans[at.target].run for at in timeline.links)


def test_copies_next_to_work_have_links_and_what_was_predicted() -> None:
    timeline = vs.timeline(copying_tape())
    for span in of(timeline, "transfer_queue"):
        assert span.expected_s == pytest.approx(span.seconds)
    spans = timeline.spans
    for host, aside in (("host", "transfer_queue"), ("predicted", "transfer_queue predicted")):
        reported = {
            (spans[at.source].kind, spans[at.source].split, at.kind, spans[at.target].kind,
             spans[at.target].split)
            for at in timeline.links
            if spans[at.source].run == 0
            and {spans[at.source].row, spans[at.target].row} & {host, aside}
        }  # fmt: skip
        for split in range(SPLITS):
            assert ("transfer_queue", split, "copy", "split", split) in reported
        for split in (1, 3):
            assert ("split", split, "copy", "transfer_queue", split) in reported
        copies = {each for each in reported if "copy" in (each[0], each[3])}
        # the host's copies of x, p1 and p3 go by copy queues, and not around them
        assert all("split" not in (each[0], each[3]) for each in copies)
        if host == "host":
            assert copies == {
                ("copy", 0, "copy", "transfer_queue", 0),
                ("transfer_queue", 1, "copy", "copy", 1),
                ("copy", 2, "copy", "transfer_queue", 2),
                ("transfer_queue", 3, "copy", "copy", 3),
            }


def test_memory_in_use_follows_the_splits_of_each_device() -> None:
    first, second = sample_timeline(1).counters
    assert (first.lane, list(first.values), first.most) == (1, [1 << 20, 3 << 20], 8 << 20)
    assert (second.lane, list(second.values)) == (2, [2 << 20, 4 << 20])


def test_a_device_is_never_busy_for_more_than_the_whole_time() -> None:
    events = [Event("split", "gpu:0", 0.0, 1.0, run, {"split": 0}, 0) for run in range(3)]
    events += [Event("run", "host", 0.0, 2.0, run, {}, 0) for run in range(3)]
    assert run_timeline(events, [sample_plan()], LANES).summary.endswith("busy: gpu:0 50%")


def test_events_of_unknown_devices_and_plans_are_drawn_too() -> None:
    events = [
        Event("split", "gpu:7", 1.0, 2.0, 4, {"split": 9, "ops": {"matmul": 1.0}}),
        Event("fault", "gpu:7", 2.0, 2.0, -1, {"error": "DeviceLost"}),
        Event("host_op", "cpu", 2.0, 3.0, -1, {"op": "onnx.NonZero"}),
    ]
    timeline = run_timeline(events, [], LANES[:1])
    assert [lane.name for lane in timeline.lanes] == ["host", "gpu:7"]
    assert [(s.row, s.name) for s in timeline.spans] == [
        ("work", "split 9: matmul"),
        ("mark", "fault"),
        ("host", "host_op onnx.NonZero"),
    ]
    assert timeline.spans[1].details == "error DeviceLost"
    assert run_timeline([], [], LANES).spans == ()


TIMES = st.tuples(st.integers(0, 60), st.integers(0, 20))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ROWS), TIMES), max_size=40))
def test_tracks_hold_every_span_once_and_none_overlaps(
    rows: list[tuple[int, str, tuple[int, int]]],
) -> None:
    spans = [
        Span(lane, row, "op", "x", float(at), float(at + took)) for lane, row, (at, took) in rows
    ]
    tracks = lay_out(LANES, spans)
    assert sorted(n for t in tracks for n in t.spans) == list(range(len(spans)))
    for track in tracks:
        assert {(spans[n].lane, spans[n].row) for n in track.spans} <= {(track.lane, track.row)}
        for before, after in zip(track.spans, track.spans[1:], strict=False):
            assert spans[before].end_s <= spans[after].start_s
    # As few lines as there are spans at one moment: each line beyond the first has an excuse.
    for track in tracks:
        if track.number:
            first = spans[track.spans[0]]
            group = [s for s in spans if (s.lane, s.row) == (track.lane, track.row)]
            inside = [s for s in group if s.start_s <= first.start_s < s.end_s or s is first]
            same = [s for s in group if s.start_s == first.start_s]
            assert len({id(s) for s in (*inside, *same)}) > track.number
    assert {t.lane for t in tracks} == {0, 1, 2}
