"""TensorSender: send the values of a part to other hosts concurrently with its walk.

    walk: wait, check, fetch --small--> TensorTransport      --large--> a thread --> TensorTransport
    end:  wait until all are sent: their memory belongs to the slot

Problem: sending a large value takes long, and the devices need the walk meanwhile. Method: one
thread per destination host. The first failure aborts the run, so that the walk does not wait.
Examples: tests/distributed/test_sending.py.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from ...common.dtypes import NDArray
from ...common.errors import RunAborted
from ...trace import Clock
from ..protocols import RunKey, TensorTransport

SMALL_BYTES = 1 << 16
"""Values up to this size are sent on the thread of the walk: the system buffers them."""
MAX_THREADS = 32


class SentTensor(NamedTuple):
    """A sent value, with times in seconds of the scheduler's clock."""

    value: int
    host: str
    start_s: float
    end_s: float


class TensorSender:
    """The sent values of all runs of one part. hosts: number of destination hosts."""

    def __init__(self, transport: TensorTransport, hosts: int, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._threads = ThreadPoolExecutor(max(1, min(hosts, MAX_THREADS)), "vksched-send")
        self._under_way: dict[RunKey, list[Future[None]]] = {}
        self._failures: dict[RunKey, BaseException] = {}
        self._sent: dict[RunKey, list[SentTensor]] = {}

    def send(self, run: RunKey, value: int, host: str, array: NDArray, alone: bool) -> None:
        """Send a value, which must not change before `wait`.

        Parameters
        ----------
        alone
            The walk has no other work.

        Raises
        ------
        VkschedError
            An error of `TensorTransport.send`; if an earlier value of the run failed, its error.
        """
        if alone or array.nbytes <= SMALL_BYTES:
            try:
                self._send_value(run, value, host, array)
            except RunAborted:  # aborted by a thread, whose error is more specific
                self.require(run)
                raise
            return
        sent = self._threads.submit(self._send, run, value, host, array)
        self._under_way.setdefault(run, []).append(sent)

    def wait(self, run: RunKey) -> None:
        """Wait until all values of a run are sent; raise the errors of `TensorTransport.send`."""
        self.settle(run)
        self.require(run)

    def settle(self, run: RunKey) -> None:
        """Wait until no thread reads the memory of a run."""
        wait(self._under_way.get(run, ()))

    def require(self, run: RunKey) -> None:
        """Raise the error of a value of a run that could not be sent; does not wait."""
        if run in self._failures:
            raise self._failures[run]

    def end(self, run: RunKey) -> None:
        """Forget a run without pending sends."""
        self._under_way.pop(run, None)
        self._failures.pop(run, None)
        self._sent.pop(run, None)

    def sent(self, run: RunKey) -> list[SentTensor]:
        """Return the values of a run that were sent so far."""
        return list(self._sent.get(run, ()))

    def close(self) -> None:
        """End the threads once no run is in progress."""
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
