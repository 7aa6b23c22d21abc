"""Timelines of real plans and tapes: what is drawn is what was planned and what happened."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from timelines import simulated_tape
from traced import X, graph_of_two_devices, null_devices

import vksched as vs
from vksched.common.errors import VkschedError
from vksched.plan.explain.timeline import alive_bytes, make_plan_view
from vksched.plan.simulation.simulate_plan import simulate


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tape") / "t.json"
    simulated_tape().save(path)
    return path


def plan_of_two_devices() -> vs.Plan:
    with vs.Scheduler(null_devices()) as sched:
        return sched.compile(**graph_of_two_devices()).plan


def test_a_plan_expects_what_its_simulation_tells() -> None:
    plan = plan_of_two_devices()
    timeline = plan.timeline()
    expected = simulate(plan)
    found = [s for s in timeline.spans if s.row == "predicted"]
    assert [(s.kind, s.start_s, s.end_s) for s in found] == [
        (b.kind, b.start_s, b.finish_s) for b in expected.spans
    ]
    assert [lane.name for lane in timeline.lanes] == ["host", "gpu:0", "gpu:1", "cpu"]
    ops = [s for s in timeline.spans if s.row == "ops"]
    assert len(ops) == sum(len(split.nodes) for split in plan.splits)
    reported = timeline.plans[0]
    a = next(i for i, node in enumerate(reported.nodes) if node.name == "a")
    assert reported.nodes[a].explain == plan.explain("a")
    assert reported.about == plan.explain()
    assert timeline.spans == vs.timeline(plan).spans


def test_null_devices_take_what_was_predicted(file: Path) -> None:
    """On a simulated clock runs take exactly what plans expect, so each bar has its twin below."""
    timeline = vs.timeline(file)
    work = [s for s in timeline.spans if s.row == "work"]
    assert {s.run for s in work} == {0, 1}
    for span in work:
        assert span.expected_s == pytest.approx(span.seconds)
        twins = [
            s
            for s in timeline.spans
            if (s.row, s.kind, s.run, s.split) == ("predicted", "split", span.run, span.split)
        ]
        assert [(s.lane, s.name) for s in twins] == [(span.lane, span.name)]
        assert twins[0].start_s == pytest.approx(span.start_s)
        assert twins[0].end_s == pytest.approx(span.end_s)
    runs = [s for s in timeline.spans if s.kind == "run"]
    assert timeline.shown == (runs[0].start_s, runs[-1].end_s)
    assert [s.expected_s for s in runs] == pytest.approx([s.seconds for s in runs])


def test_the_critical_path_of_a_chain_takes_as_long_as_the_run(file: Path) -> None:
    timeline = vs.timeline(file)
    for run in (0, 1):
        path = [
            timeline.spans[n]
            for n in timeline.critical
            if timeline.spans[n].run == run and timeline.spans[n].row in ("work", "host")
        ]
        whole = next(s for s in timeline.spans if s.kind == "run" and s.run == run)
        assert sum(s.seconds for s in path) == pytest.approx(whole.seconds, rel=0.05)
        assert {s.kind for s in path} >= {"split", "copy"}


def test_a_tape_in_memory_is_drawn_as_its_file_is(tmp_path: Path) -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        run = sched.compile(**graph_of_two_devices())
        run(x=X)
        own = vs.timeline(run.trace)
    tape.save(tmp_path / "t.json")
    assert vs.timeline(tape).spans == vs.timeline(tmp_path / "t.json").spans
    assert {s.run for s in own.spans if s.kind == "split" and s.row == "work"} == {0}
    assert own.plans[0].nodes == vs.timeline(tape).plans[0].nodes


def test_plans_of_two_graphs_and_dynamic_runs_share_lanes() -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape, policy="earliest-finish") as sched:
        x = vs.input("x", X.shape)
        for axis in (0, 1):
            sched.compile(vs.softmax(x @ vs.weight(X + axis, name="w"), axis=axis))(x=X)
    timeline = vs.timeline(tape)
    assert len(timeline.plans) == 2
    assert [plan.name for plan in timeline.plans] == ["plan 0 (compile)", "plan 1 (compile)"]
    assert any(plan.decides for plan in timeline.plans)
    work = [s for s in timeline.spans if s.row == "work"]
    assert work and all(s.end_s > s.start_s for s in work)
    timeline._repr_html_()


def test_memory_alive_never_exceeds_the_plan_and_counts_weights() -> None:
    plan = plan_of_two_devices()
    alive = alive_bytes(plan)
    for split, count in zip(plan.splits, alive, strict=True):
        memory = plan.memory[split.device]
        assert memory.weight_bytes + memory.state_bytes <= count
        if plan.topology.devices[split.device].kind != "cpu":
            assert count <= memory.peak_bytes
    working = [n for n, split in zip(alive, plan.splits, strict=True) if split.nodes]
    assert max(working) > 0


def test_texts_are_left_out_where_there_are_too_many() -> None:
    plan = plan_of_two_devices()
    lanes = plan.timeline().lanes
    reported = make_plan_view(plan, lanes, texts=1)
    a = next(node for node in reported.nodes if node.name == "a")
    assert a.explain == plan.placements[plan.find("a")[0]].reason


def test_what_is_no_tape_is_one_clear_error(tmp_path: Path, file: Path) -> None:
    foreign, cut, empty = tmp_path / "f.json", tmp_path / "c.json", tmp_path / "e.json"
    foreign.write_text('{"traceEvents": []}')
    cut.write_text(file.read_text("utf-8")[:3000])
    empty.write_text("")
    for path, text in (
        (foreign, "a trace of another program"),
        (cut, "the file is cut"),
        (empty, "an empty file"),
        (tmp_path / "none.json", "No such file"),
    ):
        with pytest.raises(VkschedError, match=text):
            vs.timeline(path)
    with pytest.raises(VkschedError, match="expected events, got none"):
        vs.timeline(vs.Tape())


def test_results_are_the_same_with_a_tape(file: Path) -> None:
    assert file.exists()
    with vs.Scheduler(["cpu"]) as plain, vs.Scheduler(["cpu"], trace=vs.Tape()) as taped:
        x = vs.input("x", X.shape)
        y = vs.softmax(x @ vs.weight(X, name="w"))
        np.testing.assert_array_equal(plain.compile(y)(x=X), taped.compile(y)(x=X))


def test_plans_and_reports_are_pictures_in_a_notebook() -> None:
    with vs.Scheduler(null_devices()) as sched:
        run = sched.compile(**graph_of_two_devices())
        run(x=X)
        report = run.report(advice=False)
    for shown, text in ((run.plan, "copies"), (report, "predicted")):
        assert shown._repr_svg_().startswith("<?xml")
        page = shown._repr_html_()
        assert "<svg" in page and "<?xml" not in page and f"{text}" in page
        assert "<script" not in page


def test_a_tape_draws_living_plans_as_its_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        run = sched.compile(**graph_of_two_devices())
        for _ in range(2):
            run(x=X)
        tape.save(tmp_path / "t.json")
        with monkeypatch.context() as patch:
            patch.setattr("vksched.plan.serialize.trace_timeline.decode_plan_record", None)
            drawn = vs.timeline(tape)
        expected = vs.timeline(tmp_path / "t.json")
        assert (drawn.spans, drawn.plans, drawn.lanes) == (
            expected.spans,
            expected.plans,
            expected.lanes,
        )
    del run, sched
    gc.collect()
    tape.save(tmp_path / "t.json")
    assert vs.timeline(tape).spans == vs.timeline(tmp_path / "t.json").spans, (
        "of a plan that is gone"
    )
