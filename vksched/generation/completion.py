"""Completion: the request for a continuation of a token sequence, and the tokens that answer it.

    CompletionRequest --InferenceEngine.submit--> CompletionStream --iterate--> TokenOutput, ...

A request knows token ids only: chat templates, tokenizers and schemas are work of the caller. A
stream is read by one thread, and may be closed by any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .batching.reservations import Reservation
from .pictures.prompt_pictures import EncodedPicture
from .sampling import Sampling


class TokenConstraint(Protocol):
    """A grammar or schema that restricts the tokens of one answer. It belongs to one request."""

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the tokens that may follow, (vocabulary,) of bool. It may take milliseconds, and
        the engine calls it while the device computes the logits.
        """

    def accept(self, token: int) -> None:
        """Append a token. An end token ends the answer if the mask allowed it."""

    @property
    def is_finished(self) -> bool:
        """True if only an end token may follow."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A sequence of tokens to continue.

    Parameters
    ----------
    prompt
        The tokens of the prompt, at least one. The ids of pictures name their tokens.
    max_tokens
        The maximum number of tokens to generate; 0 only evaluates the prompt.
    sampling
        The sampling parameters.
    ends
        The tokens that end the answer; they are not a part of it. None selects the tokenizer's
        end-of-generation tokens.
    logprobs
        The number of alternatives whose log-probabilities are returned with each token; None
        returns no log-probabilities.
    prompt_logprobs
        The same for the tokens of the prompt, from the second one.
    constraint
        A grammar or schema that the answer follows.
    cache_key
        Prefixes of the KV cache are reused only by requests with the same key.
    pictures
        The pictures whose ids are in the prompt.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    ends: frozenset[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: TokenConstraint | None = None
    cache_key: str = ""
    pictures: tuple[EncodedPicture, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token, and the most likely tokens of its position with theirs, in
    descending order. They are those of the model's logits, before all sampling parameters.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """A generated token."""

    token: int
    logprobs: TokenLogprobs | None = None


class CompletionStream(Iterator[TokenOutput], Protocol):
    """An iterator over the generated tokens of a request.

    Iteration waits for the next token, and raises the error that ended the request, if one did.
    """

    @property
    def request(self) -> CompletionRequest: ...

    @property
    def finish_reason(self) -> str:
        """The reason why generation ended, or "" while it runs: "stop", "length", "context" or
        "closed", as in `TextStream`.
        """

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens that were taken from the KV cache of earlier requests."""

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        """The log-probabilities of the prompt's tokens from the second one, if they were requested;
        complete once the first token is there or the stream has ended.
        """

    def close(self, reason: str = "closed") -> None:
        """Cancel the request. The engine frees its slot before its next step.

        Parameters
        ----------
        reason
            The finish reason: "stop" if the answer is complete, as after a stop string.
        """


class InferenceEngine(Protocol):
    """The interface of an engine that a server uses. Methods are thread-safe."""

    @property
    def length(self) -> int:
        """The maximum number of tokens of a prompt and its answer together."""

    def submit(
        self, request: CompletionRequest, reservation: Reservation | None = None
    ) -> CompletionStream:
        """Queue a request.

        Parameters
        ----------
        reservation
            Places of `reserve`, one of which the request takes: the queue does not refuse it.

        Raises
        ------
        ShapeError
            The prompt is empty or longer than `length`.
        QueueFull
            The queue is full; try again after its `retry_after_s`.
        """

    def reserve(self, count: int) -> Reservation:
        """Return `count` places in the queue, for requests that are submitted later.

        Raises
        ------
        QueueFull
            The queue has fewer places; try again after its `retry_after_s`.
        """

    def close(self) -> None:
        """Cancel all requests and free the KV cache."""
