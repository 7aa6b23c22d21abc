"""Nodes that do not tell the truth: they put themselves out of use, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest

import vksched as vs
import vksched.distributed.driver.client as client_module
import vksched.distributed.worker.session as session_module
from vksched.cluster import connections as joining
from vksched.cluster.worker_process import ClusterWorker
from vksched.common.dtypes import NDArray, Progress
from vksched.common.errors import (
    DeviceError,
    DeviceLost,
    DeviceTimeout,
    HostLost,
    OutOfMemory,
    PlanError,
    RunAborted,
    ShapeError,
)
from vksched.common.schema import SchemaError
from vksched.distributed.driver.first_error import FirstError
from vksched.distributed.protocols import RunKey
from vksched.distributed.wire.error_codec import error_of, fields_of
from vksched.distributed.wire.messages import Message
from vksched.distributed.wire.stats_codec import RemoteDeviceInfo
from vksched.distributed.worker.client_states import ClientStates
from vksched.distributed.worker.worker import PlanRunner
from vksched.engine import compiled_graph, executor_generations, faults
from vksched.engine.plan_builder import PlanBuilder
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.runtime.simulated.simulated_device import SimulatedDevice
from vksched.runtime.simulated_clock import SimulatedClock
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link

NAMES = ("node1", "node2")
X = np.ones((4, 4), np.float32)


class Liar(PlanRunner):
    """Says of each run that it has failed, and why."""

    error: DeviceError
    starts = 0

    def start(self, run: RunKey, feeds: Mapping[int, NDArray], traced: bool = False) -> None:
        type(self).starts += 1
        self._driver.failed(run, self.error)


def of(kind: type[DeviceError], device: str = "", host: str = "") -> DeviceError:
    built = kind("[x] so it says")
    built.device, built.host = device, host
    return built


LIES = {
    "of another host": of(HostLost, host="node1"),
    "of a device of another host": of(DeviceLost, "node1/cpu"),
    "of a device of another, in vain": of(DeviceTimeout, "node1/cpu", "node1"),
    "of the driver's device": of(DeviceLost, "cpu"),
    "of no host": of(HostLost, host="node9"),
    "of no device of its own": of(DeviceLost, "node2/gpu:7"),
    "of no device at all": of(DeviceLost, "nowhere/gpu:0"),
    "of nothing": of(DeviceError),
    "of its own device": of(DeviceLost, "node2/cpu"),
}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ClusterWorker]]:
    monkeypatch.setattr(joining, "LOOK_S", 3600.0)  # who is out stays out
    for module in (client_module, session_module):  # links are measured quickly
        monkeypatch.setattr(module, "measure_link", lambda channel: Link(1e9, 1e-4))
    about = clusters.make_credentials(), "plain", ["cpu"]
    built = [
        ClusterWorker(name, "127.0.0.1:0", *about, cache_folder=tmp_path / name) for name in NAMES
    ]
    yield built
    for each in built:
        each.close()


def scheduler(nodes: list[ClusterWorker]) -> vs.Scheduler:
    cluster = vs.Cluster([node.address for node in nodes], clusters.make_credentials(), "plain")
    return vs.Scheduler([f"{name}/cpu" for name in NAMES], cluster=cluster)


def compiled(sched: vs.Scheduler) -> vs.CompiledGraph:
    """Return a graph that uses both nodes."""
    first = vs.mul(vs.input("x", X.shape), 2.0, name="first")
    second = vs.add(first, 1.0, name="second")
    place = {"first": "node1/cpu", "second": "node2/cpu"}
    run = sched.compile(second, placement=place)
    assert {run.plan.topology.devices[s.device].name for s in run.plan.splits} == set(
        place.values()
    )
    return run


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_is_out_of_use_and_the_result_is_right(
    nodes: list[ClusterWorker], lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(node: ClusterWorker, trace: vs.Trace, timeout_s: float, *ports: Any) -> PlanRunner:
        built = Lying(node._opened.devices, *ports, trace, timeout_s)
        built.error = LIES[lie]
        return built

    class Lying(Liar):
        pass

    (_, liar) = nodes
    here = liar._server._here
    object.__setattr__(here, "serve", partial(serve, liar, vs.Trace(), 60.0))
    with scheduler(nodes) as sched:
        run = compiled(sched)
        with pytest.warns(vs.VkschedWarning, match="node2.*failed in a run over 3 hosts"):
            assert np.array_equal(run(x=X), 2 * X + 1)
        assert Lying.starts == 1
        assert set(sched.failed_devices) == {"node2/cpu"}
        used = {run.plan.topology.devices[s.device].name for s in run.plan.splits}
        assert "node1/cpu" in used and "node2/cpu" not in used
        assert np.array_equal(run(x=3 * X), 6 * X + 1)
    assert Lying.starts == 1


MISSING = session_module._DO["missing"]


def unnamed(session: session_module.Session, message: Message) -> session_module.Answer:
    """Answer as node2 that it misses a weight that nobody named."""
    if session._here.name != "node2":
        return MISSING(session, message)
    return {}, [json.dumps(["0" * 64]).encode()]


@pytest.mark.parametrize("message", [PlanError, ShapeError, RunAborted, SchemaError])
def test_a_node_that_refuses_each_part_is_out_of_use(
    nodes: list[ClusterWorker], message: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(PlanRunner):
        def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
            raise message("[x] so it says")

    def serve(*ports: Any) -> PlanRunner:
        return Refusing(nodes[1]._opened.devices, *ports, vs.Trace(), 60.0)

    if message is SchemaError:  # of the answer before
        monkeypatch.setitem(session_module._DO, "missing", unnamed)
    else:
        object.__setattr__(nodes[1]._server._here, "serve", serve)
    x, weight = vs.input("x", X.shape), vs.weight(np.arange(16, dtype=np.float32).reshape(4, 4))
    second = vs.mul(x, weight, name="second")
    with scheduler(nodes) as sched:
        with pytest.warns(vs.VkschedWarning, match="node2.*refuses its host plan"):
            run = sched.compile(second, placement={"second": "node2/cpu"})
            assert np.array_equal(run(x=X), np.arange(16, dtype=np.float32).reshape(4, 4))
        assert "node2/cpu" in sched.failed_devices


def test_what_a_host_says_of_another_blames_itself_and_weighs_less() -> None:
    own, claims = of(DeviceLost, "node1/gpu:0"), of(HostLost, host="node1")
    first_error = FirstError()
    first_error.add("node2", claims)
    found = first_error.cause()
    assert found is claims and (claims.device, claims.host) == ("", "node2")
    first_error.add("node1", own)
    assert first_error.cause() is own and own.device == "node1/gpu:0"
    seen = of(HostLost, host="node1")  # the driver may say it of others
    first_error = FirstError()
    first_error.add("", seen)
    first_error.add("node3", RunAborted())
    assert first_error.cause() is seen and seen.host == "node1"


@pytest.mark.parametrize(
    ("message", "device", "host"),
    [
        (of(OutOfMemory, "gpu:0"), "node1/gpu:0", ""),
        (of(OutOfMemory, "node1/gpu:0"), "node1/gpu:0", ""),
        (of(OutOfMemory, "node2/gpu:0"), "", "node1"),
        (of(HostLost, host="node2"), "", "node1"),
        (of(DeviceLost, "node2/gpu:0", "node2"), "", "node1"),
        (of(DeviceError), "", ""),
    ],
)
def test_an_answer_blames_whoever_gives_it(message: DeviceError, device: str, host: str) -> None:
    found = error_of(fields_of(message), "node1")
    assert isinstance(found, type(message)) and isinstance(found, DeviceError)
    assert (found.device, found.host) == (device, host)


def test_a_node_that_tells_no_more_of_a_device_is_lost(
    nodes: list[ClusterWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FRESH_S", -1.0)
    with scheduler(nodes) as sched:
        (device,) = [d for d in sched._preparing.opened.devices if d.name == "node2/cpu"]
        object.__setattr__(nodes[1]._server._here, "device_infos", list)
        assert device.spec.name == device.spec.name == "node2/cpu"
        (node,) = [n for n in sched._preparing.opened.hosts.hosts.values() if n.name == "node2"]  # type: ignore[union-attr]
        assert node.error is not None and "no longer reports cpu" in str(node.error)  # type: ignore[attr-defined]


def as_other_kind(reported: RemoteDeviceInfo) -> RemoteDeviceInfo:
    return replace(reported, spec=replace(reported.spec, kind="null"))


def without_speed(reported: RemoteDeviceInfo) -> RemoteDeviceInfo:
    return replace(reported, link=Link(0.0, 0.0))


@pytest.mark.parametrize("changed", [as_other_kind, without_speed])
def test_a_node_whose_devices_make_no_sense_any_more_is_lost(
    nodes: list[ClusterWorker],
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[RemoteDeviceInfo], RemoteDeviceInfo],
) -> None:
    monkeypatch.setattr(client_module, "FRESH_S", -1.0)
    here = nodes[1]._server._here
    tell = here.device_infos
    with scheduler(nodes) as sched:
        object.__setattr__(here, "device_infos", lambda: list(map(changed, tell())))
        (device,) = [d for d in sched._preparing.opened.devices if d.name == "node2/cpu"]
        assert device.spec.kind == "cpu" and device.spec.name == "node2/cpu"  # as it was
        run = sched.compile(vs.mul(vs.input("x", X.shape), 2.0))
        assert np.array_equal(run(x=X), 2 * X)
        hosts = sched._preparing.opened.hosts
        assert hosts is not None and hosts.hosts["node2"].error is not None  # type: ignore[attr-defined]
        assert hosts.hosts["node1"].error is None  # type: ignore[attr-defined]


def test_a_node_that_measures_what_no_link_has_is_lost(
    nodes: list[ClusterWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = vs.Cluster(
        [node.address for node in nodes], clusters.make_credentials(), "plain"
    ).join()
    try:
        monkeypatch.setattr(session_module, "measure_link", lambda channel: Link(0.0, -1.0))
        with pytest.raises(HostLost, match="expected the speed of a link"):
            joined.hosts["node2"].measure_to("node1")
        assert joined.hosts["node2"].error is not None and joined.hosts["node1"].error is None
    finally:
        joined.close()


def test_a_state_of_another_type_is_not_taken_back(
    nodes: list[ClusterWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = vs.Cluster([nodes[0].address], clusters.make_credentials(), "plain").join()
    try:
        (states,), key = [device.states for device in joined.devices], object()
        states.add([(key, X)])
        assert np.array_equal(states.read(key), X)
        for lie in (X[:1], X.astype(np.int32)):
            monkeypatch.setattr(ClientStates, "read", lambda *about, lie=lie: lie)
            with pytest.raises(DeviceError, match="node1 returned a state of another type"):
                states.read(key)
    finally:
        joined.close()


@pytest.mark.parametrize("name", ["", "a/b", "no\x1b[31mde", "n" * 64])
def test_a_node_of_a_name_that_is_none_is_refused(
    nodes: list[ClusterWorker], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(nodes[0]._server._listener._mine, "name", name)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="expected a worker with a name"):
        vs.Cluster([nodes[0].address], clusters.make_credentials(), "plain").join()


def test_an_answer_that_nobody_waits_for_takes_no_memory(
    nodes: list[ClusterWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read and dropped, as who asked may have given up."""
    cluster = vs.Cluster([nodes[0].address], clusters.make_credentials(), "plain")
    built = list[int]()
    joined = cluster.join()
    try:
        (session,) = nodes[0]._server._sessions.values()
        (node,) = joined.hosts.values()
        empty = np.empty
        monkeypatch.setattr(
            np, "empty", lambda size, *more: (built.append(size), empty(size, *more))[1]
        )
        assert session._channel is not None
        text = json.dumps({"kind": "echo", "to": 1 << 40}).encode()
        session._channel._send(text, [np.zeros(3 << 20, np.uint8)])
        assert node.channel.ask("clock", {}).fields  # behind it
        assert 3 << 20 not in built and not node.channel._open
    finally:
        joined.close()


def test_a_graph_that_fails_without_end_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by devices that come back after each failure: a run, and the plan of one."""
    for module in (compiled_graph, executor_generations):
        monkeypatch.setattr(module, "MAX_FAILURES", 5)
    monkeypatch.setattr(faults.Faults, "record", lambda *about, **more: None)
    monkeypatch.setattr(faults.Faults, "may_retry", lambda *about: True)
    failures = list[DeviceError]()

    def fail(*about: object, **more: object) -> None:
        failures.append(of(DeviceLost, "null:0"))
        raise failures[-1]

    with vs.Scheduler([SimulatedDevice(DeviceSpec("null:0", "null"), SimulatedClock())]) as sched:
        run = sched.compile(vs.input("x", X.shape) + 1.0)
        for at, name in ((type(run._compiled._executor), "run"), (PlanBuilder, "executor")):
            with monkeypatch.context() as patch:
                patch.setattr(at, name, fail)
                with pytest.raises(DeviceLost) as caught:
                    run(x=X) if name == "run" else sched.compile(vs.input("x", X.shape) + 2.0)
            assert len(failures) == 6 and caught.value is failures[-1]
            failures.clear()
        assert np.array_equal(run(x=X), X + 1)
