"""RequestState: a request inside the engine, shared by the engine and the request's stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from ..completion import CompletionRequest, TokenLogprobs, TokenOutput
from ..pictures.prompt_pictures import PromptPictures
from ..speculation.acceptance import Acceptance
from ..speculation.drafter import Drafter
from ..step_runner import Logits
from .chunk_grid import Chunk
from .constraint_thread import ConstraintThread, Mask


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The last event of a stream."""

    reason: str
    error: BaseException | None = None


class RequestState:
    """A request, its tokens and its events.

    It holds no reference to its stream, because dropping the stream cancels the request. The
    engine's thread owns everything except `close_reason` and `events`. wake: called when the
    engine has something to do for the request.
    """

    def __init__(
        self,
        request: CompletionRequest,
        ends: frozenset[int],
        now_s: float,
        wake: Callable[[], None],
    ) -> None:
        self.request = request
        self.wake = wake
        self.ends = ends if request.ends is None else request.ends
        self.text = list(map(int, request.prompt))
        """The prompt and the generated tokens: the record from which a lost cache is restored."""
        self.pictures: PromptPictures | None = None
        if request.pictures:
            self.pictures = PromptPictures(request.prompt, request.pictures)
        self.events: SimpleQueue[TokenOutput | EndOfStream] = SimpleQueue()
        self.close_reason = ""
        """The reason why the consumer cancelled the request, or ""."""
        self.is_admitted = False
        """True once the request had a slot, of this engine or of another one."""
        self.cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.chunks: list[Chunk] = []
        """The chunks to prefill, in reverse order."""
        self.is_placed = False
        """True if the first chunk was run, or a prefix was searched for."""
        self.logits: Logits | None = None
        """The logits of the next token while its mask is computed."""
        self.mask: Future[Mask | None] | None = None
        self.mask_s = 0.0
        """The time when the mask was requested."""
        self.constraint: ConstraintThread | None = None
        self.acceptances: dict[Drafter, Acceptance] = {}
        """How often guesses of each drafter were right."""
        self.submitted_s = self.last_token_s = now_s

    @property
    def generated(self) -> int:
        """The number of generated tokens."""
        return len(self.text) - len(self.request.prompt)

    @property
    def shift(self) -> int:
        """The difference of the position and the index of a generated token."""
        return 0 if self.pictures is None else self.pictures.shift

    @property
    def rest_tokens(self) -> int:
        """The maximum number of tokens that are still to be generated."""
        return self.request.max_tokens - self.generated

    def restart(self) -> None:
        """Forget all that belongs to a slot: the text is prefilled again."""
        self.logits, self.is_placed = None, False

    def close(self, reason: str) -> None:
        """Cancel the request, unless it is cancelled."""
        self.close_reason = self.close_reason or reason

    @property
    def can_decode(self) -> bool:
        """Return True if the next step may append the last token of the text to the cache."""
        return not self.chunks and self.logits is None

    @property
    def reuses_prefixes(self) -> bool:
        """Return False if the logits of all tokens of the prompt are needed."""
        return self.request.prompt_logprobs is None

    def start_constraint(self, now_s: float) -> None:
        """Start to compute the mask of the first token, unless it was started before."""
        is_new = self.constraint is None
        if is_new and self.request.constraint is not None and self.request.max_tokens:
            self.constraint = ConstraintThread(self.request.constraint)
            self.request_mask(None, now_s)

    def request_mask(self, token: int | None, now_s: float) -> None:
        """Start to compute the mask of the token after `token`."""
        if self.constraint is not None:
            self.mask, self.mask_s = self.constraint.next_mask(token), now_s
            self.mask.add_done_callback(lambda _: self.wake())

    def end(self, reason: str, error: BaseException | None = None) -> None:
        """End the stream."""
        if self.constraint is not None:
            self.constraint.close()
        self.events.put(EndOfStream(reason, error))
