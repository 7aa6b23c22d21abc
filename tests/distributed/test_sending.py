"""Values on their way to other hosts: nobody waits for a slow one, and failures are told."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from memory_hosts import lost

from vksched.common.dtypes import NDArray
from vksched.common.errors import HostLost, RunAborted
from vksched.distributed.protocols import RunKey
from vksched.distributed.worker.sending import SMALL_BYTES, TensorSender
from vksched.trace.events import SystemClock

WAIT_S = 30.0
RUN = RunKey(0, 0, 1)
LARGE = np.zeros(SMALL_BYTES + 1, np.uint8)


class Gated:
    """A transport whose sends to one host wait for a gate, and to "lost" fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sent: list[tuple[int, str]] = []
        self.aborted = threading.Event()

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        if host == "slow":
            assert self.gate.wait(WAIT_S)
        if host == "lost":
            raise lost(host)
        if self.aborted.is_set():
            raise RunAborted
        self.sent.append((value, host))

    def abort(self, run: RunKey) -> None:
        self.aborted.set()

    def recv(self, run: RunKey, value: int, host: str, timeout_s: float) -> NDArray:
        raise RunAborted

    def has_arrived(self, run: RunKey, value: int, host: str) -> bool:
        return False

    def end(self, run: RunKey) -> None:
        pass


def test_a_slow_host_delays_neither_the_walk_nor_other_hosts() -> None:
    transport = Gated()
    out = TensorSender(transport, 2, SystemClock())
    out.send(RUN, 0, "slow", LARGE, False)
    out.send(RUN, 1, "quick", LARGE, False)
    out.send(RUN, 2, "quick", LARGE[:8], False)  # small: it has left by now
    assert (2, "quick") in transport.sent and (0, "slow") not in transport.sent
    transport.gate.set()
    out.wait(RUN)
    assert sorted(transport.sent) == [(0, "slow"), (1, "quick"), (2, "quick")]
    out.end(RUN)
    out.close()


def test_a_value_that_cannot_be_sent_ends_the_run_with_the_reason() -> None:
    transport = Gated()
    out = TensorSender(transport, 2, SystemClock())
    out.send(RUN, 0, "lost", LARGE, False)
    assert transport.aborted.wait(WAIT_S)  # who waits for a value is woken
    with pytest.raises(HostLost):
        out.require(RUN)
    with pytest.raises(HostLost):
        out.send(RUN, 1, "quick", LARGE[:8], False)  # and who sends another one learns why
    with pytest.raises(HostLost):
        out.wait(RUN)
    out.end(RUN)
    with pytest.raises(RunAborted):
        out.send(RUN, 1, "quick", LARGE[:8], False)
    out.wait(RUN)
    out.close()
