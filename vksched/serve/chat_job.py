"""chat_job: a chat request as tokens, with the constraint and the parser of its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .api_error import ApiError
from .generation_job import GenerationJob, constraint_of
from .limits import ServerLimits
from .message_deltas import ContentParser, MessageParser
from .model_service import ModelService
from .schemas.chat import ChatRequest


@dataclass(frozen=True)
class ChatJob:
    """The requests of a chat request. parser: returns a parser for one answer."""

    generation: GenerationJob
    parser: Callable[[], MessageParser]


def chat_job(
    body: ChatRequest, service: ModelService, cache_key: str, limits: ServerLimits
) -> ChatJob:
    """Return the requests of a chat request.

    Raises
    ------
    ApiError
        A field has a wrong value, or cannot be honoured; `param` names it.
    """
    service.engine  # noqa: B018 - an error now if the model generates no text
    for at, message in enumerate(body.messages):
        if isinstance(content := message.get("content"), str):
            service.check_size(content, f"messages[{at}].content")
    prompt = service.encoder.encode_conversation(
        body.messages,
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        variables=template_variables(body, service),
    )
    generation = GenerationJob(
        body=body,
        prompts=[service.fitting(prompt, "messages")],
        constraint=constraint_of(body, service),
        max_tokens=max_tokens_of(body),
        logprobs=body.alternatives(),
        prompt_logprobs=None,
        cache_key=cache_key,
        continues=False,
    )
    generation.check(limits)
    return ChatJob(generation, ContentParser)


def max_tokens_of(body: ChatRequest) -> int | None:
    """Return the maximum number of tokens of an answer; None fills the context."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise ApiError(
            f"[max_tokens] expected the same value as max_completion_tokens, got {old} and {new}",
            "max_tokens",
        )
    return old if new is None else new


def template_variables(body: ChatRequest, service: ModelService) -> dict[str, Any]:
    """Return further variables of the chat template.

    Raises
    ------
    ApiError
        The template does not read `reasoning_effort`.
    """
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        if "reasoning_effort" not in service.model.chat_template.source:
            raise ApiError(
                f"[reasoning_effort] expected no value, because the chat template of "
                f"{service.name} does not read it, got {body.reasoning_effort[:40]!r}",
                "reasoning_effort",
                code="unsupported_parameter",
            )
        variables["reasoning_effort"] = body.reasoning_effort
    return variables
