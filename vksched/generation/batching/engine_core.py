"""EngineCore: the steps of an inference engine with continuous batching.

    queue --a free slot--> prefill, chunk by chunk --> decode, one row of each step --> end
                           |                           |
                           one chunk of one prompt     one token of all running answers
                           \\--------- one of them in each step of the engine --------/

A chunk never delays running answers by more than itself: between two decode steps, prompts get at
least one chunk, and more only while their measured time stays below a limit. The choice moves steps
in time. It does not change the chunks of a prompt, so results do not depend on it.

A lost device empties the KV cache. The engine then prefills the text of each running request again,
and continues with the same tokens.

Examples: tests/generation/batching/test_engine_core.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait

from ...common.errors import StateLost, VkschedError
from ..completion import CompletionRequest
from ..step_runner import Logits, StepRunner
from .check_request import check_request
from .engine_counters import EngineCounters
from .engine_metrics import EngineMetrics, Observer
from .next_token import MASK_POLL_S, choose_token, is_mask_ready, token_output
from .prefix_cache import PrefixCache
from .request_queue import RequestQueue
from .request_state import RequestState
from .slot import Slot, SlotStatus
from .step_costs import StepCosts
from .token_logprobs import token_logprobs

MAX_LOSSES = 8
"""The maximum number of lost caches without a generated token before running requests fail."""


class EngineCore:
    """The state of an engine. One thread calls `step`; any thread may call the other methods.

    Parameters
    ----------
    ends
        The tokens that end an answer, unless a request has its own.
    max_queue
        The maximum number of requests that wait while all slots are busy.
    cache_ram
        The maximum size of idle prefixes in host memory in bytes; 0 stores none.
    reuse_decoded
        Also reuse rows that decode steps computed; see `PrefixCache`.
    max_pause_s
        The time of prompt chunks between two decode steps in seconds, if they take more than one.
    mask_timeout_s
        The maximum time to compute a token mask in seconds.
    observer
        A function that gets durations; see `Observer`.
    clock
        A monotonic clock in seconds.
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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self._ends = ends
        self._queue = RequestQueue(max_queue)
        self._slots = [Slot(index) for index in range(runner.slots)]
        self._prefilling: deque[Slot] = deque()
        self._prefixes = PrefixCache(runner, self._slots, cache_ram, reuse_decoded)
        self._costs = StepCosts()
        self._metrics = EngineMetrics(observer)
        self._max_pause_s = max_pause_s
        self._pause_s = 0.0
        """The time of prompt chunks since the last decode step."""
        self._mask_timeout_s = mask_timeout_s
        self._clock = clock
        self._uses = 0
        self._losses_in_row = 0

    def submit(self, request: CompletionRequest) -> RequestState:
        """Queue a request; see `InferenceEngine.submit`."""
        check_request(request, self.runner.length, self.runner.vocabulary)
        state = RequestState(request, self._ends, self._clock())
        free = sum(slot.state is None for slot in self._slots)
        self._queue.push(state, free, self.retry_after_s)
        return state

    def counters(self) -> EngineCounters:
        """Return a snapshot of the counters."""
        host_bytes = self._prefixes.host.used_bytes
        return self._metrics.snapshot(self._slots, self.runner.length, len(self._queue), host_bytes)

    def slots(self) -> list[SlotStatus]:
        """Return the state of each slot."""
        return [slot.status() for slot in self._slots]

    def retry_after_s(self) -> float:
        """Return the estimated time until the first running request ends, at least one second."""
        step_s = self._costs.largest("decode") or 0.0
        chunk = self.runner.chunk_sizes[-1]
        chunk_s = self._costs.seconds("prefill", chunk) or step_s
        mean = self._metrics.mean_answer_tokens
        times = []
        for slot in self._slots:
            if (state := slot.state) is not None:
                answer = max(1, min(state.request.max_tokens, mean) - state.generated)
                answer = min(answer, self.runner.length)
                times.append(answer * step_s + len(state.chunks) * chunk_s)
        return max(1.0, min(times, default=1.0))

    def step(self) -> bool:
        """Run one chunk of a prompt, or one decode step; return False if there is nothing to do.

        An error of a step ends the requests that need it, and no others.
        """
        try:
            return self._step()
        except StateLost as error:
            self._restart(error)
        except Exception as error:
            self.end_all("closed", error)
        return True

    def end_all(self, reason: str, error: BaseException | None = None) -> None:
        """End all requests, and forget all prefixes."""
        for slot in self._slots:
            if slot.state is not None:
                self._finish(slot, reason, error and _failure(error))
        for state in self._queue.pop_all():
            state.end(reason, error and _failure(error))
        self._prefixes.clear()

    def _step(self) -> bool:
        self._drop_closed()
        self._admit()
        self._sample_masked()
        running = [slot for slot in self._slots if slot.state is not None]
        if not running:
            return False
        rows = [s for s in running if s.state and not s.state.chunks and s.state.logits is None]
        if not rows:
            self._pause_s = 0.0  # nobody waits for a token
        if self._prefilling and self._may_prefill():
            self._prefill(self._prefilling[0])
        elif rows:
            self._decode(rows)
        else:
            wait([s.state.mask for s in running if s.state and s.state.mask], MASK_POLL_S)
        return True

    def _drop_closed(self) -> None:
        for slot in self._slots:
            if slot.state is not None and slot.state.is_closed:
                self._finish(slot, "closed")

    def _admit(self) -> None:
        """Assign waiting requests to idle slots."""
        while any(slot.state is None for slot in self._slots):
            state = self._queue.pop()
            if state is None:
                return
            slot = self._prefixes.choose(state)
            assert slot is not None
            slot.state = state
            self._prefilling.append(slot)
            now_s = self._clock()
            self._metrics.observe("queue", now_s - state.submitted_s)
            state.start_constraint(now_s)
            try:
                self._prefixes.assign(slot, state)
            except StateLost:
                raise
            except Exception as error:
                self._finish(slot, "closed", error)

    def _may_prefill(self) -> bool:
        """Return True if another chunk may run before the next decode step."""
        if not self._pause_s:
            return True
        state = self._prefilling[0].state
        assert state is not None
        seconds = self._costs.seconds("prefill", state.chunks[-1].count)
        return seconds is not None and self._pause_s + seconds <= self._max_pause_s

    def _prefill(self, slot: Slot) -> None:
        """Run the next chunk of a slot's prompt."""
        state = slot.state
        assert state is not None
        try:
            logits = self._run_chunk(slot, state)
        except StateLost:
            raise
        except Exception as error:
            self._finish(slot, "closed", error)
            return
        if state.chunks:
            return
        self._prefilling.remove(slot)
        if state.request.max_tokens > state.generated:
            self._continue(slot, state, logits)
        else:
            self._finish(slot, "length")

    def _run_chunk(self, slot: Slot, state: RequestState) -> Logits:
        """Compute the next chunk; return the logits after its last token."""
        if not state.is_placed:
            self._prefixes.restore(slot, state)
            state.is_placed = True
            self._metrics.cached_tokens += state.cached_tokens
        chunk = state.chunks[-1]
        ids = state.text[chunk.start : chunk.end]
        start_s = self._clock()
        logits = self.runner.prefill(slot.index, ids, chunk.start, all_logits=chunk.all_logits)
        seconds = self._clock() - start_s
        self._costs.observe("prefill", chunk.count, seconds)
        self._metrics.prefilled(chunk.count, seconds)
        self._pause_s += seconds
        state.chunks.pop()
        is_prompt = chunk.end <= len(state.request.prompt)
        slot.prefix.append_chunk(chunk, ids, is_prompt)
        if chunk.all_logits:
            self._append_prompt_logprobs(state, chunk.start, logits)
        last: Logits = logits[-1] if chunk.all_logits else logits
        return last

    def _append_prompt_logprobs(self, state: RequestState, start: int, logits: Logits) -> None:
        """Append the log-probabilities of the tokens after those of a chunk."""
        prompt, alternatives = state.request.prompt, state.request.prompt_logprobs
        for token, row in enumerate(logits, start + 1):
            is_missing = len(state.prompt_logprobs) == token - 1  # else the chunk is a repetition
            if token < len(prompt) and is_missing:
                entry = token_logprobs(row, prompt[token], alternatives or 0)
                state.prompt_logprobs.append(entry)

    def _decode(self, rows: Sequence[Slot]) -> None:
        """Append a token to each of some slots, in steps of at most the largest number of rows."""
        self._pause_s = 0.0
        most = self.runner.row_counts[-1]
        for at in range(0, len(rows), most):
            group = [(s, s.state) for s in rows[at : at + most] if s.state is not None]
            ids = [state.text[-1] for _, state in group]
            starts = [len(slot.prefix.tokens) for slot, _ in group]
            start_s = self._clock()
            try:
                logits = self.runner.decode([slot.index for slot, _ in group], ids, starts)
            except StateLost:
                raise
            except Exception as error:
                for slot, _ in group:
                    self._finish(slot, "closed", _failure(error))
                continue
            seconds = self._clock() - start_s
            self._costs.observe("decode", len(group), seconds)
            self._metrics.decoded(len(group), seconds)
            for (slot, _), token in zip(group, ids, strict=True):
                slot.prefix.tokens.append(token)
            for (slot, state), row in zip(group, logits, strict=True):
                self._continue(slot, state, row)

    def _sample_masked(self) -> None:
        """Sample the tokens whose masks have arrived since their logits."""
        for slot in self._slots:
            state = slot.state
            if state is None or state.logits is None or state.mask is None:
                continue
            if state.mask.done():
                logits, state.logits = state.logits, None
                self._continue(slot, state, logits)
            elif self._clock() - state.mask_s > self._mask_timeout_s:
                error = VkschedError(
                    f"[engine] expected a token mask within {self._mask_timeout_s:g} s, got none; "
                    "try a simpler grammar or schema"
                )
                self._finish(slot, "closed", error)

    def _continue(self, slot: Slot, state: RequestState, logits: Logits) -> None:
        """Choose the next token of a request from its logits; wait for its mask if it is late."""
        try:
            if not is_mask_ready(state):
                state.logits = logits.copy()
                return
            token = choose_token(state, logits)
            if token is None:
                self._finish(slot, "stop")
                return
            output = token_output(state, logits, token)
        except Exception as error:
            self._finish(slot, "closed", error)
            return
        self._losses_in_row = 0
        state.text.append(token)
        self._metrics.generated(state, self._clock())
        state.events.put(output)
        if state.generated >= state.request.max_tokens:
            self._finish(slot, "length")
        elif len(state.text) > self.runner.length:
            self._finish(slot, "context")
        else:
            state.request_mask(token, self._clock())

    def _finish(self, slot: Slot, reason: str, error: BaseException | None = None) -> None:
        """End the request of a slot; the slot is idle then."""
        state = slot.state
        assert state is not None
        if slot in self._prefilling:
            self._prefilling.remove(slot)
        slot.state = None
        self._uses += 1
        slot.last_use = self._uses
        if error is not None:
            slot.prefix.clear()  # its rows may be incomplete
        self._metrics.finished(state, "error" if error else reason, self._clock())
        state.end(reason, error)

    def _restart(self, error: StateLost) -> None:
        """Prefill the texts of all running requests again, because the KV cache was lost."""
        self._metrics.device_losses += 1
        self._losses_in_row += 1
        self._prefixes.clear()
        if self._losses_in_row > MAX_LOSSES:
            self._losses_in_row = 0
            self.end_all("closed", error)
            return
        self._prefilling.clear()
        for slot in self._slots:
            if slot.state is not None:
                slot.state.logits, slot.state.is_placed = None, False
                self._prefixes.assign(slot, slot.state)
                self._prefilling.append(slot)


def _failure(error: BaseException) -> VkschedError:
    """Return an error for one of several requests that ended for the same reason."""
    failure = VkschedError(
        f"[engine] expected a step without errors, got {type(error).__name__}: {error}; try the "
        "request again"
    )
    failure.__cause__ = error
    return failure
