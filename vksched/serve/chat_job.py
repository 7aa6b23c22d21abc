"""chat_job: a chat request as tokens, with the constraint and the parser of its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..generation.conversation.messages import normalize_tools
from ..generation.tool_calls.call_formats import HARMONY, CallFormat, call_format_of, reasoning_of
from .api_error import ApiError
from .constraints import GrammarConstraint
from .generation_job import GenerationJob, constraint_of, max_tokens_of
from .limits import ServerLimits
from .message_deltas import MessageParser
from .model_service import ModelService
from .reasoning_constraint import AnswerConstraint, ReasoningConstraint, ReasoningEnd
from .schemas.chat import ChatRequest, NamedChoice
from .tool_grammar import tool_constraint

Tools = Sequence[dict[str, Any]]


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
    source = service.model.chat_template.source
    tools, call_format = tools_of(body), call_format_of(source)
    if tools and call_format is None:
        raise ApiError(
            "[tools] expected none, because the format of tool calls in the model's chat template "
            "is unknown; try a model of another family",
            "tools",
        )
    prompt = service.encoder.encode_conversation(
        body.messages,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        variables=template_variables(body, service),
    )
    constraint: AnswerConstraint | None = chat_constraint(body, tools, call_format, service)
    if constraint is not None and (marker := service.encoder.open_reasoning(prompt)) is not None:
        end = ReasoningEnd(service.tokenizer, marker, service.vocabulary)
        constraint = ReasoningConstraint(constraint, end)
    generation = GenerationJob(
        body=body,
        prompts=[service.fitting(prompt, "messages")],
        constraint=constraint,
        max_tokens=max_tokens_of(body, None),
        logprobs=body.alternatives(),
        prompt_logprobs=None,
        cache_key=cache_key,
        continues=False,
        has_markers=bool(tools)
        or reasoning_of(source) is not None
        or (call_format is not None and call_format.name == HARMONY),
    )
    generation.check(limits)
    most = 1 if body.parallel_tool_calls is False else None
    return ChatJob(
        generation, lambda: MessageParser(service.encoder.answer_parser(prompt, tools), most)
    )


def tools_of(body: ChatRequest) -> Tools | None:
    """Return the normalized tools that the model may call; None if there are none.

    Raises
    ------
    ApiError
        `tool_choice` needs a tool that the request does not have.
    MessageError
        A tool is invalid.
    """
    tools: Any = normalize_tools(body.tools)
    if body.tool_choice == "none":
        return None
    if tools is None and body.tool_choice not in (None, "auto"):
        raise ApiError("[tool_choice] expected tools with this choice, got none", "tool_choice")
    return tools  # type: ignore[no-any-return]


def chat_constraint(
    body: ChatRequest, tools: Tools | None, call_format: CallFormat | None, service: ModelService
) -> GrammarConstraint | None:
    """Return the constraint of `tool_choice`, `response_format` or `grammar`; None without them.

    Raises
    ------
    ApiError
        The named tool does not exist, or the constraint cannot be enforced.
    """
    constraint = constraint_of(body, service)
    choice = body.tool_choice
    if tools is None or call_format is None:
        return constraint
    if constraint is not None:
        raise ApiError(
            "[tools] expected no tools with a schema or grammar, which calls cannot follow, got "
            "both; try tool_choice 'none'",
            "tools",
        )
    if choice is None or choice == "auto":
        return None
    if isinstance(choice, NamedChoice):
        known = [tool["function"]["name"] for tool in tools]
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
        if not tools:
            raise ApiError(
                f"[tool_choice.function.name] expected one of {', '.join(known)[:500]}, got "
                f"{choice.function.name[:100]!r}",
                "tool_choice.function.name",
            )
    several = body.parallel_tool_calls is not False and not isinstance(choice, NamedChoice)
    return tool_constraint(tools, call_format, service, several)


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
