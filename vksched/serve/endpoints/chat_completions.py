"""/v1/chat/completions: answers conversations, with tools and structured output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...generation.completion import TokenOutput
from ...generation.conversation.picture_parts import has_pictures, source_size
from ..answer_body import FINISH_REASONS, AnswerHeader, UsageCounter, chat_logprobs
from ..answer_stream import AnswerStreams
from ..chat_job import ChatJob, chat_fields, chat_job, check_choices
from ..event_stream import event_response, json_response, to_json, while_connected
from ..generation_job import start_job
from ..message_assembler import MessageAssembler, MessagePiece
from ..message_deltas import Delta, joined
from ..model_service import ModelService
from ..picture_admission import PicturePlace
from ..schemas.chat import ChatRequest
from ..server_state import ServerState, body_of, cache_key_of, state_of


async def chat_completions(request: Request) -> Response:
    """Answer /v1/chat/completions."""
    state = state_of(request)
    body = await body_of(request, ChatRequest)
    state.service.check_name(body.model)
    check_choices(body, state.limits)
    place = _place_of(body, state)
    try:
        starting = _start(body, state, cache_key_of(request), place)
        answer = await while_connected(request, starting, _ChatAnswer.close)
    except BaseException:
        if place is not None:
            place.leave()
        raise
    if body.stream:
        return event_response(answer.chunks(), state.limits)
    return json_response(await while_connected(request, answer.whole()))


def _place_of(body: ChatRequest, state: ServerState) -> PicturePlace | None:
    """Return a place for a request with pictures, before they are decoded; None without them."""
    if state.service.pictures is None or not has_pictures(body.messages):
        return None
    size = source_size(body.messages)
    return state.admission.enter(state.service.engine, body.n or 1, size)


async def _start(
    body: ChatRequest, state: ServerState, cache_key: str, place: PicturePlace | None
) -> _ChatAnswer:
    """Return the answer to a request, which the engine generates. place: that of its pictures."""
    service = state.service
    fields = await state.workers.call(chat_fields, body, service)
    if place is not None:
        await state.picture_readers.call(_open_pictures, body, service, place)
    job = await state.workers.call(chat_job, body, fields, service, cache_key)
    body.messages.clear()  # they may have megabytes, and the answer does not need them
    answers = await start_job(job.generation, state, place)
    streams = AnswerStreams(
        [
            (stream, MessageAssembler(assembler, parser))
            for (stream, assembler), parser in zip(answers, job.parsers, strict=True)
        ],
        place.leave if place is not None else lambda: None,
    )
    return _ChatAnswer(body, job, state, streams)


def _open_pictures(body: ChatRequest, service: ModelService, place: PicturePlace) -> None:
    """Decode the pictures of messages in place of their URLs, whose sizes they replace."""
    size = source_size(body.messages)
    opened = service.encoder.open_pictures(
        body.messages, lambda picture: place.add(picture.pixels.nbytes)
    )
    body.messages[:] = map(dict, opened)
    place.add(-size)


class _ChatAnswer:
    """The answer of a chat completion, whole or in chunks."""

    def __init__(
        self,
        body: ChatRequest,
        job: ChatJob,
        state: ServerState,
        streams: AnswerStreams[MessagePiece],
    ) -> None:
        self._stream_options = body.stream_options
        self._has_logprobs = bool(body.logprobs)
        self._service = state.service
        self._workers = state.answer_workers
        self._streams = streams
        self._choices = job.generation.choices
        self._usage = UsageCounter(job.generation.prompts, self._choices)

    def close(self) -> None:
        """Cancel the answers."""
        self._streams.close()

    async def whole(self) -> str:
        """Return the body as JSON once all choices have ended."""
        deltas: list[list[Delta]] = [[] for _ in range(self._choices)]
        outputs: list[list[TokenOutput]] = [[] for _ in range(self._choices)]
        reasons = [""] * self._choices
        async for index, piece in self._streams.pieces():
            deltas[index] += piece.deltas
            outputs[index] += piece.outputs
            reasons[index] = piece.finish_reason
            self._usage.add(piece)
        return await self._workers.call(self._whole_body, deltas, outputs, reasons)

    def _whole_body(
        self, deltas: list[list[Delta]], outputs: list[list[TokenOutput]], reasons: list[str]
    ) -> str:
        header = AnswerHeader("chat.completion", "chatcmpl", self._service.name)
        choices = [
            {
                "index": index,
                "message": joined(deltas[index]),
                "logprobs": self._logprobs(outputs[index]),
                "finish_reason": FINISH_REASONS[reasons[index]],
            }
            for index in range(self._choices)
        ]
        return to_json(header.body(choices, usage=self._usage.body(self._streams.streams)))

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""
        header = AnswerHeader("chat.completion.chunk", "chatcmpl", self._service.name)
        options = self._stream_options
        with_usage = bool(options and options.include_usage)
        more: dict[str, Any] = {"usage": None} if with_usage else {}
        begun: set[int] = set()
        async for index, piece in self._streams.pieces():
            self._usage.add(piece)
            if index not in begun:
                begun.add(index)
                role = {"role": "assistant", "content": ""}
                yield header.body([_chunk(index, role)], **more)
            logprobs = self._logprobs(piece.outputs)
            for delta in piece.deltas:
                yield header.body([_chunk(index, delta.body(), logprobs)], **more)
                logprobs = None
            if logprobs and logprobs["content"]:  # tokens without visible text
                yield header.body([_chunk(index, {}, logprobs)], **more)
            if piece.finish_reason:
                reason = FINISH_REASONS[piece.finish_reason]
                yield header.body([_chunk(index, {}, None, reason)], **more)
        if with_usage:
            yield header.body([], usage=self._usage.body(self._streams.streams))

    def _logprobs(self, outputs: Sequence[TokenOutput]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        return {"content": chat_logprobs(outputs, self._service), "refusal": None}


def _chunk(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
