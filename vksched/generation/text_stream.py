"""TextStream: the generated text of one answer."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from .completion import CompletionStream


@dataclass
class AnswerState:
    """The state of an answer. It holds no reference to its TextStream, because dropping the stream
    ends the answer.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    is_closed: bool = False
    stream: CompletionStream | None = None

    def attach(self, stream: CompletionStream) -> None:
        """Set the stream of tokens, which ends if the answer is closed, or was closed before."""
        self.stream = stream
        if self.is_closed:
            stream.close()

    def close(self) -> None:
        """End the stream of tokens. Any thread may call it."""
        self.is_closed = True
        if self.stream is not None:
            self.stream.close()


class TextStream(Iterator[str]):
    """An iterator over the generated text, in pieces of whole characters."""

    def __init__(self, pieces: Generator[str, None, None], state: AnswerState) -> None:
        self._pieces = pieces
        self._state = state

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return tuple(self._state.prompt)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that were generated until now, including those of a stop string."""
        return tuple(self._state.tokens)

    @property
    def finish_reason(self) -> str:
        """The reason why generation ended, or "" while it runs.

        "stop": the model ended its answer, or a stop string was found. "length": the requested
        number of tokens was generated. "context": the context is full. "closed": the stream was
        closed, or generation failed.
        """
        return self._state.finish_reason

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop generation; the chat can then start another answer.

        If another thread waits for a piece, it gets no token after that of the current step, and
        the chat is free once that step has ended.
        """
        self._state.close()
        with suppress(ValueError):  # another thread is advancing it
            self._pieces.close()
            self._state.finish_reason = self._state.finish_reason or "closed"
