"""EngineCore: an inference engine with continuous batching, without a thread.

    submit --> BatchScheduler --> BatchSteps --> events of the stream
                  ^-- a lost KV cache --'

A lost device empties the KV cache. The engine then prefills the text of each running request again,
and continues with the same tokens.

Examples: tests/generation/batching/test_engine_core.py.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...common.errors import QueueFull, StateLost, VkschedError
from ..completion import CompletionRequest
from ..speculation.drafter import Drafter
from ..speculation.speculator import Speculator
from ..step_runner import StepRunner
from .batch_scheduler import BatchScheduler
from .batch_steps import BatchSteps, failure_of
from .check_request import check_request
from .engine_counters import EngineCounters
from .engine_load import EngineSpeeds, expected_s
from .engine_metrics import EngineMetrics, Observer
from .request_state import RequestState
from .slot import SlotStatus

MAX_LOSSES = 8
"""The maximum number of lost caches without a generated token before running requests fail."""


HandOver = Callable[[RequestState], object]


class EngineCore:
    """The requests of an engine. One thread calls `step`; any thread may call the other methods.

    Parameters
    ----------
    ends
        The tokens that end an answer, unless a request has its own.
    max_queue
        The maximum number of requests that wait while all slots are busy.
    cache_ram
        The maximum size of idle prefixes and of checkpoints of recurrent states in host memory, in
        bytes; 0 stores no idle prefixes. Checkpoints of slots take half of it at most, or
        `MIN_CHECKPOINT_BYTES` if that is more.
    reuse_decoded
        Also reuse rows that decode steps computed; see `PrefixCache`.
    max_pause_s
        The time of prompt chunks between two decode steps in seconds, if they take more than one.
    mask_timeout_s
        The maximum time to compute a token mask in seconds.
    observer
        A function that gets durations; see `Observer`.
    drafters
        Methods that guess tokens, which verify steps check; see `Speculator`. The engine closes
        them.
    clock
        A monotonic clock in seconds.

    Attributes
    ----------
    find_successor
        Called when the KV cache was lost; returns the function that gives a request to another
        engine, or None if all requests go on here.
    wake
        Set by new requests, cancellations and token masks. A step that only waits for masks ends
        then. Clear it before `step`, and before all that the step must see.
    """

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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.wake = threading.Event()
        self.find_successor: Callable[[], HandOver | None] = lambda: None
        self._ends = ends
        self._scheduler = BatchScheduler(runner, max_queue, max_pause_s, cache_ram, reuse_decoded)
        scheduler = self._scheduler
        self.speculator = Speculator(runner, drafters, scheduler.costs, scheduler.pause, clock)
        self._metrics = EngineMetrics(observer)
        self._clock = clock
        self._steps = BatchSteps(
            runner,
            scheduler,
            self.speculator,
            self._metrics,
            self.wake,
            mask_timeout_s,
            clock,
        )
        self._cache_version = runner.cache_version
        """The version of the cache that holds the prefixes."""

    def submit(self, request: CompletionRequest, is_reserved: bool = False) -> RequestState:
        """Queue a request; see `InferenceEngine.submit`. is_reserved: it has a place."""
        check_request(request, self.runner.length, self.runner.vocabulary)
        state = RequestState(request, self._ends, self._clock(), self.wake.set)
        self._scheduler.push(state, self._metrics.mean_answer_tokens, is_reserved)
        self.wake.set()
        return state

    @property
    def room(self) -> int:
        """The number of requests that `submit` would accept now."""
        return self._scheduler.room

    def queue_full(self) -> QueueFull:
        """Return the error of `submit` with a full queue."""
        return self._scheduler.queue_full(self._metrics.mean_answer_tokens)

    def adopt(self, state: RequestState) -> None:
        """Queue a request of another engine, which continues after its last token."""
        state.wake = self.wake.set
        self._scheduler.queue.adopt(state)
        self.wake.set()

    def expected_s(self, request: CompletionRequest, speeds: EngineSpeeds) -> float:
        """Return the estimated time until a new request would end, in seconds.

        speeds: the predicted times of steps, for those that were not measured.
        """
        load, costs = self._scheduler.load(request), self._scheduler.costs
        return expected_s(load, request, speeds, costs, self._metrics.mean_answer_tokens)

    def counters(self) -> EngineCounters:
        """Return a snapshot of the counters."""
        scheduler = self._scheduler
        waiting, host_bytes = len(scheduler.queue), scheduler.prefixes.host_bytes
        return self._metrics.snapshot(scheduler.slots, self.runner.length, waiting, host_bytes)

    def slots(self) -> list[SlotStatus]:
        """Return the state of each slot."""
        return [slot.status() for slot in self._scheduler.slots]

    def step(self) -> bool:
        """Run one chunk of a prompt, or one decode step; without requests, compile a step that a
        lost device freed. Return False if there is nothing to do.

        An error of a step ends the requests that need it, and no others.
        """
        try:
            if self.runner.cache_version != self._cache_version:
                raise StateLost("[engine] the KV cache was lost between two steps")
            return self._steps.run() or self.runner.prepare_ahead()
        except StateLost as error:
            self._restart(error)
        except Exception as error:
            self.end_all("closed", error)
        return True

    def end_requests(self, reason: str, error: BaseException | None = None) -> None:
        """End all requests."""
        for slot, state in self._scheduler.running:
            self._steps.finish(slot, state, reason, error and failure_of(error))
        for state in self._scheduler.queue.pop_all():
            state.end(reason, error and failure_of(error))

    def end_all(self, reason: str, error: BaseException | None = None) -> None:
        """End all requests, and forget all prefixes."""
        self.end_requests(reason, error)
        self._scheduler.prefixes.clear()

    def truncate(self, slot: int, tokens: int) -> None:
        """Forget the tokens of an idle slot after the first ones."""
        scheduler = self._scheduler
        with suppress(VkschedError):  # the slot is empty then; the next step sees a lost cache
            scheduler.prefixes.truncate(scheduler.slots[slot], tokens)

    def prepare(self) -> None:
        """Compile all steps."""
        self.runner.prepare()
        self.speculator.prepare()

    def close(self) -> None:
        """Free the compiled steps and the KV cache."""
        try:
            self.speculator.close()
        finally:
            self.runner.close()
            self._scheduler.prefixes.clear()
            self._cache_version = self.runner.cache_version

    def _restart(self, error: StateLost) -> None:
        """Prefill the texts of all running requests again, because the KV cache was lost; or let
        another engine do it.
        """
        self._metrics.cache_losses += 1
        gc.collect()  # the graphs that were freed are in reference cycles; others are compiled next
        if (hand_over := self.find_successor()) is not None:
            for state in self._scheduler.release_all():
                hand_over(state)
        else:
            self._prefill_again(error)
        self._cache_version = self.runner.cache_version  # last, because an interrupt may end this

    def _prefill_again(self, error: StateLost) -> None:
        self._steps.losses_in_row += 1
        if self._steps.losses_in_row > MAX_LOSSES:
            self._steps.losses_in_row = 0
            self.end_all("closed", error)
        try:
            self._scheduler.restart()
        except Exception as failure:  # no device is left, or none has enough memory
            self.end_all("closed", failure)
