"""Hosts: names of devices over several computers, what a machine of them may be, the ways between
their devices, and the same from files and after changes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vksched as vs
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.edit import alone, changed, some, without
from vksched.topology.host_names import check_name, device_of, host_of, on
from vksched.topology.link_presets import way
from vksched.topology.links import NETWORK, Link, Links
from vksched.topology.topology import Topology
from vksched.topology.topology_file import load_topology


def gpu(name: str, **fields: object) -> DeviceSpec:
    return DeviceSpec(name, "null", **fields)  # type: ignore[arg-type]


def cpu(name: str) -> DeviceSpec:
    return DeviceSpec(name, "cpu")


BUS, WIRE, OWN = Link(8e9, 1e-5), Link(1e9, 5e-5), Link(4e9, 2e-5)
LINKS = Links((
    ("node1/gpu", "node1/cpu", BUS),
    ("node2/gpu", "node2/cpu", BUS),
    ("gpu", "cpu", OWN),
    ("node1/cpu", "node2/cpu", WIRE),
    ("node1/cpu", "cpu", Link(5e8, 1e-4)),
))  # fmt: skip
TOPOLOGY = Topology(
    (
        gpu("gpu"),
        gpu("node1/gpu", memory_node="a"),
        gpu("node1/same", memory_node="a"),
        cpu("node1/cpu"),
        gpu("node2/gpu", memory_node="a"),
        cpu("cpu"),
    ),
    LINKS,
).verify()
GPU, GPU1, SAME1, CPU1, GPU2, CALLER_CPU = range(6)


def test_names_tell_the_host() -> None:
    assert [host_of(name) for name in ("node1/vulkan:0", "vulkan:0", "cpu")] == ["node1", "", ""]
    assert device_of("node1/vulkan:0") == "vulkan:0" == device_of("vulkan:0")
    assert on("node1", "cpu") == "node1/cpu"
    assert on("", "cpu") == "cpu"


@pytest.mark.parametrize("name", ["/gpu", "node1/", "a/b/c", "/"])
def test_a_slash_stands_between_a_host_and_a_device_only(name: str) -> None:
    with pytest.raises(vs.PlanError, match="expected HOST/DEVICE or DEVICE"):
        check_name(name)
    with pytest.raises(vs.PlanError):
        Topology((gpu(name), cpu("cpu"))).verify()


def test_each_host_may_have_a_cpu() -> None:
    assert TOPOLOGY.hosts == ("", "node1", "node2")
    assert TOPOLOGY.cpu == CALLER_CPU
    assert [TOPOLOGY.cpu_of(d) for d in range(6)] == [5, 3, 3, 3, None, 5]
    assert [TOPOLOGY.host_of(d) for d in (GPU, CPU1, GPU2)] == ["", "node1", "node2"]
    assert TOPOLOGY.order == (GPU, GPU1, SAME1, GPU2, CPU1, CALLER_CPU)
    assert [TOPOLOGY.memory_of(host) for host in TOPOLOGY.hosts] == [
        "cpu",
        "node1/cpu",
        "node2/cpu",
    ]


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ((gpu("node1/gpu"), cpu("node1/cpu")), "expected one cpu, as the last device"),
        ((cpu("node1/cpu"), gpu("node1/gpu"), cpu("cpu")), "expected one cpu of node1, node1/cpu,"),
        ((cpu("node1/numpy"), cpu("cpu")), "expected one cpu of node1, node1/cpu,"),
        ((cpu("cpu"), gpu("gpu"), cpu("other")), "expected one cpu, as the last device"),
    ],
)
def test_a_host_has_one_cpu_behind_its_other_devices(
    devices: tuple[DeviceSpec, ...], text: str
) -> None:
    with pytest.raises(vs.PlanError, match=text):
        Topology(devices).verify()


def test_devices_of_two_hosts_share_no_memory() -> None:
    assert TOPOLOGY.memory_nodes == ((GPU,), (GPU1, SAME1), (CPU1,), (GPU2,))


def test_the_way_goes_by_the_memory_of_both_hosts() -> None:
    assert TOPOLOGY.way(GPU1, CPU1) == BUS
    assert TOPOLOGY.way(CPU1, GPU2) == Link(1 / (1 / 1e9 + 1 / 8e9), 5e-5 + 1e-5)
    whole = TOPOLOGY.way(GPU1, GPU2)
    assert whole.latency_s == pytest.approx(1e-5 + 5e-5 + 1e-5)
    assert 1 / whole.bytes_per_s == pytest.approx(1 / 8e9 + 1 / 1e9 + 1 / 8e9)
    assert [leg[:2] for leg in TOPOLOGY.legs(GPU1, GPU2)] == [
        ("node1/gpu", "node1/cpu"),
        ("node1/cpu", "node2/cpu"),
        ("node2/cpu", "node2/gpu"),
    ]
    assert TOPOLOGY.way(CALLER_CPU, CPU1) == Link(5e8, 1e-4)


def test_hosts_that_no_link_names_have_the_network() -> None:
    assert TOPOLOGY.link_between("", "node2") == NETWORK
    assert way("ethernet10g") == NETWORK
    fast = Topology(TOPOLOGY.devices, Links(LINKS.pairs, network=Link(1e10, 1e-6)))
    assert fast.link_between("", "node2") == Link(1e10, 1e-6)
    assert fast.link_between("node2", "node1") == WIRE


def test_plain_data_keeps_hosts_and_network() -> None:
    topology = Topology(TOPOLOGY.devices, Links(LINKS.pairs, network=Link(1e10, 1e-6)))
    again = Topology.from_dict(json.loads(json.dumps(topology.as_dict())))
    assert again == topology
    assert Topology.from_dict(TOPOLOGY.as_dict()) == TOPOLOGY


def test_a_file_describes_hosts(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    devices = [
        {"name": "node1/gpu", "count": 2, "link": "pcie3x16"},
        {"name": "node2/gpu", "link": "pcie4x16"},
        {"name": "node2/cpu", "kind": "cpu"},
    ]
    path.write_text(json.dumps({"devices": devices, "network": "ethernet25g"}))
    topology = load_topology(path)
    names = ["node1/gpu:0", "node1/gpu:1", "node2/gpu", "node2/cpu", "cpu"]
    assert [spec.name for spec in topology.devices] == names
    assert topology.link_in(1) == way("pcie3x16")
    assert topology.link_out(2) == way("pcie4x16")
    assert topology.link_between("node1", "") == way("ethernet25g")
    path.write_text(json.dumps({"devices": devices, "network": {"gb_per_s": 2, "latency_us": 5}}))
    assert load_topology(path).links.network.bytes_per_s == 2e9
    path.write_text(json.dumps({"devices": devices, "network": {"bytes_per_s": 0}}))
    with pytest.raises(vs.PlanError, match="at least 1 byte a second for the network"):
        load_topology(path)
    path.write_text(json.dumps({"devices": devices, "network": "ethernet"}))
    with pytest.raises(vs.PlanError, match="expected the name of a link"):
        load_topology(path)


def test_changes_take_hosts_away_and_keep_their_cpus() -> None:
    names = [spec.name for spec in changed(TOPOLOGY, "-node1").devices]
    assert names == ["gpu", "node2/gpu", "cpu"]
    assert [spec.name for spec in alone(TOPOLOGY, "node1/gpu").devices] == [
        "node1/gpu",
        "node1/cpu",
        "cpu",
    ]
    two = some(TOPOLOGY, ["node1/gpu", "node2/gpu"])
    assert two.way(0, 2) == TOPOLOGY.way(GPU1, GPU2)  # by node2/cpu, which is no device
    assert without(TOPOLOGY, "node1/cpu").cpu_of(GPU1) is None
    with pytest.raises(vs.PlanError, match="expected one of"):
        without(TOPOLOGY, "node3")
