"""Chat: a language model that answers, piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Generator as PyGenerator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from ..common.dtypes import Progress
from ..common.errors import DTypeError, ShapeError, VkschedError
from ..common.fork_guard import OfProcess
from ..common.gc_pause import resting_collector
from .generator import CompilingScheduler, Generator
from .sampling import Sampling

if TYPE_CHECKING:
    from ..engine.request import Placements
    from ..importers.gguf.model import LanguageModel

CONTEXT = 4096

Prompt = str | Sequence[Mapping[str, object]]
"""A text to go on with, or messages of a conversation, each with "role" and "content"."""


@dataclass
class _AnswerState:
    """What there is of an answer. Who drops a TextStream ends it: so nothing in it refers to it."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    is_closed: bool = False


class TextStream(Iterator[str]):
    """The pieces of text of an answer, in whole characters, as they come."""

    def __init__(self, pieces: PyGenerator[str, None, None], state: _AnswerState) -> None:
        self._pieces = pieces
        self._state = state

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens that the model read."""
        return tuple(self._state.prompt)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer so far."""
        return tuple(self._state.tokens)

    @property
    def finish_reason(self) -> str:
        """Why no more comes: "stop", the model ended its answer; "length", there are as many tokens
        as were asked for; "context", the text is as long as the context; "closed", it was stopped,
        or failed. "" before.
        """
        return self._state.finish_reason

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop the answer; the chat is free for the next one. Where another thread waits for a
        piece, that one is the last, and the chat is free when it has come.
        """
        self._state.is_closed = True
        with suppress(ValueError):  # another thread is at it
            self._pieces.close()
            self._state.finish_reason = self._state.finish_reason or "closed"


class Chat(OfProcess):
    """A language model on the devices of a scheduler, with room for one text.

    model: of a GGUF file, by `vs.load`. ctx: how many tokens a prompt and its answer may have
    together; at most, and without it, 4,096 or the model's context where that is less. cache_type:
    how the keys and values of earlier tokens are kept: "f32", or "f16" in half the memory.
    placement, progress: as for `Scheduler.compile`. precision: a word, as there; None: that of the
    scheduler; "auto": "int8" for the layers that the CPU has at first, as llama.cpp computes there,
    "float32" for all others.

    A prompt that begins like the text before it, as the next turn of a conversation does, is read
    from where it differs. Answers come one at a time, from any thread.

    Raises:
        ModelFormatError: the file has no tokenizer, or one that is not known.
        ShapeError: ctx is not a number of tokens that the model can read. DTypeError: no such kv.
    """

    _INSTEAD = "to send the path of the model, and to compile it in each process"

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        ctx: int | None = None,
        *,
        cache_type: str = "f32",
        placement: Placements | None = None,
        progress: Progress | None = None,
        precision: str | None = None,
    ) -> None:
        self.model = model
        self.ctx = min(CONTEXT, model.hyper.context) if ctx is None else ctx
        # first, as it has weights made ready meanwhile
        self._generator = Generator(
            scheduler, model, self.ctx, placement, progress, cache_type, precision
        )
        try:
            with resting_collector(model.hyper.vocabulary):
                self.tokenizer = model.tokenizer
        except BaseException:
            self._generator.forget()
            raise
        self._busy = threading.Lock()

    def prepare(self, prompt: Prompt | None = None) -> None:
        """CompilingScheduler all steps now, or those that read a prompt; else steps are compiled
        when they are first needed.

        Raises:
            ShapeError: the prompt has no tokens, or more than ctx.
        """
        tokens = None if prompt is None else len(self._tokens_of(prompt))
        with self._alone():
            self._generator.prepare(tokens)

    @property
    def layers(self) -> dict[str, int]:
        """How many layers each device has, as keys and values lie; empty before anything is
        compiled.
        """
        return self._generator.layers

    @property
    def n_cpu_moe(self) -> int:
        """How many of them have their experts on the CPU, as there is no room beside them."""
        return self._generator.away

    def close(self) -> None:
        """Free its graphs, keys and values, which otherwise stay until the scheduler is closed.
        Used again, it makes them anew, on devices that had no memory left as well.

        Raises:
            VkschedError: an answer is under way.
        """
        with self._alone():
            self._generator.close()

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a text, or of messages as the model's template writes them.

        Raises:
            DTypeError: it is neither. ModelFormatError: there is no template, or it fails.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, bos=True)
        listed = isinstance(prompt, Sequence) and all(isinstance(m, Mapping) for m in prompt)
        if not listed:
            raise DTypeError(
                "[chat] expected a text, or a list of messages with 'role' and 'content', got "
                f"{shortened(prompt)}"
            )
        text = self.model.chat_template.render(prompt)
        bos = self.tokenizer.role("bos")
        begun = bos is not None and text.startswith(self.tokenizer.vocabulary.tokens[bos])
        return self.tokenizer.encode(text, special=True, bos=not begun)

    def generate(
        self, prompt: Prompt, n: int = 256, sampling: Sampling | None = None
    ) -> TextStream:
        """Return an iterator of the pieces of an answer of at most n tokens.

        Raises:
            ShapeError: the prompt has no tokens, or more than ctx. VkschedError, as pieces are
                asked for: another answer is under way.
        """
        state = _AnswerState(self._tokens_of(prompt))
        chats = not isinstance(prompt, str)
        return TextStream(self._pieces(state, n, sampling or Sampling(), chats), state)

    def _tokens_of(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt that fits."""
        tokens = self.encode(prompt)
        if not 0 < len(tokens) <= self.ctx:
            raise ShapeError(
                f"[chat] expected a prompt of 1 to {self.ctx} tokens, got {len(tokens)}; try a "
                "shorter prompt or a larger ctx"
            )
        return tokens

    def _pieces(
        self, state: _AnswerState, n: int, sampling: Sampling, chats: bool
    ) -> PyGenerator[str, None, None]:
        from ..importers.gguf.tokenizer.tokenizer import StreamDecoder

        decoder, text = StreamDecoder(self.tokenizer), list(state.prompt)
        for token in () if chats else text:
            decoder.add(token)  # what goes on with a text keeps its first space
        with self._alone():
            try:
                while len(state.tokens) < n and len(text) <= self.ctx:
                    logits = self._generator.prefill(text)
                    if state.is_closed:
                        break
                    token = sampling.choose(logits, text)
                    if token in self.tokenizer.ends:
                        state.finish_reason = "stop"
                        break
                    text.append(token)
                    state.tokens.append(token)
                    if piece := decoder.add(token):
                        yield piece
                else:
                    state.finish_reason = "length" if len(state.tokens) >= n else "context"
                if piece := decoder.end():
                    yield piece
            finally:
                state.finish_reason = state.finish_reason or "closed"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """An answer may be waiting for who reads it, maybe this very thread: so a second one is
        refused instead of kept waiting.
        """
        if not self._busy.acquire(blocking=False):
            raise VkschedError(
                "[chat] expected one answer at a time, got a second while one is under way; try "
                "to close the first, or a Chat of its own"
            )
        try:
            yield
        finally:
            self._busy.release()
