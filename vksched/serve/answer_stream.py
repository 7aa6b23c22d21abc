"""AnswerStreams: the answers of one HTTP request, from the engine to the event loop.

    engine --tokens--> thread of a stream: text, calls --pieces--> queue of the event loop

Each answer has a thread, because reading a token waits for the engine. Closing the streams, as it
happens when the client leaves, cancels the requests in the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ..common.errors import GrammarError
from ..generation.completion import CompletionStream, TokenOutput
from .api_error import server_closed
from .text_assembler import Piece

AnyPiece = TypeVar("AnyPiece", bound=Piece)
Assembled = TypeVar("Assembled", bound=Piece, covariant=True)


class Assembler(Protocol[Assembled]):
    """The interface of assemblers of answers."""

    @property
    def is_stopped(self) -> bool:
        """True if the answer has ended before its last token."""

    def add(self, output: TokenOutput) -> Assembled | None:
        """Append a token; return the piece that is decided now, if there is one."""

    def end(self, reason: str) -> Assembled:
        """Return the last piece."""


class AnswerStreams(Generic[AnyPiece]):
    """The answers to one HTTP request, which are generated at the same time.

    Parameters
    ----------
    answers
        The stream of each choice, and its assembler.
    on_close
        Called when the answers have ended, perhaps several times.
    """

    def __init__(
        self,
        answers: Sequence[tuple[CompletionStream, Assembler[AnyPiece]]],
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.streams = [stream for stream, _ in answers]
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, AnyPiece | BaseException]] = asyncio.Queue()
        self._is_closed = False
        self._on_close = on_close
        for index, (stream, assembler) in enumerate(answers):
            threading.Thread(
                target=self._pump,
                args=(index, stream, assembler),
                name="vksched-answer",
                daemon=True,
            ).start()

    async def pieces(self) -> AsyncIterator[tuple[int, AnyPiece]]:
        """Yield the pieces of all choices, each with the index of its choice; raise the error of
        the first choice that fails. All requests are cancelled if the iteration ends early.
        """
        left = len(self.streams)
        try:
            while left:
                index, event = await self._events.get()
                if isinstance(event, BaseException):
                    raise event
                left -= bool(event.finish_reason)
                yield index, event
        finally:
            self.close()

    def close(self) -> None:
        """Cancel all requests that still run."""
        self._is_closed = True
        for stream in self.streams:
            stream.close()
        self._on_close()

    def _pump(self, index: int, stream: CompletionStream, assembler: Assembler[AnyPiece]) -> None:
        try:
            for output in stream:
                piece = assembler.add(output)
                if assembler.is_stopped:
                    stream.close("stop")  # before its last piece, which closes all streams
                if piece is not None:
                    self._put((index, piece))
                if assembler.is_stopped:
                    return
            if stream.finish_reason == "closed":  # by the engine, or for a client that left
                raise server_closed()
            self._put((index, assembler.end(stream.finish_reason)))
        except Exception as error:
            if isinstance(error, GrammarError) and error.field is None:
                error.field = getattr(stream.request.constraint, "param", None)
            self._put((index, error))

    def _put(self, event: tuple[int, AnyPiece | BaseException]) -> None:
        if not self._is_closed:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._events.put_nowait, event)
