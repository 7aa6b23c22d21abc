"""Connections that end at any byte: right results, or one clear error, and nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import clusters
import numpy as np
import pytest
from cutting import Proxy

import vksched as vs
from vksched.cluster.worker_process import ClusterWorker
from vksched.common.dtypes import NDArray
from vksched.common.errors import DeviceError, StateLost, VkschedError
from vksched.distributed.driver.client import RemoteWorkers
from vksched.distributed.driver.cluster_executor import ClusterExecutor
from vksched.distributed.wire.tls import Security, place_of
from vksched.plan.multi_host.host_plan_codec import HostPlanCodec
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.executors.base_executor import CommitFailed
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.vulkan import device_probe
from vksched.topology.topology import Topology
from vksched.trace.events import SystemClock

WAIT_S = 60.0
STEPS = 14
"""Cuts for each kind of security, spread over all bytes of a good conversation."""


@pytest.fixture(params=["tls", "plain"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, ClusterWorker]]:
    about = clusters.make_credentials(), request.param, ["cpu"]
    names = ("node1", "node2")
    built = {
        name: ClusterWorker(name, "127.0.0.1:0", *about, cache_folder=tmp_path / name)
        for name in names
    }
    built["security"] = request.param
    yield built
    for name in names:
        built[name].close()


def graph() -> tuple[object, dict[vs.Tensor, vs.Tensor]]:
    total = vs.state(np.zeros((4, 300), np.float32), name="total")
    weight = vs.weight(np.arange(1200, dtype=np.float32).reshape(4, 300), name="w")
    a = vs.add(vs.input("x", (4, 300)), weight, name="a")
    after = vs.add(total, a, name="after")
    return {"out": vs.mul(after, a, name="out")}, {total: after}


class Conversation:
    """Connect, prepare, and three runs, with node1 behind a proxy."""

    def __init__(self, nodes: dict[str, ClusterWorker], proxy: Proxy) -> None:
        security = Security(clusters.make_credentials(), nodes["security"])  # type: ignore[arg-type]
        self.proxy, self.cpu = (
            proxy,
            CpuDevice(device_probe.device_spec(device_probe.resolve("cpu"))),
        )
        self.nodes = RemoteWorkers(security, HostPlanCodec(), SystemClock())
        self.addresses = [proxy.address, nodes["node2"].address]
        self.executor: ClusterExecutor | None = None
        self.outputs: list[NDArray] = []

    def go(self) -> None:
        hosts = {node.name: node for node in map(self.nodes.connect, self.addresses)}
        devices = [*(d for node in hosts.values() for d in node.devices), self.cpu]
        topology = Topology(tuple(device.spec for device in devices)).verify()
        outputs, updates = graph()
        output, _ = vs.build_graph(outputs, updates=updates)  # type: ignore[arg-type]
        at = {"a": "node2/cpu", "total": "node1/cpu", "after": "node1/cpu", "out": "node2/cpu"}
        plan = vs.plan_graph(output, topology, overrides=tuple(at.items()), copies=1)
        for device, memory in zip(devices, plan.memory, strict=True):
            device.states.add([(output.keys[n], output.initial[n]) for n in memory.states])
        context = ExecutorContext(devices, vs.Trace(), WAIT_S)
        self.executor = ClusterExecutor(plan, hosts, self.nodes.transport, context)
        (x,) = [node.id for node in output.nodes if node.op == "input"]
        for number in range(3):
            fed = np.full((4, 300), number, np.float32)
            self.outputs.append(self.executor.run({x: fed}).outputs[0])

    def close(self) -> None:
        if self.executor is not None:
            self.executor.close()
        self.nodes.close()
        self.cpu.close()
        self.proxy.close()


def expected() -> list[NDArray]:
    total, out = np.zeros((4, 300), np.float32), []
    for number in range(3):
        a = np.full((4, 300), number, np.float32) + np.arange(1200, dtype=np.float32).reshape(
            4, 300
        )
        total = total + a
        out.append(total * a)
    return out


def is_beginning(outputs: list[NDArray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(outputs, expected(), strict=False))


def test_a_connection_may_end_at_any_byte(nodes: dict[str, ClusterWorker]) -> None:
    target = place_of(nodes["node1"].address)
    whole = Conversation(nodes, Proxy(target))
    whole.go()
    assert len(whole.outputs) == 3 and is_beginning(whole.outputs)
    passed = whole.proxy.passed
    whole.close()
    texts: set[str] = set()
    for step in range(STEPS):
        cut = Conversation(nodes, Proxy(target, cut_after=passed * step // STEPS))
        try:
            cut.go()
        except (VkschedError, CommitFailed) as error:
            texts.add(type(error).__name__)
            cause = error.cause if isinstance(error, CommitFailed) else error
            assert isinstance(cause, DeviceError) and not isinstance(cause, StateLost), cause
            assert "node1" in str(cause) or cut.proxy.address in str(cause), cause
        assert is_beginning(cut.outputs)
        cut.close()
        for name in ("node1", "node2"):
            nodes[name].wait_until_free()
    assert "HostLost" in texts
    left = [t.name for t in threading.enumerate() if t.name.startswith("vksched-session")]
    assert left == []


def test_a_network_of_single_bytes_is_slow_and_right(nodes: dict[str, ClusterWorker]) -> None:
    slow = Conversation(nodes, Proxy(place_of(nodes["node1"].address), slow=7))
    slow.go()
    assert len(slow.outputs) == 3 and is_beginning(slow.outputs)
    slow.close()
