"""TensorSender: values of a part on their way to other hosts, while its walk goes on.

    walk: wait, check, fetch --small--> TensorTransport      --large--> a thread --> TensorTransport
    end:  wait until all are sent: their memory is the slot's

Problem: a large value takes a network long, and the devices need the walk meanwhile. Method: as
many threads as there are hosts to send to. The first that fails gives the run up, so that the walk
waits for nothing any more. Examples: tests/distributed/test_sending.py.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from ...common.dtypes import NDArray
from ...common.errors import RunAborted
from ...trace import Clock
from ..protocols import RunKey, TensorTransport

SMALL_BYTES = 1 << 16
"""Up to so much goes on the thread of the walk: the system takes it at once."""
MAX_THREADS = 32


class SentTensor(NamedTuple):
    """A value that was sent, and when, in seconds of the scheduler's clock."""

    value: int
    host: str
    start_s: float
    end_s: float


class TensorSender:
    """Values of all runs of one part. hosts: how many it sends to."""

    def __init__(self, transport: TensorTransport, hosts: int, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._threads = ThreadPoolExecutor(max(1, min(hosts, MAX_THREADS)), "vksched-send")
        self._under_way: dict[RunKey, list[Future[None]]] = {}
        self._failures: dict[RunKey, BaseException] = {}
        self._sent: dict[RunKey, list[SentTensor]] = {}

    def send(self, run: RunKey, value: int, host: str, array: NDArray, alone: bool) -> None:
        """Send a value; it must not change before `wait`. alone: the walk has nothing else to do.

        Raises:
            What `TensorTransport.send` does; where the run was given up as an earlier value could
            not be sent, the reason of that.
        """
        if alone or array.nbytes <= SMALL_BYTES:
            try:
                self._send_value(run, value, host, array)
            except RunAborted:  # by a thread, whose reason tells more
                self.require(run)
                raise
            return
        sent = self._threads.submit(self._send, run, value, host, array)
        self._under_way.setdefault(run, []).append(sent)

    def wait(self, run: RunKey) -> None:
        """Wait until all values of a run are sent.

        Raises:
            What `TensorTransport.send` does.
        """
        self.settle(run)
        self.require(run)

    def settle(self, run: RunKey) -> None:
        """Wait until nothing reads the memory of a run any more."""
        wait(self._under_way.get(run, ()))

    def require(self, run: RunKey) -> None:
        """Raise why a value of a run could not be sent; does not wait."""
        if run in self._failures:
            raise self._failures[run]

    def end(self, run: RunKey) -> None:
        """Forget a run, of which nothing is under way."""
        self._under_way.pop(run, None)
        self._failures.pop(run, None)
        self._sent.pop(run, None)

    def sent(self, run: RunKey) -> list[SentTensor]:
        """Returns what was sent of a run until now."""
        return list(self._sent.get(run, ()))

    def close(self) -> None:
        """End the threads, once no run is under way."""
        self._threads.shutdown()

    def _send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        try:
            self._send_value(run, value, host, array)
        except BaseException as error:
            self._failures.setdefault(run, error)
            self._transport.abort(run)

    def _send_value(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        start_s = self._clock.now()
        self._transport.send(run, value, host, array)
        self._sent.setdefault(run, []).append(SentTensor(value, host, start_s, self._clock.now()))
