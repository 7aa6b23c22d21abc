"""AnswerStreams: the answers of one HTTP request, from the engine to the event loop.

    engine --tokens--> thread of a stream: text, stop strings --pieces--> queue of the event loop

Each answer has a thread, because reading a token waits for the engine. Closing the streams, as it
happens when the client leaves, cancels the requests in the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

from ..common.errors import GrammarError
from ..generation.completion import CompletionStream
from .text_assembler import Piece, TextAssembler

Event = tuple[int, Piece | BaseException]


class AnswerStreams:
    """The answers to one HTTP request, which are generated at the same time.

    Parameters
    ----------
    answers
        The stream of each choice, and the assembler of its text.
    loop
        The event loop that gets the pieces.
    """

    def __init__(
        self,
        answers: Sequence[tuple[CompletionStream, TextAssembler]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.streams = [stream for stream, _ in answers]
        self._loop = loop
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._is_closed = False
        for index, (stream, assembler) in enumerate(answers):
            threading.Thread(
                target=self._pump,
                args=(index, stream, assembler),
                name="vksched-answer",
                daemon=True,
            ).start()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
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

    def end(self, index: int) -> None:
        """End one answer early; its last piece follows."""
        self.streams[index].close()

    def _pump(self, index: int, stream: CompletionStream, assembler: TextAssembler) -> None:
        try:
            for output in stream:
                if (piece := assembler.add(output)) is not None:
                    self._put((index, piece))
                if assembler.is_stopped:
                    stream.close()
                    return
            self._put((index, assembler.end(stream.finish_reason or "stop")))
        except Exception as error:
            if isinstance(error, GrammarError) and error.field is None:
                error.field = getattr(stream.request.constraint, "param", None)
            self._put((index, error))

    def _put(self, event: Event) -> None:
        if not self._is_closed:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._events.put_nowait, event)
