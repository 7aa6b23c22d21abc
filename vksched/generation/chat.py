"""Chat: generates text with a language model, piece by piece."""

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
from ..common.fork_guard import ProcessBound
from ..common.gc_pause import resting_collector
from .compiled_steps import CompilingScheduler
from .generator import Generator
from .sampling import Sampling

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..importers.gguf.model import LanguageModel

CONTEXT = 4096

Prompt = str | Sequence[Mapping[str, object]]
"""A text to continue, or the messages of a conversation, each with "role" and "content"."""


def context_of(model: LanguageModel, ctx: int | None) -> int:
    """Return the context length that a chat uses if the user asks for `ctx` tokens, or for none."""
    return min(CONTEXT, model.hyper.context) if ctx is None else ctx


@dataclass
class _AnswerState:
    """The state of an answer. It holds no reference to its TextStream, because dropping the stream
    ends the answer.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    is_closed: bool = False


class TextStream(Iterator[str]):
    """An iterator over the generated text, in pieces of whole characters."""

    def __init__(self, pieces: PyGenerator[str, None, None], state: _AnswerState) -> None:
        self._pieces = pieces
        self._state = state

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return tuple(self._state.prompt)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that were generated until now."""
        return tuple(self._state.tokens)

    @property
    def finish_reason(self) -> str:
        """The reason why generation ended, or "" while it runs.

        "stop": the model ended its answer. "length": the requested number of tokens was generated.
        "context": the context is full. "closed": the stream was closed, or generation failed.
        """
        return self._state.finish_reason

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop generation; the chat can then start another answer.

        If another thread waits for a piece, that piece is the last one, and the chat is free once
        it has arrived.
        """
        self._state.is_closed = True
        with suppress(ValueError):  # another thread is advancing it
            self._pieces.close()
            self._state.finish_reason = self._state.finish_reason or "closed"


class Chat(ProcessBound):
    """A language model on the devices of a scheduler, with the KV cache of one sequence.

    A prompt that shares a prefix with the previous sequence, as the next message of a conversation
    does, is prefilled from the first token that differs. One answer is generated at a time, from
    any thread.

    Parameters
    ----------
    scheduler
        The scheduler whose devices are used.
    model
        A model loaded from a GGUF file by `vs.load`.
    ctx
        The maximum number of tokens of a prompt and its answer together. The default is the model's
        context length, at most 4,096.
    cache_type
        The element type of the KV cache: "f32", "f16" or "q8_0". None selects it by the device of
        a layer: "f16" on GPUs with float16, "f32" on others, on software drivers and on the CPU,
        and with precision "float32" on all.
    placement, progress
        See `Scheduler.compile`.
    precision
        A precision mode; see `Scheduler`. "auto" selects "mixed" for the layers on GPUs with
        float16, and "float32" for all others. "fast" also selects "int8" for the layers that the
        CPU runs initially, as llama.cpp does. None selects the scheduler's mode, or "auto" if it
        has none.

    Raises
    ------
    ModelFormatError
        The file has no tokenizer, or an unknown one.
    ShapeError
        `ctx` is not a valid number of tokens for the model.
    DTypeError
        `cache_type` is unknown.
    """

    _INSTEAD = "to send the path of the model, and to compile it in each process"

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        ctx: int | None = None,
        *,
        cache_type: str | None = None,
        placement: Placements | None = None,
        progress: Progress | None = None,
        precision: str | None = None,
    ) -> None:
        self.model = model
        self.ctx = context_of(model, ctx)
        # first: it starts to repack weights in the background
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
        """Compile the steps that a prompt needs, or all steps if there is none.

        Steps that are not prepared are compiled at their first use.

        Raises
        ------
        ShapeError
            The prompt has no tokens, or more than `ctx`.
        """
        tokens = None if prompt is None else len(self._tokens_of(prompt))
        with self._alone():
            self._generator.prepare(tokens)

    @property
    def layers(self) -> dict[str, int]:
        """The number of layers on each device, by the location of their KV cache; empty before a
        step is compiled.
        """
        return self._generator.layers

    @property
    def n_cpu_moe(self) -> int:
        """The number of layers whose experts are on the CPU because their device has no memory for
        them.
        """
        return self._generator.away

    def close(self) -> None:
        """Free the compiled graphs and the KV cache, which otherwise live until the scheduler is
        closed.

        The next use builds them again, and considers devices that were out of memory again.

        Raises
        ------
        VkschedError
            An answer is being generated.
        """
        with self._alone():
            self._generator.close()

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a text, or of messages formatted by the model's chat template.

        Raises
        ------
        DTypeError
            The prompt is neither a text nor messages.
        ModelFormatError
            The file has no chat template, or the template fails.
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
        """Return a stream of the generated text.

        Parameters
        ----------
        prompt
            A text to continue, or the messages of a conversation.
        n
            The maximum number of tokens to generate.
        sampling
            The sampling parameters; the defaults of `Sampling` if None.

        Raises
        ------
        ShapeError
            The prompt has no tokens, or more than `ctx`.
        VkschedError
            Raised by the stream if another answer is being generated.
        """
        state = _AnswerState(self._tokens_of(prompt))
        chats = not isinstance(prompt, str)
        return TextStream(self._pieces(state, n, sampling or Sampling(), chats), state)

    def _tokens_of(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt; raise ShapeError unless they fit into the context."""
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
            decoder.add(token)  # a continuation keeps its leading space
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
        """Hold the chat for one answer, and refuse a second one.

        The running answer may wait for its consumer, maybe for this thread, so waiting for it could
        deadlock.
        """
        if not self._busy.acquire(blocking=False):
            raise VkschedError(
                "[chat] another answer is being generated; close it, or create a second Chat"
            )
        try:
            yield
        finally:
            self._busy.release()
