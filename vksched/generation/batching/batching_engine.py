"""BatchingEngine: an inference engine that runs its steps in a thread.

    any thread:  submit --> queue --> engine thread: EngineCore.step, again and again
                 stream <-- events <--'

The thread sleeps while there are no requests. It holds no reference to the engine, so dropping the
engine and its streams ends it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ...common.errors import QueueFull, VkschedError
from ...common.fork_guard import Owner, ProcessBound
from ..completion import CompletionRequest
from ..speculation.drafter import Drafter
from ..step_runner import StepRunner
from .engine_core import EngineCore, HandOver
from .engine_counters import EngineCounters
from .engine_load import EngineSpeeds
from .engine_metrics import Observer
from .request_state import RequestState
from .reservations import Reservation, Reservations
from .slot import SlotStatus
from .token_stream import TokenStream

T = TypeVar("T")


class BatchingEngine(ProcessBound):
    """An engine with continuous batching; it implements `InferenceEngine`.

    The tokens and log-probabilities of a request do not depend on the other requests, to the bit,
    unless `reuse_decoded` is set.

    Parameters
    ----------
    runner
        The steps of a model. The engine closes it.
    ends, max_queue, cache_ram, reuse_decoded, max_pause_s, mask_timeout_s, observer, drafters
        See `EngineCore`.
    """

    _INSTEAD = "to send the path of the model, and to create an engine in each process"

    def __init__(
        self,
        runner: StepRunner,
        ends: frozenset[int] = frozenset(),
        *,
        max_queue: int = 64,
        cache_ram: int = 0,
        reuse_decoded: bool = False,
        max_pause_s: float = 0.1,
        mask_timeout_s: float = 10.0,
        observer: Observer | None = None,
        drafters: Sequence[Drafter] = (),
    ) -> None:
        self._core = EngineCore(
            runner,
            ends,
            max_queue=max_queue,
            cache_ram=cache_ram,
            reuse_decoded=reuse_decoded,
            max_pause_s=max_pause_s,
            mask_timeout_s=mask_timeout_s,
            observer=observer,
            drafters=drafters,
        )
        self._owner = Owner()
        core = self._core
        self._reservations = Reservations(lambda: core.room, core.queue_full)
        self._loop = _EngineLoop(self._core)
        self._finalizer = weakref.finalize(self, self._loop.stop)
        self._loop.thread.start()

    @property
    def length(self) -> int:
        """The maximum number of tokens of a prompt and its answer together."""
        return self._core.runner.length

    def submit(
        self,
        request: CompletionRequest,
        reservation: Reservation | None = None,
        *,
        owner: object | None = None,
    ) -> TokenStream:
        """Queue a request; see `InferenceEngine.submit`.

        Parameters
        ----------
        owner
            The object that lives as long as the stream; by default the engine.
        """
        self._owner.require("an inference engine")
        with self._loop.lock:
            self._loop.check_open()
            is_reserved = self._reservations.admits(reservation)
            state = self._core.submit(request, is_reserved)
            if reservation is not None:
                reservation.redeem()
        return TokenStream(state, owner or self)

    def reserve(self, count: int) -> Reservation:
        """Return places in the queue; see `InferenceEngine.reserve`."""
        self._owner.require("an inference engine")
        with self._loop.lock:
            self._loop.check_open()
            return self._reservations.reserve(count)

    @property
    def room(self) -> int:
        """The number of requests that `submit` would accept now."""
        return self._reservations.room

    def queue_full(self) -> QueueFull:
        """Return the error of `submit` with a full queue."""
        return self._core.queue_full()

    def adopt(self, state: RequestState) -> None:
        """Queue a request of another engine; see `EngineCore.adopt`."""
        with self._loop.lock:
            self._loop.check_open()
            self._core.adopt(state)

    def expected_s(self, request: CompletionRequest, speeds: EngineSpeeds) -> float:
        """Return the estimated time until a new request would end; see `EngineCore.expected_s`."""
        return self._core.expected_s(request, speeds)

    def set_successor(self, find: Callable[[], HandOver | None]) -> None:
        """Set the function that is called when the KV cache was lost; see `EngineCore`."""
        self._core.find_successor = find

    def counters(self) -> EngineCounters:
        """Return a snapshot of the engine's counters."""
        return self._core.counters()

    def slots(self) -> list[SlotStatus]:
        """Return the state of each slot."""
        return self._core.slots()

    def prepare(self) -> None:
        """Compile all steps."""
        self.call(self._core.prepare)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the engine's thread between two steps, and return its result."""
        self._owner.require("an inference engine")
        future: Future[T] = Future()
        with self._loop.lock:
            self._loop.check_open()
            self._loop.calls.put((future, function))
        self._core.wake.set()
        return future.result()

    def close(self) -> None:
        """Cancel all requests and free the KV cache; wait until the current step has ended.

        Raises
        ------
        VkschedError
            The KV cache cannot be freed, as after its scheduler was closed.
        """
        self._finalizer()
        error, self._loop.closing_error = self._loop.closing_error, None
        if error is not None:
            raise error


class _EngineLoop:
    """The thread of an engine, and what other threads use to control it."""

    def __init__(self, core: EngineCore) -> None:
        self.lock = threading.Lock()
        """Held while something is handed to the thread, and while the loop is stopped."""
        self.wake = core.wake
        self.calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self.thread = threading.Thread(
            target=self._work, args=(core,), name="vksched-engine", daemon=True
        )
        self._owner = Owner()
        self._is_stopped = False
        self.closing_error: Exception | None = None

    def check_open(self) -> None:
        if self._is_stopped:
            raise VkschedError("[engine] expected an open engine, got a closed one; create another")

    def stop(self) -> None:
        """Let the thread end, and wait for it."""
        if self._owner.forked:
            return
        self._is_stopped = True
        self.wake.set()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _work(self, core: EngineCore) -> None:
        error: BaseException | None = None
        try:
            while True:
                self.wake.clear()  # before the check: `stop` sets both
                if self._is_stopped:
                    break
                self._run_calls()
                if not core.step():
                    self.wake.wait()
        except BaseException as caught:
            error = caught
            raise
        finally:
            with self.lock:
                self._is_stopped = True
            core.end_all("closed", error)
            self._cancel_calls()
            try:
                core.close()
            except Exception as failure:
                self.closing_error = failure

    def _run_calls(self) -> None:
        while not self.calls.empty():
            future, function = self.calls.get()
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def _cancel_calls(self) -> None:
        """Refuse the calls that have not begun."""
        while True:
            try:
                future, _ = self.calls.get_nowait()
            except Empty:
                return
            future.set_exception(VkschedError("[engine] expected an open engine, got a closed one"))
