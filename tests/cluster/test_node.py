"""Nodes as processes: plans over several of them give the numbers of one process, to the bit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import needs_posix, vulkan_names
from graphs import transformer
from node_processes import NodeProcess, node_processes

import vksched as vs
from vksched.cli import main
from vksched.cluster import ray_cluster
from vksched.cluster.worker_process import ClusterWorker
from vksched.common.dtypes import NDArray
from vksched.common.errors import DeviceError, HostLost, VkschedError
from vksched.distributed.driver.client import RemoteWorker, RemoteWorkers
from vksched.distributed.driver.cluster_executor import ClusterExecutor
from vksched.distributed.wire.credentials import Credentials
from vksched.distributed.wire.heartbeat import HEARTBEAT_MONITOR, TIMEOUT_S
from vksched.distributed.wire.tls import Security
from vksched.distributed.worker.weight_registry import WeightRegistry
from vksched.plan.multi_host.host_plan_codec import HostPlanCodec
from vksched.plan.plan import Plan
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.vulkan import device_probe
from vksched.topology.host_names import on
from vksched.topology.topology import Topology
from vksched.trace.events import SystemClock

NAMES = ("node1", "node2")
WAIT_S = 60.0
DEVICES = ",".join([*vulkan_names()[:1], "cpu"])
"""Of each node: a Vulkan device where there is one, and the CPU."""


class Driver:
    """The driver's side: nodes that run, and all their devices with its own CPU."""

    def __init__(
        self, processes: Mapping[str, NodeProcess | ClusterWorker], key: Path, security: str = "tls"
    ):
        self.nodes = RemoteWorkers(
            Security(Credentials.load(key), security), HostPlanCodec(), SystemClock()
        )
        self.hosts = {n: self.nodes.connect(p.address) for n, p in processes.items()}
        self.own = CpuDevice(device_probe.device_spec(device_probe.resolve("cpu")))
        self.remote: list[Device] = [d for node in self.hosts.values() for d in node.devices]

    def plan(self, outputs: object, placement: Mapping[str, str], copies: int = 1) -> Plan:
        topology = Topology(tuple(d.spec for d in (*self.remote, self.own))).verify()
        graph, _ = vs.build_graph(outputs)  # type: ignore[arg-type]
        return vs.plan_graph(graph, topology, overrides=tuple(placement.items()), copies=copies)

    def executor(self, plan: Plan, timeout_s: float = WAIT_S) -> ClusterExecutor:
        devices = [*self.remote, self.own]
        for device, memory in zip(devices, plan.memory, strict=True):
            device.states.add(
                [(plan.graph.keys[node], plan.graph.initial[node]) for node in memory.states]
            )
        hosts: Mapping[str, RemoteWorker] = self.hosts
        context = ExecutorContext(devices, vs.Trace(), timeout_s)
        return ClusterExecutor(plan, hosts, self.nodes.transport, context)

    def close(self) -> None:
        self.nodes.close()
        self.own.close()


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """A computer that has much to do may leave a process without a turn for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HEARTBEAT_MONITOR, "timeout_s", 100.0)
        yield


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "key"
    clusters.make_credentials().save(path)
    return path


@pytest.fixture(scope="module")
def processes(key: Path) -> Iterator[dict[str, NodeProcess]]:
    with node_processes(key, key.parent, DEVICES, NAMES) as found:
        yield found


@pytest.fixture
def driver(processes: dict[str, NodeProcess], key: Path) -> Iterator[Driver]:
    driver = Driver(processes, key)
    yield driver
    driver.close()


def feeds_of(plan: Plan, rng: np.random.Generator) -> dict[int, NDArray]:
    return {
        node.id: rng.standard_normal(node.type.shape, np.float32)
        for node in plan.graph.nodes
        if node.op == "input"
    }


def test_a_network_over_two_nodes_gives_the_numbers_of_one_process_to_the_bit(
    driver: Driver, rng: np.random.Generator
) -> None:
    (outputs, *_), kind = transformer(layers=2), DEVICES.split(",")[0]
    names = [n.name for n in vs.build_graph(outputs)[0].nodes if n.op not in ("input", "weight")]
    at = {name: on(NAMES[i * 4 // len(names) % 2], kind) for i, name in enumerate(names)}
    plan = driver.plan(outputs, at)
    assert {plan.topology.host_of(split.device) for split in plan.splits} >= set(NAMES)
    executor = driver.executor(plan)
    with vs.Scheduler([kind], policy="priority", optimize=False) as sched:
        alone = sched.compile(outputs)
        for _ in range(2):
            feeds = feeds_of(plan, rng)
            values = {plan.graph.nodes[node].name: array for node, array in feeds.items()}
            want = alone(**values)
            results = executor.run(feeds)
            assert np.array_equal(results.outputs[0], want[0])
    assert results.plan_and_stats is not None
    stats = results.plan_and_stats[1]
    assert {split.device.split("/")[0] for split in stats.splits} >= set(NAMES)
    for split in stats.splits:  # by the driver's clock
        assert stats.start_s - 0.1 < split.begin_s <= split.end_s < stats.end_s + 0.1
    executor.close()


def counter() -> tuple[vs.Tensor, vs.Tensor, vs.Tensor]:
    total = vs.state(np.zeros((3, 5), np.float32), name="total")
    x = vs.input("x", (3, 5))
    return total, vs.add(total, x, name="next"), x


def test_states_live_on_a_node_from_run_to_run(driver: Driver, rng: np.random.Generator) -> None:
    total, after, _ = counter()
    out = vs.mul(after, 2.0, name="out")
    graph, _ = vs.build_graph({"out": out}, updates={total: after})
    topology = Topology(tuple(d.spec for d in (*driver.remote, driver.own))).verify()
    homes = dict.fromkeys(("total", "next"), "node1/cpu")
    plan = vs.plan_graph(graph, topology, overrides=(*homes.items(), ("out", "node2/cpu")))
    executor, want = driver.executor(plan), np.zeros((3, 5), np.float32)
    for _ in range(3):
        feeds = feeds_of(plan, rng)
        want += next(iter(feeds.values()))
        (found,) = executor.run(feeds).outputs
        assert np.array_equal(found, want * 2)
    device = next(d for d in driver.remote if d.name == "node1/cpu")
    (state,) = plan.graph.initial
    assert np.array_equal(device.states.read(plan.graph.keys[state]), want)
    executor.close()


def test_many_runs_at_once_each_get_their_own(driver: Driver, rng: np.random.Generator) -> None:
    x = vs.input("x", (64, 64))
    a = vs.exp(vs.mul(x, 0.1, name="a"), name="b")
    out = vs.add(vs.sqrt(a, name="c"), a, name="d")
    at = {"a": "node1/cpu", "b": "node2/cpu", "c": "node1/cpu", "d": "node2/cpu"}
    plan = driver.plan({"out": out}, at, copies=3)
    executor = driver.executor(plan)
    inputs = [feeds_of(plan, rng) for _ in range(12)]
    (first,) = inputs[0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda feeds: executor.run(feeds).outputs[0], inputs))
    with vs.Scheduler(["cpu"], optimize=False) as sched:
        alone = sched.compile({"out": out})
        for feeds, array in zip(inputs, found, strict=True):
            assert np.array_equal(array, alone(x=feeds[first])["out"])
    executor.close()


def test_a_weight_is_sent_once_however_often_nodes_and_callers_start(
    key: Path, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = rng.standard_normal((200, 300), np.float32)
    x = vs.input("x", (4, 200))
    out = vs.matmul(x, vs.weight(weight, name="w"), name="y")
    sent: list[list[str]] = []
    missing = WeightRegistry.missing

    def noting(self: WeightRegistry, *about: Any) -> list[str]:
        sent.append(missing(self, *about))
        return sent[-1]

    monkeypatch.setattr(WeightRegistry, "missing", noting)
    for _ in range(2):
        about = clusters.make_credentials(), "tls", ["cpu"]
        node = ClusterWorker("node1", "127.0.0.1:0", *about, cache_folder=tmp_path)
        driver = Driver({"node1": node}, key)
        plan = driver.plan({"y": out}, {"y": "node1/cpu"})
        executor = driver.executor(plan)
        (found,) = executor.run(feeds := feeds_of(plan, rng)).outputs
        assert np.allclose(found, next(iter(feeds.values())) @ weight, atol=1e-4)
        executor.close()
        driver.close()
        node.close()
    assert [len(each) for each in sent] == [1, 0]


@needs_posix
def test_a_node_that_stands_still_is_reported_by_name_and_the_rest_goes_on(
    key: Path, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_processes(key, tmp_path, "cpu", NAMES) as processes:
        driver = Driver(processes, key)
        x = vs.input("x", (8, 8))
        out = vs.exp(vs.sqrt(vs.exp(x, name="a"), name="b"), name="c")
        at = {"a": "node1/cpu", "b": "node2/cpu", "c": "node1/cpu"}
        executor = driver.executor(driver.plan({"out": out}, at))
        feeds = feeds_of(executor.plan, rng)
        executor.run(feeds)
        processes["node2"].process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(HEARTBEAT_MONITOR, "timeout_s", TIMEOUT_S)
        with pytest.raises(HostLost) as caught:
            while True:
                executor.run(feeds)
        monkeypatch.setattr(HEARTBEAT_MONITOR, "timeout_s", 100.0)
        assert caught.value.host == "node2"
        assert caught.value.device == "node2/cpu"
        executor.close()
        left = driver.plan({"out": out}, dict.fromkeys(at, "node1/cpu"))
        executor = driver.executor(left)
        assert len(executor.run(feeds).outputs) == 1
        executor.close()
        driver.close()


def test_a_node_ends_as_a_service_does_and_says_nothing_wrong(key: Path, tmp_path: Path) -> None:
    with node_processes(key, tmp_path, "cpu", ("node1",)) as processes:
        driver = Driver(processes, key)
        code, text = processes["node1"].stop()
        assert (code, text) == (0, "")
        while driver.hosts["node1"].error is None:
            pass
        driver.close()


def test_a_node_serves_in_a_process_of_others_too(key: Path, tmp_path: Path) -> None:
    node = ClusterWorker(
        "a", "127.0.0.1:0", clusters.make_credentials(), devices=["cpu"], cache_folder=tmp_path
    )
    nodes = RemoteWorkers(Security(clusters.make_credentials()), HostPlanCodec(), SystemClock())
    try:
        assert [d.name for d in nodes.connect(node.address).devices] == ["a/cpu"]
        assert node.devices == ("cpu",)
    finally:
        nodes.close()
        node.close()
    assert node.drivers == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("vksched-session")]


@pytest.mark.parametrize(
    ("name", "listen", "devices"),
    [("", "127.0.0.1:0", ["cpu"]), ("a/b", "127.0.0.1:0", ["cpu"]), ("a", "x", ["cpu"])],
)
def test_names_and_addresses_are_checked(name: str, listen: str, devices: list[str]) -> None:
    with pytest.raises(VkschedError, match="expected"):
        ClusterWorker(name, listen, clusters.make_credentials(), devices=devices)
    with pytest.raises(DeviceError):
        ClusterWorker("a", "127.0.0.1:0", clusters.make_credentials(), devices=["vulkan:99"])


def test_the_command_makes_a_key_and_refuses_to_write_over_it(tmp_path: Path) -> None:
    clusters.make_credentials()
    done = CliRunner().invoke(main, ["cluster", "key", str(tmp_path / "key")])
    assert done.exit_code == 0 and "copy it to each computer" in done.output
    assert Credentials.load(tmp_path / "key").secret
    done = CliRunner().invoke(main, ["cluster", "key", str(tmp_path / "key")])
    assert done.exit_code == 1 and "expected a new file" in done.output


def test_the_command_says_what_is_wrong_with_a_key(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["worker", "--credentials", str(tmp_path / "none")])
    assert done.exit_code == 1 and "vksched cluster key FILE" in done.output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["cluster", "devices", "--credentials", "key"], "--credentials needs --worker"),
        (["cluster", "devices", "--worker", "127.0.0.1:1"], "--worker needs --credentials"),
        (["cluster", "key", "{}/none/key"], "try another folder"),
        (["worker", "--credentials", "key", "--cache", "inf"], "Invalid value for '--cache'"),
        (
            ["worker", "--credentials", "key", "--heartbeat-timeout", "inf"],
            "Invalid value for '--heartbeat-timeout'",
        ),
        (
            ["worker", "--credentials", "key", "--heartbeat-timeout", "nan"],
            "expected a number of seconds",
        ),
        (["worker", "--credentials", "{}/key", "--peers", "10.0.0.0/33"], "or a network as a peer"),
    ],
)
def test_commands_say_what_to_try(command: list[str], message: str, tmp_path: Path) -> None:
    clusters.make_credentials().save(tmp_path / "key")
    done = CliRunner().invoke(main, [each.format(tmp_path) for each in command])
    assert done.exit_code in (1, 2) and message in done.output


def test_a_node_on_ray_takes_its_folders_of_models_from_its_computer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[Path]] = []
    monkeypatch.setattr(
        "vksched.cluster.worker_process.ClusterWorker",
        lambda *about, models, onnx_ops: taken.append(models),
    )
    monkeypatch.setenv("VKSCHED_MODELS", f"{tmp_path}, {tmp_path / 'b'}")
    ray_cluster._WorkerActor("node1", clusters.make_credentials().text(), "tls", "127.0.0.1")
    assert taken == [[tmp_path, tmp_path / "b"]]
