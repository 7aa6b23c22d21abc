"""States: what lives from run to run, is written at the end, and outlives no failure unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import make_plan, make_topology
from test_executor import null_devices

import vksched as vs
from vksched.ir.tensor import Tensor
from vksched.topology.device_spec import DeviceSpec

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def counter(dtype: str = "int32", **options: Any) -> tuple[Tensor, Tensor]:
    """A state that grows by one each run, and its next value."""
    held = vs.state(np.zeros((3, 4), dtype), name="count", **options)
    return held, held + 1


def test_a_run_reads_what_the_one_before_wrote(devices: list[str]) -> None:
    held, after = counter()
    with vs.Scheduler(devices) as sched:
        run = sched.compile({"old": held, "new": after * 10}, updates={held: after})
        for i in range(4):
            got = run()
            assert (got["old"] == i).all() and (got["new"] == 10 * (i + 1)).all()
        assert (sched.read(held) == 4).all()


def test_a_run_may_write_states_and_give_nothing_out(devices: list[str]) -> None:
    x, total = vs.input("x", (4,)), vs.state(np.zeros(4, np.float32), "total")
    with vs.Scheduler(devices) as sched:
        run = sched.compile([], updates={total: vs.add(total, x)})
        for _ in range(2):
            assert len(run(x=np.ones(4, np.float32))) == 0
        assert np.array_equal(sched.read(total), np.full(4, 2, np.float32))


def test_what_a_state_starts_with_is_copied_where_somebody_can_write_it(
    devices: list[str],
) -> None:
    fixed, free = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    fixed.flags.writeable = False
    seen = free.view()
    seen.flags.writeable = False
    shared = [np.shares_memory(vs.state(array).data, array) for array in (fixed, free, seen)]
    assert shared == [True, False, False]
    held = vs.state(fixed)
    with vs.Scheduler(devices) as sched:
        run = sched.compile({"old": held}, updates={held: held + 1})
        assert [int(run()["old"].sum()) for _ in range(3)] == [0, 12, 24]
        sched.write(held, np.ones((3, 4), np.float32))
        assert (run()["old"] == 1).all() and not fixed.any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool", "int64"])
@pytest.mark.parametrize("value", [0, 1])
def test_a_state_may_start_with_one_value_everywhere(
    devices: list[str], dtype: str, value: int
) -> None:
    one = np.full((), value, dtype)
    held = vs.state(np.broadcast_to(one, (3, 5, 7)), bounds=(0, 9) if dtype == "int64" else None)
    one[...] = 1 - value
    assert held.data is not None and not any(held.data.strides)
    with vs.Scheduler(devices) as sched:
        run = sched.compile({"old": held}, updates={held: vs.reshape(held, held.shape)})
        expected = np.full((3, 5, 7), value, dtype)
        np.testing.assert_array_equal(run()["old"], expected, strict=True)
        np.testing.assert_array_equal(sched.read(held), expected, strict=True)


def test_a_state_that_starts_with_minus_zero_has_it() -> None:
    held = vs.state(np.broadcast_to(np.float32(-0.0), (4, 4)))
    with vs.Scheduler(["cpu"]) as sched:
        assert np.signbit(sched.compile({"old": held}, updates={held: held + 1})()["old"]).all()


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int32", "uint32", "bool", "int64", "float64"]
)
def test_every_element_type(devices: list[str], dtype: str) -> None:
    first = (np.arange(15).reshape(3, 5) % 2).astype(dtype)
    bounds = (0, 99) if dtype == "int64" else None
    held = vs.state(first, name="s", bounds=bounds)
    x = vs.input("x", (3, 5), dtype, bounds=bounds)
    second = (np.arange(15).reshape(3, 5) % 3).astype(dtype)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.flip(held), updates={held: x})
        assert np.array_equal(run(x=second), first[::-1, ::-1])
        assert np.array_equal(run(x=first), second[::-1, ::-1])
        got = sched.read(held)
        assert got.dtype == dtype and np.array_equal(got, first)
        sched.write(held, second)
        assert np.array_equal(run(x=first), second[::-1, ::-1])


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (17, 5)])
def test_every_shape(devices: list[str], shape: tuple[int, ...]) -> None:
    held = vs.state(np.ones(shape, np.float32), name="s")
    with vs.Scheduler(devices) as sched:
        run = sched.compile(held * 2.0, updates={held: held * 3.0})
        run()
        assert np.array_equal(run(), np.full(shape, 6, np.float32))
        assert np.array_equal(sched.read(held), np.full(shape, 9, np.float32))


@pytest.mark.parametrize("home", [0, 1, -1])
@pytest.mark.parametrize("worker", [0, 1, -1])
def test_the_update_is_written_back_wherever_its_op_ran(
    two_devices: list[str], home: int, worker: int
) -> None:
    held, x = vs.state(X, name="held"), vs.input("x", X.shape)
    after = vs.add(vs.mul(held, 0.5, name="half"), x, name="after")
    with vs.Scheduler(two_devices) as sched:
        names = [d.name for d in sched.devices]
        placement = {"held": names[home], "half": names[worker], "after": names[worker]}
        run = sched.compile(vs.relu(after), placement=placement, updates={held: after})
        where = dict(zip((n.name for n in run.plan.graph.nodes), run.plan.placements, strict=True))
        assert where["held"].device == names.index(names[home])
        assert where["after"].device == names.index(names[worker])
        expected = X
        for i in range(3):
            expected = expected * np.float32(0.5) + np.float32(i)
            assert np.allclose(run(x=np.full_like(X, i)), np.maximum(expected, 0))
        assert np.allclose(sched.read(held), expected)


def test_states_that_take_each_others_value(devices: list[str]) -> None:
    a, b = vs.state(X, name="a"), vs.state(X + 100, name="b")
    scalar, other = vs.state(np.int32(1)), vs.state(np.int32(2))
    with vs.Scheduler(devices) as sched:
        updates = {a: b, b: vs.reshape(vs.reshape(a, (12,)), (3, 4)), scalar: other, other: scalar}
        run = sched.compile([a, b], updates=updates)
        for _ in range(3):
            run()
        assert np.array_equal(sched.read(a), X + 100) and np.array_equal(sched.read(b), X)
        assert (sched.read(scalar), sched.read(other)) == (2, 1)


@pytest.mark.parametrize(
    "same",
    [
        lambda v: v * 1.0,
        lambda v: vs.neg(vs.neg(v)),
        lambda v: vs.cast(v, "float32"),
        lambda v: vs.transpose(vs.transpose(v)),
    ],
    ids=["times one", "neg neg", "cast", "turned twice"],
)
def test_values_that_passes_find_to_be_states_are_read_before_the_write(
    devices: list[str], same: Callable[[Tensor], Tensor]
) -> None:
    a, b = vs.state(X, name="a"), vs.state(X + 100, name="b")
    with vs.Scheduler(devices) as sched:
        run = sched.compile([a + b], updates={a: a + 1, b: same(a)})
        for i in range(3):
            run()
            assert np.array_equal(sched.read(a), X + i + 1)
            assert np.array_equal(sched.read(b), X + i)


def test_two_graphs_share_a_state(devices: list[str]) -> None:
    held, after = counter()
    with vs.Scheduler(devices) as sched:
        step = sched.compile(after, updates={held: after})
        show = sched.compile({"twice": held * 2})
        step()
        step()
        assert (show()["twice"] == 4).all()
        step.close()
        assert (show()["twice"] == 4).all()
        show.close()
        again = sched.compile(vs.neg(held))
        assert (again() == -2).all(), "a state outlives the graphs that use it"


def test_a_state_read_by_parts_and_returned_as_views(devices: list[str]) -> None:
    first = np.arange(64, dtype=np.float32).reshape(8, 8)
    held = vs.state(first, name="s")
    with vs.Scheduler(devices) as sched:
        names = [d.name for d in sched.devices]
        part = vs.mul(held[4:], 2.0, name="part")
        outputs = {"part": part, "view": vs.reshape(held, (64,)), "rows": held[2:4]}
        run = sched.compile(
            outputs, placement={"s": names[0], "part": names[-1]}, updates={held: held + 1.0}
        )
        for i in range(2):
            got = run()
            assert np.array_equal(got["part"], (first[4:] + i) * 2)
            assert np.array_equal(got["view"], (first + i).reshape(64))
            assert np.array_equal(got["rows"], first[2:4] + i)


def test_a_key_value_cache(devices: list[str]) -> None:
    rng = np.random.default_rng(5)
    keys, at = vs.state(np.zeros((16, 8), np.float32), "keys"), vs.input("at", (1, 1), "int32")
    new, query = vs.input("new", (1, 8)), vs.input("query", (1, 8))
    grown = vs.scatter_nd(keys, at, new)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.matmul(query, vs.transpose(grown)), updates={keys: grown})
        expected = np.zeros((16, 8), np.float32)
        for i in range(5):
            row, asked = rng.standard_normal((2, 1, 8), dtype=np.float32)
            expected[i] = row
            got = run(at=np.array([[i]], np.int32), new=row, query=asked)
            assert np.allclose(got, asked @ expected.T, atol=1e-5)
        assert np.allclose(sched.read(keys), expected)


def test_runs_with_states_are_one_after_the_other(devices: list[str]) -> None:
    held, after = counter()
    with vs.Scheduler(devices, copies=4) as sched:
        run = sched.compile(after, updates={held: after})
        assert run.plan.copies == 1 and any("4 asked for, 1" in n for n in run.plan.notes)
        futures = [run.submit() for _ in range(10)]
        assert [int(f.result()[0, 0]) for f in futures] == list(range(1, 11))
        threads = [threading.Thread(target=lambda: [run() for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (sched.read(held) == 30).all()


def test_a_run_that_fails_changes_no_state(devices: list[str]) -> None:
    held = vs.state(X, name="held")
    rows = vs.gather(held, vs.input("rows", (2,), "int32"))
    with vs.Scheduler(devices) as sched:
        run = sched.compile(rows, updates={held: held + 1.0})
        with pytest.raises(vs.IndexOutOfRange):
            run(rows=np.array([0, 3], np.int32))
        assert np.array_equal(sched.read(held), X)
        assert np.array_equal(run(rows=np.array([0, 2], np.int32)), X[[0, 2]])
        assert np.array_equal(sched.read(held), X + 1)


def test_an_observer_that_stops_a_run_leaves_states_as_they_were(devices: list[str]) -> None:
    held = vs.state(X, name="held")
    after = vs.add(held, 1.0, name="after")
    limit = {"value": 100.0}

    def watch(name: str, value: Any) -> bool:
        assert np.array_equal(sched.read(held), value - 1), "an observer may read states"
        return bool(value.max() < limit["value"])

    with vs.Scheduler(devices) as sched:
        run = sched.compile(after, updates={held: after}, observe={after: watch})
        run()
        limit["value"] = 0
        with pytest.raises(vs.RunCancelled, match="after"):
            run()
        assert np.array_equal(sched.read(held), X + 1)
        limit["value"] = 100
        assert np.array_equal(run(), X + 2)


def test_observers_neither_write_states_nor_run_them() -> None:
    held, after = counter()
    with vs.Scheduler(["cpu"]) as sched:
        other = sched.compile(vs.neg(held))
        problems: list[str] = []

        def watch(name: str, value: Any) -> None:
            for attempt in (lambda: sched.write(held, value), other):
                with pytest.raises(vs.VkschedError) as error:
                    attempt()
                problems.append(str(error.value))

        sched.compile(after, updates={held: after}, observe={after: watch})()
        assert ["observer" in text for text in problems] == [True, True]


def test_drop_frees_what_no_graph_uses(devices: list[str]) -> None:
    held, after = counter()
    with vs.Scheduler(devices) as sched:
        run = sched.compile(after, updates={held: after})
        run()
        with pytest.raises(vs.PlanError, match=r"run\.close"):
            sched.delete_state(held)
        run.close()
        home = next(d for d in sched.devices if d.states.holds(held))
        sched.delete_state(held)
        assert not home.states.holds(held)
        assert (sched.read(held) == 0).all()
        assert (sched.compile(held + 5)() == 5).all()


def test_what_is_read_is_a_copy_before_the_first_graph_too() -> None:
    held = vs.state(X, name="s")
    with vs.Scheduler(["cpu"]) as sched:
        sched.read(held)[...] = 7.0
        assert np.array_equal(sched.read(held), X)
        run = sched.compile(held * 1.0)
        sched.read(held)[...] = 7.0
        assert np.array_equal(sched.read(held), X) and np.array_equal(run(), X)


def test_read_and_write_before_the_first_graph(devices: list[str]) -> None:
    held, _ = counter()
    with vs.Scheduler(devices) as sched:
        assert (sched.read(held) == 0).all()
        sched.write(held, np.full((3, 4), 7, np.int32))
        assert (sched.read(held) == 7).all()
        assert (sched.compile(held + 1)() == 8).all()
    with vs.Scheduler(devices) as sched:
        assert (sched.compile(held + 1)() == 1).all(), "another scheduler starts anew"


def test_a_state_stays_where_the_first_graph_put_it(two_devices: list[str]) -> None:
    held, after = counter()
    with vs.Scheduler(two_devices) as sched:
        second = sched.devices[1].name
        first = sched.compile(after, placement={"count": second}, updates={held: after})
        moved = sched.compile(held * 3, placement={"count": sched.devices[0].name})
        assert any("lives on" in note for note in moved.plan.notes)
        first()
        assert (moved() == 3).all()


def test_large_states_cross_the_staging_buffer(devices: list[str]) -> None:
    from vksched.runtime.vulkan.staging import STAGING_WORDS

    first = np.arange(STAGING_WORDS + 1000, dtype=np.float32)
    held = vs.state(first, name="s")
    with vs.Scheduler(devices) as sched:
        sched.compile(held[:8], updates={held: held + 1.0})()
        assert np.array_equal(sched.read(held), first + 1)
        sched.write(held, first)
        assert np.array_equal(sched.read(held), first)


BAD: dict[str, Any] = {
    "no state": lambda: vs.build_graph([vs.input("x", 3)], {vs.weight(X): vs.weight(X)}),
    "no tensor": lambda: vs.build_graph([vs.input("x", 3)], {vs.state(X): X}),
    "no dict": lambda: vs.build_graph([vs.input("x", 3)], [vs.state(X)]),  # type: ignore[arg-type]
    "shape": lambda: vs.build_graph([vs.input("x", 3)], {vs.state(X): vs.weight(X[1:])}),
    "dtype": lambda: vs.build_graph(
        [vs.input("x", 3)], {vs.state(X): vs.weight(X.astype(np.int32))}
    ),
    "bounds": lambda: vs.state(np.array([7]), bounds=(0, 5)),
    "bounds of floats": lambda: vs.state(X, bounds=(0, 5)),
    "next value out of bounds": lambda: vs.build_graph(
        [vs.input("x", 3)], {(n := vs.state(np.array([1]), bounds=(0, 5))): n + 1}
    ),
    "backup": lambda: vs.state(X, backup=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", list(BAD))
def test_misuse_is_reported(what: str) -> None:
    with pytest.raises(vs.VkschedError, match=r"\[\w+\]"):
        BAD[what]()


def test_values_that_do_not_fit_are_refused() -> None:
    held = vs.state(np.zeros((2, 2), np.int64), name="n", bounds=(0, 9))
    with vs.Scheduler(["cpu"]) as sched:
        for bad in (np.zeros(3, np.int64), np.zeros((2, 2), np.float32), np.full((2, 2), 10), "x"):
            with pytest.raises(vs.VkschedError, match="n"):
                sched.write(held, bad)
        with pytest.raises(vs.GraphError, match=r"vs\.state"):
            sched.read(vs.weight(X))


def test_the_plan_names_states_and_counts_their_bytes() -> None:
    held = vs.state(np.zeros((8, 64), np.float32), name="cache", backup=False)
    x = vs.input("x", (8, 64))
    graph, _ = vs.build_graph([vs.relu(x + held)], {held: x + held})
    plan = vs.plan_graph(graph, make_topology(2))
    assert [graph.nodes[s].name for s in plan.memory[0].states] == ["cache"]
    assert plan.memory[0].state_bytes == 4 * 8 * 64
    assert plan.memory[0].peak_bytes >= 5 * 4 * 8 * 64
    assert "cache" in plan.explain()
    assert len(plan.commits) == 1 and plan.commits[0].id == len(plan.splits) - 1
    small = DeviceSpec("null:0", "null", memory_bytes=3 * 4 * 8 * 64)
    topology = vs.Topology((small, DeviceSpec("cpu", "cpu")))
    assert vs.plan_graph(graph, topology).memory[0].states == (), "it does not fit"


def test_a_state_lives_on_the_device_of_its_readers_with_the_same_results() -> None:
    rows = np.arange(32, dtype=np.float32).reshape(4, 8)

    def steps(devices: list[Any], placement: dict[str, str]) -> tuple[list[Any], Any, str]:
        cache = vs.state(np.zeros((64, 8), np.float32), "cache")
        row, at = vs.input("row", (1, 8)), vs.input("at", (), "int32", bounds=(0, 63))
        new = vs.dynamic_update_slice(cache, row, at, name="late.write")
        total = vs.reduce_sum(new * new, 0, name="late.sum")
        with vs.Scheduler(devices) as sched:
            run = sched.compile(total, placement, updates={cache: new})
            got = [run(row=rows[i : i + 1], at=np.int32(i)) for i in range(4)]
            home = next((d.name for d in sched.devices if d.states.holds(cache)), "")
            return got, sched.read(cache), home

    got, held, home = steps(null_devices(2)[1], {"late.*": "null:1"})
    wanted, stored, _ = steps(null_devices(1)[1], {})
    assert home == "null:1" and np.array_equal(held, stored)
    assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_graph_without_states_has_no_commits() -> None:
    assert make_plan(vs.relu(vs.input("x", 8))).commits == ()
