"""Next values that are written where their state lies: which ones, in which order, and right."""

from __future__ import annotations

import cProfile
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import A, B, make_topology, node_id
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import Span
from vksched.plan.verify.happens_before import check_plan
from vksched.planner.partition.in_place import InPlace
from vksched.runtime.cpu.evaluate import Values
from vksched.runtime.simulated.simulated_device import SimulatedPreparedPlan

SHAPE = (8, 64)
X = np.linspace(-1, 1, 512, dtype=np.float32).reshape(SHAPE)


def held(name: str, **options: Any) -> vs.Tensor:
    return vs.state(np.zeros(SHAPE, np.float32), name, **{"backup": False, **options})


def plan_of(graph: Graph, **where: str) -> Plan:
    topology = make_topology()
    overrides = list(where.items()) or [("*", A)]
    return check_plan(vs.plan_graph(graph, topology, overrides=overrides)).verify()


def in_place(plan: Plan) -> list[str]:
    """The values that are written where their states lie, in their order."""
    return [plan.graph.nodes[value].name for split in plan.splits for value, _ in split.in_place]


def update(**options: Any) -> tuple[Graph, vs.Tensor, vs.Tensor]:
    """mean = mean / 2 + x, w = w - mean."""
    mean, w = held("mean", **options), held("w", **options)
    new = vs.add(mean * 0.5, vs.input("x", SHAPE), name="new mean")
    graph, _ = vs.build_graph(vs.exp(w), updates={mean: new, w: vs.sub(w, new, name="new w")})
    return graph, mean, w


def test_an_update_is_written_where_its_states_lie() -> None:
    plan = plan_of(update()[0])
    assert in_place(plan) == ["new mean", "new w"]
    commit = plan.splits[-1]
    assert not any(plan.graph.nodes[n].op == "assign" for n in commit.nodes)
    for value, state in commit.in_place:
        assert plan.locations[0, value] == plan.locations[0, state]
    stored = plan_of(update(backup=True)[0])
    assert not in_place(stored) and "mean.next" in stored.explain()
    one = int(np.prod(SHAPE)) * 4
    assert plan.memory[0].peak_bytes <= stored.memory[0].peak_bytes - 2 * one


def test_adamw_keeps_no_second_copy_of_parameters_and_moments() -> None:
    names = [f"w{i}" for i in range(8)]
    params = {n: vs.state(np.ones((96, 96), np.float32), n, backup=False) for n in names}
    h = vs.input("x", (2, 96))
    for w in params.values():
        h = vs.tanh(h @ w)
    loss = vs.reduce_sum(h)
    updates = vs.optim.adamw(params, vs.grad(loss, params), lr=0.1)
    with vs.Scheduler(
        [vs.SimulatedDevice(make_topology(1).devices[0], vs.SimulatedClock())]
    ) as sched:
        memory = sched.compile(loss, updates=updates).plan.memory[0]
    own = 8 * 96 * 96 * 4
    assert memory.state_bytes >= 3 * own
    assert memory.peak_bytes - memory.state_bytes < 1.4 * own, "gradients, and little else"


def null_devices(count: int) -> list[vs.SimulatedDevice]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(spec, clock) for spec in make_topology(count).devices[:-1]]


def test_what_is_built_of_several_values_does_not_keep_them_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each weight is used twice: its gradient is a sum, which one chain adds and applies."""
    params = {f"w{i}": vs.state(np.ones((96, 96), np.float32), backup=False) for i in range(8)}
    h = vs.input("x", (2, 96))
    for w in params.values():
        h = vs.tanh(vs.tanh(h @ w) @ w)
    loss = vs.reduce_sum(h)
    grads = vs.grad(loss, params)
    updates = {w: w - grads[name] * 0.1 for name, w in params.items()}
    peaks: list[int] = []
    for copied in (False, True):
        if copied:
            monkeypatch.setattr(
                "vksched.planner.partition.splits.find_in_place", lambda *_: InPlace()
            )
        with vs.Scheduler(null_devices(1)) as sched:
            peaks.append(sched.compile(loss, updates=updates).plan.memory[0].peak_bytes)
    assert peaks[0] <= peaks[1]


def updated_output() -> Graph:
    w = held("w")
    new = vs.add(w, 1.0, name="new")
    return vs.build_graph(new, updates={w: new})[0]


def read_by_another() -> Graph:
    w = held("w")
    new = vs.add(w, 1.0, name="new")
    return vs.build_graph(vs.exp(new), updates={w: new})[0]


def not_by_elements() -> Graph:
    w = held("w")
    return vs.build_graph(vs.exp(w), updates={w: vs.flip(w)})[0]


def spread() -> Graph:
    w, row = held("w"), vs.state(np.zeros(64, np.float32), "row", backup=False)
    of_row = vs.add(row, vs.reduce_sum(w, axis=0), name="of row")
    return vs.build_graph(vs.exp(w), updates={w: vs.add(w, row, name="of w"), row: of_row})[0]


def exchanged() -> Graph:
    """Each needs the old value of the other one, so one of them has to be kept."""
    v, w = held("v"), held("w")
    new = {v: vs.add(v, w, name="new v"), w: vs.sub(w, v, name="new w")}
    return vs.build_graph(vs.exp(w), updates=new)[0]


def all_of_all() -> Graph:
    """Several circles go through each of them."""
    u, v, w = held("u"), held("v"), held("w")
    new = {
        u: vs.addcmul(u, v, w, name="new u"),
        v: vs.addcmul(v, w, u, name="new v"),
        w: vs.addcmul(w, u, v, name="new w"),
    }
    return vs.build_graph(vs.exp(w), updates=new)[0]


def behind_a_circle() -> Graph:
    """Only who is part of the circle is copied, not who waits for one of it."""
    v, w, z = held("v"), held("w"), held("z")
    new = vs.add(v, w, name="new v")
    updates = {v: new, w: vs.sub(w, v, name="new w"), z: vs.sub(z, new, name="new z")}
    return vs.build_graph(vs.exp(w), updates=updates)[0]


def for_two_states() -> Graph:
    v, w = held("v"), held("w")
    new = vs.add(v, w, name="new")
    return vs.build_graph(vs.exp(w), updates={v: new, w: new})[0]


def transposed() -> Graph:
    w = vs.state(np.zeros((8, 8), np.float32), "w", backup=False)
    return vs.build_graph(vs.exp(w), updates={w: vs.add(w, vs.transpose(w), name="new")})[0]


@pytest.mark.parametrize(
    ("build", "written"),
    [
        (updated_output, []),
        (read_by_another, []),
        (not_by_elements, []),
        (spread, ["of w", "of row"]),
        (exchanged, ["new v"]),
        (all_of_all, ["new u"]),
        (behind_a_circle, ["new v", "new z"]),
        (for_two_states, []),
    ],
)
def test_what_somebody_else_needs_is_copied(build: Callable[[], Graph], written: list[str]) -> None:
    assert in_place(plan_of(build())) == written


def test_a_state_read_through_a_transpose_is_not_overwritten() -> None:
    plan = plan_of(transposed())
    (value,) = plan.in_place
    (read,) = {plan.graph.view_base(i) for i in plan.graph.nodes[value].inputs} - {
        plan.in_place[value]
    }
    assert plan.graph.nodes[read].op == "transpose", "which is a copy, made before"


def test_numpy_and_devices_that_wait_for_each_op_copy() -> None:
    graph = update()[0]
    for devices in (["cpu"], [A]):
        topology = make_topology(submit_granularity="op" if devices == [A] else "split")
        plan = vs.plan_graph(graph, topology, overrides=[("*", devices[0])])
        assert not in_place(plan)


def test_a_value_of_another_device_is_copied_and_its_reader_is_not() -> None:
    graph = update()[0]
    names = {n.name: A for n in graph.ops} | {"w": B, "new w": B}
    plan = plan_of(graph, **{k: v for k, v in names.items() if not k.endswith(".next")})
    assert in_place(plan) == ["new w"], "the other device needs the new mean before it is written"


def without(plan: Plan) -> Plan:
    """The commit as it is, but for what it says of values that are written in place."""
    return with_commit(plan, in_place=())


def with_commit(plan: Plan, **fields: Any) -> Plan:
    last = replace(plan.splits[-1], **fields)
    return replace(plan, splits=(*plan.splits[:-1], last))


def swapped(plan: Plan) -> Plan:
    (one, first), (two, second) = plan.splits[-1].in_place
    return with_commit(plan, in_place=((one, second), (two, first)))


def moved(plan: Plan) -> Plan:
    """A value that is said to be written in place lies in activation memory."""
    places = dict(plan.locations) | {(0, node_id(plan, "new w")): Span(0, 0, 512)}
    return replace(plan, locations=places)


def shown(plan: Plan) -> Plan:
    return with_commit(plan, observed=(node_id(plan, "new w"),))


BROKEN: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "not said": (without, "run too often or never|writes states before"),
    "of another state": (swapped, "overwrites .*, but is not the next value of this state only"),
    "moved": (moved, "new w is not"),
    "shown": (shown, "new w is visible to the caller|observed, but not copied out"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_plans_are_refused(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(vs.PlanError, match=message):
        change(plan_of(update()[0])).verify()


def test_an_old_value_that_is_read_too_late_is_found() -> None:
    """first = m + x reads the old m, which its next value must not overwrite before."""
    m, first = held("m"), held("first")
    x = vs.input("x", SHAPE)
    updates = {m: vs.mul(m, x, name="new m"), first: vs.add(m, x, name="new first")}
    plan = plan_of(vs.build_graph(vs.exp(m), updates=updates)[0])
    assert in_place(plan) == ["new first", "new m"]
    commit = plan.splits[-1]
    wrong = with_commit(plan, nodes=(*commit.nodes[:-2], *commit.nodes[:-3:-1]))
    with pytest.raises(vs.PlanError, match="written over m, which is still needed"):
        wrong.verify()
    with pytest.raises(vs.PlanError, match="reads m after new m"):
        check_plan(wrong)


def test_a_barrier_between_two_of_them_is_needed() -> None:
    plan = plan_of(update()[0])
    assert plan.splits[-1].barriers
    wrong = with_commit(plan, barriers=())
    with pytest.raises(vs.PlanError, match="needs a barrier"):
        wrong.verify()
    with pytest.raises(vs.PlanError, match="a barrier before new mean"):
        check_plan(wrong)


def run_both(
    devices: list[str], graph: Any, updates: Any, states: list[vs.Tensor], runs: int = 4
) -> None:
    """Compare runs on devices with runs on numpy, outputs and states."""
    results: list[list[NDArray]] = []
    for names in (["cpu"], devices):
        with vs.Scheduler(names) as sched:
            run = sched.compile(graph, updates=updates)
            out = [np.asarray(run(x=X + i)) for i in range(runs)]
            results.append([*out, *(sched.read(state) for state in states)])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_runs_are_right_on_every_device(devices: list[str]) -> None:
    mean, power, w = held("mean"), held("power"), held("w")
    x = vs.input("x", SHAPE)
    new = mean * 0.5 + x
    of_power = power * 0.9 + new * new
    updates = {mean: new, power: of_power, w: w - new / vs.sqrt(of_power + 1.0)}
    run_both(devices, vs.exp(w), updates, [mean, power, w])


@pytest.mark.parametrize("size", [1, 3, 61, 1 << 18])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_every_size_and_type(devices: list[str], size: int, dtype: str) -> None:
    state = vs.state(np.zeros(size, dtype), "s", backup=False)
    x = vs.input("x", (size,), dtype)
    new = vs.logical_xor(state, x) if dtype == "bool" else vs.add(state, x)
    array = (np.arange(size) % 5).astype(dtype)
    expected = np.zeros(size, dtype)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.flip(state), updates={state: new})
        for _ in range(3):
            run(x=array)
            expected = expected ^ array if dtype == "bool" else expected + array
        assert np.array_equal(sched.read(state), expected)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_drawn_updates_give_what_numpy_gives(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    states = [held(f"s{i}", backup=data.draw(st.booleans())) for i in range(count)]
    pool = [vs.input("x", SHAPE), *states]
    updates: dict[vs.Tensor, vs.Tensor] = {}
    for state in states:
        some = st.sampled_from([*pool, *updates.values()])
        new = data.draw(some) * 0.5 + vs.tanh(data.draw(some)) - data.draw(some)
        if data.draw(st.booleans()):
            pool.append(new)
        updates[state] = new
    clock = vs.SimulatedClock()
    null = [vs.SimulatedDevice(spec, clock) for spec in make_topology().devices[:-1]]
    output = pool[0] + vs.exp(data.draw(st.sampled_from(pool)))
    run_both(null, output, updates, states)  # type: ignore[arg-type]


def test_a_view_that_numpy_makes_of_a_state_keeps_its_old_value() -> None:
    """Of a transpose numpy makes no copy, and both states are written before the run ends."""
    one, two = np.arange(16, dtype=np.float32).reshape(4, 4), np.ones((4, 4), np.float32)
    a, b = vs.state(one, "a", backup=False), vs.state(two, "b", backup=False)
    for devices in (["cpu"], null_devices(1)):
        with vs.Scheduler(devices) as sched:
            run = sched.compile(vs.exp(a), updates={a: vs.transpose(b), b: vs.transpose(a)})
            run()
            assert np.array_equal(sched.read(a), two.T) and np.array_equal(sched.read(b), one.T)


def test_another_device_gets_the_old_value_of_a_state() -> None:
    a, b = held("a"), held("b")
    new_a, new_b = vs.add(a, 1.0, name="new a"), vs.add(b, a, name="new b")
    devices = null_devices(2)
    first, second = (device.name for device in devices)
    places = {"a": first, "new a": first, "b": second, "new b": second}
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.exp(b), placement=places, updates={a: new_a, b: new_b})
        assert set(in_place(run.plan)) == {"new a", "new b"}
        for _ in range(3):
            run()
        assert np.all(sched.read(a) == 3) and np.all(sched.read(b) == 0 + 1 + 2)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_commit_is_carried_out_whole(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mean, w, x = held("mean"), held("w"), vs.input("x", SHAPE)
    new = mean * 0.5 + x
    drop, calls = Values.drop, itertools.count(1)

    def interrupted(values: Values, node: int) -> None:
        if next(calls) == after:
            raise KeyboardInterrupt
        drop(values, node)

    with vs.Scheduler(null_devices(1)) as sched:
        run = sched.compile(vs.exp(x), updates={mean: new, w: w - new})
        assert len(in_place(run.plan)) == 2
        run(x=X)
        commit = run.plan.splits[-1].id
        real = SimulatedPreparedPlan.submit

        def submit(
            prepared: SimulatedPreparedPlan, slot: int, split: int, sequence_number: int
        ) -> None:
            with monkeypatch.context() as patch:
                if split == commit:
                    patch.setattr(Values, "drop", interrupted)
                real(prepared, slot, split, sequence_number)

        monkeypatch.setattr(SimulatedPreparedPlan, "submit", submit)
        with pytest.raises(KeyboardInterrupt):
            run(x=X)
        np.testing.assert_allclose(sched.read(mean), 1.5 * X, rtol=1e-6)
        np.testing.assert_allclose(sched.read(w), -2.5 * X, rtol=1e-6)


def test_a_value_may_be_longer_within_its_last_word(devices: list[str]) -> None:
    state, x = vs.state(np.zeros(7, np.float16), "s", backup=False), vs.input("x", (8,), "float16")
    array = np.arange(8, dtype=np.float16)
    for names in (devices, null_devices(1)):
        with vs.Scheduler(names) as sched:
            run = sched.compile(vs.flip(state), updates={state: vs.add(x, x)[:7]})
            run(x=array)
            assert np.array_equal(sched.read(state), 2 * array[:7])


def updates_of(count: int, exchanged: bool) -> Graph:
    x, updates = vs.input("x", SHAPE), dict[vs.Tensor, vs.Tensor]()
    for number in range(count):
        v, w = held(f"v{number}"), held(f"w{number}")
        updates |= {v: v + w, w: w - v} if exchanged else {v: v - x, w: w + x}
    return vs.build_graph(vs.exp(x), updates=updates)[0]


@pytest.mark.parametrize("exchanged", [False, True])
def test_the_effort_grows_with_the_states(exchanged: bool) -> None:
    calls: list[int] = []
    for count in (100, 400):
        graph, profile = updates_of(count, exchanged), cProfile.Profile()
        plan = profile.runcall(vs.plan_graph, graph, make_topology(1), overrides=[("*", A)])
        profile.runcall(plan.verify)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[1] < 5 * calls[0]


def test_a_split_that_is_asked_for_again_runs_once() -> None:
    """After an interrupt the executor cannot know whether a submission was begun."""
    _, mean, w = update()
    x = vs.input("x", SHAPE)
    device = vs.SimulatedDevice(make_topology(1).devices[0], vs.SimulatedClock())
    with vs.Scheduler([device]) as sched:
        run = sched.compile(vs.exp(w), updates={mean: mean * 0.5 + x})
        prepared = device.prepare(run.plan, 0)
        feed = run.plan.graph.inputs[0].id
        for copy in (c for s in run.plan.splits for c in s.uploads if c.node == feed):
            prepared.upload(0, copy, X)
        for split in run.plan.splits:
            for _ in range(2):
                prepared.submit(0, split.id, sequence_number=7)
        assert np.array_equal(device.states.read(mean), X)
