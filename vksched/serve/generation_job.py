"""GenerationJob: what the choices of one HTTP request have in common, ready for the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..generation.completion import CompletionRequest, CompletionStream
from ..generation.pictures.prompt_pictures import EncodedPicture, OpenedPicture, text_ids
from ..generation.stop_matcher import StopMatcher
from .api_error import ApiError
from .model_service import ModelService
from .picture_admission import PicturePlace
from .reasoning_constraint import AnswerConstraint
from .sampling_of import MASK, sampling_of, seed_of
from .schemas.sampling_fields import SamplingFields
from .server_state import ServerState
from .text_assembler import TextAssembler

Answer = tuple[CompletionStream, TextAssembler]
Compile = Callable[[], AnswerConstraint]


@dataclass(frozen=True)
class GenerationJob:
    """The requests of one HTTP request: each prompt, `n` times.

    The first choice of each prompt has the log-probabilities of the prompt. prompts: tokens.
    grammar: compiles the constraint of answers. max_tokens: None generates until the context is
    full. continues: the answer continues the text of the prompt. cache_key: the name of the
    client's key. has_markers: the text of answers includes the names of control tokens, which mark
    parts of it. pictures: those whose ids are in the prompts; `encode_pictures` takes them.
    """

    body: SamplingFields
    prompts: Sequence[Sequence[int]]
    grammar: Compile | None
    max_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    cache_key: str
    continues: bool
    has_markers: bool = False
    pictures: list[OpenedPicture] = field(default_factory=list)
    shows_end: bool = False
    """End tokens are tokens of the answer, with log-probabilities."""

    @property
    def choices(self) -> int:
        """The number of answers."""
        return len(self.prompts) * (self.body.n or 1)

    def encode_pictures(
        self, service: ModelService, place: PicturePlace
    ) -> tuple[EncodedPicture, ...]:
        """Return the pictures with the rows of their tokens, whose sizes replace those of the
        pixels in `place`. The job keeps no pixels.
        """
        out = []
        while self.pictures:
            out.append(service.encode_picture(self.pictures[0]))
            place.add(out[-1].rows.nbytes)
            place.add(-self.pictures.pop(0).pixels.nbytes)
        return tuple(out)

    def start(
        self,
        service: ModelService,
        constraint: AnswerConstraint | None,
        pictures: tuple[EncodedPicture, ...] = (),
        place: PicturePlace | None = None,
    ) -> list[Answer]:
        """Submit all requests, and return the stream and the assembler of each answer; cancel them
        all if one is refused. place: that of pictures, which has places in the queue.

        The choice with index i of a prompt uses the seed `seed` + i. Building the requests may take
        a second, so that a thread calls this.
        """
        requests = self._requests(service, constraint, pictures)
        stops = StopMatcher(self.body.stops())
        assemblers = [
            TextAssembler(
                service.tokenizer, stops.copy(), self._before(each), special=self.has_markers
            )
            for each in requests
        ]
        streams = []
        queue = service.engine.reserve(len(requests)) if place is None else place.queue
        try:
            for request in requests:
                streams.append(service.engine.submit(request, queue))
        except BaseException:
            queue.release()
            for stream in streams:
                stream.close()
            raise
        return list(zip(streams, assemblers, strict=True))

    def _before(self, request: CompletionRequest) -> tuple[int, ...]:
        """Return the tokens that the text of an answer continues."""
        return tuple(text_ids(request.prompt)) if self.continues else ()

    def _requests(
        self,
        service: ModelService,
        constraint: AnswerConstraint | None,
        pictures: tuple[EncodedPicture, ...],
    ) -> list[CompletionRequest]:
        seed, length = seed_of(self.body), service.engine.length
        sampling = sampling_of(self.body, service.vocabulary, seed)
        requests = []
        for prompt in self.prompts:
            for index in range(self.body.n or 1):
                request = CompletionRequest(
                    prompt=tuple(prompt),
                    max_tokens=length if self.max_tokens is None else self.max_tokens,
                    sampling=replace(sampling, seed=(seed + index) & MASK),
                    ends=frozenset() if self.body.ignore_eos or self.shows_end else None,
                    logprobs=self.logprobs,
                    prompt_logprobs=None if index else self.prompt_logprobs,  # all are equal
                    constraint=constraint and constraint.copy(),
                    cache_key=self.cache_key,
                    pictures=pictures,
                )
                requests.append(request)
        return requests


async def start_job(
    job: GenerationJob, state: ServerState, place: PicturePlace | None = None
) -> list[Answer]:
    """Compile the grammar of a job, encode its pictures, and submit its requests; see
    `GenerationJob.start`. place: that of its pictures, if it has any.

    Raises
    ------
    GrammarError
        The schema or grammar cannot be enforced.
    QueueFull
        The queue is full.
    """
    constraint = None
    if job.grammar is not None:
        constraint = await state.grammar_workers.call(job.grammar)
    pictures: tuple[EncodedPicture, ...] = ()
    if place is not None:
        pictures = await state.picture_worker.call(job.encode_pictures, state.service, place)
    about = state.service, constraint, pictures, place
    return await state.answer_workers.call(job.start, *about, dropped=_close)


def _close(answers: Sequence[Answer]) -> None:
    for stream, _ in answers:
        stream.close()


@dataclass(frozen=True)
class AnswerSchema:
    """The JSON schema of an answer. param: the field of the request that has it."""

    schema: dict[str, Any] | bool
    param: str


def schema_of(body: SamplingFields) -> AnswerSchema | None:
    """Return the schema of `response_format` or `json_schema`; None without them.

    Raises
    ------
    ApiError
        Several of `response_format`, `json_schema` and `grammar` are present.
    """
    form = body.response_format
    values = {
        "response_format": None if form is None or form.type == "text" else form,
        "json_schema": body.json_schema,
        "grammar": body.grammar,
    }
    names = [name for name, value in values.items() if value is not None]
    if len(names) > 1:
        raise ApiError(f"[{names[1]}] expected either {' or '.join(names)}, got both", names[1])
    if body.json_schema is not None:
        return AnswerSchema(body.json_schema, "json_schema")
    if form is None or form.type == "text":
        return None
    wanted = form.wanted_schema()
    return AnswerSchema({"type": "object"} if wanted is None else wanted, "response_format")


def grammar_of(body: SamplingFields, service: ModelService) -> Compile | None:
    """Return the function that compiles `response_format`, `json_schema` or `grammar`; None without
    them; see `schema_of`.
    """
    wanted = schema_of(body)
    if wanted is not None:
        return partial(service.grammars.from_schema, wanted.schema, wanted.param)
    if body.grammar is not None:
        return partial(service.grammars.from_text, body.grammar, "grammar")
    return None


def max_tokens_of(body: SamplingFields, default: int | None) -> int | None:
    """Return the maximum number of tokens of an answer; None fills the context. default: the number
    without any of `max_tokens`, `max_completion_tokens` and llama-server's `n_predict`.

    Raises
    ------
    ApiError
        They have different values.
    """
    fields = ("max_tokens", "max_completion_tokens", "n_predict")
    found = {name: value for name in fields if (value := getattr(body, name, None)) is not None}
    if len(set(found.values())) > 1:
        raise ApiError(
            f"[max_tokens] expected the same value in {' and '.join(found)}, got "
            f"{' and '.join(map(str, found.values()))}",
            "max_tokens",
        )
    most = next(iter(found.values()), default)
    return None if most == -1 else most
