"""What ggml's backend scheduler promises its users, each promise in one place: on null devices, and
on the real ones where these can show more.

1 priority, 2 support per op, 3 weights pull, 4 sweeps, 5 views, 6 splits, 7 overrides, 9 copies,
12 asynchronous runs.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from graphs import (
    CPU,
    NAMED,
    SHAPE,
    A,
    B,
    C,
    Named,
    chain,
    device_of,
    diamond,
    fan_out,
    make_plan,
    make_topology,
    mlp,
    picky,
    random_outputs,
    rule_of,
    source,
    steps,
    transfers_of,
)
from test_closing import LIMIT_S, GatedDevice, in_threads, joined
from test_executor import X, null_devices, stepped

import vksched as vs
from vksched.common.dtypes import DTYPES
from vksched.ir.op import all_ops
from vksched.ir.tensor import apply
from vksched.plan.costs.op_support import OpSupport
from vksched.plan.plan import Plan
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

PLANNERS = [Path(vs.__file__).parent / name for name in ("plan", "planner")]


def where(plan: Plan) -> set[str]:
    """The devices of the nodes that run."""
    return {plan.topology.devices[s.device].name for s in plan.splits}


# -- 1: backends in priority order, the CPU last and enforced --------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_1_the_first_device_takes_what_nobody_claims(order: tuple[int, ...]) -> None:
    devices = make_topology(3).devices
    topology = Topology((*(devices[i] for i in order), devices[-1]))
    assert where(make_plan(diamond(A, A, A, A)[0], topology=topology)) == {f"null:{order[0]}"}


@pytest.mark.parametrize("kinds", [[], ["null"], ["cpu", "null"], ["cpu", "cpu"]], ids=str)
def test_1_a_machine_without_one_cpu_at_its_end_is_refused(kinds: list[str]) -> None:
    topology = Topology(tuple(DeviceSpec(f"{kind}:{i}", kind) for i, kind in enumerate(kinds)))
    graph, _ = vs.build_graph(chain([A])[0])
    with pytest.raises(vs.PlanError, match="one cpu, as the last device"):
        vs.plan_graph(graph, topology)


def test_1_the_cpu_is_last_wherever_and_however_it_is_passed(devices: list[str]) -> None:
    null = null_devices(1)[1]
    for first in ("cpu", CpuDevice(DeviceSpec("cpu", "cpu"))):
        with vs.Scheduler([first, *null], policy="priority") as sched:
            assert [d.name for d in sched.devices] == ["null:0", "cpu"]
            assert where(sched.compile(chain([A])[0]).plan) == {A}
    with vs.Scheduler(["cpu", *devices], policy="priority") as sched:
        names = [d.name for d in sched.devices]
        assert names[-1] == "cpu" and names.count("cpu") == 1
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1])
        assert where(run.plan) == {names[0]}
        assert np.array_equal(run(x=X), X + 1)


# -- 2: support is asked per op, with shapes and types ---------------------------------------------


def test_2_one_shape_is_taken_and_another_of_the_same_op_is_not() -> None:
    x, y = vs.input("x", (4, 16)), vs.input("y", (8, 64))
    plan = make_plan(
        [vs.exp(x, name="small"), vs.exp(y, name="large")],
        topology=make_topology(1, max_buffer_bytes=1024),
    )
    assert (device_of(plan, "small"), device_of(plan, "large")) == (A, CPU)
    assert "float32[8,64] takes 2048 bytes, over the largest buffer" in rule_of(plan, "large")


def test_2_one_type_is_taken_and_another_of_the_same_op_is_not(devices: list[str]) -> None:
    x, y = vs.input("x", (5,)), vs.input("y", (5,), "float64")
    with vs.Scheduler(devices) as sched:
        run = sched.compile([vs.exp(x, name="single"), vs.exp(y, name="double")])
        assert device_of(run.plan, "single") == sched.devices[0].name
        assert device_of(run.plan, "double") == "cpu"
        if devices != ["cpu"]:
            assert "float64" in rule_of(run.plan, "double")
        values = np.linspace(-1, 1, 5)
        single, double = run(x=values.astype(np.float32), y=values)
        np.testing.assert_allclose(single, np.exp(values), rtol=1e-6)
        np.testing.assert_array_equal(double, np.exp(values))


def test_2_the_next_device_that_can_is_asked_before_the_cpu() -> None:
    pick = vs.gather(vs.exp(source(), name="a"), np.arange(4, dtype=np.int32), name="pick")
    for candidate_devices, device in (((True, True), A), ((False, True), B), ((False, False), CPU)):
        plan = make_plan(pick, {"a": A}, picky(*candidate_devices))
        assert device_of(plan, "pick") == device
        assert ("gather binds 4 buffers" in plan.explain()) == (not candidate_devices[0])


# -- 3: weights pull ops, with no exceptions -------------------------------------------------------


def one_of_each_op() -> list[OpSample]:
    """The first small case of every op that has operands and is no view."""
    found: dict[str, OpSample] = {}
    for case in CASES:
        arrays = case.inputs
        taken = arrays and not case.large and all(a.size and a.dtype.name in DTYPES for a in arrays)
        if taken and case.declaration.view is None:
            found.setdefault(case.op, case)
    return list(found.values())


@pytest.mark.parametrize("case", one_of_each_op(), ids=lambda case: case.op)
def test_3_whichever_operand_is_a_weight_it_pulls_its_op(case: OpSample) -> None:
    topology = make_topology(2)
    for position in range(len(case.inputs)):
        operands = [
            vs.weight(a, name="w") if i == position else vs.input(f"x{i}", a.shape, a.dtype)
            for i, a in enumerate(case.inputs)
        ]
        y = apply(case.op, operands, case.attrs, "y")
        graph, _ = vs.build_graph(y)
        if OpSupport(graph, topology).supports(next(n for n in graph.nodes if n.name == "y"), 1):
            plan = make_plan(y, {"w": B}, topology)
            assert device_of(plan, "y") == device_of(plan, "w") == B
            assert rule_of(plan, "y") == "weight w lives here"


def test_3_the_planner_names_no_op() -> None:
    compared: set[object] = set()
    for path in (path for folder in PLANNERS for path in folder.rglob("*.py")):
        for test in ast.walk(ast.parse(path.read_text())):
            if isinstance(test, ast.Compare) and ".op" in ast.unparse(test):
                compared |= {n.value for n in ast.walk(test) if isinstance(n, ast.Constant)}
    assert "weight" in compared  # so this finds what it looks for
    ops = all_ops()
    assert {name for name in compared & ops.keys() if not ops[str(name)].leaf} <= {
        "assign",
        "state",
    }


def test_3_layers_follow_their_weights_over_two_devices(two_devices: list[str]) -> None:
    outputs, placement = mlp()
    with vs.Scheduler(two_devices) as sched:
        names = {A: sched.devices[0].name, B: sched.devices[1].name}
        run = sched.compile(outputs[0], {k: names[v] for k, v in placement.items()})
        for i in range(4):
            for name in ("scale", "shift", "relu"):
                assert device_of(run.plan, f"layer.{i}.{name}") == names[A if i < 2 else B]
        x = np.ones((8, 64), np.float32)
        with vs.Scheduler(["cpu"]) as cpu:
            np.testing.assert_allclose(run(x=x), cpu.compile(outputs[0])(x=x), rtol=1e-5)


# -- 4: sweeps reduce transfers --------------------------------------------------------------------


def crossed(plan: Plan) -> int:
    return sum(plan.graph.nodes[c.node].type.device_bytes for c in transfers_of(plan))


def first_able(outputs: list[vs.Tensor], topology: Topology) -> Plan:
    """The plan in which each node runs on the first device that can run it, whatever it reads."""
    graph, _ = vs.build_graph(outputs)
    support = OpSupport(graph, topology)
    overrides = [
        (n.id, next(d.name for i, d in enumerate(topology.devices) if support.supports(n, i)))
        for n in support.computed
    ]
    return vs.plan_graph(graph, topology, overrides=overrides)


def test_4_neighbours_of_an_op_that_only_one_device_runs_join_it() -> None:
    a = vs.exp(source(), name="a")
    pick = vs.gather(a, np.arange(8, dtype=np.int32), name="pick")
    outputs = [vs.neg(pick, name="end")]
    naive, swept = (
        first_able(outputs, picky(False, True)),
        make_plan(outputs, (), picky(False, True)),
    )
    assert [device_of(naive, n) for n in ("a", "pick", "end")] == [A, B, A]
    assert [device_of(swept, n) for n in ("a", "pick", "end")] == [B, B, B]
    assert (len(transfers_of(naive)), len(transfers_of(swept))) == (2, 0)


def test_4_random_graphs_never_cross_more_and_often_less() -> None:
    naive_bytes, swept_bytes = [], []
    for seed in range(60):
        outputs = random_outputs(np.random.default_rng(seed), 12 + seed % 30)
        topology = picky(False, True)
        naive_bytes.append(crossed(first_able(outputs, topology)))
        swept_bytes.append(crossed(make_plan(outputs, (), topology)))
    assert all(s <= n for n, s in zip(naive_bytes, swept_bytes, strict=True))
    assert sum(swept_bytes) < sum(naive_bytes)


# -- 5: views follow what they view ----------------------------------------------------------------


def test_5_a_chain_of_views_stays_with_its_root_and_costs_nothing() -> None:
    a = vs.exp(source(), name="a")
    view = vs.reshape(vs.reshape(a, (-1,), name="v1")[64:256], (3, 64), name="v3")
    plan = make_plan([vs.neg(view, name="y"), view], {"a": B, "y": A})
    for name in ("v1", "v3"):
        assert device_of(plan, name) == B and rule_of(plan, name) == "view of a"
    assert {plan.graph.nodes[n].name for s in plan.splits for n in s.nodes} == {"a", "y"}
    assert [plan.graph.nodes[c.node].name for c in transfers_of(plan)] == ["v3"]
    assert device_of(make_plan(vs.neg(view, name="y"), [(view, C)]), "a") == C


def test_5_a_view_of_a_weight_is_where_the_weight_is() -> None:
    w = vs.weight(np.ones((4, 64), np.float32), name="w")
    row = vs.reshape(w[1], (1, 64), name="row")
    plan = make_plan(vs.add(source(), row, name="y"), {"w": B})
    assert [device_of(plan, n) for n in ("w", "row", "y")] == [B, B, B]
    assert not transfers_of(plan) and rule_of(plan, "y") == "weight w lives here"


def test_5_views_of_all_kinds_are_right_on_every_set(devices: list[str]) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    x, w = vs.input("x", (4, 6)), vs.weight(data, name="w")
    a = vs.add(x, 1.0, name="a")
    flat = vs.reshape(a, (-1,), name="flat")
    b = vs.mul(vs.reshape(flat[6:18], (2, 6)), w[1:3], name="b")
    with vs.Scheduler(devices) as sched:
        run = sched.compile(
            [flat, b, vs.reshape(w, (6, 4)), vs.reshape(x, (3, 8)), b[1]],
            {"a": sched.devices[0].name, "b": sched.devices[-1].name},
        )
        assert device_of(run.plan, "flat") == device_of(run.plan, "a")
        got = run(x=data * 2)
        assert isinstance(got, tuple)
    up = data * 2 + 1
    product = up[1:3] * data[1:3]
    wanted = [up.ravel(), product, data.reshape(6, 4), (data * 2).reshape(3, 8), product[1]]
    for array, expected in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(array, expected)


# -- 6: contiguous splits, inputs copied once per consumer device ----------------------------------


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_6_splits_are_runs_of_one_device_and_take_each_value_once(shape: Named) -> None:
    plan = make_plan(*shape.build())
    ran = [n for s in plan.splits for n in s.nodes]
    assert sorted(ran) == sorted(set(ran)) and len(plan.splits) == shape.splits
    entered = [(s.device, c.node) for s in plan.splits for c in s.uploads]
    assert len(entered) == len(set(entered))
    for split in plan.splits:
        assert {plan.placements[n].device for n in split.nodes} == {split.device}


def test_6_an_input_enters_each_device_that_reads_it_once(devices: list[str]) -> None:
    recorder = vs.Recorder()
    with vs.Scheduler(devices, trace=vs.Trace(sinks=[recorder])) as sched:
        x = vs.input("x", X.shape)
        names = [d.name for d in sched.devices]
        readers = [vs.add(x, float(i), name=f"r{i}") for i in range(6)]
        run = sched.compile(readers, {f"r{i}": names[i % len(names)] for i in range(6)})
        for i, result in enumerate(run(x=X)):
            assert np.array_equal(result, X + i)
        copied = [e for e in recorder.select("copy") if e.fields["way"] == "in"]
        assert sorted(e.device for e in copied) == sorted(names)
        assert run.stats is not None and run.stats.transfer_bytes == 0
        assert run.stats.input_bytes == X.nbytes * len(names)


def test_6_a_result_crosses_once_however_many_read_it_there(two_devices: list[str]) -> None:
    outputs, placement = fan_out([B] * 5)
    with vs.Scheduler(two_devices) as sched:
        names = {A: sched.devices[0].name, B: sched.devices[1].name}
        run = sched.compile(list(outputs), {k: names[v] for k, v in placement.items()})
        x = np.ones(SHAPE, np.float32)
        for i, result in enumerate(run(x=x)):
            assert np.array_equal(result, 2 * x + i)
        assert run.stats is not None
        assert (run.stats.transfer_bytes, run.stats.fence_waits) == (x.nbytes, 2)


# -- 7: overrides by tensor and by pattern ---------------------------------------------------------


def test_7_tensor_wins_over_pattern_and_later_pattern_over_earlier() -> None:
    a, b, c = steps(source(), ["a", "b", "c"])
    plan = make_plan(c, [(a, C), ("*", A), ("[ab]", B)])
    assert [device_of(plan, n) for n in "abc"] == [C, B, A]
    assert rule_of(plan, "b") == "override: [ab] on null:1"
    assert device_of(make_plan(c, [("b", B), ("*", A)]), "b") == A
    assert device_of(make_plan(c, [(b, B), (b, A)]), "b") == A


def test_7_overrides_win_over_weights_and_never_change_the_math(two_devices: list[str]) -> None:
    with vs.name_scope("mlp"):
        w = vs.weight(np.full((4, 4), 0.5, np.float32), name="w")
        y = vs.relu(vs.matmul(vs.input("x", X.shape), w, name="up"), name="act")
    with vs.Scheduler(two_devices) as sched:
        one, two, cpu = (d.name for d in sched.devices)
        runs = [
            sched.compile(y, placement)
            for placement in (None, {"mlp.*": two}, {"mlp.*": one, y: "cpu"}, {w: one, "*up": two})
        ]
        up_act = [tuple(device_of(r.plan, f"mlp.{n}") for n in ("up", "act")) for r in runs]
        assert up_act[:3] == [(one, one), (two, two), (one, cpu)]
        assert up_act[3][0] == two
        for run in runs:
            np.testing.assert_allclose(run(x=X), X @ w.data, rtol=1e-6)  # type: ignore[operator]


# -- 9: copies = n for pipelined runs --------------------------------------------------------------


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_9_as_many_runs_are_on_the_way_as_there_are_copies(copies: int) -> None:
    clock = vs.SimulatedClock()
    first, second = GatedDevice(A, clock), GatedDevice(B, clock)
    first.gate.set()  # the second works until the test lets it end
    with vs.Scheduler([first, second], copies=copies) as sched:
        y = stepped(vs.input("x", X.shape), "a", "b")[-1]
        run = sched.compile(y, {"a": A, "b": B})
        futures = [run.submit(x=X * i) for i in range(6)]
        for _ in range(copies):
            assert second.waiting.acquire(timeout=LIMIT_S)
        assert not second.waiting.acquire(blocking=False)
        assert first.submissions == second.submissions == copies
        assert not any(f.done() for f in futures)
        second.gate.set()
        for i, future in enumerate(futures):
            assert np.array_equal(future.result(LIMIT_S), X * i + 2)


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_9_every_run_in_flight_gets_its_own_result(devices: list[str], copies: int) -> None:
    with vs.Scheduler(devices, copies=copies) as sched:
        last = sched.devices[max(0, len(devices) - 1)].name
        y = stepped(vs.input("x", X.shape), "a", "b", "c")[-1]
        run = sched.compile(y, {"a": sched.devices[0].name, "b": last, "c": "cpu"})
        assert run.plan.copies == copies
        futures = [run.submit(x=X * i) for i in range(12)]
        threads, results = in_threads(2, lambda: run(x=-X))
        for i, future in enumerate(futures):
            assert np.array_equal(future.result(LIMIT_S), X * i + 3)
        assert joined(threads)
        assert all(np.array_equal(r, 3 - X) for r in results) and len(results) == 2


# -- 12: asynchronous runs -------------------------------------------------------------------------


def test_12_submit_returns_at_once_and_the_result_comes_later() -> None:
    device = GatedDevice(A, vs.SimulatedClock())
    members: list[Device] = [device]
    with vs.Scheduler(members) as sched:
        run = sched.compile(stepped(vs.input("x", X.shape), "a")[-1], {"a": A})
        mine = X.copy()
        future = run.submit(x=mine)
        assert device.waiting.acquire(timeout=LIMIT_S)  # it is under way ...
        mine[:] = -1  # ... while the caller goes on
        assert not future.done()
        device.gate.set()
        assert np.array_equal(future.result(LIMIT_S), X + 1)


def test_12_synchronize_waits_for_all_that_was_submitted(devices: list[str]) -> None:
    with vs.Scheduler(devices, copies=2) as sched:
        x = vs.input("x", X.shape)
        one, two = sched.compile(x + 1.0), sched.compile(x * 2.0)
        futures = [one.submit(x=X * i) for i in range(4)]
        one.synchronize()
        assert all(f.done() for f in futures)
        more = [run.submit(x=X) for run in (one, two, one, two)]
        sched.synchronize()
        assert all(f.done() for f in more)
        for i, future in enumerate(futures):
            assert np.array_equal(future.result(0), X * i + 1)
        assert np.array_equal(more[1].result(0), X * 2)
        sched.synchronize()  # with nothing under way it returns at once


def test_12_futures_of_several_graphs_on_every_set(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        x = vs.input("x", X.shape)
        one, two = sched.compile(x + 1.0), sched.compile([x * 2.0, x - 1.0])
        first, second = one.submit(x=X), two.submit(x=X)
        double, less = second.result(LIMIT_S)
        assert np.array_equal(double, X * 2) and np.array_equal(less, X - 1)
        assert np.array_equal(first.result(LIMIT_S), X + 1)
