"""The inbox: values come early, late, twice or never, and nobody gets one that is not for him."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vksched.common.dtypes import NDArray, TensorType
from vksched.common.errors import DeviceTimeout, HostLost, RunAborted
from vksched.common.schema import SchemaError
from vksched.distributed.protocols import RunKey
from vksched.distributed.wire.messages import Message
from vksched.distributed.worker.inbox import AHEAD, Inbox

WAIT_S = 60.0
TYPE = TensorType((2, 3), "float32")
RUN = RunKey(1, 0, 5)


@pytest.fixture
def inbox() -> Inbox:
    inbox = Inbox()
    inbox.expect(1, 2, {7: ("node1", TYPE), 8: ("node2", TensorType((0, 2), "int64"))})
    return inbox


def send(inbox: Inbox, run: RunKey, number: float, value: int = 7, host: str = "node1") -> None:
    data = np.full(TYPE.shape, number, np.float32)
    message = Message("value", {**run._asdict(), "node": value})
    message.payload = inbox.place(message, data.nbytes, host)
    message.payload[:] = data.tobytes()
    inbox.arrived(message, host)


def is_full_of(array: NDArray, number: float) -> bool:
    return array.shape == TYPE.shape and bool(np.all(array == number))


def test_a_value_that_comes_first_waits_and_one_that_comes_later_is_waited_for(
    inbox: Inbox,
) -> None:
    send(inbox, RUN, 1)
    assert is_full_of(inbox.recv(RUN, 7, "node1", WAIT_S), 1)
    later = RUN._replace(sequence_number=6)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(inbox.recv, later, 7, "node1", WAIT_S)
        send(inbox, RUN._replace(slot=1), 3)
        send(inbox, later, 2)
        assert is_full_of(taken.result(), 2)


def test_a_value_is_the_takers_own(inbox: Inbox) -> None:
    send(inbox, RUN, 1)
    first = inbox.recv(RUN, 7, "node1", WAIT_S)
    send(inbox, RUN._replace(sequence_number=6), 2)
    assert is_full_of(first, 1) and first.flags.writeable
    with pytest.raises(DeviceTimeout) as caught:
        inbox.recv(RUN, 7, "node1", 0.01)
    assert caught.value.host == "node1"


def test_memory_is_used_again_when_nobody_has_a_view_of_it(inbox: Inbox) -> None:
    send(inbox, RUN, 1)
    first = inbox.recv(RUN, 7, "node1", WAIT_S)
    where, part = first.ctypes.data, first[1:, ::2].T
    del first
    inbox.end(RUN)
    later = RUN._replace(sequence_number=6)
    send(inbox, later, 2)
    assert np.all(part == 1)
    second = inbox.recv(later, 7, "node1", WAIT_S)
    assert second.ctypes.data != where
    there = second.ctypes.data
    del part, second
    last = RUN._replace(sequence_number=7)
    send(inbox, last, 3)
    third = inbox.recv(last, 7, "node1", WAIT_S)
    assert third.ctypes.data == there and is_full_of(third, 3)


def test_two_values_on_their_way_have_memory_of_their_own(inbox: Inbox) -> None:
    size = 24
    for _ in range(3):  # also where there is spare memory
        messages = [
            Message("value", {**RUN._replace(sequence_number=t)._asdict(), "node": 7})
            for t in (5, 6)
        ]
        for message in messages:
            message.payload = inbox.place(message, size, "node1")
        for number, message in enumerate(messages):
            assert message.payload is not None
            message.payload[:] = np.full(6, number, np.float32).tobytes()
        for message in messages:
            inbox.arrived(message, "node1")
        for number, sequence_number in enumerate((5, 6)):
            assert is_full_of(
                inbox.recv(RUN._replace(sequence_number=sequence_number), 7, "node1", 1), number
            )


def test_a_value_without_elements_arrives(inbox: Inbox) -> None:
    message = Message("value", {**RUN._asdict(), "node": 8})
    inbox.arrived(message, "node2")
    assert inbox.recv(RUN, 8, "node2", WAIT_S).shape == (0, 2)


def test_what_nobody_awaits_is_refused_before_memory_is_taken(inbox: Inbox) -> None:
    wrong = [(RUN, 9, "node1"), (RUN, 7, "node2"), (RUN._replace(slot=2), 7, "node1")]
    wrong.append((RUN._replace(slot=-1), 7, "node1"))
    for run, value, host in wrong:
        with pytest.raises(SchemaError, match="nobody awaits"):
            inbox.place(Message("value", {**run._asdict(), "node": value}), 24, host)
    with pytest.raises(SchemaError, match="expected 24 bytes"):
        inbox.place(Message("value", {**RUN._asdict(), "node": 7}), 1 << 40, "node1")


def test_nobody_fills_the_memory_with_runs_to_come(inbox: Inbox) -> None:
    for sequence_number in range(AHEAD):
        send(inbox, RUN._replace(sequence_number=sequence_number), 1)
    with pytest.raises(SchemaError, match="more than"):
        send(inbox, RUN._replace(sequence_number=AHEAD), 1)
    send(inbox, RUN._replace(slot=1), 1)


def test_an_aborted_run_raises_now_and_later(inbox: Inbox) -> None:
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(inbox.recv, RUN, 7, "node1", WAIT_S)
        inbox.abort(RUN)
        with pytest.raises(RunAborted):
            taken.result()
    send(inbox, RUN, 1)
    with pytest.raises(RunAborted):
        inbox.recv(RUN, 7, "node1", WAIT_S)
    assert inbox.is_aborted(RUN)
    inbox.end(RUN)
    assert not inbox.is_aborted(RUN)


def test_what_comes_after_the_end_is_dropped(inbox: Inbox) -> None:
    send(inbox, RUN, 1)
    inbox.end(RUN)
    send(inbox, RUN, 1)
    send(inbox, RUN._replace(sequence_number=3), 1)
    inbox.abort(RUN)
    assert not inbox._runs
    send(inbox, RUN._replace(sequence_number=6), 2)
    assert is_full_of(inbox.recv(RUN._replace(sequence_number=6), 7, "node1", WAIT_S), 2)


def test_a_lost_host_is_asked_to_who_waits_for_it_alone(inbox: Inbox) -> None:
    send(inbox, RUN._replace(slot=1), 4)
    lost = HostLost("gone")
    lost.host = "node1"
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(inbox.recv, RUN, 7, "node1", WAIT_S)
        inbox.mark_lost("node1", lost)
        with pytest.raises(HostLost) as caught:
            taken.result()
    assert caught.value.host == "node1" and caught.value is not lost
    # what had come before is there
    assert is_full_of(inbox.recv(RUN._replace(slot=1), 7, "node1", WAIT_S), 4)
    inbox.mark_recovered("node1")
    send(inbox, RUN, 5)
    assert is_full_of(inbox.recv(RUN, 7, "node1", WAIT_S), 5)


def test_values_of_a_plan_that_is_gone_are_dropped(inbox: Inbox) -> None:
    send(inbox, RUN, 1)
    inbox.forget(1)
    send(inbox, RUN, 1)
    inbox.abort(RUN)
    assert not inbox._runs
    with pytest.raises(SchemaError, match="which is not here"):
        inbox.place(Message("value", {**RUN._asdict(), "node": 7}), 1 << 36, "node1")
