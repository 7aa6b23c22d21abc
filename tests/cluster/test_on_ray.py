"""Nodes on a Ray cluster, by `ray.cluster_utils`. Skipped where ray is not installed."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest
from click.testing import CliRunner

import vksched as vs
from vksched.cli import main
from vksched.cluster import ray_cluster as on_ray
from vksched.cluster.placement_groups import PREFIX
from vksched.common.errors import VkschedError

ray = pytest.importorskip("ray", reason="ray is an extra")
COMPUTERS = 3
WAIT_S = 120.0


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Three computers; the first is this process's own."""
    clusters.make_credentials()
    from ray.cluster_utils import Cluster

    root = str(Path(vs.__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    os.environ["VKSCHED_NO_VULKAN"] = "1"
    about = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=about)
    try:
        for _ in range(COMPUTERS - 1):
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        ray.init(address=cluster.address, namespace=on_ray.NAMESPACE, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_what_is_no_ray_cluster_is_reported() -> None:
    assert not ray.is_initialized()  # the first test of this file
    with pytest.raises(VkschedError, match="expected a Ray cluster at 'auto'"):
        on_ray.workers()


@pytest.mark.parametrize("prefix", ["", "ray://"])
@pytest.mark.parametrize("there", ["nothing", "silence", "another server"])
def test_an_address_where_no_ray_is_gives_one_error_at_once(there: str, prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"{prefix}127.0.0.1:{server.getsockname()[1]}"
        if there == "nothing":
            server.close()
        if there == "another server":

            def answer() -> None:
                with server.accept()[0] as driver:
                    driver.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    driver.recv(1)

            threading.Thread(target=answer, daemon=True).start()
        start_s = time.monotonic()
        with pytest.raises(VkschedError, match=f"expected a Ray cluster at '{place}', got"):
            on_ray.workers(place)
        assert time.monotonic() - start_s < 10.0


def test_a_ray_cluster_is_used_by_one_word(ray_cluster: Any, rng: np.random.Generator) -> None:
    x = vs.input("x", (8, 16))
    w, v = (vs.weight(rng.standard_normal((16, 16), np.float32), name=n) for n in ("w", "v"))
    out = vs.matmul(vs.relu(vs.matmul(x, w, name="a"), name="b"), v, name="c")
    values = rng.standard_normal((8, 16), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        want = sched.compile(out)(x=values)
    nodes = on_ray.start()
    here = ray.get_runtime_context().get_node_id()
    one, two = (node.name for node in nodes if node.computer != here)
    with vs.Scheduler(cluster="auto") as sched:
        names = [device.name for device in sched.devices]
        assert {f"{one}/cpu", f"{two}/cpu"} <= set(names)
        run = sched.compile(out, {"a": f"{one}/cpu", "b": f"{one}/cpu", "c": f"{two}/cpu"})
        assert np.array_equal(run(x=values), want)
        ray.kill(ray.get_actor(two, on_ray.NAMESPACE))  # it comes back at another address
        with pytest.warns(vs.VkschedWarning, match=f"{two} failed"):
            while not sched.failed_devices:
                assert np.array_equal(run(x=values), want)
        end_s = time.monotonic() + WAIT_S
        while sched.failed_devices:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert np.array_equal(run(x=values), want)
        assert {run.plan.topology.devices[s.device].name for s in run.plan.splits} == {
            f"{one}/cpu",
            f"{two}/cpu",
        }


def free() -> list[float]:
    every = ray._private.state.available_resources_per_node().values()
    return sorted(each.get("CPU", 0.0) for each in every)


def wait_until_free(wanted: list[float]) -> None:
    end_s = time.monotonic() + WAIT_S
    while free() != wanted:
        assert time.monotonic() < end_s, free()
        time.sleep(0.1)


def test_nodes_that_do_not_answer_leave_no_reservation_behind(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ray.stop()
    wait_until_free([1.0] * COMPUTERS)
    with monkeypatch.context() as patch:
        patch.setattr(on_ray, "ANSWER_S", 0.01)  # a process takes longer to start
        with pytest.raises(VkschedError, match="expected a Ray cluster"):
            on_ray.start()
    wait_until_free([1.0] * COMPUTERS)
    assert not [actor for actor in ray.util.placement_group_table().values() if _is_alive(actor)]
    assert not on_ray.workers()


def _is_alive(actor: dict[str, Any]) -> bool:
    return bool(actor["name"].startswith(PREFIX) and actor["state"] != "REMOVED")


def test_nodes_reserve_their_computers_and_give_them_back(ray_cluster: Any) -> None:
    on_ray.start()
    wait_until_free([0.0] * COMPUTERS)
    computers = {node.computer for node in on_ray.workers()}
    assert computers == {each["NodeID"] for each in ray.nodes()}
    on_ray.stop()
    wait_until_free([1.0] * COMPUTERS)
    other = ray.util.placement_group([{"CPU": 1}])
    try:
        assert other.wait(WAIT_S)
        with pytest.raises(vs.DeviceError, match="expected 1 CPU on .* to be free within"):
            on_ray.start()
        assert not on_ray.workers()
        wait_until_free([0.0, *[1.0] * (COMPUTERS - 1)])
    finally:
        ray.util.remove_placement_group(other)
    wait_until_free([1.0] * COMPUTERS)


def test_the_commands_start_list_and_stop_nodes(ray_cluster: Any) -> None:
    def output_of(*words: str) -> str:
        done = CliRunner().invoke(main, ["cluster", *words])
        assert done.exit_code == 0, done.output
        return done.output

    names = {each["name"] for each in json.loads(output_of("start", "--json"))}
    assert len(names) == COMPUTERS
    assert {each["name"] for each in json.loads(output_of("status", "--json"))} == names
    assert all(name in output_of("status") for name in names)
    found = json.loads(output_of("devices", "--json"))
    assert len(found["devices"]) == COMPUTERS - 1 and found["links"]
    assert "latency" in output_of("devices")
    ended = output_of("stop")
    assert all(name in ended for name in names)
    assert "no worker runs" in output_of("status")
