"""Keys and what they make of the view: order, pause, the marked process."""

from __future__ import annotations

import pytest
from monitored import device_now, process_now

from vksched.monitor.top.keys import parse
from vksched.monitor.top.state import ORDERS, State, arrange, press

PIDS = [3, 5, 9]


def after(*keys: str, pids: list[int] = PIDS) -> State:
    state = State()
    for key in keys:
        state = press(state, key, pids)
    return state


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["quit"]),
        (b"s p?", ["sort", "pause", "pause", "help"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[1;5Cq", ["other", "quit"]),
        (b"\x1b", ["other"]),
        (b"\x1b[", ["other"]),
        ("é".encode(), ["other", "other"]),
        (b"\r", ["solo"]),
        (b"", []),
    ],
)
def test_what_is_typed_is_read_as_keys(typed: bytes, keys: list[str]) -> None:
    assert parse(typed) == keys


def test_orders_follow_each_other_and_begin_again() -> None:
    seen = [after(*["sort"] * n).order for n in range(len(ORDERS) + 1)]
    assert seen == [*ORDERS, "name"]


def test_any_key_leaves_the_help_and_does_nothing_else() -> None:
    assert after("help").show_help
    assert after("help", "sort") == State()
    assert after("help", "quit").done


def test_arrows_go_around_the_processes() -> None:
    assert [after(*["down"] * n).selected_pid for n in range(5)] == [None, 3, 5, 9, 3]
    assert [after(*["up"] * n).selected_pid for n in range(3)] == [None, 9, 5]
    assert after("down", pids=[]).selected_pid is None


def test_a_marked_process_that_is_gone_makes_room_for_the_first() -> None:
    gone = press(after("down", "down"), "solo", [7])
    assert (gone.selected_pid, gone.solo) == (7, True)


def test_scrolling_stops_at_the_first_device() -> None:
    assert after("back").first == 0
    assert after("further", "further", "back").first == 1
    assert after("further", "sort").first == 0


def test_devices_are_sorted_and_those_of_other_processes_left_out() -> None:
    slow, fast = device_now("cpu", busy=0.1, kind="cpu"), device_now("vulkan:0", busy=0.9)
    processes = [process_now(3, slow, fast), process_now(5, device_now("vulkan:1", busy=0.5))]

    def names(state: State) -> list[str]:
        return [row.device.name for row in arrange(state, processes)]

    assert names(State()) == ["vulkan:0", "cpu", "vulkan:1"]
    assert names(State(order="busy")) == ["vulkan:0", "vulkan:1", "cpu"]
    assert names(State(selected_pid=5, solo=True)) == ["vulkan:1"]
    for order in ORDERS:
        assert len(names(State(order=order))) == 3
