"""Rows of a state that are written where it lies: planned, checked, and right on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import A, B, make_topology, node_id

import vksched as vs
from vksched.ir.graph import Graph
from vksched.ops.lowering.lower import conversion_bytes
from vksched.plan.costs.node_cost import call_of, lower_node, node_seconds
from vksched.plan.costs.op_support import OpSupport
from vksched.plan.plan import Plan
from vksched.plan.verify.happens_before import check_plan

SHAPE = (3, 64, 8)


def null_devices() -> list[vs.SimulatedDevice]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(spec, clock) for spec in make_topology(1).devices[:-1]]


def cache(dtype: type = np.float32) -> vs.Tensor:
    return vs.state(np.zeros(SHAPE, dtype), "cache", backup=False)


def written(held: vs.Tensor, name: str = "new") -> vs.Tensor:
    start = vs.input("start", (), "int32", bounds=(0, SHAPE[1] - 2))
    return vs.dynamic_update_slice(
        held, vs.input("rows", (3, 2, 8), held.dtype), start, axis=1, name=name
    )


def copied(held: vs.Tensor) -> vs.Tensor:
    return vs.dynamic_update_slice(held, np.ones((3, 2, 8), np.float32), 7, axis=1, name="copied")


def graph_of(output: vs.Tensor, held: vs.Tensor) -> Graph:
    return vs.build_graph(output, updates={held: written(held)})[0]


def plan_of(graph: Graph, where: str = A) -> Plan:
    plan = vs.plan_graph(graph, make_topology(), overrides=[("*", where)])
    return check_plan(plan).verify()


def in_place(plan: Plan) -> list[str]:
    return [plan.graph.nodes[value].name for split in plan.splits for value, _ in split.in_place]


@pytest.mark.parametrize("where", [A, "cpu"])
def test_rows_are_written_where_the_state_lies(where: str) -> None:
    held = cache()
    plan = plan_of(graph_of(vs.exp(held), held), where)
    assert in_place(plan) == ["new"]
    assert not any(plan.graph.nodes[n].op == "assign" for n in plan.splits[-1].nodes)
    assert node_id(plan, "new") in plan.splits[-1].nodes, "when all else is complete"


def test_a_row_costs_the_same_in_any_state() -> None:
    seconds: dict[int, list[float]] = {64: [], 4096: []}
    for length, found in seconds.items():
        held = vs.state(np.zeros((3, length, 8), np.float32), "cache", backup=False)
        stored = vs.state(np.zeros((3, length, 8), np.float32), "kept")
        for state in (held, stored):
            graph, _ = vs.build_graph(vs.exp(state), updates={state: written(state)})
            node = next(n for n in graph.ops if n.op == "dynamic_update_slice")
            found.append(node_seconds(make_topology().devices[0], graph, node))
    (row, backed_up), (far_row, all_of_it) = seconds.values()
    assert row == far_row and row < backed_up < all_of_it, "the host's copy needs a whole value"


@pytest.mark.parametrize("how", ["given out", "read", "of another state"])
def test_a_row_that_is_copied_with_its_state_costs_that(how: str) -> None:
    """Though another state, of the same shape, has a row written in place."""
    held, other = cache(), vs.state(np.zeros(SHAPE, np.float32), "other", backup=False)
    whole = copied(held if how == "of another state" else other)
    more = {"given out": whole, "read": vs.exp(whole), "of another state": vs.exp(held)}[how]
    graph, _ = vs.build_graph([vs.exp(held), more], updates={held: written(held), other: whole})
    plan = plan_of(graph)
    assert in_place(plan) == ["new"]
    support = OpSupport(graph, make_topology())
    row_s, all_s = (support.node_seconds(node_id(plan, name), 0) for name in ("new", "copied"))
    assert all_s > 10 * row_s


def test_a_state_that_is_seen_by_more_than_rows_is_copied() -> None:
    held = cache()
    whole = vs.dynamic_update_slice(
        held, vs.flip(held), vs.input("start", (), "int32"), axis=1, name="new"
    )
    assert in_place(plan_of(vs.build_graph(vs.exp(held), updates={held: whole})[0])) == ["new"]
    own = vs.dynamic_update_slice(held, held[:, :2], 3, axis=1, name="new")
    for where in (A, "cpu"):
        plan = plan_of(vs.build_graph(vs.exp(held), updates={held: own})[0], where)
        assert in_place(plan) == ([] if where == "cpu" else ["new"]), "a slice is a copy on A"
    other = vs.dynamic_update_slice(vs.input("x", SHAPE), held[:, :2], 3, axis=1, name="new")
    assert not in_place(plan_of(vs.build_graph(vs.exp(held), updates={held: other})[0]))
    shown = written(held)
    assert not in_place(plan_of(vs.build_graph(shown, updates={held: shown})[0]))


def test_numpy_keeps_the_old_value_for_views_of_it() -> None:
    held = cache()
    for output in (vs.transpose(held), vs.transpose(held).reshape(-1) + 1.0):
        plan = plan_of(graph_of(output, held), "cpu")
        assert not in_place(plan)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.transpose(held), updates={held: written(held)})
        seen = run(rows=np.ones((3, 2, 8), np.float32), start=5)
        assert not np.any(seen) and sched.read(held).sum() == 48
        values = sched.compile(held, updates={held: written(held)})
        before = values(rows=np.zeros((3, 2, 8), np.float32), start=5)
        assert before.sum() == 48 and sched.read(held).sum() == 0


def test_a_plan_in_which_numpy_writes_under_a_view_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = cache()
    graph = graph_of(vs.transpose(held), held)
    monkeypatch.setattr("vksched.planner.partition.in_place.numpy_may_write", lambda *_: True)
    with pytest.raises(vs.PlanError, match="numpy cannot write new in place of its state"):
        vs.plan_graph(graph, make_topology(), overrides=[("*", "cpu")]).verify()


def test_a_plan_that_writes_before_the_rest_is_complete_is_refused() -> None:
    held, at = cache(), vs.input("at", (1,), np.int32)  # the gather may fail: no early commit
    plan = plan_of(graph_of(vs.gather(vs.exp(held), at), held))
    commit = plan.splits[-1]
    assert commit.waits and not plan.commits_early
    wrong = replace(plan, splits=(*plan.splits[:-1], replace(commit, waits=())))
    with pytest.raises(vs.PlanError, match="before split 0 is complete"):
        wrong.verify()
    with pytest.raises(vs.PlanError, match="a wait for split 0"):
        check_plan(wrong)


def test_another_device_reads_the_old_rows() -> None:
    held = cache()
    graph = vs.build_graph(vs.exp(held, name="seen"), updates={held: written(held)})[0]
    places = {n.name: A for n in graph.nodes} | {"seen": B}
    plan = vs.plan_graph(graph, make_topology(), overrides=list(places.items()))
    assert in_place(check_plan(plan).verify()) == ["new"]
    on_cpu = vs.plan_graph(graph, make_topology(), overrides=[("*", "cpu"), ("seen", A)])
    assert not in_place(check_plan(on_cpu).verify()), "numpy hands out the array itself"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_runs_write_what_numpy_writes(devices: list[str], dtype: type) -> None:
    rng = np.random.default_rng(0)
    for names in (devices, ["cpu"], null_devices()):
        held, expected = cache(dtype), np.zeros(SHAPE, dtype)
        with vs.Scheduler(names) as sched:
            run = sched.compile(vs.flip(held), updates={held: written(held)})
            seen = sched.compile(vs.exp(held), updates={held: written(held)})
            assert in_place(seen.plan) == ["new"]
            for step in range(6):
                rows = rng.standard_normal((3, 2, 8)).astype(dtype)
                out = (run, seen)[step % 2](rows=rows, start=9 * step)
                wanted = np.flip(expected) if step % 2 == 0 else np.exp(expected)
                np.testing.assert_allclose(out, wanted, rtol=2e-3)
                expected[:, 9 * step : 9 * step + 2] = rows
                assert np.array_equal(sched.read(held), expected)


def test_rows_of_half_words_are_written_too(devices: list[str]) -> None:
    """A row of five float16 begins in the middle of a word."""
    held = vs.state(np.ones((7, 5), np.float16), "odd", backup=False)
    start = vs.input("start", (), "int32")
    new = vs.dynamic_update_slice(held, vs.input("rows", (2, 5), "float16"), start)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.exp(held), updates={held: new})
        assert run.plan.in_place
        node = next(n for n in run.plan.graph.ops if n.op == "dynamic_update_slice")
        spec = run.plan.topology.devices[0]
        assert not lower_node(spec, run.plan.graph, node).scratch_words, "the state is not unpacked"
        assert not conversion_bytes(node.declaration, call_of(spec, run.plan.graph, node))
        run(rows=np.full((2, 5), 3, np.float16), start=3)
        assert sched.read(held).sum() == 25 + 30


@pytest.mark.parametrize("kind", ["lost", "error", "memory", "sequence"])
@pytest.mark.parametrize("at", range(6))
def test_a_run_that_fails_leaves_whole_rows(kind: str, at: int) -> None:
    """The state has the rows of the runs that came through, or is lost, whatever fails."""
    faulty = vs.FaultInjectionDevice(null_devices()[0], None, kind)
    held, expected = cache(), np.zeros(SHAPE, np.float32)
    with vs.Scheduler([faulty]) as sched:
        run = sched.compile(vs.exp(held), updates={held: written(held)})
        faulty.at = faulty.calls["submit"] + at
        for step in range(3):
            rows = np.full((3, 2, 8), step + 1, np.float32)
            try:
                run(rows=rows, start=4 * step)
            except vs.VkschedError:
                break
            expected[:, 4 * step : 4 * step + 2] = rows
        else:
            assert faulty.failed or at >= 6
        try:
            assert np.array_equal(sched.read(held), expected)
        except vs.StateLost:
            assert faulty.failed
