"""BatchScheduler: which requests have a slot, and which step runs next.

    queue --a free slot--> prefill, chunk by chunk --> decode, one row of each step --> release

A chunk never delays running answers by more than itself: between two decode steps, prompts get at
least one chunk, and more only while their measured time stays below a limit. The time of moved
prefixes counts, too, and that of draft models that read a text: above the limit, no further request
is admitted, and no chunk runs. The choice moves steps in time. It does not change the chunks of a
prompt, so results do not depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from ...common.errors import QueueFull
from ..completion import CompletionRequest
from ..step_runner import StepRunner
from .chunk_grid import Chunk
from .decode_pause import DecodePause
from .engine_load import EngineLoad
from .prefix_cache import PrefixCache
from .request_queue import RequestQueue
from .request_state import RequestState
from .slot import Slot
from .step_costs import Kind, StepCosts

Running = tuple[Slot, RequestState]


class BatchScheduler:
    """The slots, the queue, and the order of steps.

    Parameters
    ----------
    max_queue, max_pause_s, cache_ram, reuse_decoded
        See `EngineCore`.
    """

    def __init__(
        self,
        runner: StepRunner,
        max_queue: int,
        max_pause_s: float,
        cache_ram: int,
        reuse_decoded: bool,
    ) -> None:
        self.slots = [Slot(index) for index in range(runner.slots)]
        self.running: Sequence[Running] = ()
        """The requests that have a slot, in the order of their arrival; replaced by each change, so
        that any thread may iterate over it.
        """
        self.queue = RequestQueue(max_queue)
        self.prefixes = PrefixCache(runner, self.slots, cache_ram, reuse_decoded)
        self.costs = StepCosts()
        self.pause = DecodePause(max_pause_s)
        self._runner = runner
        self._prefilling: deque[Running] = deque()
        self._releases = 0

    def push(self, state: RequestState, mean_answer: float, is_reserved: bool = False) -> None:
        """Queue a request; raise QueueFull if there is no place, unless it has a reserved one.
        mean_answer: tokens.
        """
        free, after_s = self._free_slots, lambda: self.retry_after_s(mean_answer)
        self.queue.push(state, free, after_s, is_reserved)

    @property
    def room(self) -> int:
        """The number of requests that `push` would accept."""
        return self.queue.room(self._free_slots)

    def queue_full(self, mean_answer: float) -> QueueFull:
        """Return the error of `push` without a place."""
        return self.queue.full(self.retry_after_s(mean_answer))

    @property
    def _free_slots(self) -> int:
        return len(self.slots) - len(self.running)

    def retry_after_s(self, mean_answer: float) -> float:
        """Return the estimated time until the first running request ends, at least one second.

        mean_answer: the mean number of tokens of earlier answers.
        """
        step_s = self.costs.largest("decode") or 0.0
        chunk_s = self.costs.largest("prefill") or step_s
        times = []
        for _, state in self.running:
            most = min(state.request.max_tokens, mean_answer, self._runner.length)
            rest = max(1, most - state.generated)
            times.append(rest * step_s + len(state.chunks) * chunk_s)
        return max(1.0, min(times, default=1.0))

    def admit(self, has_rows: bool) -> Iterator[Running]:
        """Assign waiting requests to idle slots, and yield each before its slot is prepared.
        has_rows: decode steps have rows.
        """
        if not has_rows:
            self.pause.end()  # no answer waits for a token
        while self.queue and len(self.running) < len(self.slots):
            if self.pause.is_long and has_rows:
                return
            state = self.queue.pop()
            if state is None:
                return
            try:
                slot = self.prefixes.choose(state)
            except BaseException:
                self.queue.adopt(state)  # no request may be forgotten
                raise
            slot.state = state
            self.running = (*self.running, (slot, state))
            self._prefilling.append((slot, state))
            yield slot, state

    def next_chunk(self, has_rows: bool) -> Running | None:
        """Return the request whose next chunk runs now. has_rows: decode steps have rows."""
        if not self._prefilling:
            return None
        first = self._prefilling[0]
        chunk = first[1].chunks[-1]
        seconds = self.costs.seconds(_kind(chunk), chunk.count)
        return first if not has_rows or self.pause.allows_chunk(seconds) else None

    def end_chunk(self, state: RequestState, seconds: float) -> None:
        """Note that the next chunk of a request has run."""
        chunk = state.chunks.pop()
        self.costs.observe(_kind(chunk), chunk.count, seconds)
        self.pause.add_chunk(seconds)
        if not state.chunks:
            self._remove(state)

    def end_move(self, seconds: float) -> None:
        """Note that a prefix has moved, or that its states were stored."""
        self.pause.add_move(seconds)

    def release(self, slot: Slot) -> None:
        """Make a slot idle."""
        if slot.state is not None:
            self._remove(slot.state)
        slot.state = None
        self.running = tuple(pair for pair in self.running if pair[0] is not slot)
        self._releases += 1
        slot.last_use = self._releases

    def restart(self) -> None:
        """Forget all prefixes, and let all running requests begin with their first chunk."""
        self.prefixes.clear()
        self._prefilling.clear()
        for slot, state in self.running:
            state.restart()
            self.prefixes.assign(slot, state)
            self._prefilling.append((slot, state))

    def release_all(self) -> list[RequestState]:
        """Make all slots idle, and empty the queue; return the requests in their order."""
        states = [state for _, state in self.running]
        for slot, _ in self.running:
            self.release(slot)
        for state in states:
            state.restart()
            state.chunks.clear()
        self.prefixes.clear()
        return states + self.queue.pop_all()

    def load(self, request: CompletionRequest) -> EngineLoad:
        """Return the work before a new request. Any thread may call it, so it is an estimate."""
        running = [state for _, state in self.running]
        waiting = self.queue.states()
        prompts = sum(chunk.count for state in running for chunk in list(state.chunks))
        return EngineLoad(
            slots=len(self.slots),
            rest_tokens=tuple(state.rest_tokens for state in running),
            waiting_tokens=tuple(state.rest_tokens for state in waiting),
            prompt_tokens=prompts + sum(len(state.text) for state in waiting),
            reusable_tokens=self.prefixes.reusable_tokens(request),
        )

    def _remove(self, state: RequestState) -> None:
        for each in self._prefilling:
            if each[1] is state:
                self._prefilling.remove(each)
                return


def _kind(chunk: Chunk) -> Kind:
    return "prompt logprobs" if chunk.all_logits else "prefill"
