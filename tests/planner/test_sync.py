"""What a device is given at once: all of a split, a level or one op, and the waits this makes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from graphs import NAMED, A, B, Named, make_plan, make_topology, mlp, source, steps, waits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.plan.plan import Plan
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link

WORKLOADS = Path(__file__).parents[2] / "benchmarks" / "workloads"
SUBMIT_S = 1e-3


def load(name: str) -> ModuleType:
    """A benchmark as a module, which finds those beside it."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", WORKLOADS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    path = sys.path[:]
    sys.path.insert(0, str(WORKLOADS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


def diamonds(count: int = 3, width: int = 4) -> vs.Tensor:
    """Levels of one op and of several, in turn."""
    h = source()
    for i in range(count):
        h = vs.exp(h, name=f"top{i}")
        parts = [vs.mul(h, float(k), name=f"part{i}.{k}") for k in range(width)]
        h = vs.concat(parts, name=f"join{i}")[:8]
    return h


def test_numpy_computes_one_op_at_a_time_where_it_is_named() -> None:
    x = vs.input("x", (4,))
    trace = vs.Recorder()
    for submit_granularity, wanted in (({"cpu": "op"}, [1, 1]), ("op", [2])):
        with vs.Scheduler(
            ["cpu"],
            submit_granularity=submit_granularity,
            optimize=False,
            trace=vs.Trace(sinks=[trace]),
        ) as sched:
            run = sched.compile(vs.exp(vs.neg(x)))
            run(x=np.zeros(4, np.float32))
            assert run.stats is not None and [s.nodes for s in run.stats.splits] == wanted
    ops = [event.fields["ops"] for event in trace.select("split")]
    assert [list(o) for o in ops if isinstance(o, dict)] == [["neg"], ["exp"], ["neg", "exp"]]


def sizes(plan: Plan) -> list[int]:
    return [len(split.nodes) for split in plan.splits]


def test_a_level_or_an_op_is_a_submission_that_the_host_waits_for() -> None:
    whole, levels, ops = (
        make_plan(diamonds(), topology=make_topology(1, submit_granularity=s))
        for s in GRANULARITIES
    )
    assert sizes(whole) == [18] and sizes(levels) == [1, 4, 1] * 3 and sizes(ops) == [1] * 18
    for plan in (levels, ops):
        last = len(plan.splits) - 1
        assert [s.waits for s in plan.splits] == [()] + [(i,) for i in range(last)]
        assert plan.final_waits == (last,)
    assert waits_of(whole) == [0]
    # what a wait parts needs no barrier
    assert sum(len(s.barriers) for s in ops.splits) == 2  # after the copy in, before the copy out


GRANULARITIES = ("split", "level", "op")


@pytest.mark.parametrize("submit_granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_named_shapes_wait_after_each_submission(shape: Named, submit_granularity: str) -> None:
    plan = make_plan(*shape.build(), make_topology(3, submit_granularity=submit_granularity))
    if submit_granularity == "split":
        return
    complete: dict[int, int] = {}
    newest: dict[int, int] = {}
    for split in plan.splits:
        for waited in split.waits:
            device = plan.splits[waited].device
            complete[device] = max(complete.get(device, -1), waited)
        if split.device != plan.topology.cpu:
            before = newest.get(split.device, -1)
            assert before <= complete.get(split.device, -1)
        newest[split.device] = split.id


def test_each_device_has_its_own_policy() -> None:
    specs = [
        DeviceSpec("null:0", "null", submit_granularity="op"),
        DeviceSpec("null:1", "null"),
        DeviceSpec("cpu", "cpu"),
    ]
    topology = vs.Topology(tuple(specs))
    outputs = steps(source(), [f"a{i}" for i in range(3)])[-1]
    outputs = steps(outputs, [f"b{i}" for i in range(3)])[-1]
    plan = make_plan(outputs, {"a*": A, "b*": B}, topology)
    assert sizes(plan) == [1, 1, 1, 3]
    (line,) = (row for row in plan.explain().splitlines() if "a wait after each op" in row)
    assert line.split()[0] == f"{A}:"
    assert [d["submit_granularity"] for d in plan.as_dict()["devices"]] == ["op", "split", "split"]


def test_wrong_policies_are_clear_errors() -> None:
    clock = vs.SimulatedClock()

    def open_with(submit_granularity: Any) -> vs.Scheduler:
        return vs.Scheduler(
            [vs.SimulatedDevice(DeviceSpec(A, "null"), clock)],
            submit_granularity=submit_granularity,
            optimize=False,
        )

    with pytest.raises(
        vs.PlanError, match="submit_granularity of split, level, op for null:0, got 'ops'"
    ):
        open_with("ops")
    with pytest.raises(vs.PlanError, match="for null:0, got 'x'"):
        open_with({A: "x"})
    with pytest.raises(
        vs.DeviceError, match="expected submit_granularity for null:0, cpu, got 'gpu'"
    ):
        open_with({"gpu": "op"})
    with pytest.raises(vs.PlanError, match="as a str or a mapping, got 3"):
        open_with(3)
    with pytest.raises(vs.PlanError, match="got 'ops'"):
        vs.Scheduler(["cpu"], submit_granularity="ops")
    with pytest.raises(
        vs.PlanError, match=r"\[topology\] expected a submit_granularity of split, level, op"
    ):
        make_plan(source() + 1.0, topology=make_topology(1, submit_granularity="all"))


def test_simulated_time_counts_each_submission() -> None:
    seconds: dict[str, float] = {}
    x = np.full((8, 64), 0.01, np.float32)
    for submit_granularity in GRANULARITIES:
        clock = vs.SimulatedClock()
        spec = DeviceSpec(A, "null", submit_s=SUBMIT_S, bytes_per_s=1e15)
        device = vs.SimulatedDevice(spec, clock, link=Link(1e15))
        with vs.Scheduler(
            [device], trace=vs.Trace(clock), submit_granularity=submit_granularity, optimize=False
        ) as sched:
            run = sched.compile(diamonds())
            run(x=x)
            assert run.stats is not None and run.stats.fence_waits == len(run.plan.splits)
            seconds[submit_granularity] = run.stats.seconds
    assert seconds["split"] == pytest.approx(SUBMIT_S, rel=0.01)
    assert seconds["level"] == pytest.approx(9 * SUBMIT_S, rel=0.01)
    assert seconds["op"] == pytest.approx(18 * SUBMIT_S, rel=0.01)


@pytest.mark.parametrize("submit_granularity", ["level", "op"])
def test_results_are_the_same(devices: list[str], submit_granularity: str) -> None:
    outputs, _ = mlp(3)
    x = np.asarray(np.random.default_rng(2).standard_normal((8, 64)), np.float32)
    with vs.Scheduler(["cpu"]) as numpy:
        expected = numpy.compile(outputs)(x=x)[0]
    with vs.Scheduler(
        devices, submit_granularity=submit_granularity, copies=2, optimize=False
    ) as sched:
        gpus = [d.name for d in sched.devices[:-1]]
        placement = {f"layer.{i}.*": gpus[i % len(gpus)] for i in range(3)} if gpus else {}
        run = sched.compile(outputs, placement=placement)
        for future in [run.submit(x=x) for _ in range(3)]:
            np.testing.assert_allclose(future.result()[0], expected, atol=1e-5)
        assert run.stats is not None
        if gpus:
            assert run.stats.fence_waits == len(run.plan.splits) > 3


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.sampled_from(GRANULARITIES), min_size=2, max_size=3), st.integers(0, 1 << 30))
def test_any_mix_of_policies_gives_a_sound_plan(policies: list[str], seed: int) -> None:
    from graphs import random_outputs

    specs = [DeviceSpec(f"null:{i}", "null", submit_granularity=s) for i, s in enumerate(policies)]
    topology = vs.Topology((*specs, DeviceSpec("cpu", "cpu")))
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, 25))
    overrides = [
        (n.id, specs[int(rng.integers(0, len(specs)))].name)
        for n in graph.ops
        if rng.random() < 0.4
    ]
    plan = vs.plan_graph(graph, topology, overrides=overrides)
    for split in plan.splits:
        if topology.devices[split.device].submit_granularity == "op":
            assert len(split.nodes) == 1


@pytest.mark.parametrize("arguments", [["--null"], ["--devices", "cpu"]])
def test_benchmark_of_the_policies(arguments: list[str], capsys: Any) -> None:
    bench = load("sync")
    small = ["--small", "--repeats", "1", *arguments]
    assert bench.main([*small, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    if arguments == ["--null"]:
        assert {row["graph"] for row in rows} == {"chain", "wide", "transformer"}
        assert all(row["seconds"]["op"] >= row["seconds"]["split"] > 0 for row in rows)
        assert all(row["ratio"]["split"] == 1.0 for row in rows)
    else:
        assert rows == []  # numpy has no submissions
    assert bench.main(small) == 0
