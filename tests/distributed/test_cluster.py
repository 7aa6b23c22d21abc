"""Plans over several hosts, in one process: the numbers of one computer, and what failures mean."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from cut_plans import HOSTS, spread
from graphs import (
    A,
    B,
    C,
    chain,
    make_plan,
    make_topology,
    numpy_outputs,
    random_outputs,
    transformer,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_hosts import Cluster, MemoryHost, lost
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.common.errors import (
    DeviceError,
    DeviceLost,
    DeviceTimeout,
    HostLost,
    PlanError,
    RunAborted,
)
from vksched.distributed.driver.first_error import FirstError
from vksched.distributed.protocols import RunKey
from vksched.distributed.worker import sending
from vksched.engine.device_set import DeviceSet
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.plan.plan import Plan
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.runtime.executors.base_executor import CommitFailed, ExecutorClosed
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.executors.plan_executor import PlanExecutor
from vksched.runtime.run_stats import RunStats
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

X = np.arange(8 * 64, dtype=np.float32).reshape(8, 64) / 64
TWO = ("node1", "node2")
seeds = st.integers(0, 1 << 32)
Make = Callable[[str, str], Device]


def null_devices(plan: Plan, faulty: Mapping[str, tuple[int, str, str]] | None = None) -> Make:
    """Make devices that compute with numpy; some fail: (at, kind, call) by full name."""

    def make(host: str, name: str) -> Device:
        if name == "cpu":
            return CpuDevice(DeviceSpec("cpu", "cpu", "numpy"))
        full = f"{host}/{name}" if host else name
        spec = plan.topology.devices[plan.topology.index(full)]
        device: Device = vs.SimulatedDevice(replace(spec, name=name), vs.SimulatedClock())
        if faulty is None or full not in faulty:
            return device
        at, kind, call = faulty[full]
        return vs.FaultInjectionDevice(device, at, kind, call)

    return make


def feeds_of(plan: Plan, seed: int = 0) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {n.name: rng.standard_normal(n.type.shape).astype(np.float32) for n in plan.graph.inputs}


def assert_same(got: Sequence[NDArray], expected: Sequence[NDArray]) -> None:
    for one, two in zip(got, expected, strict=True):
        assert one.dtype == two.dtype and np.array_equal(one, two, equal_nan=True)


def topology_of_three() -> Topology:
    """A device and a CPU on each of two nodes, and both here."""
    names = ["node1/null:0", "node1/cpu", "node2/null:0", "node2/cpu", "null:0", "cpu"]
    specs = [DeviceSpec(name, "cpu" if name.endswith("cpu") else "null") for name in names]
    return Topology(tuple(specs)).verify()


# -- the numbers of one computer -------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(25))
@given(seeds, st.integers(1, 30), st.lists(st.sampled_from(HOSTS), min_size=1, max_size=4))
def test_random_graphs_over_hosts_give_the_numbers_of_numpy(
    seed: int, count: int, hosts: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, count))
    topology = make_topology(4)
    pins = [(n.id, f"null:{int(rng.integers(0, 4))}") for n in graph.ops if rng.random() < 0.4]
    plan = spread(vs.plan_graph(graph, topology, overrides=pins), hosts)
    check_runs(plan, feeds_of(plan, seed))


@settings(deadline=None, max_examples=examples(25))
@given(seeds, st.integers(1, 30))
def test_random_graphs_over_hosts_with_cpus_give_the_numbers_of_numpy(
    seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, count))
    names = [spec.name for spec in topology_of_three().devices]
    pins = [(n.id, names[int(rng.integers(0, 6))]) for n in graph.ops if rng.random() < 0.5]
    plan = vs.plan_graph(graph, topology_of_three(), overrides=pins)
    check_runs(plan, feeds_of(plan, seed))


def check_runs(plan: Plan, feeds: Mapping[str, NDArray]) -> None:
    expected = numpy_outputs(plan.graph, feeds)
    with Cluster(plan, null_devices(plan)) as cluster:
        for small_bytes in (sending.SMALL_BYTES, -1):  # by the walk, and by threads
            with patch.object(sending, "SMALL_BYTES", small_bytes):
                assert_same(cluster.run(feeds), expected)
        assert not cluster.network.values, "what was sent was taken"


@pytest.mark.parametrize("hosts", [TWO, ("node1", "", "node2"), ("a", "b", "c", "d", "e")])
def test_a_transformer_over_hosts_gives_the_numbers_of_one_process(hosts: tuple[str, ...]) -> None:
    outputs, _ = transformer(5)
    graph, _ = vs.build_graph(outputs)
    pins = [(f"layer.{i}.*", f"null:{i}") for i in range(5)]
    plan = vs.plan_graph(graph, make_topology(5), overrides=pins)
    feeds = feeds_of(plan)
    clock = vs.SimulatedClock()
    one: list[Device] = [vs.SimulatedDevice(s, clock) for s in plan.topology.devices[:-1]]
    both = [*one, CpuDevice(plan.topology.devices[-1])]
    alone = PlanExecutor(plan, ExecutorContext(both, vs.Trace(), 30.0))
    expected = alone.run({n.id: feeds[n.name] for n in plan.graph.inputs}).outputs
    alone.close()
    with Cluster(spread(plan, hosts), null_devices(spread(plan, hosts))) as cluster:
        assert_same(cluster.run(feeds), expected)


def test_drivers_on_two_hosts_give_the_numbers_of_one_process(two_devices: list[str]) -> None:
    opened = DeviceSet()
    opened.open(two_devices)
    try:
        one, two, *_ = (device.name for device in opened.devices)
        graph, _ = vs.build_graph(transformer(2)[0])
        topology = Topology(tuple(device.spec for device in opened.devices))
        pins = [("layer.0.*", one), ("layer.1.*", two)]
        plan = vs.plan_graph(graph, topology, overrides=pins, copies=2)
        feeds = feeds_of(plan)
        alone = PlanExecutor(plan, ExecutorContext(opened.devices, vs.Trace(), 60.0))
        expected = alone.run({n.id: feeds[n.name] for n in graph.inputs}).outputs
        alone.close()

        def make(host: str, name: str) -> Device:
            if name == "cpu":
                return CpuDevice(DeviceSpec("cpu", "cpu", "numpy"))
            return next(device for device in opened.devices if device.name == name)

        with Cluster(spread(plan, TWO), make, timeout_s=60.0) as cluster:
            for small_bytes in (sending.SMALL_BYTES, -1):
                with patch.object(sending, "SMALL_BYTES", small_bytes):
                    assert_same(cluster.run(feeds), expected)
    finally:
        opened.close()


def test_values_go_straight_from_host_to_host() -> None:
    plan = spread(make_plan(*chain([A, B, A])), TWO)
    with Cluster(plan, null_devices(plan)) as cluster:
        cluster.run({"x": X})
        assert [ends[:2] for ends in cluster.network.messages] == [
            ("node1", "node2"),
            ("node2", "node1"),
            ("node1", ""),
        ]


def test_runs_of_several_slots_go_on_side_by_side() -> None:
    plan = spread(make_plan(*chain([A, B, C, A]), copies=3), ("node1", "node2", ""))
    with Cluster(plan, null_devices(plan)) as cluster, ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(cluster.run, {"x": X + i}) for i in range(24)]
        for i, each in enumerate(asked):
            assert np.array_equal(each.result()[0], X + i + 4)


def test_stats_have_the_splits_of_all_hosts_with_the_numbers_of_the_plan() -> None:
    plan = spread(make_plan(*chain([A, B, A])), TWO)
    recorder = vs.Recorder()
    trace = vs.Trace(sinks=[recorder])
    with Cluster(plan, null_devices(plan), trace=trace) as cluster:
        cluster.run({"x": X})
        stats = cluster.executor.last_stats
    assert stats is not None
    assert [(s.split, s.device) for s in stats.splits] == [
        (0, "node1/null:0"),
        (1, "node2/null:1"),
        (2, "node1/null:0"),
    ]
    assert stats.transfer_bytes == 2 * X.nbytes and stats.input_bytes == X.nbytes
    assert stats.output_bytes == X.nbytes and stats.fence_waits == 3
    assert [event.fields["split"] for event in recorder.select("split")] == [0, 1, 2]


# -- states and observers --------------------------------------------------------------------------


def counting(hosts: Sequence[str] = TWO, backup: bool = False) -> Plan:
    """Two states on two devices: s adds x to itself, t adds s to itself; y is what both were."""
    x = vs.input("x", (8, 64))
    s, t = (vs.state(np.zeros((8, 64), np.float32), name, backup=backup) for name in "st")
    y = vs.add(s, t, name="y")
    graph, ids = vs.build_graph(
        [y], updates={s: vs.add(s, x, name="more"), t: vs.add(t, s, name="sum")}
    )
    pins = [(ids[s], A), ("more", A), (ids[t], B), ("sum", B), ("y", C)]
    return spread(vs.plan_graph(graph, make_topology(3), overrides=pins), (*hosts, "node3"))


@pytest.mark.parametrize("backup", [False, True])
def test_states_of_several_hosts_are_written_together(backup: bool) -> None:
    plan = counting(backup=backup)
    with Cluster(plan, null_devices(plan)) as cluster:
        s, t = np.zeros_like(X), np.zeros_like(X)
        for _ in range(3):
            results = cluster.executor.run({n.id: X for n in plan.graph.inputs})
            assert np.array_equal(results.outputs[0], s + t)
            s, t = s + X, t + s
            assert np.array_equal(cluster.state("s"), s) and np.array_equal(cluster.state("t"), t)
            if backup:
                assert_same(results.next_states, [s, t])


@pytest.mark.parametrize("device", ["node1/null:0", "node2/null:1", "node3/null:2"])
def test_a_run_that_fails_anywhere_changes_no_state(device: str) -> None:
    plan = counting()
    with Cluster(plan, null_devices(plan, {device: (0, "lost", "wait")})) as cluster:
        with pytest.raises(DeviceLost) as caught:
            cluster.run({"x": X})
        assert caught.value.device == device
        for name in "st":
            home = plan.topology.devices[plan.placements[node_of(plan, name)].device].name
            if home != device:
                assert not cluster.state(name).any()


def node_of(plan: Plan, name: str) -> int:
    return next(n.id for n in plan.graph.nodes if n.name == name)


def test_a_host_that_does_not_say_that_it_has_committed_may_have_torn_states() -> None:
    plan = counting()
    with Cluster(plan, null_devices(plan)) as cluster:
        host = cluster.hosts["node1"]
        commit = host.commit
        host.commit = lambda run: (cluster.network.mark_lost("node1"), commit(run))[1]  # type: ignore[method-assign]
        with pytest.raises(CommitFailed) as caught:
            cluster.run({"x": X})
        assert isinstance(caught.value.cause, HostLost) and caught.value.cause.host == "node1"
        torn = {plan.topology.devices[d].name for d in caught.value.devices}
        assert torn == {"node1/null:0"}
        assert np.array_equal(caught.value.results.outputs[0], np.zeros_like(X))
        assert cluster.executor.is_shut_down


@pytest.mark.parametrize("at", ["node1", "node2"])
def test_an_interrupt_between_two_commits_leaves_all_states_written(at: str) -> None:
    plan = counting()
    with Cluster(plan, null_devices(plan)) as cluster:
        host = cluster.hosts[at]
        commit, asked = host.commit, list[RunKey]()

        def interrupted(run: RunKey) -> None:
            asked.append(run)
            if len(asked) == 1:
                raise KeyboardInterrupt
            commit(run)

        host.commit = interrupted  # type: ignore[method-assign]
        with pytest.raises(CommitFailed) as caught:
            cluster.run({"x": X})
        assert isinstance(caught.value.cause, KeyboardInterrupt) and not caught.value.devices
        assert np.array_equal(cluster.state("s"), X) and not cluster.state("t").any()
        assert np.array_equal(cluster.run({"x": X})[0], X)


def test_observers_see_values_of_other_hosts_and_may_stop_the_run() -> None:
    outputs, placement = chain([A, B, A])
    graph, ids = vs.build_graph(outputs)
    seen = [n.id for n in graph.nodes if n.name in ("n0", "n1")]
    plan = spread(
        vs.plan_graph(graph, make_topology(2), overrides=[*placement.items()], observed=seen), TWO
    )
    reported: list[tuple[str, NDArray]] = []
    with Cluster(plan, null_devices(plan)) as cluster:
        feeds = {n.id: X for n in graph.inputs}
        watch = {n: [lambda name, value: reported.append((name, value))] for n in seen}
        cluster.executor.run(feeds, watch)
        assert [name for name, _ in reported] == ["n0", "n1"]
        assert_same([value for _, value in reported], [X + 1, X + 2])
        with pytest.raises(vs.RunCancelled):
            cluster.executor.run(feeds, {seen[1]: [lambda name, value: False]})
        assert np.array_equal(cluster.run({"x": X})[0], X + 3), "the slot is free again"


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost", "timeout", "sequence", "memory", "error"])
@pytest.mark.parametrize("device", ["node1/null:0", "node2/null:1", "null:2"])
def test_a_device_that_fails_is_named_wherever_it_is(device: str, kind: str) -> None:
    plan = spread(make_plan(*chain([A, B, C, A])), ("node1", "node2", ""))
    with Cluster(plan, null_devices(plan, {device: (0, kind, "submit")})) as cluster:
        with pytest.raises(DeviceError) as caught:
            cluster.run({"x": X})
        assert caught.value.device == device and caught.value.during
        assert {fault.device for fault in cluster.executor.take_faults()} == {device}
        with pytest.raises(ExecutorClosed):
            cluster.run({"x": X})


@pytest.mark.parametrize("device", ["node1/null:0", "node2/null:1", "null:2"])
def test_a_device_that_fails_while_it_is_prepared_leaves_nothing(device: str) -> None:
    plan = spread(make_plan(*chain([A, B, C])), ("node1", "node2", ""))
    with pytest.raises(DeviceLost) as caught:
        Cluster(plan, null_devices(plan, {device: (0, "lost", "prepare")}))
    assert (caught.value.device, caught.value.during) == (device, "preparing")


@pytest.mark.parametrize("by_threads", [False, True])
@pytest.mark.parametrize("message", range(3))
@pytest.mark.parametrize("host", TWO)
def test_a_host_that_is_lost_at_any_message_is_named_and_all_its_devices_are_out(
    host: str, message: int, by_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SMALL_BYTES", -1 if by_threads else sending.SMALL_BYTES)
    plan = spread(make_plan(*chain([A, B, A, B, A, C])), (*TWO, ""))
    with Cluster(plan, null_devices(plan)) as cluster:
        cluster.run({"x": X})
        sent = sum(source == host for source, _, _ in cluster.network.messages)
        cluster.network.fails_at = host, sent + min(message, sent - 1)
        with pytest.raises(HostLost) as caught:
            cluster.run({"x": X})
        assert caught.value.host == host and caught.value.device.startswith(f"{host}/")
        faults = cluster.executor.take_faults()
        assert [f.device for f in faults] == [f"{host}/null:{TWO.index(host)}"]
        assert cluster.executor.is_shut_down


def test_a_host_that_is_lost_before_a_run_or_between_two_is_named() -> None:
    plan = spread(make_plan(*chain([A, B])), TWO)
    with Cluster(plan, null_devices(plan)) as cluster:
        cluster.network.mark_lost("node2")
        with pytest.raises(HostLost) as caught:
            cluster.run({"x": X})
        assert caught.value.host == "node2"


def test_a_host_that_says_nothing_is_out_of_use_after_the_time_allowed() -> None:
    for text in ("ready", "done"):
        plan = counting()
        with Cluster(plan, null_devices(plan)) as cluster:
            cluster.hosts["node1"].mute = frozenset({text})
            failure = DeviceTimeout if text == "ready" else CommitFailed
            with pytest.raises(failure) as caught:
                cluster.run({"x": X})
            cause = caught.value.cause if text == "done" else caught.value
            assert isinstance(cause, DeviceTimeout) and cause.host == "node1"
            assert cluster.executor.is_shut_down and cluster.state("s").any() == (text == "done")
            kinds = {type(fault) for fault in cluster.executor.take_faults()}
            assert kinds == {DeviceLost}  # not HostLost, of which nobody would see that it is back


def test_data_that_is_at_fault_on_one_host_leaves_all_slots_usable() -> None:
    table, at = vs.input("table", (8, 64)), vs.input("at", (4,), "int32")
    y = vs.add(vs.gather(vs.exp(table, name="a"), at, name="b"), 1.0, name="c")
    plan = spread(make_plan([y], {"a": A, "b": B, "c": A}), TWO)
    right, wrong = np.zeros(4, np.int32), np.full(4, 99, np.int32)
    with Cluster(plan, null_devices(plan)) as cluster:
        for _ in range(3):
            with pytest.raises(vs.IndexOutOfRange):
                cluster.run({"table": X, "at": wrong})
            assert np.array_equal(cluster.run({"table": X, "at": right})[0], np.exp(X[right]) + 1)
        assert not cluster.network.values and not cluster.network.aborted


def test_an_interrupted_run_leaves_its_slot_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vksched.distributed.driver.cluster_executor.INTERRUPTED_S", 30.0
    )  # on a busy machine, too
    plan = spread(make_plan(*chain([A, B, C])), ("node1", "node2", ""))
    with Cluster(plan, null_devices(plan)) as cluster:
        start = cluster.hosts["node2"].start

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        cluster.hosts["node2"].start = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            cluster.run({"x": X})
        cluster.hosts["node2"].start = start  # type: ignore[method-assign]
        assert np.array_equal(cluster.run({"x": X})[0], X + 3)


def test_a_run_that_is_interrupted_twice_takes_the_plan_out_of_use() -> None:
    plan = spread(make_plan(*chain([A, B])), TWO)
    with Cluster(plan, null_devices(plan)) as cluster:
        host = cluster.hosts["node2"]

        def interrupted(*_: object) -> RunStats:
            raise KeyboardInterrupt

        finish = host.finish
        host.start = host.finish = interrupted  # type: ignore[assignment, method-assign]
        with pytest.raises(KeyboardInterrupt):
            cluster.run({"x": X})
        host.finish = finish  # type: ignore[method-assign]
        with pytest.raises(ExecutorClosed):
            cluster.run({"x": X})


def test_a_run_that_waits_for_a_caller_who_has_left_it_ends_with_its_plan() -> None:
    plan = counting()
    with Cluster(plan, null_devices(plan)) as cluster:
        host, left = cluster.hosts["node1"], RunKey(cluster.executor._plan_number, 0, 99)
        host.start(left, dict.fromkeys(host.prepared[0].inputs, X), lambda error: None)
        host.ready(left, 30.0)
        host.release_plan(left.plan)
        with pytest.raises(RunAborted):
            host.finish(left, 30.0)
        assert not cluster.state("s").any()


def test_a_part_that_is_ready_after_its_caller_has_left_is_refused() -> None:
    plan = spread(make_plan(*chain([A, B])), TWO)
    with Cluster(plan, null_devices(plan)) as cluster:
        host = cluster.hosts["node1"]
        host.parts.close()
        with pytest.raises(RunAborted, match="the driver has gone"):
            host.prepare(1, host.prepared[0])


def test_what_progress_raises_is_the_callers_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, retired = spread(make_plan(*chain([A, B])), TWO), []
    monkeypatch.setattr(MemoryHost, "release_plan", lambda host, number: retired.append(host.name))

    def prepare(host: MemoryHost, number: int, part: HostPlan, progress: Progress | None) -> None:
        assert progress is not None
        progress("weights", 1, 2)

    def stop(*_: object) -> None:
        raise DeviceLost("[x] not a device's")

    monkeypatch.setattr(MemoryHost, "prepare", prepare)
    with pytest.raises(PlanError, match="the callback failed"):
        Cluster(plan, null_devices(plan), progress=stop)
    assert sorted(retired) == ["node1", "node2"]


def test_nothing_of_a_closed_cluster_is_left() -> None:
    before = threading.active_count()
    plan = spread(make_plan(*chain([A, B, C])), TWO)
    with Cluster(plan, null_devices(plan)) as cluster:
        cluster.run({"x": X})
    assert threading.active_count() <= before
    with pytest.raises(ExecutorClosed):
        cluster.run({"x": X})


def test_memory_is_released_once_however_often_a_plan_is_closed() -> None:
    plan, recorder = spread(make_plan(*chain([A, B, C])), TWO), vs.Recorder()
    with Cluster(plan, null_devices(plan), trace=vs.Trace(sinks=[recorder])) as cluster:
        cluster.run({"x": X})
        cluster.executor.close()
        cluster.executor.close()
    prepared, freed = ([e.device for e in recorder.select(name)] for name in ("prepare", "release"))
    assert len(prepared) == 3 and sorted(freed) == sorted(prepared)


FAULTS = [
    ("lost", "stage", 1),
    ("lost", "submit", 5),
    ("error", "wait", 3),
    ("lost", "check", 0),
    ("memory", "fetch", 4),
    ("timeout", "submit", 2),
    ("sequence", "submit", 7),
]


@pytest.mark.parametrize(("kind", "call", "at"), FAULTS)
@pytest.mark.parametrize("device", ["node1/null:0", "node2/null:1", "null:2"])
def test_runs_side_by_side_give_right_numbers_or_blame_the_device(
    device: str, kind: str, call: str, at: int
) -> None:
    plan = spread(make_plan(*chain([A, B, C, A, B, C]), copies=3), (*TWO, ""))
    faulty = {device: (at, kind, call)}
    with Cluster(plan, null_devices(plan, faulty)) as cluster, ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(cluster.run, {"x": X + i}) for i in range(12)]
        failed = 0
        for i, each in enumerate(asked):
            error = each.exception()
            if error is None:
                assert np.array_equal(each.result()[0], X + i + 6)
            elif not isinstance(error, ExecutorClosed):
                assert isinstance(error, DeviceError) and error.device == device
                failed += 1
        assert failed, "the one that met the fault is told so"


# -- whose fault it is -----------------------------------------------------------------------------


def of(host: str, error: DeviceError) -> DeviceError:
    error.host = host
    return error


@pytest.mark.parametrize("swapped", [False, True])
def test_the_first_cause_goes_before_its_echoes(swapped: bool) -> None:
    chains: list[list[tuple[str, BaseException]]] = [
        [("node1", DeviceLost("gone")), ("node2", of("node1", HostLost("gone")))],
        [("node1", lost("node1")), ("node2", lost("node1")), ("", RunAborted())],
        [("node2", lost("node1")), ("node3", of("node2", DeviceTimeout("late")))],
        [("node3", of("node2", DeviceTimeout("late"))), ("", RunAborted())],
        [("", KeyboardInterrupt()), ("node1", RunAborted())],
        [("node1", vs.IndexOutOfRange("at")), ("node2", RunAborted()), ("", RunAborted())],
    ]
    for reported in chains:
        first_error = FirstError()
        for host, error in reported[::-1] if swapped else reported:
            first_error.add(host, error)
        assert first_error.cause() is reported[0][1]
