"""Listing, marking and naming devices, with made-up drivers and with those that are present."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.errors import DeviceError
from vksched.common.user_warning import VkschedWarning
from vksched.runtime.vulkan import binding, device_probe, driver_probe
from vksched.topology.limits import Limits

GIB = 1 << 30
MIB = 1 << 20

Show = Callable[..., tuple[device_probe.DeviceInfo, ...]]


def raw(index: int, **changes: Any) -> dict[str, Any]:
    """One device as a driver describes it: a discrete AMD card unless said otherwise."""
    device: dict[str, Any] = {
        "index": index,
        "name": "Radeon RX 6800",
        "type": "discrete",
        "vendor_id": 0x1002,
        "device_id": 0x73BF,
        "api_version": "1.3.246",
        "driver_name": "radv",
        "driver_info": "Mesa 23.1.0",
        "driver_version": 96468992,
        "uuid": f"{index + 1:032x}",
        "driver_uuid": "aa" * 16,
        "pci": f"0000:{index + 1:02x}:00.0",
        "heaps": [
            {
                "size_bytes": 16 * GIB,
                "device_local": True,
                "budget_bytes": 15 * GIB,
                "usage_bytes": 2 * GIB,
            },
            {
                "size_bytes": 32 * GIB,
                "device_local": False,
                "budget_bytes": None,
                "usage_bytes": None,
            },
        ],
        "limits": {
            "maxComputeWorkGroupInvocations": 1024,
            "maxComputeWorkGroupSize": [1024, 1024, 1024],
            "maxComputeWorkGroupCount": [65535, 65535, 65535],
            "maxComputeSharedMemorySize": 65536,
            "maxPushConstantsSize": 256,
            "maxPerStageDescriptorStorageBuffers": 1 << 20,
            "maxPerStageResources": 200,
            "maxStorageBufferRange": (1 << 32) - 1,
            "maxMemoryAllocationSize": 4 * GIB,
        },
        "subgroup_size": 64,
        "features": {
            "int64": True,
            "float16": True,
            "integer_dot": True,
            "matrices": ["float16*float16+float32 16x16x16"],
            "subgroup_sizes": [32, 64],
            "copy_queue": True,
        },
        "timestamp_period_ns": 10.0,
        "timestamp_valid_bits": 64,
        "usable": True,
        "why": "",
    }
    return {**device, **changes}


INTEL = {"vendor_id": 0x8086, "device_id": 0x9A49, "name": "Xe", "type": "integrated"}
NVIDIA = {"vendor_id": 0x10DE, "device_id": 0x2204, "name": "RTX 3090", "driver_name": "NVIDIA"}
SOFT = {"vendor_id": 0x1AE0, "device_id": 0xC0DE, "name": "SwiftShader", "type": "cpu", "pci": None}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine's user has set does not count here, nor what earlier tests found."""
    for name in ("VKSCHED_SOFTWARE", "VKSCHED_NO_VULKAN", "VKSCHED_PROBE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(driver_probe, "_first", {})
    monkeypatch.setattr(device_probe, "_warned", False)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Make the drivers answer with these devices and returns the list of them."""

    def answer(*devices: dict[str, Any], **others: Any) -> tuple[device_probe.DeviceInfo, ...]:
        monkeypatch.setattr(
            driver_probe, "ask_drivers", lambda: driver_probe.Answer(devices, **others)
        )
        return device_probe.list_devices()

    return answer


def test_three_vendors_are_described_and_used(show: Show) -> None:
    amd, intel, nvidia, cpu = show(raw(0), raw(1, **INTEL), raw(2, **NVIDIA))
    assert [d.name for d in (amd, intel, nvidia, cpu)] == [
        "vulkan:0",
        "vulkan:1",
        "vulkan:2",
        "cpu",
    ]
    assert [d.vendor for d in (amd, intel, nvidia)] == ["AMD", "Intel", "NVIDIA"]
    assert all(d.default and not d.why_not for d in (amd, intel, nvidia, cpu))
    assert amd.driver == "radv Mesa 23.1.0"
    assert (amd.memory_total_bytes, amd.memory_free_bytes) == (16 * GIB, 13 * GIB)
    assert amd.max_buffer_bytes == GIB
    assert amd.timestamps and amd.subgroup_size == 64
    assert amd.limits == Limits(
        max_invocations=1024,
        max_local_size=(1024, 1024, 1024),
        shared_bytes=65536,
        push_bytes=256,
        storage_buffers=200,
        max_buffer_bytes=(1 << 32) - 1,
        subgroup_size=64,
        int64=True,
        float16=True,
        integer_dot=True,
        matrices=("float16*float16+float32 16x16x16",),
        subgroup_sizes=(32, 64),
        copy_queue=True,
    )
    assert device_probe.survey().reason is None


@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({"cores": 40}, 40),
        ({"cores": 0}, 0),
        ({"cores": None}, 0),
        ({**NVIDIA, "cores": 82}, 82),
        ({**INTEL, "device_id": 0x56A0, "type": "discrete", "cores": 0}, 32),  # Arc A770
        ({**INTEL, "device_id": 0x56A0, "cores": 16}, 16),  # a driver's answer counts first
        ({**INTEL, "cores": 0}, 0),  # integrated
        ({"device_id": 0x56A0, "cores": 0}, 0),  # another vendor's id
        ({**SOFT, "cores": 8}, 0),
    ],
)
def test_cores_are_those_of_the_driver_or_of_intels_table(
    changes: dict[str, Any], cores: int, show: Show
) -> None:
    assert show(raw(0, **changes))[0].limits.cores == cores


def test_consumer_cards_of_nvidia_sum_faster_in_float16(show: Show) -> None:
    for name, faster in (
        ("NVIDIA GeForce RTX 4070", True),
        ("NVIDIA H100 PCIe", False),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", False),
    ):
        assert show(raw(0, name=name))[0].limits.fp16_sums_faster == faster


def test_attention_by_matrices_is_slow_on_turing(show: Show) -> None:
    for name, slow in (
        ("NVIDIA GeForce RTX 2060 SUPER", True),
        ("NVIDIA GeForce RTX 2080 Ti", True),
        ("Quadro RTX 5000 with Max-Q Design", True),
        ("NVIDIA TITAN RTX", True),
        ("Tesla T4", True),
        ("NVIDIA GeForce RTX 2050", False),  # Ampere
        ("NVIDIA GeForce RTX 3060", False),
        ("NVIDIA RTX 4000 Ada Generation", False),
        ("NVIDIA H100 PCIe", False),
    ):
        assert show(raw(0, name=name))[0].limits.coopmat_attention_slow == slow


def test_defaults_put_discrete_devices_first(show: Show) -> None:
    show(raw(0, **INTEL), raw(1), raw(2, **SOFT), raw(3, **NVIDIA))
    assert [d.name for d in device_probe.default_devices()] == [
        "vulkan:1",
        "vulkan:3",
        "vulkan:0",
        "cpu",
    ]


def test_unknown_vendor_and_missing_facts(show: Show) -> None:
    device = raw(0, vendor_id=0xBEEF, driver_info="", driver_version=(3 << 22) | (4 << 12) | 5)
    for name in ("limits", "heaps", "subgroup_size", "features", "timestamp_valid_bits", "pci"):
        del device[name]
    info = show(device)[0]
    assert info.vendor == "0xbeef"
    assert info.driver == "radv 3.4.5"
    assert info.limits == Limits()
    assert info.max_buffer_bytes == 128 * MIB
    assert info.memory_total_bytes == info.memory_free_bytes == 0
    assert not info.timestamps


@pytest.mark.parametrize(
    ("allocation", "range_", "page"),
    [
        (GIB, (1 << 27) + 1, 1 << 27),
        (4097, GIB, 4096),
        (8 * GIB, 8 * GIB, GIB),
        (0, 1 << 27, 1 << 27),
    ],
)
def test_page_is_the_smallest_limit(show: Show, allocation: int, range_: int, page: int) -> None:
    limits = {"maxMemoryAllocationSize": allocation, "maxStorageBufferRange": range_}
    assert show(raw(0, limits=limits))[0].max_buffer_bytes == page


def heap(size_bytes: int, local: bool, budget: int | None = None, used: int | None = None) -> Any:
    return {
        "size_bytes": size_bytes,
        "device_local": local,
        "budget_bytes": budget,
        "usage_bytes": used,
    }


@pytest.mark.parametrize(
    ("heaps", "total", "free"),
    [
        ([heap(8 * GIB, True)], 8 * GIB, 8 * GIB),
        ([heap(8 * GIB, True, 0, 0)], 8 * GIB, 8 * GIB),
        ([heap(8 * GIB, True, 6 * GIB, 7 * GIB)], 8 * GIB, 0),
        ([heap(8 * GIB, True, 6 * GIB, None)], 8 * GIB, 6 * GIB),
        ([heap(32 * GIB, False), heap(GIB // 4, True), heap(8 * GIB, True)], 8 * GIB, 8 * GIB),
        ([heap(3 * GIB, False, 3 * GIB, GIB)], 3 * GIB, 2 * GIB),
    ],
    ids=["no budget", "budget 0", "overdrawn", "no usage", "largest local heap", "no local heap"],
)
def test_memory_comes_from_the_heap_of_our_buffers(
    show: Show, heaps: list[Any], total: int, free: int
) -> None:
    info = show(raw(0, heaps=heaps))[0]
    assert (info.memory_total_bytes, info.memory_free_bytes) == (total, free)


def test_memory_shared_with_the_host_is_free_only_when_the_host_has_it(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_probe, "host_memory_bytes", lambda: (16 * GIB, 5 * GIB))
    discrete, integrated, soft, cpu = show(raw(0), raw(1, **INTEL), raw(2, **SOFT))
    assert discrete.memory_free_bytes == 13 * GIB
    assert integrated.memory_free_bytes == soft.memory_free_bytes == 5 * GIB
    assert (cpu.memory_total_bytes, cpu.memory_free_bytes) == (16 * GIB, 5 * GIB)


def test_software_devices_are_used_only_on_request(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, _ = show(raw(0, **SOFT))
    assert not soft.default and "VKSCHED_SOFTWARE=1" in soft.why_not
    assert soft.limits.software
    assert "software" in str(device_probe.survey().reason)
    assert device_probe.resolve("vulkan:0").label == "SwiftShader"
    monkeypatch.setenv("VKSCHED_SOFTWARE", "1")
    assert device_probe.list_devices()[0].default
    assert device_probe.survey().reason is None
    monkeypatch.setenv("VKSCHED_SOFTWARE", "0")
    assert not device_probe.list_devices()[0].default


RADV = {"driver_name": "radv", "driver_uuid": "aa" * 16, "name": "Radeon RX 6800 (RADV NAVI21)"}
AMDVLK = {"driver_name": "AMD open-source driver", "driver_uuid": "bb" * 16}
NO_BUS = {"pci": None}


@pytest.mark.parametrize(
    ("devices", "duplicates"),
    [
        ([raw(0, **RADV, pci="p"), raw(1, **AMDVLK, pci="p")], {1: "vulkan:0"}),
        ([raw(0, pci={"bus": 1}), raw(1, pci={"bus": 1})], {1: "vulkan:0"}),
        ([raw(0, **RADV), raw(1, **RADV)], {}),
        ([raw(0, **RADV, **NO_BUS), raw(1, **RADV, **NO_BUS)], {}),
        ([raw(0, **RADV, **NO_BUS), raw(1, **AMDVLK, **NO_BUS)], {1: "vulkan:0"}),
        ([raw(0, **RADV, **NO_BUS), raw(1, **AMDVLK)], {1: "vulkan:0"}),
        ([raw(0, **RADV), raw(1, **AMDVLK)], {}),
        (
            [
                raw(0, **RADV, pci="p"),
                raw(1, **RADV, pci="q"),
                raw(2, **AMDVLK, pci="p"),
                raw(3, **AMDVLK, pci="q"),
            ],
            {2: "vulkan:0", 3: "vulkan:1"},
        ),
        ([raw(0, **RADV, **NO_BUS), raw(1, **RADV), raw(2, **AMDVLK, **NO_BUS)], {}),
        ([raw(i, **NO_BUS, uuid="ab" * 16) for i in range(3)], {1: "vulkan:0", 2: "vulkan:0"}),
        ([raw(i, **NO_BUS, uuid="00" * 16) for i in range(2)], {}),
        ([raw(0, **RADV, pci="p", usable=False, why="x"), raw(1, pci="p")], {0: "vulkan:1"}),
        ([raw(0, **SOFT), raw(1, **SOFT, driver_name="other")], {}),
        ([raw(0, **SOFT, uuid="cd" * 16), raw(1, **{**SOFT, "uuid": "cd" * 16})], {1: "vulkan:0"}),
    ],
    ids=[
        "one card, two drivers, same bus",
        "bus as fields",
        "two cards, one driver",
        "two cards, one driver, bus unknown",
        "only pair of its model, bus unknown",
        "only pair of its model, one bus known",
        "two cards, a driver each",
        "two cards, two drivers",
        "three of a model, bus unknown",
        "same uuid",
        "zero uuids say nothing",
        "the usable one stays",
        "software devices are no cards",
        "software device listed twice",
    ],
)
def test_duplicates(show: Show, devices: list[dict[str, Any]], duplicates: dict[int, str]) -> None:
    found = show(*devices)
    assert {d.index: d.duplicate_of for d in found if d.duplicate_of} == duplicates
    for info in found:
        if info.duplicate_of:
            assert not info.default and info.duplicate_of in info.why_not


def test_unusable_device_is_listed_with_its_reason(show: Show) -> None:
    old, good, _ = show(raw(0, usable=False, why="Vulkan 1.0, 1.1 is needed"), raw(1, **NVIDIA))
    assert not old.usable and not old.default and "1.0" in old.why_not
    assert good.default
    with pytest.raises(DeviceError, match="vulkan:0 .* cannot be used: Vulkan 1.0"):
        device_probe.resolve("vulkan:0")


def test_names(show: Show) -> None:
    show(raw(0, uuid="1234AB00-0000-0000-0000-000000000000"), raw(1, uuid="1234cd" + "0" * 26))
    assert device_probe.resolve("vulkan:1").index == 1
    assert device_probe.resolve("vulkan:1234ab").index == 0
    assert device_probe.resolve("vulkan:1234CD").index == 1
    assert device_probe.resolve("vulkan:1234ab00-0000-0000-0000-000000000000").index == 0
    assert device_probe.resolve("cpu").name == "cpu"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vulkan:1234", "fits vulkan:0 .*, vulkan:1 .*; try an index or more digits"),
        (
            "vulkan:7",
            r"expected a device of this machine, got 'vulkan:7'; there is: vulkan:0 \(Rad",
        ),
        ("vulkan:123", "expected a device of this machine"),
        ("vulkan:beef", "vulkan:1 .*, cpu"),
        ("vulkan:12a", "4 to 32 hex digits"),
        ("vulkan:-1", "4 to 32 hex digits"),
        ("vulkan:x", "4 to 32 hex digits"),
        ("vulkan:\u0661", "4 to 32 hex digits"),
        ("vulkan:", "expected vulkan:N"),
        ("vulkan", "expected vulkan:N"),
        ("cuda:0", "expected vulkan:N.*got 'cuda:0'; try a name that `vksched devices`"),
        ("CPU", "expected vulkan:N"),
        ("", "expected vulkan:N"),
    ],
)
def test_names_that_fit_no_device_or_several(show: Show, name: str, message: str) -> None:
    show(raw(0, uuid="1234ab" + "0" * 26), raw(1, uuid="1234cd" + "0" * 26))
    with pytest.raises(DeviceError, match=message):
        device_probe.resolve(name)


def test_uuid_of_a_device_and_its_duplicate_names_the_one_in_use(show: Show) -> None:
    one = {"uuid": "abcd" * 8, "pci": None}
    show(raw(0, **one, usable=False, why="old"), raw(1, **one))
    assert device_probe.resolve("vulkan:abcd").name == "vulkan:1"


def test_index_wins_over_uuid_up_to_three_digits(show: Show) -> None:
    devices = [raw(i, uuid=f"{1000 + i}" + "f" * 28) for i in range(2)]
    show(*devices, *(raw(i, pci=f"p{i}", uuid=f"{i:032x}") for i in range(2, 101)))
    assert device_probe.resolve("vulkan:100").index == 100
    assert device_probe.resolve("vulkan:1000").index == 0
    assert device_probe.resolve("vulkan:1001").index == 1


def test_no_vulkan_is_reported_once(show: Show) -> None:
    assert [d.name for d in show(problem="kp is not installed; try `make setup`")] == ["cpu"]
    with pytest.warns(VkschedWarning, match="kp is not installed; try `make setup`.*numpy") as seen:
        assert [d.name for d in device_probe.default_devices()] == ["cpu"]
        device_probe.default_devices()
    assert len(seen) == 1
    with pytest.raises(DeviceError, match=r"'vulkan:0', got none: .*make setup"):
        device_probe.resolve("vulkan:0")


def test_no_driver_and_only_bad_devices_have_a_reason(show: Show) -> None:
    show(notes=("/x/y.so: file too short",))
    assert "no driver lists one (/x/y.so: file too short); try" in str(device_probe.survey().reason)
    show(raw(0, usable=False, why="no compute queue"))
    assert "vulkan:0: no compute queue" in str(device_probe.survey().reason)


def test_hidden_vulkan_asks_no_driver_and_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> driver_probe.Answer:
        raise AssertionError("a driver was asked")

    monkeypatch.setattr(driver_probe, "ask_drivers", fail)
    monkeypatch.setenv("VKSCHED_NO_VULKAN", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [d.name for d in device_probe.default_devices()] == ["cpu"]
    assert "VKSCHED_NO_VULKAN" in str(device_probe.survey().reason)
    with pytest.raises(DeviceError, match="VKSCHED_NO_VULKAN"):
        device_probe.resolve("vulkan:0")


def test_specs_for_the_planner(show: Show) -> None:
    card, soft, cpu = show(raw(0), raw(1, **SOFT))
    spec = device_probe.device_spec(card, "vulkan:0#2")
    assert (spec.name, spec.kind, spec.label) == ("vulkan:0#2", "vulkan", "Radeon RX 6800")
    assert spec.limits == card.limits and spec.max_buffer_bytes == card.max_buffer_bytes
    assert 0 < spec.memory_bytes < card.memory_free_bytes
    host = device_probe.device_spec(cpu)
    assert (host.name, host.kind) == ("cpu", "cpu")
    slow = device_probe.device_spec(soft)
    assert spec.flops_per_s > host.flops_per_s > slow.flops_per_s


@pytest.mark.skipif(binding.available() is not None, reason=f"no Vulkan: {binding.available()}")
def test_real_devices_agree_with_themselves() -> None:
    found = device_probe.list_devices()
    again = {d.name: d for d in device_probe.list_devices()}
    for info in found[:-1]:
        assert again[info.name].uuid == info.uuid
        assert again[info.name].limits == info.limits
        assert info.max_buffer_bytes > 128 * MIB - 4096
        assert info.limits.max_invocations >= 128
        assert 0 < info.memory_free_bytes <= info.memory_total_bytes
        if info.usable:
            assert device_probe.resolve(info.name).label == info.label
            if info.uuid:
                assert device_probe.resolve(f"vulkan:{info.uuid}").uuid == info.uuid


# -- identity: a scheduler on devices that are not there -------------------------------------------

CARDS = {"a": "aaaa" * 8, "b": "bbbb" * 8}
X = np.ones((2, 3), np.float32)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Has schedulers open null devices for what the drivers list; gives (index, name) of each."""
    found: list[tuple[int, str]] = []

    def open_null(info: device_probe.DeviceInfo, name: str) -> vs.SimulatedDevice:
        found.append((info.index, name))
        return vs.SimulatedDevice(device_probe.device_spec(info, name), vs.SimulatedClock())

    monkeypatch.setattr("vksched.engine.device_set.open_device", open_null)
    return found


def on_cards(names: list[str], placement: dict[str, str]) -> tuple[vs.Plan, dict[str, str]]:
    """The plan of two ops on a scheduler of these names, and the UUID of the card of each op."""
    x = vs.input("x", X.shape)
    y = vs.add(vs.add(x, 1.0, name="first"), 1.0, name="second")
    with vs.Scheduler(names) as sched:
        run = sched.compile(y, placement=placement)
        assert np.array_equal(run(x=X), X + 2)
        devices = run.plan.topology.devices
        nodes = zip(run.plan.graph.nodes, run.plan.placements, strict=True)
        return run.plan, {n.name: devices[p.device].memory_node for n, p in nodes if n.name != "x"}


@pytest.mark.usefixtures("opened")
def test_uuids_name_the_same_cards_when_the_loader_changes_their_order(show: Show) -> None:
    names = [f"vulkan:{CARDS[card][:6]}" for card in "ab"]
    placement = {"first": names[1], "second": names[0]}
    wanted = {"first": CARDS["b"], "second": CARDS["a"]}
    for order in ("ab", "ba"):
        show(*(raw(i, uuid=CARDS[card]) for i, card in enumerate(order)))
        plan, uuids = on_cards(names, placement)
        assert {k: uuids[k] for k in wanted} == wanted
        for index, card in enumerate(order):
            op = {"a": "second", "b": "first"}[card]
            assert f"{op}: vulkan:{index}, override: {op} on vulkan:{index}" in plan.explain()


def test_an_index_names_another_card_when_the_order_changes(
    show: Show, opened: list[tuple[int, str]]
) -> None:
    for order in ("ab", "ba"):
        show(*(raw(i, uuid=CARDS[card]) for i, card in enumerate(order)))
        _, uuids = on_cards(["vulkan:0", "vulkan:1"], {"*": "vulkan:0"})
        assert uuids["second"] == CARDS[order[0]]
    assert opened == [(0, "vulkan:0"), (1, "vulkan:1")] * 2


def test_a_card_with_two_drivers_is_used_once(show: Show, opened: list[tuple[int, str]]) -> None:
    show(raw(0, **RADV, pci="p"), raw(1, **AMDVLK, pci="p"), raw(2, **NVIDIA), raw(3, **SOFT))
    with vs.Scheduler() as sched:
        assert [d.name for d in sched.devices] == ["vulkan:0", "vulkan:2", "cpu"]
    assert opened == [(0, "vulkan:0"), (2, "vulkan:2")]


def test_the_same_device_named_in_two_ways_is_two_logical_devices(
    show: Show, opened: list[tuple[int, str]]
) -> None:
    show(raw(0, uuid=CARDS["a"]), raw(1, uuid=CARDS["b"]))
    by_uuid = f"vulkan:{CARDS['b'][:4]}"
    with vs.Scheduler(["vulkan:1", by_uuid, "vulkan:0"]) as sched:
        assert [d.name for d in sched.devices] == ["vulkan:1", "vulkan:1#2", "vulkan:0", "cpu"]
        assert (
            sched.topology.memory_peers(0) == sched.topology.memory_peers(1) == (0, 1)
        )  # one memory for both
        # a name stands for the device that it opened first, another name for the card's first
        for name, device in (("vulkan:1", 0), (by_uuid, 1), (f"vulkan:{CARDS['b']}", 0)):
            plan = sched.compile(vs.input("x", (1,)) + 1.0, placement={"*": name}).plan
            assert [s.device for s in plan.splits] == [device]
    assert opened == [(1, "vulkan:1"), (1, "vulkan:1#2"), (0, "vulkan:0")]


@pytest.mark.usefixtures("opened")
def test_a_uuid_that_fits_two_cards_is_refused_wherever_it_is_passed(show: Show) -> None:
    show(raw(0, uuid="1234ab" + "0" * 26), raw(1, uuid="1234cd" + "0" * 26))
    with pytest.raises(DeviceError, match="fits vulkan:0 .*, vulkan:1 .*; try an index or more"):
        vs.Scheduler(["vulkan:1234"])
    with vs.Scheduler(["vulkan:1234ab", "vulkan:1234cd"]) as sched:
        y = vs.add(vs.input("x", (1,)), 1.0, name="y")
        with pytest.raises(DeviceError, match="fits vulkan:0 .*, vulkan:1"):
            sched.compile(y, placement={"y": "vulkan:1234"})
        for name, index in (("vulkan:1234ab", 0), ("vulkan:1234CD", 1), ("vulkan:1234cd00", 1)):
            plan = sched.compile(y, placement={"y": name}).plan
            assert [s.device for s in plan.splits] == [index]


@pytest.mark.usefixtures("opened")
def test_a_card_that_is_not_open_is_refused_by_any_name(show: Show) -> None:
    show(raw(0, uuid=CARDS["a"]), raw(1, uuid=CARDS["b"]))
    with vs.Scheduler(["vulkan:0"]) as sched:
        for name in ("vulkan:1", f"vulkan:{CARDS['b']}"):
            with pytest.raises(DeviceError, match="expected one of vulkan:0, cpu, got 'vulkan:1'"):
                sched.compile(vs.input("x", (1,)) + 1.0, placement={"*": name})


def test_a_software_device_is_opened_by_name_or_request_only(
    show: Show, opened: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(raw(0, **SOFT), raw(1))
    for _ in range(2):
        with vs.Scheduler() as sched:
            assert [d.name for d in sched.devices] == ["vulkan:1", "cpu"]
    with vs.Scheduler(["vulkan:0"]) as sched:
        assert [d.name for d in sched.devices] == ["vulkan:0", "cpu"]
    monkeypatch.setenv("VKSCHED_SOFTWARE", "1")
    with vs.Scheduler() as sched:
        assert [d.name for d in sched.devices] == ["vulkan:1", "vulkan:0", "cpu"]
    assert [index for index, _ in opened] == [1, 1, 0, 1, 0]
