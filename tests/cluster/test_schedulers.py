"""A scheduler with the devices of other computers: the numbers of one process, losses, returns."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest
from cluster_nodes import StartedWorkers, cluster, on_cpus
from conftest import vulkan_names
from graphs import transformer
from test_chat import GREEDY, PROMPT, greedy
from test_chat import build_model as language_model

import vksched as vs
from vksched.cluster.connections import ClusterConnections
from vksched.cluster.worker_process import ClusterWorker
from vksched.common.errors import DeviceError, HostLost, StateLost, VkschedError

WAIT_S = 120.0


def wait_for(what: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def device(sched: vs.Scheduler, name: str) -> object:
    return next(found for found in sched.devices if found.name == name)


def chain(rng: np.random.Generator) -> tuple[vs.Tensor, dict[str, str]]:
    x = vs.input("x", (8, 16))
    w, v = (vs.weight(rng.standard_normal((16, 16), np.float32), name=n) for n in ("w", "v"))
    out = vs.matmul(vs.relu(vs.matmul(x, w, name="a"), name="b"), v, name="c")
    return out, {"a": "node1/cpu", "b": "node1/cpu", "c": "node2/cpu"}


def used(run: vs.CompiledGraph) -> set[str]:
    return {run.plan.topology.devices[split.device].name for split in run.plan.splits}


def test_a_scheduler_uses_the_devices_of_a_cluster(
    start: StartedWorkers, rng: np.random.Generator
) -> None:
    outputs = transformer(layers=2)[0]
    nodes = [start("node1"), start("node2")]
    feeds = {
        n.name: rng.standard_normal(n.type.shape, np.float32)
        for n in vs.build_graph(outputs)[0].nodes
        if n.op == "input"
    }
    with vs.Scheduler(["cpu"]) as alone:
        want = alone.compile(outputs)(**feeds)
    with on_cpus(nodes) as sched:
        assert [d.name for d in sched.devices][-3:] == ["node1/cpu", "node2/cpu", "cpu"]
        ends = {(a, b) for a, b, _ in sched.topology.links.pairs}
        assert {("cpu", "node1/cpu"), ("cpu", "node2/cpu"), ("node1/cpu", "node2/cpu")} <= ends
        run = sched.compile(outputs, {"*.0.*": "node1/cpu", "*.1.*": "node2/cpu"})
        assert used(run) >= {"node1/cpu", "node2/cpu"}
        for _ in range(2):
            for one, other in zip(run(**feeds), want, strict=True):
                assert np.array_equal(one, other)
        assert "node2/cpu" in str(run.report())
    wait_for(lambda: not any(node.drivers for node in nodes))


def test_devices_of_a_cluster_are_chosen_by_name(start: StartedWorkers) -> None:
    nodes = [start("node1"), start("node2")]
    with vs.Scheduler(["node2/cpu"], cluster=cluster(nodes)) as sched:
        assert [d.name for d in sched.devices] == ["node2/cpu", "cpu"]
    with pytest.raises(DeviceError, match="expected a device of the cluster.*node1/cpu, node2/cpu"):
        vs.Scheduler(["node3/cpu"], cluster=cluster(nodes))
    with pytest.raises(DeviceError, match="the scheduler has no cluster"):
        vs.Scheduler(["node3/cpu"])
    wait_for(lambda: not any(node.drivers for node in nodes))


@pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device")
def test_the_cpu_of_a_node_may_be_left_out(tmp_path: Path, rng: np.random.Generator) -> None:
    name = vulkan_names()[0]
    node = ClusterWorker(
        "a", "127.0.0.1:0", clusters.make_credentials(), devices=[name], cache_folder=tmp_path
    )
    values = rng.standard_normal((8, 16), np.float32)
    try:
        with vs.Scheduler([f"a/{name}"], cluster=cluster([node])) as sched:
            run = sched.compile(chain(rng)[0], {"*": f"a/{name}"})
            assert run(x=values).shape == (8, 16) and used(run) == {f"a/{name}"}
    finally:
        node.close()


def test_a_lost_computer_is_left_out_and_comes_back_by_itself(
    start: StartedWorkers, rng: np.random.Generator
) -> None:
    nodes = [start("node1"), start("node2")]
    out, at = chain(rng)
    values = rng.standard_normal((8, 16), np.float32)
    with on_cpus(nodes) as sched:
        run = sched.compile(out, at)
        want = run(x=values)
        assert used(run) == {"node1/cpu", "node2/cpu"}
        nodes[1].close()
        with pytest.warns(vs.VkschedWarning, match="node2 failed.*is out of use until it is back"):
            assert np.array_equal(run(x=values), want)
        assert sched.failed_devices.keys() == {"node2/cpu"} and used(run).isdisjoint({"node2/cpu"})
        start("node2", nodes[1].address)
        wait_for(lambda: not sched.failed_devices)
        assert np.array_equal(run(x=values), want)
        assert used(run) == {"node1/cpu", "node2/cpu"}


def test_an_answer_goes_on_where_a_computer_is_lost_meanwhile(
    start: StartedWorkers, tmp_path: Path
) -> None:
    nodes = [start("node1"), start("node2")]
    model, weights = language_model(tmp_path)
    with on_cpus(nodes) as sched:
        chat = vs.Chat(sched, model, placement={"*": "node1/cpu", "blk.*": "node2/cpu"})
        answer = chat.generate(PROMPT, 6, GREEDY)
        next(answer)
        assert chat.layers.keys() == {"node2/cpu"}
        nodes[1].close()
        with pytest.warns(vs.VkschedWarning, match="node2 failed.*states that lay there are lost"):
            list(answer)
        assert list(answer.tokens) == greedy(weights, answer.prompt, 6)
        assert "node2/cpu" not in chat.layers


def test_a_computer_that_went_and_came_unseen_is_used_as_it_is_now(
    start: StartedWorkers, rng: np.random.Generator
) -> None:
    node = start("node1")
    out, _ = chain(rng)
    values = rng.standard_normal((8, 16), np.float32)
    with on_cpus([node]) as sched:
        run = sched.compile(out, {"*": "node1/cpu"})
        want, before = run(x=values), device(sched, "node1/cpu")
        node.close()
        start("node1", node.address)
        wait_for(lambda: device(sched, "node1/cpu") is not before)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.array_equal(run(x=values), want)
        assert used(run) == {"node1/cpu"}


def test_readmit_says_what_it_cannot_do(start: StartedWorkers) -> None:
    node = start("node1")
    with on_cpus([node]) as sched:
        sched.restore_device("node1/cpu")
        sched.restore_device("node1")
        with pytest.raises(DeviceError, match="expected one of node1/cpu.*got 'node2'"):
            sched.restore_device("node2")
        with pytest.raises(DeviceError, match="got 'cpu'"):
            sched.restore_device("cpu")
        node.close()
        wait_for(lambda: sched._membership._hosts.hosts["node1"].error)  # type: ignore[union-attr]
        with pytest.raises(DeviceError, match="expected a worker at"):
            sched.restore_device("node1")
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(DeviceError, match="no device of a cluster"):
        sched.restore_device("node1")


def test_with_on_fault_raise_the_loss_of_a_computer_is_the_callers(
    start: StartedWorkers, rng: np.random.Generator
) -> None:
    node = start("node1")
    out, _ = chain(rng)
    values = rng.standard_normal((8, 16), np.float32)
    with on_cpus([node], on_device_failure="raise") as sched:
        run = sched.compile(out, {"*": "node1/cpu"})
        run(x=values)
        node.close()
        with pytest.raises(HostLost) as caught:
            run(x=values)
        assert caught.value.host == "node1"
        with pytest.raises(
            DeviceError, match=r"node1/cpu failed earlier.*restore_device\('node1'\)"
        ):
            run(x=values)


@pytest.mark.parametrize("backup", [False, True])
def test_states_of_a_lost_computer_are_lost_but_for_copies(
    start: StartedWorkers, backup: bool
) -> None:
    nodes = [start("node1"), start("node2")]
    total = vs.state(np.zeros(4, np.float32), name="total", backup=backup)
    x = vs.input("x", (4,))
    after = vs.add(total, x, name="next")
    ones = np.ones(4, np.float32)
    with on_cpus(nodes) as sched:
        at = dict.fromkeys(("total", "next"), "node2/cpu")
        run = sched.compile({"y": vs.mul(after, 2.0, name="y")}, at, updates={total: after})
        for turn in (1, 2):
            assert np.array_equal(run(x=ones)["y"], 2 * turn * ones)
        assert np.array_equal(sched.read(total), 2 * ones)
        nodes[1].close()
        with pytest.warns(vs.VkschedWarning, match="node2 failed"):
            if backup:
                assert np.array_equal(run(x=ones)["y"], 6 * ones)
            else:
                with pytest.raises(StateLost, match="node2/cpu"):
                    run(x=ones)
                sched.write(total, 2 * ones)
                assert np.array_equal(run(x=ones)["y"], 6 * ones)
        assert np.array_equal(sched.read(total), 3 * ones)


def goes_and_comes(sched: vs.Scheduler, node: ClusterWorker, start: StartedWorkers) -> None:
    """Has the first device of a scheduler go with its computer, and come back."""
    before = device(sched, f"{node.name}/cpu")
    node.close()
    start(node.name, node.address)
    wait_for(lambda: device(sched, f"{node.name}/cpu") is not before)
    wait_for(lambda: not sched.failed_devices)


def test_a_late_word_of_a_loss_does_not_put_out_who_is_back(
    start: StartedWorkers, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start("node1")
    out, _ = chain(rng)
    values = rng.standard_normal((8, 16), np.float32)
    with on_cpus([node]) as sched:
        run = sched.compile(out, {"*": "node1/cpu"})
        want, executor = run(x=values), run._compiled._executor
        carry, node_hosts = executor.run, sched._membership._hosts

        def late(*args: Any) -> Any:
            node.close()
            wait_for(lambda: node_hosts.hosts["node1"].error)  # type: ignore[union-attr]
            try:
                return carry(*args)
            except HostLost:
                goes_and_comes(sched, node, start)
                raise

        monkeypatch.setattr(executor, "run", late)
        assert np.array_equal(run(x=values), want)
        assert not sched.failed_devices and used(run) == {"node1/cpu"}


def test_a_state_whose_computer_went_and_came_after_a_run_is_lost(
    start: StartedWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start("node1")
    total = vs.state(np.zeros(4, np.float32), name="total", backup=False)
    after = vs.add(total, 1.0, name="next")
    with on_cpus([node]) as sched:
        run = sched.compile([], {"*": "node1/cpu"}, updates={total: after})
        executor = run._compiled._executor
        carry = executor.run

        def slow(*args: Any) -> Any:
            results = carry(*args)
            goes_and_comes(sched, node, start)
            return results

        monkeypatch.setattr(executor, "run", slow)
        run()
        with pytest.raises(StateLost, match="node1/cpu"):
            sched.read(total)


def test_closing_while_a_computer_comes_back_leaves_no_connection(
    start: StartedWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start("node1")
    sched = on_cpus([node])
    hosts = sched._membership._hosts
    assert isinstance(hosts, ClusterConnections)
    connecting, closed = threading.Event(), threading.Event()
    connect = hosts._workers.connect

    def slow(*args: Any) -> Any:
        connecting.set()
        assert closed.wait(WAIT_S)
        return connect(*args)

    monkeypatch.setattr(hosts._workers, "connect", slow)
    end = hosts._workers.close
    monkeypatch.setattr(hosts._workers, "close", lambda: (end(), closed.set()))
    node.close()
    again = start("node1", node.address)
    assert connecting.wait(WAIT_S)
    sched.close()
    wait_for(lambda: not again.drivers)
    with pytest.raises(DeviceError, match="a closed one"):
        hosts.rejoin("node1")


def test_an_input_without_elements_goes_to_a_node(start: StartedWorkers) -> None:
    node = start("node1")
    with on_cpus([node]) as sched:
        run = sched.compile(vs.relu(vs.input("x", (0, 4)), name="y"), {"*": "node1/cpu"})
        assert used(run) == {"node1/cpu"}
        assert run(x=np.zeros((0, 4), np.float32)).shape == (0, 4)
        assert not sched.failed_devices


def test_a_cluster_says_what_is_wrong_with_it(start: StartedWorkers, tmp_path: Path) -> None:
    key = clusters.make_credentials()
    with pytest.raises(DeviceError, match="expected the addresses of workers"):
        vs.Cluster([], key)
    with pytest.raises(DeviceError, match="expected the addresses of workers"):
        vs.Cluster("127.0.0.1:7700", key)
    with pytest.raises(DeviceError, match="expected the addresses of workers"):
        vs.Cluster([7700], key)  # type: ignore[list-item]
    with pytest.raises(VkschedError, match="HOST:PORT"):
        vs.Cluster(["127.0.0.1"], key)
    with pytest.raises(DeviceError, match="expected the cluster's key.*got None"):
        vs.Cluster(["127.0.0.1:7700"], None)  # type: ignore[arg-type]
    with pytest.raises(VkschedError, match="cannot read"):
        vs.Scheduler(["cpu"], cluster=vs.Cluster(["127.0.0.1:1"], tmp_path / "none"))
    with pytest.raises(DeviceError, match="expected a worker at 127.0.0.1:1"):
        vs.Scheduler(["cpu"], cluster=vs.Cluster(["127.0.0.1:1"], key))
    node = start("node1")
    with pytest.raises(DeviceError, match="another"):
        vs.Scheduler(["cpu"], cluster=vs.Cluster([node.address], clusters.others()))
    twice = vs.Cluster([node.address, node.address], key)
    with pytest.raises(DeviceError, match="names of their own"):
        vs.Scheduler(["cpu"], cluster=twice)
    wait_for(lambda: not node.drivers)


def test_large_values_from_all_nodes_to_all_are_those_of_one_computer(
    start: StartedWorkers, rng: np.random.Generator
) -> None:
    hosts = 3
    nodes = [start(f"node{host}") for host in range(hosts)]
    x = vs.input("x", (512, 256))  # which threads send
    built = [vs.mul(x, float(host + 2), name=f"made{host}") for host in range(hosts)]
    ends = []
    for host in range(hosts):
        total = vs.exp(built[host], name=f"sum{host}")
        for step in range(1, hosts):
            total = vs.sub(total, built[(host + step) % hosts], name=f"sum{host}.{step}")
        ends.append(total)
    placed = {
        f"{what}{host}*": f"node{host}/cpu" for host in range(hosts) for what in ("made", "sum")
    }
    values = rng.standard_normal((512, 256), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        want = sched.compile(ends)(x=values)
    with on_cpus(nodes) as sched:
        run = sched.compile(ends, placed)
        assert len({split.device for split in run.plan.splits}) == hosts
        for _ in range(3):
            for got, expected in zip(run(x=values), want, strict=True):
                assert np.array_equal(got, expected)


@pytest.mark.parametrize("policy", ["earliest-finish", "work-stealing"])
def test_dynamic_plans_stay_on_this_computer(policy: str) -> None:
    nowhere = vs.Cluster(["127.0.0.1:1"], clusters.make_credentials())  # which is not asked
    with pytest.raises(VkschedError, match=f'with a cluster, got .{policy}.; try policy="auto"'):
        vs.Scheduler(["cpu"], policy=policy, cluster=nowhere)


def test_a_scheduler_that_nobody_closes_lets_its_nodes_go(
    start: StartedWorkers, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [start("node1"), start("node2")]
    monkeypatch.setenv("VKSCHED_NO_VULKAN", "1")  # else software devices are told of
    x = vs.input("x", (8, 16))
    out = vs.relu(vs.matmul(x, vs.weight(np.eye(16, dtype=np.float32), name="w"), name="a"))
    values = rng.standard_normal((8, 16), np.float32)

    def open_scheduler() -> Any:
        return vs.Scheduler(cluster=cluster(nodes)).compile(out, {"a": "node1/cpu"})

    run = open_scheduler()
    gc.collect()  # of the scheduler; its run goes on
    assert np.array_equal(run(x=values), np.maximum(values, 0)) and nodes[0].drivers
    with pytest.warns(ResourceWarning, match="was not closed"):
        del run
        gc.collect()
    wait_for(lambda: not any(node.drivers for node in nodes))
