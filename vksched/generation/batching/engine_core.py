"""EngineCore: the steps of an inference engine with continuous batching.

    submit --> BatchScheduler --a chunk of one prompt--------> StepRunner --> logits
                              --a token of all running answers-'               |
    stream <-- token, log-probabilities <-- constraint, sampling parameters <--'

A lost device empties the KV cache. The engine then prefills the text of each running request again,
and continues with the same tokens.

Examples: tests/generation/batching/test_engine_core.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...common.errors import GrammarError, StateLost
from ..speculation.drafter import Drafter
from ..speculation.speculator import Draft, Speculator
from ..step_runner import Logits, StepRunner
from .batch_scheduler import BatchScheduler, Running
from .engine_metrics import EngineMetrics, Observer
from .engine_requests import EngineRequests, failure_of
from .next_token import (
    MASK_POLL_S,
    append_prompt_logprobs,
    choose_token,
    is_mask_ready,
    token_output,
)
from .request_state import RequestState
from .slot import Slot

HandOver = Callable[[RequestState], object]
MAX_LOSSES = 8
"""The maximum number of lost caches without a generated token before running requests fail."""


class EngineCore(EngineRequests):
    """The steps of an engine. One thread calls `step`; any thread may call those of requests.

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
        scheduler = BatchScheduler(runner, max_queue, max_pause_s, cache_ram, reuse_decoded)
        super().__init__(runner, scheduler, ends, EngineMetrics(observer), clock)
        self.find_successor: Callable[[], HandOver | None] = lambda: None
        self._speculator = Speculator(runner, drafters, scheduler.costs, scheduler.pause, clock)
        self._mask_timeout_s = mask_timeout_s
        self._losses_in_row = 0
        self._cache_version = runner.cache_version
        """The version of the cache that holds the prefixes."""

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

    def _step(self) -> bool:
        if self.runner.cache_version != self._cache_version:
            raise StateLost("[engine] the KV cache was lost between two steps")
        for slot, state in self._scheduler.running:
            if state.close_reason:
                self._finish(slot, state, state.close_reason)
            elif state.logits is not None:
                self._sample_masked(slot, state, state.logits)
        rows = [pair for pair in self._scheduler.running if pair[1].can_decode]
        self._admit(bool(rows))
        running = self._scheduler.running
        if (prefilling := self._scheduler.next_chunk(bool(rows))) is not None:
            self._prefill(*prefilling)
        elif rows:
            self._decode(rows)
        elif running:
            self.wake.wait(MASK_POLL_S)
        return bool(running)

    def _admit(self, has_rows: bool) -> None:
        """Give waiting requests the idle slots. has_rows: running answers wait."""
        for slot, state in self._scheduler.admit(has_rows):
            now_s = self._clock()
            if not state.is_admitted:
                self._metrics.observe("queue", now_s - state.submitted_s)
                state.is_admitted = True
            state.start_constraint(now_s)
            try:
                self._scheduler.prefixes.assign(slot, state)
            except StateLost:
                raise
            except Exception as error:
                self._finish(slot, state, "closed", error)
            self._scheduler.end_move(self._clock() - now_s)

    def _prefill(self, slot: Slot, state: RequestState) -> None:
        """Run the next chunk of a prompt."""
        try:
            logits = self._run_chunk(slot, state)
        except StateLost:
            raise
        except Exception as error:
            self._finish(slot, state, "closed", error)
            return
        if state.chunks:
            return
        if state.request.max_tokens > state.generated:
            self._continue(slot, state, logits)
        else:
            self._finish(slot, state, "length")

    def _run_chunk(self, slot: Slot, state: RequestState) -> Logits:
        """Compute the next chunk; return the logits after its last token."""
        if not state.is_placed:
            start_s = self._clock()
            self._scheduler.prefixes.restore(slot, state)
            self._scheduler.end_move(self._clock() - start_s)
            state.is_placed = True
            self._metrics.cached_tokens += state.cached_tokens
        chunk = state.chunks[-1]
        ids = state.text[chunk.start : chunk.end]
        start_s = self._clock()
        logits = self.runner.prefill(slot.index, ids, chunk.start, all_logits=chunk.all_logits)
        if chunk.all_logits:
            append_prompt_logprobs(state, chunk.start, logits)
        seconds = self._clock() - start_s
        self._scheduler.end_chunk(state, seconds)
        self._metrics.prefilled(chunk.count, seconds)
        slot.prefix.append_chunk(chunk, ids, chunk.end <= len(state.request.prompt))
        last: Logits = logits[-1] if chunk.all_logits else logits
        return last

    def prepare(self) -> None:
        """Compile all steps."""
        self.runner.prepare()
        self.prepare_speculation()

    def prepare_speculation(self) -> None:
        """Compile what speculation needs."""
        self._speculator.prepare()

    def close(self) -> None:
        """Free the compiled steps and the KV cache."""
        try:
            self._speculator.close()
        finally:
            self.runner.close()
            self._scheduler.prefixes.clear()
            self._cache_version = self.runner.cache_version

    def _decode(self, rows: Sequence[Running]) -> None:
        """Append a token to each request, in steps of at most the largest number of rows, or
        several tokens to requests that speculate.
        """
        others = []
        for slot, state in rows:
            draft = self._speculator.propose(slot.index, state, len(rows))
            if draft is None:
                others.append((slot, state))
            else:
                self._verify(slot, state, draft)
        most = self.runner.row_counts[-1]
        for at in range(0, len(others), most):
            self._decode_group(others[at : at + most])
        self._scheduler.pause.end()

    def _verify(self, slot: Slot, state: RequestState, draft: Draft) -> None:
        """Append tokens to a request as long as its draft guessed them, and one more."""
        ids = [state.text[-1], *draft.tokens]
        start_s = self._clock()
        try:
            logits = self.runner.verify(slot.index, ids, len(slot.prefix.tokens))
        except StateLost:
            raise
        except Exception as error:
            self._finish(slot, state, "closed", error)
            return
        seconds = self._clock() - start_s
        self._metrics.decoded(1, seconds)
        appended = 0
        for token, row in zip(ids, logits, strict=True):
            if slot.state is not state or state.text[-1] != token:
                break
            slot.prefix.tokens.append(token)
            self._continue(slot, state, row)
            appended += 1
        self._speculator.observe(state, draft, appended - 1, seconds)
        self._metrics.verified(len(draft.tokens), appended - 1)

    def _decode_group(self, group: Sequence[Running]) -> None:
        ids = [state.text[-1] for _, state in group]
        starts = [len(slot.prefix.tokens) for slot, _ in group]
        start_s = self._clock()
        try:
            logits = self.runner.decode([slot.index for slot, _ in group], ids, starts)
        except StateLost:
            raise
        except Exception as error:
            for slot, state in group:
                self._finish(slot, state, "closed", failure_of(error))
            return
        seconds = self._clock() - start_s
        self._scheduler.costs.observe("decode", len(group), seconds)
        self._metrics.decoded(len(group), seconds)
        for (slot, state), token, row in zip(group, ids, logits, strict=True):
            slot.prefix.tokens.append(token)
            self._continue(slot, state, row)

    def _sample_masked(self, slot: Slot, state: RequestState, logits: Logits) -> None:
        """Sample the next token if its mask has arrived since its logits."""
        if state.mask is None or state.mask.done():
            state.logits = None
            self._continue(slot, state, logits)
        elif self._clock() - state.mask_s > self._mask_timeout_s:
            error = GrammarError(
                f"[engine] expected a token mask within {self._mask_timeout_s:g} s, got none; try "
                "a simpler grammar or schema"
            )
            self._finish(slot, state, "closed", error)

    def _continue(self, slot: Slot, state: RequestState, logits: Logits) -> None:
        """Choose the next token of a request from its logits; wait for its mask if it is late."""
        try:
            if not is_mask_ready(state):
                state.logits = logits.copy()
                return
            token = choose_token(state, logits)
            if token is None:
                self._finish(slot, state, "stop")
                return
            output = token_output(state, logits, token)
        except Exception as error:
            self._finish(slot, state, "closed", error)
            return
        self._losses_in_row = 0
        state.text.append(token)
        self._metrics.generated(state, self._clock())
        state.events.put(output)
        if state.generated >= state.request.max_tokens:
            self._finish(slot, state, "length")
        elif len(state.text) > self.runner.length:
            self._finish(slot, state, "context")
        else:
            state.request_mask(token, self._clock())

    def _restart(self, error: StateLost) -> None:
        """Prefill the texts of all running requests again, because the KV cache was lost; or let
        another engine do it.
        """
        self._metrics.cache_losses += 1
        if (hand_over := self.find_successor()) is not None:
            for state in self._scheduler.release_all():
                hand_over(state)
        else:
            self._prefill_again(error)
        self._cache_version = self.runner.cache_version  # last, because an interrupt may end this

    def _prefill_again(self, error: StateLost) -> None:
        self._losses_in_row += 1
        if self._losses_in_row > MAX_LOSSES:
            self._losses_in_row = 0
            self.end_all("closed", error)
        try:
            self._scheduler.restart()
        except Exception as failure:  # no device is left, or none has enough memory
            self.end_all("closed", failure)
