"""BatchSteps: one turn of an engine: a chunk of a prompt, a decode step, or verify steps.

    requests --a chunk of one prompt, or a token of all running answers--> StepRunner --> logits
    stream <-- token, log-probabilities <-- constraint, sampling parameters <---------------'

An error of a step ends the requests that need it, and no others; StateLost is left to `EngineCore`.
Examples: tests/generation/batching/test_engine_core.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from ...common.errors import EngineError, GrammarError, StateLost, VkschedError
from ..completion import TokenOutput
from ..speculation.speculator import Draft, Speculator
from ..step_runner import Logits, StepRunner
from .batch_scheduler import BatchScheduler, Running
from .engine_metrics import EngineMetrics
from .next_token import (
    MASK_POLL_S,
    append_prompt_logprobs,
    choose_token,
    is_mask_ready,
    token_output,
)
from .request_state import RequestState
from .slot import Slot

MAX_AHEAD = 32
"""The maximum number of tokens that one turn decodes ahead; new requests end it before."""


class BatchSteps:
    """The turns of an engine over the requests of a scheduler.

    Parameters
    ----------
    wake
        Ends a wait for token masks.
    mask_timeout_s
        The maximum time to compute a token mask in seconds.
    clock
        A monotonic clock in seconds.

    Attributes
    ----------
    losses_in_row
        The number of lost caches since the last generated token; the owner counts them.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: BatchScheduler,
        speculator: Speculator,
        metrics: EngineMetrics,
        wake: Event,
        mask_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.losses_in_row = 0
        self._runner = runner
        self._scheduler = scheduler
        self._speculator = speculator
        self._metrics = metrics
        self._wake = wake
        self._mask_timeout_s = mask_timeout_s
        self._clock = clock

    def run(self) -> bool:
        """Run one turn; return False if there is nothing to do."""
        for slot, state in self._scheduler.running:
            if state.close_reason:
                self.finish(slot, state, state.close_reason)
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
            self._wake.wait(MASK_POLL_S)
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
                self.finish(slot, state, "closed", error)
            self._scheduler.end_move(self._clock() - now_s)

    def _prefill(self, slot: Slot, state: RequestState) -> None:
        """Run the next chunk of a prompt."""
        try:
            logits = self._run_chunk(slot, state)
        except StateLost:
            raise
        except Exception as error:
            self.finish(slot, state, "closed", error)
            return
        if state.chunks:
            return
        if state.request.max_tokens > state.generated:
            self._continue(slot, state, logits)
        else:
            self.finish(slot, state, "length")

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
        if state.pictures is None:
            logits = self._runner.prefill(slot.index, ids, chunk.start, all_logits=chunk.all_logits)
        else:
            logits = self._runner.prefill(slot.index, ids, chunk.start, pictures=state.pictures)
        if chunk.all_logits:
            append_prompt_logprobs(state, chunk.start, logits)
        seconds = self._clock() - start_s
        self._scheduler.end_chunk(state, seconds)
        self._metrics.prefilled(chunk.count, seconds)
        slot.prefix.append_chunk(chunk, ids, chunk.end <= len(state.request.prompt))
        start_s = self._clock()
        self._scheduler.prefixes.add_checkpoint(slot, state, chunk)
        self._scheduler.end_move(self._clock() - start_s)
        last: Logits = logits[-1] if chunk.all_logits else logits
        return last

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
        if len(others) == 1 and self._decode_ahead(*others[0]):
            others.clear()
        most = self._runner.row_counts[-1]
        for at in range(0, len(others), most):
            self._decode_group(others[at : at + most])
        self._scheduler.pause.end()

    def _verify(self, slot: Slot, state: RequestState, draft: Draft) -> None:
        """Append tokens to a request as long as its draft guessed them, and one more."""
        ids = [state.text[-1], *draft.tokens]
        start_s = self._clock()
        try:
            how = {"shift": state.shift} if state.shift else {}
            logits = self._runner.verify(slot.index, ids, len(slot.prefix.tokens), **how)
        except StateLost:
            raise
        except Exception as error:
            self.finish(slot, state, "closed", error)
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
            shifts = [state.shift for _, state in group]
            how = {"shifts": shifts} if any(shifts) else {}
            logits = self._runner.decode([slot.index for slot, _ in group], ids, starts, **how)
        except StateLost:
            raise
        except Exception as error:
            for slot, state in group:
                self.finish(slot, state, "closed", failure_of(error))
            return
        seconds = self._clock() - start_s
        self._scheduler.costs.observe("decode", len(group), seconds)
        self._metrics.decoded(len(group), seconds)
        for (slot, state), token, row in zip(group, ids, logits, strict=True):
            slot.prefix.tokens.append(token)
            self._continue(slot, state, row)

    def _decode_ahead(self, slot: Slot, state: RequestState) -> bool:
        """Append tokens to the only request, each submitted before the host has read the one
        before; return False if none was.
        """
        request, taken, last_s = state.request, 0, self._clock()
        is_alone = len(self._scheduler.running) == 1 and not self._scheduler.queue
        is_plain = state.constraint is None and request.logprobs is None
        if not (is_alone and is_plain and request.sampling.is_greedy):
            return False
        start = len(slot.prefix.tokens)
        count = min(state.rest_tokens, self._runner.length - start, MAX_AHEAD)
        if count < 2 or not self._runner.decodes_ahead:
            return False

        def take(token: int) -> bool:
            nonlocal taken, last_s
            now_s = self._clock()
            self._scheduler.costs.observe("decode", 1, now_s - last_s)
            self._metrics.decoded(1, now_s - last_s)
            taken, last_s = taken + 1, now_s
            slot.prefix.tokens.append(state.text[-1])
            if token in state.ends:
                self.finish(slot, state, "stop")
            else:
                self._append(slot, state, TokenOutput(token))
            is_over = slot.state is not state or bool(state.close_reason)
            return not (is_over or self._scheduler.queue or self._wake.is_set())

        try:
            self._runner.decode_ahead(slot.index, state.text[-1], start, count, take)
        except StateLost:
            raise
        except Exception as error:
            if slot.state is state:
                self.finish(slot, state, "closed", failure_of(error))
            return True
        return taken > 0

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
            self.finish(slot, state, "closed", error)

    def _continue(self, slot: Slot, state: RequestState, logits: Logits) -> None:
        """Choose the next token of a request from its logits; wait for its mask if it is late."""
        try:
            if not is_mask_ready(state):
                state.logits = logits.copy()
                return
            token = choose_token(state, logits)
            if token is None:
                self.finish(slot, state, "stop")
                return
            output = token_output(state, logits, token)
        except Exception as error:
            self.finish(slot, state, "closed", error)
            return
        self._append(slot, state, output)

    def _append(self, slot: Slot, state: RequestState, output: TokenOutput) -> None:
        """Append a token to the text of a request."""
        token = output.token
        self.losses_in_row = 0
        state.text.append(token)
        self._metrics.generated(state, self._clock())
        state.events.put(output)
        if state.generated >= state.request.max_tokens:
            self.finish(slot, state, "length")
        elif len(state.text) > self._runner.length:
            self.finish(slot, state, "context")
        else:
            state.request_mask(token, self._clock())

    def finish(
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
