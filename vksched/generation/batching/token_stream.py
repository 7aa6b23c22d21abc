"""TokenStream: the generated tokens of a request, as its consumer reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..completion import CompletionRequest, TokenLogprobs, TokenOutput
from .request_state import EndOfStream, RequestState


class TokenStream(Iterator[TokenOutput]):
    """An iterator over the generated tokens of a request; it implements `CompletionStream`.

    Dropping the last reference to it cancels the request.

    Parameters
    ----------
    owner
        The engine, which lives as long as its streams.
    advance
        Runs a step of an engine without a thread; None waits for the engine's thread.
    """

    def __init__(
        self, state: RequestState, owner: object, advance: Callable[[], object] | None = None
    ) -> None:
        self._state = state
        self._owner = owner
        self._advance = advance
        self._finish_reason = ""

    @property
    def request(self) -> CompletionRequest:
        return self._state.request

    @property
    def finish_reason(self) -> str:
        """The reason why generation ended, or "" until the last token was read."""
        return self._finish_reason

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens that were taken from the KV cache of earlier requests."""
        return self._state.cached_tokens

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        """The log-probabilities of the prompt's tokens from the second one."""
        return tuple(self._state.prompt_logprobs)

    def __next__(self) -> TokenOutput:
        if self._finish_reason:
            raise StopIteration
        events = self._state.events
        while self._advance is not None and events.empty():
            self._advance()
        event = events.get()
        if not isinstance(event, EndOfStream):
            return event
        self._finish_reason = self._finish_reason or event.reason
        if event.error is not None:
            raise event.error
        raise StopIteration

    def close(self, reason: str = "closed") -> None:
        """Cancel the request. The engine frees its slot before its next step."""
        self._state.close(reason)
        self._state.wake()
        if not self._finish_reason:
            self._finish_reason = reason
            self._state.events.put(EndOfStream(reason))  # wakes a thread that waits for a token

    def __del__(self) -> None:
        self._state.close("closed")  # the garbage collector must not wait for the lock of `wake`
