"""Observers: chosen values are seen as soon as they are there, and may stop the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import A, B, make_topology, random_outputs
from test_executor import X, scheduler, stepped

import vksched as vs

Seen = list[tuple[str, np.ndarray[Any, Any]]]


def test_values_are_seen_in_order_and_before_what_comes_after(devices: list[str]) -> None:
    x = vs.input("x", X.shape)
    with vs.name_scope("net"):
        a, b, c = stepped(x, "a", "b", "c")
    part = vs.reshape(b, (12,), name="flat")
    with vs.Scheduler(devices) as sched:
        names = [d.name for d in sched.devices]
        seen: Seen = []
        run = sched.compile(
            vs.relu(c),
            placement={"net.b": names[-1]},
            observe={"net.*": lambda name, value: seen.append((name, value)), a: lambda *_: None},
        )
        assert np.array_equal(run(x=X), X + 3)
        assert [name for name, _ in seen] == ["net.a", "net.b", "net.c"]
        for step, (_, value) in enumerate(seen):
            assert np.array_equal(value, X + step + 1)
            value[:] = -1  # its own memory
        assert np.array_equal(run(x=X), X + 3)
        run.close()
        seen.clear()
        views = sched.compile(
            [part, vs.neg(part)], observe={"flat": lambda name, value: seen.append((name, value))}
        )
        views(x=X)
        assert [(n, v.shape) for n, v in seen] == [("flat", (12,))]


def test_false_stops_the_run_before_what_comes_after() -> None:
    sched, recorder = scheduler(2)
    with sched:
        a, b, c = stepped(vs.input("x", X.shape), "a", "b", "c")
        stop = {"at": "b"}
        run = sched.compile(
            c,
            placement={"a": A, "b": B, "c": A},
            observe={v: lambda name, _: name != stop["at"] for v in (a, b)},
        )
        with pytest.raises(vs.RunCancelled, match="'b'"):
            run(x=X)
        assert sum(d.submissions for d in sched.devices[:2]) == 2, "c was never submitted"
        future = run.submit(x=X)
        with pytest.raises(vs.RunCancelled):
            future.result()
        stop["at"] = "nothing"
        assert np.array_equal(run(x=X), X + 3), "the graph lives on"
        assert recorder.select("run")


def test_no_other_device_goes_on_while_an_observer_looks() -> None:
    """What stands behind an observed value in the plan waits, on every device."""
    sched, _ = scheduler(2)
    with sched:
        x = vs.input("x", X.shape)
        one, two = vs.exp(x, name="one"), vs.neg(x, name="two")
        counts: list[int] = []
        run = sched.compile(
            [one, two],
            placement={"one": A, "two": B},
            observe={one: lambda *_: counts.append(sched.devices[1].submissions)},
        )
        run(x=X)
        first = run.plan.splits[0]
        assert counts == ([0] if first.device == 0 else [1])


def test_errors_of_an_observer_reach_the_caller(devices: list[str]) -> None:
    y = vs.add(vs.input("x", X.shape), 1.0, name="y")
    with vs.Scheduler(devices) as sched:
        names = [d.name for d in sched.devices]

        def fail(name: str, value: Any) -> None:
            raise errors.pop()

        run = sched.compile(vs.relu(y), observe={"y": fail})
        errors: list[Exception] = [ZeroDivisionError("mine"), vs.DeviceLost("no device of yours")]
        with pytest.raises(vs.RunCancelled, match="no device of yours"):
            run(x=X)
        assert not sched.failed_devices and [d.name for d in sched.devices] == names
        with pytest.raises(ZeroDivisionError):
            run(x=X)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        ({"nothing": print}, "close: y|there is"),
        ({"x": print}, "got the leaf 'x'"),
        ({"y": 3}, "functions"),
        ([print], "dict"),
        ({3: print}, "tensors or name patterns"),
    ],
)
def test_what_cannot_be_observed_is_reported(observe: Any, message: str) -> None:
    y = vs.add(vs.input("x", X.shape), 1.0, name="y")
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.PlanError, match=message):
        sched.compile(y, observe=observe)


def test_a_tensor_of_another_graph_is_reported() -> None:
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.PlanError, match="not part"):
        sched.compile(vs.relu(vs.input("x", 3)), observe={vs.exp(vs.input("z", 3)): print})


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_show_what_numpy_computes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = random_outputs(rng, 20)
    graph, _ = vs.build_graph(outputs)
    feeds = {n.name: rng.random(n.type.shape, dtype=np.float32) for n in graph.inputs}
    computed = [n for n in graph.ops if not graph.nodes[graph.view_base(n.id)].declaration.leaf]
    chosen = [n for n in computed if rng.random() < 0.4] or computed[-1:]
    topology = make_topology(3)
    placement = {n.name: topology.devices[int(rng.integers(0, 4))].name for n in graph.ops}
    seen: dict[str, np.ndarray[Any, Any]] = {}
    values: dict[str, np.ndarray[Any, Any]] = {}
    observe = {n.name: lambda name, value: values.__setitem__(name, value) for n in chosen}
    sched, _ = scheduler(3)
    with sched, vs.Scheduler(["cpu"]) as numpy:
        expected = numpy.compile(
            outputs, observe={k: lambda n, v: seen.__setitem__(n, v) for k in observe}
        )(**feeds)
        got = sched.compile(outputs, placement=placement, observe=observe)(**feeds)
    for a, b in zip(got, expected, strict=True):
        assert np.array_equal(a, b)
    assert values.keys() == seen.keys() == {n.name for n in chosen}
    for name, value in values.items():
        assert np.array_equal(value, seen[name]), name
