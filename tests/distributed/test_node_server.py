"""Nodes carry out parts for drivers, over real connections of this computer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest
from cut_plans import spread
from graphs import A, B, chain, make_plan
from host_schedules import Registry, Walker, walk

import vksched as vs
import vksched.distributed.driver.client as client_module
from vksched.common.dtypes import NDArray
from vksched.common.errors import (
    DeviceError,
    DeviceTimeout,
    HostLost,
    OutOfMemory,
    RunAborted,
)
from vksched.distributed.driver.client import RemoteWorker, RemoteWorkers
from vksched.distributed.protocols import Driver, RunKey, TensorTransport
from vksched.distributed.wire.stats_codec import RemoteDeviceInfo
from vksched.distributed.wire.tls import Security, place_text
from vksched.distributed.worker.local_weights import ModelFolders
from vksched.distributed.worker.server import Server
from vksched.distributed.worker.session import WorkerContext
from vksched.distributed.worker.weight_cache import WeightCache
from vksched.distributed.worker.weight_registry import WeightRegistry
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.planner.partition.host_partition import cut
from vksched.runtime.executors.base_executor import CommitFailed, RunResult
from vksched.runtime.run_stats import RunStats, SplitStats
from vksched.runtime.simulated.simulated_device import SimulatedDevice
from vksched.runtime.simulated_clock import SimulatedClock
from vksched.topology.device_spec import DeviceSpec
from vksched.trace.events import Event, SystemClock

WAIT_S = 60.0
LOOPBACK = ("127.0.0.1", 0)


class Cluster:
    """Two nodes in this process, each with its threads, and a driver; all over sockets."""

    def __init__(
        self, folder: Path, kind: str = "tls", names: tuple[str, ...] = ("node1", "node2")
    ):
        self.security, self.registry = Security(clusters.make_credentials(), kind), Registry()
        self.walkers: dict[str, list[Walker]] = {name: [] for name in (*names, "other")}
        self.devices = {
            name: [
                SimulatedDevice(DeviceSpec(d, "null"), SimulatedClock())
                for d in ("null:0", "null:1")
            ]
            for name in (*names, "other")
        }
        self.servers = {name: self.serve(name, folder / name) for name in names}
        self.nodes = self.driver()
        self.hosts = {name: self.connect(self.nodes, name) for name in names}

    def serve(self, name: str, folder: Path) -> Server:
        def begin(transport: TensorTransport, driver: Driver) -> Walker:
            self.walkers[name].append(Walker(transport, driver))
            return self.walkers[name][-1]

        cache, clock = WeightCache(folder), SystemClock()
        tell = partial(self.tell, name)
        here = WorkerContext(
            name,
            self.devices[name],
            tell,
            self.security,
            self.registry,
            cache,
            ModelFolders(),
            clock,
            begin,
        )
        return Server(here, LOOPBACK)

    def tell(self, name: str) -> list[RemoteDeviceInfo]:
        return [RemoteDeviceInfo(device.spec, device.link) for device in self.devices[name]]

    def driver(self) -> RemoteWorkers:
        return RemoteWorkers(self.security, self.registry, SystemClock())

    def connect(self, nodes: RemoteWorkers, name: str) -> RemoteWorker:
        return nodes.connect(place_text(self.servers[name].address))

    def prepare(
        self, plan: vs.Plan, number: int = 1, hosts: dict[str, RemoteWorker] | None = None
    ) -> HostPlan:
        """Cut a plan, prepares the parts of the nodes and returns the driver's."""
        driver, *parts = cut(spread(plan, ("node1", "node2")))
        for part in parts:
            (hosts or self.hosts)[part.host].prepare(number, part)
        self.parts = {part.host: part for part in parts}
        return driver

    def close(self) -> None:
        self.nodes.close()
        for server in self.servers.values():
            server.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


class Heard:
    """Whom a run tells that it failed."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.there = threading.Event()

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        self.there.set()


def run_once(cluster: Cluster, driver: HostPlan, run: RunKey, x: NDArray) -> list[NDArray]:
    heard = Heard()
    for name, part in cluster.parts.items():
        feeds = dict.fromkeys(part.inputs, x)
        cluster.hosts[name].start(run, feeds, heard)
    out = walk(driver, run, {}, cluster.nodes.transport)
    for name in cluster.parts:
        stats = cluster.hosts[name].finish(run, WAIT_S).stats
        assert (stats.run, stats.seconds) == (run.sequence_number, 0.5)
    assert heard.errors == []
    return out


def plan_of_two() -> vs.Plan:
    return make_plan(*chain([A, B, A]))


def expected(plan: vs.Plan, x: NDArray) -> NDArray:
    (part,) = cut(plan)
    (out,) = walk(part, RunKey(0, 0, 0), dict.fromkeys(part.inputs, x), _Nobody())
    return out


class _Nobody:
    """A TensorTransport for plans of one host."""

    def end(self, run: RunKey) -> None:
        return None

    send = take = abort = None


def fed(plan: vs.Plan, rng: np.random.Generator) -> NDArray:
    (node,) = [node for node in plan.graph.nodes if node.op == "input"]
    return rng.standard_normal(node.type.shape, np.float32)


@pytest.mark.parametrize("kind", ["tls", "plain"])
def test_values_go_from_node_to_node_and_end_with_the_caller(
    tmp_path: Path, kind: str, rng: np.random.Generator
) -> None:
    cluster = Cluster(tmp_path, kind)
    try:
        plan = plan_of_two()
        driver = cluster.prepare(plan)
        for sequence_number in range(3):
            x = fed(plan, rng)
            (out,) = run_once(cluster, driver, RunKey(1, 0, sequence_number), x)
            assert np.array_equal(out, expected(plan, x))
    finally:
        cluster.close()


def test_runs_of_several_slots_and_plans_do_not_wait_for_each_other(
    cluster: Cluster, rng: np.random.Generator
) -> None:
    plans = {number: make_plan(*chain([A, B, A]), copies=3) for number in (1, 2)}
    drivers = {number: cluster.prepare(plan, number) for number, plan in plans.items()}
    x = fed(plans[1], rng)
    want = expected(plans[1], x)
    runs = [
        RunKey(n, slot, sequence_number)
        for sequence_number in range(4)
        for n in (1, 2)
        for slot in range(3)
    ]

    def work(number: int, slot: int) -> bool:
        mine = [run for run in runs if run[:2] == (number, slot)]
        return all(
            np.array_equal(run_once(cluster, drivers[number], run, x)[0], want) for run in mine
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, [1, 1, 1, 2, 2, 2], [0, 1, 2] * 2))


def test_a_failure_is_reported_at_once_and_arrives_as_what_it_was(cluster: Cluster) -> None:
    plan = plan_of_two()
    cluster.prepare(plan)
    error = OutOfMemory("[x] no room")
    error.device = "node1/null:0"
    cluster.walkers["node1"][0].fails = error
    heard, run = Heard(), RunKey(1, 0, 0)
    x = np.zeros(fed(plan, np.random.default_rng(0)).shape, np.float32)
    for name, part in cluster.parts.items():
        cluster.hosts[name].start(run, dict.fromkeys(part.inputs, x), heard)
    assert heard.there.wait(WAIT_S)
    assert heard.errors[0].device == "node1/null:0"  # type: ignore[attr-defined]
    cluster.hosts["node2"].abort(run)
    with pytest.raises(OutOfMemory, match="no room"):
        cluster.hosts["node1"].finish(run, WAIT_S)
    with pytest.raises(RunAborted):
        cluster.hosts["node2"].finish(run, WAIT_S)


def test_torn_states_are_reported_with_their_devices(cluster: Cluster) -> None:
    plan = plan_of_two()
    cluster.prepare(plan)
    cause = DeviceError("[x] half")
    cluster.walkers["node1"][0].fails = CommitFailed(cause, RunResult(()), frozenset([0]))
    part, run = cluster.parts["node1"], RunKey(1, 0, 0)
    x = np.zeros(fed(plan, np.random.default_rng(0)).shape, np.float32)
    cluster.hosts["node1"].start(run, dict.fromkeys(part.inputs, x), Heard())
    with pytest.raises(CommitFailed, match="half") as caught:
        cluster.hosts["node1"].finish(run, WAIT_S)
    assert caught.value.devices == {0}


def test_a_part_names_those_it_talks_to_and_any_number_of_them(
    cluster: Cluster, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 2,000 nodes has more bytes than the fields of a message may have."""
    hosts, named = RemoteWorkers.hosts, []

    def many(self: RemoteWorkers, at: RemoteWorker, names: Iterable[str]) -> dict[str, list[str]]:
        named.append(set(names))
        found = hosts(self, at, named[-1])
        return {f"other{at}": ["127.0.0.1:1", "0" * 32] for at in range(2000)} | found

    monkeypatch.setattr(RemoteWorkers, "hosts", many)
    plan = plan_of_two()
    driver = cluster.prepare(plan)
    others = [{s.host for s in part.walk()} for part in cluster.parts.values()]
    assert named == others and {"node1"} in others
    x = fed(plan, rng)
    (out,) = run_once(cluster, driver, RunKey(1, 0, 0), x)
    assert np.array_equal(out, expected(plan, x))


@pytest.mark.parametrize("split", [-1, 99])
def test_a_node_that_tells_times_of_no_split_is_lost(cluster: Cluster, split: int) -> None:
    plan = plan_of_two()
    cluster.prepare(plan)
    run, node = RunKey(1, 0, 0), cluster.hosts["node1"]
    stats = RunStats(0, 0.5, 1, 2, 3, 4, 5, (SplitStats(split, "null:0", 1, 0.5),))
    cluster.walkers["node1"][0].driver.done(run, stats, ())
    with pytest.raises(HostLost, match="expected times of splits of the plan"):
        for _ in range(1000):
            node.channel.ask("clock", {}, (), WAIT_S)


@pytest.mark.parametrize("wrong", [{"needed_by": -2}, {"needed_by": 99}, {"node": -1}])
def test_a_node_that_tells_events_of_no_split_is_lost(
    cluster: Cluster, wrong: dict[str, int]
) -> None:
    cluster.prepare(plan_of_two())
    node, stats = cluster.hosts["node1"], RunStats(0, 0.5, 1, 2, 3, 4, 5)
    about = {"node": 0, "bytes": 1, "of": "host", "needed_by": -1, **wrong}
    took = Event("recv", "host", 0.0, 1.0, fields=about)
    cluster.walkers["node1"][0].driver.done(RunKey(1, 0, 0), stats, (took,))
    with pytest.raises(HostLost, match="expected times of splits of the plan"):
        for _ in range(1000):
            node.channel.ask("clock", {}, (), WAIT_S)


def test_a_node_that_is_gone_fails_its_runs_and_nobody_waits(cluster: Cluster) -> None:
    plan = plan_of_two()
    driver = cluster.prepare(plan)
    for walker in cluster.walkers["node1"]:
        walker.hold.clear()
    heard, run = Heard(), RunKey(1, 0, 0)
    x = np.zeros(fed(plan, np.random.default_rng(0)).shape, np.float32)
    for name, part in cluster.parts.items():
        cluster.hosts[name].start(run, dict.fromkeys(part.inputs, x), heard)
    cluster.servers["node1"].close()
    assert heard.there.wait(WAIT_S)
    with pytest.raises(HostLost) as caught:
        cluster.hosts["node1"].finish(run, WAIT_S)
    assert caught.value.host == "node1"
    with pytest.raises(HostLost):
        cluster.hosts["node1"].prepare(2, cluster.parts["node1"])
    cluster.hosts["node2"].abort(run)
    with pytest.raises((RunAborted, HostLost)):
        cluster.hosts["node2"].finish(run, WAIT_S)
    assert driver.taken and cluster.hosts["node1"].error is not None


def test_a_node_that_comes_back_is_connected_again(
    cluster: Cluster, tmp_path: Path, rng: np.random.Generator
) -> None:
    cluster.servers["node1"].close()
    while cluster.hosts["node1"].error is None:
        pass
    cluster.servers["node1"] = cluster.serve("node1", tmp_path / "node1")
    cluster.hosts["node1"] = cluster.connect(cluster.nodes, "node1")
    plan = plan_of_two()
    driver = cluster.prepare(plan, 7)
    x = fed(plan, rng)
    (out,) = run_once(cluster, driver, RunKey(7, 0, 0), x)
    assert np.array_equal(out, expected(plan, x))


def test_a_caller_that_connects_again_starts_anew(
    cluster: Cluster, rng: np.random.Generator
) -> None:
    plan = plan_of_two()
    x = fed(plan, rng)
    for _ in range(3):
        driver = cluster.prepare(plan)
        run_once(cluster, driver, RunKey(1, 0, 0), x)
        cluster.hosts["node1"].close()
        cluster.hosts["node1"] = cluster.connect(cluster.nodes, "node1")
        cluster.hosts["node2"].release_plan(1)
    assert cluster.servers["node1"].drivers == 1


def test_what_a_gone_caller_had_is_freed(cluster: Cluster) -> None:
    plan, key = plan_of_two(), object()
    cluster.prepare(plan)
    device = cluster.hosts["node1"].devices[0]
    device.states.add([(key, np.ones(3, np.float32))])
    assert len(cluster.devices["node1"][0].states.keys()) == 1
    for walker in (*cluster.walkers["node1"], *cluster.walkers["node2"]):
        walker.hold.clear()
    x = np.zeros(fed(plan, np.random.default_rng(0)).shape, np.float32)
    part = cluster.parts["node1"]
    cluster.hosts["node1"].start(RunKey(1, 0, 0), dict.fromkeys(part.inputs, x), Heard())
    cluster.nodes.close()
    for name, server in cluster.servers.items():
        server.wait_until_free()
        assert cluster.walkers[name][0].closed.is_set()
    assert cluster.devices["node1"][0].states.keys() == ()
    again = cluster.driver()
    assert cluster.connect(again, "node1").devices[0].spec.name == "node1/null:0"
    again.close()


def test_two_callers_have_plans_of_their_own(cluster: Cluster, rng: np.random.Generator) -> None:
    other = cluster.driver()
    hosts = {name: cluster.connect(other, name) for name in cluster.servers}
    plan = plan_of_two()
    driver = cluster.prepare(plan, 1)
    cluster.prepare(make_plan(*chain([A, B])), 1, hosts)
    cluster.prepare(plan, 2)
    x = fed(plan, rng)
    (out,) = run_once(cluster, driver, RunKey(1, 0, 0), x)
    assert np.array_equal(out, expected(plan, x))
    other.close()


def test_states_live_on_a_device_of_a_node(cluster: Cluster) -> None:
    device = cluster.hosts["node1"].devices[1]
    states, keys = device.states, [object(), object(), object()]
    values = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.broadcast_to(np.float16(0), (1000, 1000)),
        np.array(True),
    ]
    states.add(zip(keys, values, strict=True))
    assert states.keys() == tuple(keys)
    for key, value in zip(keys, values, strict=True):
        assert device.holds(key)
        read = states.read(key)
        assert read.dtype == value.dtype and np.array_equal(read, value)
    states.write(keys[0], np.asfortranarray(values[0] * 2))
    assert np.array_equal(states.read(keys[0]), values[0] * 2)
    for wrong in (values[0].T, np.zeros((2, 4), np.float32), values[0].astype(np.int32)):
        with pytest.raises(DeviceError, match=r"expected float32\[2,3\] for"):
            states.write(keys[0], wrong)
    states.remove(keys[0])
    states.remove(object())
    assert not states.holds(keys[0])
    assert set(cluster.nodes._state_names) == set(keys[1:])
    assert len(cluster.devices["node1"][1].states.keys()) == 2
    assert cluster.devices["node1"][0].states.keys() == ()


def test_any_number_of_states_is_added_or_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, there = cluster.hosts["node1"].devices[0].states, cluster.devices["node1"][0].states
    items = [(object(), np.full((1, 1, 1, 7), n, np.float32)) for n in range(2000)]
    states.add(items)
    assert len(there.keys()) == 2000
    assert all(np.array_equal(states.read(key), array) for key, array in items[::499])
    add, calls = there.add, []

    def full(values: list[tuple[object, NDArray]]) -> None:
        calls.append(len(values))
        if len(calls) > 1:
            raise OutOfMemory("[x] no room")
        add(values)

    monkeypatch.setattr(there, "add", full)
    with pytest.raises(OutOfMemory, match="no room"):
        states.add([(object(), array) for _, array in items])
    assert len(there.keys()) == len(states.keys()) == 2000


def test_a_node_that_another_lost_is_heard_again_by_the_next_plan(cluster: Cluster) -> None:
    plan = plan_of_two()
    cluster.prepare(plan)
    (session,) = cluster.servers["node2"]._sessions.values()
    session._transport.mark_lost("node1", HostLost("[x] a cable"))
    with pytest.raises(HostLost, match="a cable"):
        session._transport.recv(RunKey(1, 0, 0), 0, "node1", WAIT_S)
    cluster.prepare(plan, 2)
    with pytest.raises(DeviceTimeout):
        session._transport.recv(RunKey(2, 0, 0), 0, "node1", 0.01)


def test_devices_are_as_the_node_describes_them(cluster: Cluster) -> None:
    found = [device.spec for device in cluster.hosts["node2"].devices]
    assert [spec.name for spec in found] == ["node2/null:0", "node2/null:1"]
    assert found[0].kind == "null"
    with pytest.raises(vs.PlanError, match="cut into parts"):
        cluster.hosts["node2"].devices[0].prepare(plan_of_two(), 0)


def test_what_devices_have_free_is_asked_again_where_it_may_have_changed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FRESH_S", 1e9)
    reported, tell = [], cluster.tell

    def counting(name: str) -> list[RemoteDeviceInfo]:
        reported.append(name)
        room = 1000 * len(reported)
        return [
            RemoteDeviceInfo(replace(each.spec, memory_bytes=room), each.link)
            for each in tell(name)
        ]

    monkeypatch.setattr(cluster, "tell", counting)
    server = cluster.serve("other", tmp_path / "other")
    try:
        node = cluster.nodes.connect(place_text(server.address))
        device = node.devices[0]
        assert [device.spec.memory_bytes for _ in range(3)] == [1000] * 3
        key = object()
        device.states.add([(key, np.ones(3, np.float32))])
        assert device.spec.memory_bytes == 2000
        device.states.remove(key)
        assert [device.spec.memory_bytes for _ in range(2)] == [3000] * 2
        monkeypatch.setattr(client_module, "FRESH_S", -1.0)  # other drivers may have come
        assert device.spec.memory_bytes == 4000
    finally:
        server.close()


def weighted() -> tuple[vs.Plan, NDArray]:
    weight = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    x = vs.input("x", (8, 64))
    y = vs.mul(x, vs.weight(weight, name="w"), name="a")
    return make_plan([y], {"a": A}), weight


def test_a_weight_is_sent_once_and_again_where_its_file_is_broken(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, weight = weighted()
    sent: list[list[str]] = []
    missing = WeightRegistry.missing

    def noting(self: WeightRegistry, *about: Any) -> list[str]:
        sent.append(missing(self, *about))
        return sent[-1]

    monkeypatch.setattr(WeightRegistry, "missing", noting)

    def again() -> list[str]:
        nodes = cluster.driver()
        cluster.prepare(plan, 1, {"node1": cluster.connect(nodes, "node1")})
        nodes.close()
        (read,) = cluster.registry.read_weights
        assert bytes(read) == weight.tobytes()
        return sent[-1]

    (name,) = again()
    assert again() == []
    path = tmp_path / "node1" / name
    damaged = bytearray(path.read_bytes())
    damaged[5] ^= 1
    path.write_bytes(damaged)
    assert again() == [name]
    assert again() == []


def test_a_session_holds_what_plans_and_states_need_and_no_more(cluster: Cluster) -> None:
    (session,) = cluster.servers["node1"]._sessions.values()
    node, (plan, _) = cluster.hosts["node1"], weighted()
    for number in range(3):
        cluster.prepare(plan, number, {"node1": node})
    assert session._weights._plans.keys() == {0, 1, 2}
    cluster.walkers["node1"][0].fails = OutOfMemory("[x] no room")
    with pytest.raises(OutOfMemory):
        cluster.prepare(plan, 3, {"node1": node})
    for number in range(3):
        node.release_plan(number)
    for _ in range(3):
        device, keys = node.devices[0], [object(), object()]
        device.states.add([(key, np.ones(3, np.float32)) for key in keys])
        assert device.states.read(keys[0]).tolist() == [1.0, 1.0, 1.0]
        for key in keys:
            device.states.remove(key)
    until_s = time.monotonic() + WAIT_S
    while session._weights._plans and time.monotonic() < until_s:
        pass  # nobody answers that a plan is retired
    assert not session._weights._plans and not session._plans and not len(session._states)


def test_a_plan_that_is_abandoned_while_it_is_read_leaves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = cluster.servers["node1"]._sessions.values()
    node, (plan, _), read = cluster.hosts["node1"], weighted(), cluster.registry.read

    def reading(*about: Any) -> HostPlan:
        part = read(*about)
        node.release_plan(1)
        until_s = time.monotonic() + WAIT_S
        while not session._plans[1].is_released and time.monotonic() < until_s:
            pass  # nobody answers that a plan is retired
        return part

    monkeypatch.setattr(cluster.registry, "read", reading)
    cluster.prepare(plan, 1, {"node1": node})
    assert not session._plans and not session._weights._plans
    assert not session._transport._plans and not cluster.walkers["node1"][0].parts


def test_a_weight_that_is_not_what_its_hash_says_is_refused(cluster: Cluster) -> None:
    channel = cluster.hosts["node1"].channel
    for name in ("0" * 64, "../../evil", "x"):
        with pytest.raises(DeviceError, match="without the hash"):
            channel.ask("weight", {"plan": 1, "hash": name}, [b"bytes"], WAIT_S)


def test_progress_and_errors_of_preparing_arrive(cluster: Cluster) -> None:
    plan, reported = plan_of_two(), []
    parts = cut(spread(plan, ("node1", "node2")))
    node = cluster.hosts["node1"]
    node.prepare(1, parts[1], lambda *message: reported.append(message))
    assert reported == [("weights", 1, 2)]
    cluster.walkers["node1"][0].fails = OutOfMemory("[x] no room")
    with pytest.raises(OutOfMemory, match="no room"):
        node.prepare(2, parts[1])
    with pytest.raises(DeviceError, match="prepared already"):
        node.prepare(1, parts[1])
    cluster.walkers["node1"][0].fails = None

    def stop(*args: object) -> None:
        raise ZeroDivisionError(args)

    with pytest.raises(ZeroDivisionError):
        node.prepare(4, parts[1], stop)
    assert node.error is None and 4 not in node._prepared
    node.prepare(2, parts[1])
    node.release_plan(2)
    node.prepare(3, parts[1])


@pytest.mark.parametrize(
    ("kind", "fields", "payload"),
    [
        ("start", {"plan": 9, "slot": 0, "sequence_number": 0}, [b"x"]),
        ("start", {"plan": 1, "slot": 0, "sequence_number": 0}, [b"x"]),
        ("start", {"plan": 1, "slot": 99, "sequence_number": 0}, None),
        ("value", {"plan": 1, "slot": 0, "sequence_number": 0, "node": 0}, [b"x"]),
        (
            "write",
            {"device": "d", "key": "k", "dtype": "O", "shape": [1], "uniform": False},
            [b"x"],
        ),
        ("add", {"device": "d", "keys": [], "arrays": []}, [b"x"]),
        ("progress", {"plan": 1, "what": "", "done": 0, "total": 0}, []),
    ],
)
def test_a_caller_that_says_nonsense_is_cut_off_and_others_go_on(
    cluster: Cluster, kind: str, fields: dict[str, object], payload: list[bytes] | None
) -> None:
    other = cluster.driver()
    node = cluster.connect(other, "node1")
    part = cut(spread(plan_of_two(), ("node1", "node2")))[1]
    node.prepare(1, part)
    size = sum(part.plan.graph.nodes[n].type.host_bytes for n in part.inputs)
    channel = node.channel
    if kind in ("write", "add"):
        with pytest.raises(HostLost):
            channel.ask(kind, fields, payload or (), WAIT_S)
    else:
        channel.notify(kind, fields, [bytes(size)] if payload is None else payload)
    while node.error is None:
        pass
    cluster.hosts["node1"].channel.ask("clock", {}, (), WAIT_S)
    other.close()


def test_a_node_of_a_name_that_is_there_is_refused(cluster: Cluster) -> None:
    with pytest.raises(DeviceError, match="names of their own"):
        cluster.connect(cluster.nodes, "node1")


def test_what_takes_too_long_says_which_host(cluster: Cluster) -> None:
    plan = plan_of_two()
    cluster.prepare(plan)
    walker, run = cluster.walkers["node1"][0], RunKey(1, 0, 0)
    walker.hold.clear()
    x = np.zeros(fed(plan, np.random.default_rng(0)).shape, np.float32)
    part = cluster.parts["node1"]
    cluster.hosts["node1"].start(run, dict.fromkeys(part.inputs, x), Heard())
    with pytest.raises(DeviceTimeout, match="node1 to be done") as caught:
        cluster.hosts["node1"].finish(run, 0.01)
    assert not caught.value.host  # it said nothing: who waits decides whom to blame
    cluster.hosts["node1"].abort(run)
    walker.hold.set()


def test_plans_come_and_go_without_end(cluster: Cluster, rng: np.random.Generator) -> None:
    """Nothing is kept of plans that were retired."""
    plan = plan_of_two()
    x = fed(plan, rng)
    for number in range(5):
        driver = cluster.prepare(plan, number)
        run_once(cluster, driver, RunKey(number, 0, 0), x)
        for node in cluster.hosts.values():
            node.release_plan(number)
    for node in cluster.hosts.values():
        node.channel.ask("clock", {}, (), WAIT_S)
        assert not node._prepared and not node._runs
        with pytest.raises(RunAborted, match="expected a run under way"):
            node.finish(RunKey(0, 0, 0), WAIT_S)
    assert not cluster.nodes.transport._runs and not cluster.nodes.transport._plans


def test_links_are_measured_between_the_caller_and_nodes_and_between_nodes(
    cluster: Cluster,
) -> None:
    for link in (cluster.hosts["node1"].measure(), cluster.hosts["node1"].measure_to("node2")):
        assert 1e6 < link.bytes_per_s < 1e12 and 0 <= link.latency_s < 1
    with pytest.raises(HostLost) as caught:
        cluster.hosts["node1"].measure_to("node9")
    assert caught.value.host == "node9"
