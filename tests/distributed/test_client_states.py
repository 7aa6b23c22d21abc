"""States of drivers: what a plan uses stays as it is, and nothing is held twice."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from conftest import vulkan_names
from graphs import A, make_plan

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import DeviceError, DeviceLost, OutOfMemory
from vksched.distributed.worker.client_states import ClientStates
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.plan.multi_host.host_plan_codec import HostPlanCodec
from vksched.planner.partition.host_partition import cut
from vksched.runtime.simulated.simulated_device import SimulatedDevice
from vksched.runtime.simulated_clock import SimulatedClock
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.open_device import open_device
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.topology.device_spec import DeviceSpec

WAIT_S = 30.0
LARGE, SMALL = np.arange(64, dtype=np.float32), np.zeros(2, np.float32)


class Counting:
    """A device whose states count what they hold."""

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        spec = DeviceSpec("null:0", "null", memory_bytes=memory_bytes)
        self.device = SimulatedDevice(spec, SimulatedClock())
        self.states = ClientStates([self.device])

    def held(self) -> list[NDArray]:
        there = self.device.states
        return [there.read(key) for key in there.keys()]


def part_with(states: ClientStates, name: str = "s") -> HostPlan:
    """Return the part of a plan that adds to a state of LARGE's shape, as a node reads it."""
    state = vs.state(LARGE, name="s")
    y = vs.add(state, vs.input("x", LARGE.shape), name="y")
    plan = make_plan([y], {"s": A, "y": A})
    (part,) = cut(plan)
    text, weights = HostPlanCodec().write(part, lambda key: name)
    assert not weights
    return HostPlanCodec().read(text, lambda digest: LARGE, states.key)


def test_a_state_that_a_plan_uses_is_not_exchanged_for_a_smaller_one() -> None:
    built = Counting()
    built.states.add("null:0", ["s"], [LARGE])
    built.states.pin(1, part_with(built.states))
    with pytest.raises(DeviceError, match="expected states that no plan uses, got some of plan 1"):
        built.states.add("null:0", ["other", "s"], [SMALL, SMALL])
    assert [value.size for value in built.held()] == [64]
    built.states.unpin(1)
    built.states.add("null:0", ["s"], [SMALL])
    assert [value.size for value in built.held()] == [2]


def test_a_plan_for_a_state_that_was_exchanged_before_it_was_pinned_is_refused() -> None:
    built = Counting()
    built.states.add("null:0", ["s"], [LARGE])
    part = part_with(built.states)
    built.states.add("null:0", ["s"], [SMALL])
    with pytest.raises(DeviceLost, match="expected a state 's', got none"):
        built.states.pin(1, part)
    built.states.remove("null:0", "s")
    with pytest.raises(DeviceLost, match="expected a state 's', got none"):
        part_with(built.states)
    built.states.add("null:0", ["s"], [SMALL])
    with pytest.raises(DeviceError, match=r"expected float32\[2\] for a state on null:0"):
        built.states.pin(1, part_with(built.states))
    built.states.close()
    assert built.held() == [] and len(built.states) == 0


def test_a_state_that_is_removed_lives_as_long_as_a_plan_uses_it() -> None:
    built = Counting()
    built.states.add("null:0", ["s"], [LARGE])
    for number in (1, 2):
        built.states.pin(number, part_with(built.states))
    built.states.remove("null:0", "s")
    built.states.remove("null:0", "s")
    for call in (built.states.read, lambda *at: built.states.write(*at, LARGE)):
        with pytest.raises(DeviceError, match="there is no state 's' on null:0"):
            call("null:0", "s")
    with pytest.raises(DeviceError, match="got some of plan 1"):
        built.states.add("null:0", ["s"], [SMALL])
    built.states.unpin(1)
    assert len(built.held()) == 1
    built.states.unpin(2)
    assert built.held() == [] and len(built.states) == 0


def test_who_adds_a_state_waits_for_the_plan_that_is_being_retired() -> None:
    built = Counting()
    built.states.add("null:0", ["s"], [LARGE])
    for number in (1, 2):
        built.states.pin(number, part_with(built.states))
        built.states.begin_unpin(number)
        built.states.remove("null:0", "s")
        thread = threading.Thread(target=built.states.add, args=("null:0", ["s"], [LARGE]))
        thread.start()
        thread.join(0.02)
        assert thread.is_alive()
        built.states.unpin(number)
        thread.join(WAIT_S)
        assert len(built.held()) == 1 and not thread.is_alive()


def test_who_waits_hears_that_the_caller_is_gone() -> None:
    built, heard = Counting(), list[str]()
    built.states.add("null:0", ["s"], [LARGE])
    built.states.pin(1, part_with(built.states))
    built.states.begin_unpin(1)

    def add() -> None:
        try:
            built.states.add("null:0", ["s"], [LARGE])
        except DeviceError as error:
            heard.append(str(error))

    thread = threading.Thread(target=add)
    thread.start()
    built.states.stop()
    thread.join(WAIT_S)
    assert heard == ["[cluster] the driver has gone"]
    built.states.close()
    assert built.held() == []


def test_a_name_that_comes_twice_is_refused_and_nothing_is_added() -> None:
    built = Counting()
    for names, arrays in ((["s", "s"], [LARGE, LARGE]), (["s"], []), ([], [LARGE])):
        with pytest.raises(DeviceError, match="each once"):
            built.states.add("null:0", names, arrays)
    with pytest.raises(DeviceError, match="there is no device 'null:9' here"):
        built.states.add("null:9", ["s"], [LARGE])
    assert built.held() == [] and len(built.states) == 0


def test_states_of_more_bytes_than_the_device_has_free_are_refused_before_they_are_created() -> (
    None
):
    built = Counting(memory_bytes=1 << 20)
    large = np.broadcast_to(np.float32(1), (1 << 40,))
    with pytest.raises(OutOfMemory, match="expected states of at most 1"):
        built.states.add("null:0", ["s"], [large])
    assert built.held() == [] and len(built.states) == 0


def test_a_failure_halfway_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Counting()
    built.states.add("null:0", ["s"], [LARGE])
    there, add = built.device.states, built.device.states.add

    def halfway(items: list[tuple[object, NDArray]]) -> None:
        add(items[:1])
        raise OutOfMemory("[x] no room")

    monkeypatch.setattr(there, "add", halfway)
    with pytest.raises(OutOfMemory, match="no room"):
        built.states.add("null:0", ["s", "t"], [LARGE, LARGE])
    assert built.held() == [] and len(built.states) == 0


@pytest.fixture
def card() -> object:
    """A Vulkan device of the test's own."""
    if not vulkan_names():
        pytest.skip("no Vulkan device here")
    device = open_device(device_probe.resolve(vulkan_names()[0]), "vulkan:0")
    yield device
    device.close()


@pytest.mark.own_devices
def test_a_device_holds_one_state_of_a_key_once(card: VulkanDevice) -> None:
    key = object()
    card.states.add([(key, LARGE), (key, LARGE + 1)])
    assert np.array_equal(card.states.read(key), LARGE + 1)
    card.states.remove(key)
    assert card.states._store.resident_bytes == 0


@pytest.mark.own_devices
def test_nothing_is_recorded_beyond_the_end_of_a_state(card: VulkanDevice) -> None:
    """As if a state had been exchanged between the check of a plan and its recording."""
    states = ClientStates([card])
    state = vs.state(LARGE, name="s")
    y = vs.add(state, vs.input("x", LARGE.shape), name="y")
    with vs.Scheduler([card.name]) as sched:
        (part,) = cut(sched.compile([y], placement={"*": card.name}).plan)
    states.add(card.name, ["s"], [LARGE])
    text, _ = HostPlanCodec().write(part, lambda key: "s")
    plan = HostPlanCodec().read(text, lambda digest: LARGE, states.key).plan
    card.prepare(plan, 0).close()
    key = states.key("s")
    card.states.remove(key)
    card.states.add([(key, SMALL)])
    with pytest.raises(DeviceError, match=r"\[record\] expected 64 words for s .* got 2"):
        card.prepare(plan, 0)
    states.close()
    assert card.states.keys() == ()
