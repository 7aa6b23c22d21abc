"""/v1/completions: continues texts or tokens, with log-probabilities of the prompt on request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...generation.completion import TokenLogprobs, TokenOutput
from ..answer_body import FINISH_REASONS, AnswerHeader, TextLogprobs, UsageCounter
from ..answer_stream import AnswerStreams
from ..api_error import ApiError
from ..event_stream import event_response, json_response, to_json, while_connected
from ..generation_job import GenerationJob, grammar_of, max_tokens_of, start_job
from ..model_service import ModelService
from ..schemas.text import CompletionBody
from ..server_state import ServerState, body_of, cache_key_of, state_of
from ..text_assembler import Piece

DEFAULT_TOKENS = 16
"""OpenAI's default of max_tokens for text completions."""


async def completions(request: Request) -> Response:
    """Answer /v1/completions."""
    state = state_of(request)
    body = await body_of(request, CompletionBody)
    service = state.service
    service.check_name(body.model)
    prompts = body.prompts()
    if len(prompts) * (body.n or 1) > state.limits.choices:
        raise ApiError(
            f"[prompt] expected at most {state.limits.choices} answers per request, got "
            f"{len(prompts)} prompts with n = {body.n or 1}",
            "prompt" if len(prompts) > 1 else "n",
        )
    job = await state.workers.call(_job, body, service, cache_key_of(request))
    streams = AnswerStreams(await start_job(job, state))
    answer = _TextAnswer(body, job, state, streams)
    if body.stream:
        return event_response(answer.chunks(), state.limits)
    return json_response(await while_connected(request, answer.whole()))


def _job(body: CompletionBody, service: ModelService, cache_key: str) -> GenerationJob:
    max_tokens = max_tokens_of(body, DEFAULT_TOKENS)
    return GenerationJob(
        body=body,
        prompts=[service.prompt_of(prompt, "prompt") for prompt in body.prompts()],
        grammar=grammar_of(body, service),
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        cache_key=cache_key,
        continues=True,
        # lm-eval asks for one token after the prompt, and drops the last entry
        shows_end=bool(body.echo) and body.logprobs is not None and max_tokens == 1,
    )


@dataclass
class _Choice:
    """The state of a choice: its prompt, and whether the prompt was repeated already."""

    prompt: list[int]
    logprobs: TextLogprobs
    text: str = ""
    outputs: list[TokenOutput] = field(default_factory=list)
    finish_reason: str = ""
    is_echoed: bool = False


class _TextAnswer:
    """The answer of a text completion, whole or in chunks."""

    def __init__(
        self,
        body: CompletionBody,
        job: GenerationJob,
        state: ServerState,
        streams: AnswerStreams[Piece],
    ) -> None:
        service = state.service
        self._body = body
        self._service = service
        self._workers = state.answer_workers
        self._streams = streams
        self._ends = service.tokenizer.ends if job.shows_end else frozenset[int]()
        self._n = n = body.n or 1
        self._choices = [
            _Choice(list(job.prompts[index // n]), TextLogprobs(service))
            for index in range(job.choices)
        ]
        self._header = AnswerHeader("text_completion", "cmpl", service.name)
        self._usage = UsageCounter(job.prompts, n)

    async def whole(self) -> str:
        """Return the body as JSON once all choices have ended."""
        async for index, piece in self._streams.pieces():
            choice = self._choices[index]
            choice.text += piece.text
            choice.outputs += piece.outputs
            choice.finish_reason = piece.finish_reason
            self._usage.add(piece)
        return await self._workers.call(self._whole_body)

    def _whole_body(self) -> str:
        choices = [
            self._part(index, Piece(each.text, tuple(each.outputs), each.finish_reason))
            for index, each in enumerate(self._choices)
        ]
        usage = self._usage.body(self._streams.streams)
        return to_json(self._header.body(choices, usage=usage))

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""
        options = self._body.stream_options
        with_usage = bool(options and options.include_usage)
        more: dict[str, Any] = {"usage": None} if with_usage else {}
        async for index, piece in self._ordered_pieces():
            self._usage.add(piece)
            if self._body.echo and not self._choices[index].is_echoed:
                part = await self._workers.call(self._part, index, piece)
            else:
                part = self._part(index, piece)
            yield self._header.body([part], **more)
        if with_usage:
            yield self._header.body([], usage=self._usage.body(self._streams.streams))

    async def _ordered_pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yield the pieces of all choices. The first choice of a prompt precedes its other ones if
        they repeat the log-probabilities of the prompt, which it computes.
        """
        waits = bool(self._body.echo) and self._body.logprobs is not None
        begun: set[int] = set()
        held: dict[int, list[tuple[int, Piece]]] = {}
        async for index, piece in self._streams.pieces():
            first = self._first(index)
            if index == first or first in begun or not waits:
                begun.add(index)
                yield index, piece
                for each in held.pop(index, []):
                    yield each
            else:
                held.setdefault(first, []).append((index, piece))

    def _first(self, index: int) -> int:
        """Return the index of the first choice with the prompt of a choice."""
        return index - index % self._n

    def _part(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return a piece of a choice, with the prompt before the first one if it is repeated."""
        choice, text = self._choices[index], piece.text
        entries = [o.logprobs for o in piece.outputs if o.logprobs is not None]
        first = None
        if self._body.echo and not choice.is_echoed:
            choice.is_echoed = True
            text = self._prompt_text(index, choice) + text
            first = choice.prompt[0]
            entries = [*self._prompt_entries(index), *entries]
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = choice.logprobs.body(entries, first)
        reason = FINISH_REASONS[piece.finish_reason] if piece.finish_reason else None
        if reason and piece.outputs and piece.outputs[-1].token in self._ends:
            reason = "stop"
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _prompt_entries(self, index: int) -> list[TokenLogprobs]:
        return list(self._streams.streams[self._first(index)].prompt_logprobs)

    def _prompt_text(self, index: int, choice: _Choice) -> str:
        prompt = self._body.prompts()[index // self._n]
        if isinstance(prompt, str):
            return prompt
        return self._service.tokenizer.decode(choice.prompt)
