"""EngineRequests: the requests of an engine from their submission to their end.

submit --> queue --> slot --EngineCore: steps--> tokens --> end: length, stop, context, closed
                                                   an error of a step --> its requests end
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...common.errors import EngineError, VkschedError
from ..completion import CompletionRequest
from ..step_runner import StepRunner
from .batch_scheduler import BatchScheduler
from .check_request import check_request
from .engine_counters import EngineCounters
from .engine_load import EngineSpeeds, expected_s
from .engine_metrics import EngineMetrics
from .request_state import RequestState
from .slot import Slot, SlotStatus


class EngineRequests:
    """The requests of an engine. Any thread may call the methods, but those that end or forget.

    wake: as of `EngineCore`.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: BatchScheduler,
        ends: frozenset[int],
        metrics: EngineMetrics,
        clock: Callable[[], float],
    ) -> None:
        self.runner = runner
        self.wake = threading.Event()
        self._scheduler = scheduler
        self._ends = ends
        self._metrics = metrics
        self._clock = clock

    def submit(self, request: CompletionRequest) -> RequestState:
        """Queue a request; see `InferenceEngine.submit`."""
        check_request(request, self.runner.length, self.runner.vocabulary)
        state = RequestState(request, self._ends, self._clock(), self.wake.set)
        self._scheduler.push(state, self._metrics.mean_answer_tokens)
        self.wake.set()
        return state

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
        waiting, host_bytes = len(scheduler.queue), scheduler.prefixes.host.used_bytes
        return self._metrics.snapshot(scheduler.slots, self.runner.length, waiting, host_bytes)

    def slots(self) -> list[SlotStatus]:
        """Return the state of each slot."""
        return [slot.status() for slot in self._scheduler.slots]

    def end_requests(self, reason: str, error: BaseException | None = None) -> None:
        """End all requests."""
        for slot, state in self._scheduler.running:
            self._finish(slot, state, reason, error and failure_of(error))
        for state in self._scheduler.queue.pop_all():
            state.end(reason, error and failure_of(error))

    def end_all(self, reason: str, error: BaseException | None = None) -> None:
        """End all requests, and forget all prefixes."""
        self.end_requests(reason, error)
        self._scheduler.prefixes.clear()

    def truncate(self, slot: int, tokens: int) -> None:
        """Forget the tokens of an idle slot after the first ones."""
        self._scheduler.slots[slot].prefix.truncate(tokens)

    def _finish(
        self,
        slot: Slot,
        state: RequestState,
        reason: str,
        error: BaseException | None = None,
    ) -> None:
        """End a request; its slot is idle then."""
        self._scheduler.release(slot)
        if error is not None:
            slot.prefix.clear()  # its rows may be incomplete
        self._metrics.finished(state, "error" if error else reason, self._clock())
        state.end(reason, error)


def failure_of(error: BaseException) -> VkschedError:
    """Return an error for one of several requests that ended for the same reason: a copy of an
    error of vksched, because each request raises its own, or an EngineError.
    """
    if isinstance(error, VkschedError):
        failure = type(error).__new__(type(error), *error.args)
        vars(failure).update(vars(error))
    else:
        failure = EngineError(
            f"[engine] expected a step without errors, got {type(error).__name__}: {error}; try "
            "the request again"
        )
    failure.__cause__ = error
    return failure
