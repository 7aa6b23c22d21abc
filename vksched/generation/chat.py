"""Chat: generates text with a language model, piece by piece.

    prompt --PromptEncoder--> tokens --EngineCore, one slot--> tokens --StreamDecoder--> text

The thread that reads a text runs the steps of the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from ..common.dtypes import Progress
from ..common.errors import SamplingError, ShapeError, VkschedError
from ..common.fork_guard import ProcessBound
from ..common.gc_pause import resting_collector
from .batching.engine_core import EngineCore
from .batching.token_stream import TokenStream
from .compiled_steps import CompilingScheduler
from .completion import CompletionRequest
from .conversation.prompt_encoder import EncodedPrompt, Prompt, PromptEncoder, is_conversation
from .pictures.picture_encoder import PictureEncoder
from .pictures.prompt_pictures import EncodedPicture, PromptPictures
from .sampling import Sampling
from .slot_steps import SlotSteps
from .speculation.speculation import Speculation
from .stop_matcher import StopMatcher
from .text_stream import AnswerState, TextStream

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..importers.gguf.model import LanguageModel
    from ..importers.gguf.vision.vision_model import VisionModel

CONTEXT = 4096


def context_of(model: LanguageModel, ctx: int | None) -> int:
    """Return the context length that a chat uses if the user asks for `ctx` tokens, or for none."""
    return min(CONTEXT, model.hyper.context) if ctx is None else ctx


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
    speculation
        How tokens are guessed; None guesses none. The text does not depend on it.
    projector
        A projector file of the model, loaded by `vs.load_projector`; messages may then have
        pictures.

    Raises
    ------
    ModelFormatError
        The file has no tokenizer, or an unknown one; or the draft model has other tokens; or the
        projector file is that of another model.
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
        speculation: Speculation | None = None,
        projector: VisionModel | None = None,
    ) -> None:
        self.model = model
        self.ctx = context_of(model, ctx)
        self._pictures: PictureEncoder | None = None
        if projector is not None:
            self._pictures = PictureEncoder(scheduler, projector, model, progress=progress)
        # first: it starts to repack weights in the background
        self._steps = SlotSteps(
            *(scheduler, model, self.ctx, 1, placement, progress, cache_type, precision),
            reads_pictures=projector is not None,
        )
        if projector is not None and projector.is_whole:
            self._steps.picture_tokens = projector.tokens
        try:
            with resting_collector(model.hyper.vocabulary):
                self.tokenizer = model.tokenizer
                self._encoder = PromptEncoder(model, self._pictures)
            drafters = speculation.drafters(model, scheduler, self.ctx, 1) if speculation else ()
        except BaseException:
            self._steps.forget()
            raise
        self._core = EngineCore(
            self._steps, self.tokenizer.ends, reuse_decoded=True, drafters=drafters
        )
        self._busy = threading.Lock()

    def prepare(self, prompt: Prompt | None = None) -> None:
        """Compile the steps that a prompt needs, or all steps if there is none.

        Steps that are not prepared are compiled at their first use.

        Raises
        ------
        ShapeError
            The prompt has no tokens, or more than `ctx`.
        """
        asked = None if prompt is None else self._encoded(prompt)
        with self._alone():
            if asked is None:
                if self._pictures is not None:
                    self._pictures.prepare()  # first: its weights need memory, too
                self._steps.prepare_prompt()
            else:
                pictures = self._encode_pictures(asked)
                places = PromptPictures(asked.tokens, pictures) if pictures else None
                self._steps.prepare_prompt(len(asked.tokens), places)
            self._core.speculator.prepare()

    def _encode_pictures(self, prompt: EncodedPrompt) -> tuple[EncodedPicture, ...]:
        if self._pictures is None:
            return ()
        return tuple(map(self._pictures.encode, prompt.pictures))

    @property
    def layers(self) -> dict[str, int]:
        """The number of layers on each device, by the location of their KV cache; empty before a
        step is compiled.
        """
        return self._steps.steps.layers

    @property
    def n_cpu_moe(self) -> int:
        """The number of layers whose experts are on the CPU because their device has no memory for
        them.
        """
        return self._steps.steps.away

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
            self._core.end_all("closed")
            self._core.close()
            if self._pictures is not None:
                self._pictures.close()

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt. Names of control tokens in messages are encoded as text;
        only the model's chat template writes control tokens. The ids of a picture's tokens are
        numbers of at least 2**160.

        Raises
        ------
        DTypeError
            The prompt is neither a text, nor token ids, nor messages.
        MessageError
            A message is invalid.
        ModelFormatError
            The file has no chat template, or the template fails.
        """
        return self._encoder.encode(prompt)

    def generate(
        self,
        prompt: Prompt,
        n: int = 256,
        sampling: Sampling | None = None,
        *,
        stop: str | Sequence[str] = (),
    ) -> TextStream:
        """Return a stream of the generated text.

        Parameters
        ----------
        prompt
            A text or token ids to continue, or the messages of a conversation. Messages are those
            of OpenAI's API: "content" is a text, a list of parts, or None. With a projector file,
            a part may be a picture: {"type": "image_url", "image_url": {"url": ...}} with a path
            or a data: URL, or {"type": "image", "image": ...} with a path, the bytes of a file,
            pixels (height, width, 3) of uint8, or a picture of Pillow.
        n
            The maximum number of tokens to generate.
        sampling
            The sampling parameters; the defaults of `Sampling` if None.
        stop
            A stop string, or several: the text ends before the first one.

        Raises
        ------
        ShapeError
            The prompt has no tokens, or more than `ctx`.
        SamplingError
            `n` is not a whole number of at least 1, or a stop string is not a text.
        VkschedError
            Raised by the stream if another answer is being generated.
        """
        if not hasattr(n, "__index__") or isinstance(n, bool) or n < 1:
            raise SamplingError(
                f"[chat] expected n as a whole number of at least 1, got {shortened(n)}"
            )
        matcher = StopMatcher(stop)
        asked = self._encoded(prompt)
        state = AnswerState(asked.tokens)
        # a continuation keeps its leading space
        before = () if is_conversation(prompt) else tuple(state.prompt)
        request = CompletionRequest(tuple(state.prompt), int(n), sampling or Sampling())
        return TextStream(self._pieces(state, asked, request, before, matcher), state)

    def _encoded(self, prompt: Prompt) -> EncodedPrompt:
        """Return the tokens of a prompt; raise ShapeError unless they fit into the context."""
        asked = self._encoder.encode_prompt(prompt)
        tokens = asked.tokens
        if not tokens:
            raise ShapeError(
                f"[chat] expected a prompt of 1 to {self.ctx} tokens, got 0; try a text that is "
                "not empty"
            )
        if len(tokens) > self.ctx:
            raise ShapeError(
                f"[chat] expected a prompt of 1 to {self.ctx} tokens, got {len(tokens)}; try a "
                "shorter prompt or a larger ctx"
            )
        return asked

    def _pieces(
        self,
        state: AnswerState,
        asked: EncodedPrompt,
        request: CompletionRequest,
        before: Sequence[int],
        matcher: StopMatcher,
    ) -> Generator[str, None, None]:
        from ..importers.gguf.tokenizer.tokenizer import StreamDecoder

        decoder = StreamDecoder(self.tokenizer)
        for token in before:
            decoder.add(token)
        with self._alone():
            try:
                request = replace(request, pictures=self._encode_pictures(asked))
                stream = TokenStream(self._core.submit(request), self, self._core.step)
                state.attach(stream)
                for output in stream:
                    state.tokens.append(output.token)
                    if piece := matcher.add(decoder.add(output.token)):
                        yield piece
                    if matcher.found is not None:
                        break
                if piece := matcher.add(decoder.end()) + matcher.end():
                    yield piece
                is_stopped = matcher.found is not None
                state.finish_reason = "stop" if is_stopped else stream.finish_reason
            finally:
                self._end(state)
                state.finish_reason = state.finish_reason or "closed"

    def _end(self, state: AnswerState) -> None:
        """End the answer. Forget the rows of tokens that were not read: how many there are depends
        on the guesses, and the next prompt must not.
        """
        self._core.end_requests("closed")
        if state.stream is None or state.stream.finish_reason in ("", "closed"):
            self._core.truncate(0, len(state.prompt) + max(0, len(state.tokens) - 1))

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
