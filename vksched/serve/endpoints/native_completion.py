"""/completion: continues texts or tokens, in the form of llama-server's own API.

It has the sampling defaults of llama-server. Several prompts have a list of answers. A stream has
no [DONE] at its end; its last event has "stop": true.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...generation.completion import TokenOutput
from ..answer_body import finite
from ..answer_stream import AnswerStreams
from ..api_error import ApiError
from ..event_stream import event_response, json_response, to_json, while_connected
from ..generation_job import Answer, GenerationJob, grammar_of, max_tokens_of, start_job
from ..model_service import ModelService
from ..schemas.native import NativeBody
from ..server_state import body_of, cache_key_of, state_of
from ..text_assembler import Piece

STOP_TYPES = {"stop": "eos", "length": "limit", "context": "limit"}
"""llama-server's reasons why an answer ended, by those of the engine."""
SETTINGS = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "seed",
)  # fmt: skip
"""The sampling parameters in `generation_settings`."""


async def completion(request: Request) -> Response:
    """Answer /completion."""
    began_s = time.perf_counter()
    state = state_of(request)
    body = await body_of(request, NativeBody)
    service = state.service
    service.check_name(body.model)
    count = len(body.native_prompts())
    if count > state.limits.choices:
        raise ApiError(
            f"[prompt] expected at most {state.limits.choices} prompts, got {count}", "prompt"
        )
    job = await state.workers.call(_job, body, service, cache_key_of(request))
    answer = _NativeAnswer(body, job, service, await start_job(job, state), began_s)
    if body.stream:
        return event_response(answer.chunks(), state.limits, done=False)
    await while_connected(request, answer.read())
    return json_response(await state.answer_workers.call(answer.whole))


def _job(body: NativeBody, service: ModelService, cache_key: str) -> GenerationJob:
    bias = {str(token): value for token, value in _token_biases(body, service)}
    return GenerationJob(
        body=body.model_copy(update={"logit_bias": bias}),
        prompts=[_tokens(parts, service) for parts in body.native_prompts()],
        grammar=grammar_of(body, service),
        max_tokens=max_tokens_of(body, None),
        logprobs=body.n_probs or None,
        prompt_logprobs=None,
        cache_key=cache_key,
        continues=True,
    )


def _token_biases(body: NativeBody, service: ModelService) -> Iterable[tuple[int, float]]:
    """Yield the bias of each token; that of a text counts for each of its tokens."""
    for token, value in body.biases:
        if isinstance(token, str):
            service.check_size(token, "logit_bias")
            yield from ((each, value) for each in service.tokenizer.encode(token, bos=False))
        else:
            yield token, value


def _tokens(parts: Sequence[str | int], service: ModelService) -> list[int]:
    """Return the tokens of a prompt, of which only the first text begins with a special token."""
    first, *others = parts
    tokens = service.prompt_of(first if isinstance(first, str) else [first], "prompt")
    for part in others:
        if isinstance(part, str):
            service.check_size(part, "prompt")
            tokens += service.tokenizer.encode(part, special=True, bos=False)
        else:
            tokens.append(part)
    return service.prompt_of(tokens, "prompt")


@dataclass
class _Choice:
    """The state of the answer to a prompt."""

    prompt: Sequence[int]
    text: str = ""
    outputs: list[TokenOutput] = field(default_factory=list)
    tokens: int = 0
    """The number of generated tokens, including those of a stop string."""
    reason: str = ""
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, piece: Piece, now_s: float) -> None:
        """Append a piece."""
        self.text += piece.text
        self.outputs += piece.outputs
        self.tokens += len(piece.outputs) + piece.stop_tokens
        self.reason, self.last_s = piece.finish_reason, now_s
        self.first_s = self.first_s or now_s


class _NativeAnswer:
    """The answers to the prompts of a request, whole or in chunks."""

    def __init__(
        self,
        body: NativeBody,
        job: GenerationJob,
        service: ModelService,
        answers: Sequence[Answer],
        began_s: float,
    ) -> None:
        self._body = body
        self._service = service
        self._assemblers = [assembler for _, assembler in answers]
        self._streams = AnswerStreams(answers)
        self._choices = [_Choice(prompt) for prompt in job.prompts]
        self._began_s = began_s

    async def read(self) -> None:
        """Wait until all answers have ended."""
        async for index, piece in self._streams.pieces():
            self._choices[index].add(piece, time.perf_counter())

    def whole(self) -> str:
        """Return the body as JSON once all answers have ended."""
        bodies = []
        for index, choice in enumerate(self._choices):
            tokens = [each.token for each in choice.outputs] if self._body.return_tokens else []
            body = {"content": choice.text, "tokens": tokens, **self._end(index)}
            bodies.append(self._selected(body | self._probabilities(choice.outputs)))
        return to_json(bodies if len(bodies) > 1 else bodies[0])

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream; the last one of an answer has no text."""
        async for index, piece in self._streams.pieces():
            choice = self._choices[index]
            choice.add(piece, time.perf_counter())
            if piece.text or piece.outputs:
                yield {
                    "index": index,
                    "content": piece.text,
                    "tokens": [each.token for each in piece.outputs],
                    "stop": False,
                    "id_slot": -1,
                    "tokens_predicted": choice.tokens,
                    "tokens_evaluated": len(choice.prompt),
                    **self._probabilities(piece.outputs),
                }
            if piece.finish_reason:
                yield self._selected({"content": "", "tokens": [], **self._end(index)})

    def _end(self, index: int) -> dict[str, Any]:
        """Return the fields of an answer that has ended."""
        choice, word = self._choices[index], self._assemblers[index].stop_string
        return {
            "index": index,
            "id_slot": -1,
            "stop": True,
            "model": self._service.name,
            "tokens_predicted": choice.tokens,
            "tokens_evaluated": len(choice.prompt),
            "tokens_cached": len(choice.prompt) + choice.tokens,
            "generation_settings": self._settings(index),
            "prompt": self._service.tokenizer.decode(choice.prompt, special=True),
            "has_new_line": "\n" in choice.text,
            "truncated": choice.reason == "context",
            "stop_type": "word" if word else STOP_TYPES[choice.reason],
            "stopping_word": word,
            "timings": self._timings(index),
        }

    def _settings(self, index: int) -> dict[str, Any]:
        request = self._streams.streams[index].request
        return {
            **{name: getattr(request.sampling, name) for name in SETTINGS},
            "stop": list(self._body.stops()),
            "max_tokens": request.max_tokens,
            "n_predict": request.max_tokens,
            "n_probs": self._body.n_probs or 0,
            "ignore_eos": bool(self._body.ignore_eos),
            "stream": bool(self._body.stream),
        }

    def _timings(self, index: int) -> dict[str, Any]:
        """Return the numbers of tokens and the times. That of the prompt ends with the first token
        and includes the time in the queue.
        """
        choice, cached = self._choices[index], self._streams.streams[index].cached_tokens
        timings: dict[str, Any] = {"cache_n": cached}
        for name, count, seconds in (
            ("prompt", len(choice.prompt) - cached, choice.first_s - self._began_s),
            ("predicted", choice.tokens, choice.last_s - choice.first_s),
        ):
            timings[f"{name}_n"] = count
            timings[f"{name}_ms"] = 1e3 * seconds
            timings[f"{name}_per_token_ms"] = 1e3 * seconds / max(1, count)
            timings[f"{name}_per_second"] = count / seconds if seconds > 0 else 0.0
        return timings

    def _probabilities(self, outputs: Iterable[TokenOutput]) -> dict[str, Any]:
        """Return the log-probabilities of tokens, if they were requested."""
        if not self._body.n_probs:
            return {}
        return {
            "completion_probabilities": [
                {
                    **self._token(o.logprobs.token, o.logprobs.logprob),
                    "top_logprobs": [self._token(*each) for each in o.logprobs.top],
                }
                for o in outputs
                if o.logprobs is not None
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text, data = self._service.token_text(token)
        return {"id": token, "token": text, "bytes": list(data), "logprob": finite(logprob)}

    def _selected(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of `response_fields`; one with a slash is a field of an object."""
        names = self._body.response_fields
        if not names:
            return body
        found = {}
        for name in names:
            value: Any = body
            for part in name.split("/"):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                found[name] = value
        return found
