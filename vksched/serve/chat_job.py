"""chat_job: a chat request as tokens, with the constraint and the parser of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..generation.conversation.messages import normalize_tools
from ..generation.tool_calls.call_formats import HARMONY, CallFormat, call_format_of, reasoning_of
from .api_error import ApiError
from .generation_job import Compile, GenerationJob, grammar_of, max_tokens_of, schema_of
from .limits import ServerLimits
from .message_deltas import MessageParser
from .model_service import ModelService
from .reasoning_constraint import ReasoningConstraint, ReasoningEnd
from .sampling_of import sampling_of
from .schemas.chat import ChatRequest, NamedChoice
from .tool_grammar import tool_constraint

Tools = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class ChatFields:
    """The fields of a chat request, without its messages. grammar: compiles the constraint
    of answers; None without one.
    """

    tools: Tools | None
    call_format: CallFormat | None
    variables: dict[str, Any]
    grammar: Compile | None
    max_tokens: int | None


@dataclass(frozen=True)
class ChatJob:
    """The requests of a chat request. parsers: one for each answer."""

    generation: GenerationJob
    parsers: Sequence[MessageParser]


def check_choices(body: ChatRequest, limits: ServerLimits) -> None:
    """Raise ApiError if a request asks for too many answers."""
    if (body.n or 1) > limits.choices:
        raise ApiError(
            f"[n] expected at most {limits.choices} answers per request, got {body.n}", "n"
        )


def chat_fields(body: ChatRequest, service: ModelService) -> ChatFields:
    """Return the fields of a chat request, which are checked before its pictures are decoded.

    Raises
    ------
    ApiError
        A field has a wrong value, or cannot be honoured; `param` names it.
    """
    service.engine  # noqa: B018 - an error now if the model generates no text
    source = service.model.chat_template.source
    tools, call_format = tools_of(body), call_format_of(source)
    if tools and call_format is None:
        raise ApiError(
            "[tools] expected none, because the format of tool calls in the model's chat template "
            "is unknown; try a model of another family",
            "tools",
        )
    sampling_of(body, service.vocabulary, 0)
    return ChatFields(
        tools,
        call_format,
        template_variables(body, service),
        chat_grammar(body, tools, call_format, service),
        max_tokens_of(body, None),
    )


def chat_job(
    body: ChatRequest, fields: ChatFields, service: ModelService, cache_key: str
) -> ChatJob:
    """Return the requests of a chat request.

    Raises
    ------
    ApiError
        The messages are too long; `param` names one.
    """
    for at, message in enumerate(body.messages):  # an early error, before the template is rendered
        if isinstance(content := message.get("content"), str):
            service.check_size(content, f"messages[{at}].content")
    tools, call_format = fields.tools, fields.call_format
    rendered = service.encoder.render_conversation(
        body.messages,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        variables=fields.variables,
    )
    service.check_size(rendered.text, "messages")
    prompt = service.encoder.encode_rendered(rendered)
    grammar = fields.grammar
    if grammar is not None and (marker := service.encoder.open_reasoning(prompt)) is not None:
        end = ReasoningEnd(service.tokenizer, marker, service.vocabulary)
        grammar = partial(_after_reasoning, grammar, end)
    generation = GenerationJob(
        body=body,
        prompts=[service.fitting(prompt, "messages")],
        grammar=grammar,
        max_tokens=fields.max_tokens,
        logprobs=body.alternatives(),
        prompt_logprobs=None,
        cache_key=cache_key,
        continues=bool(body.continue_final_message),
        has_markers=bool(tools)
        or reasoning_of(service.model.chat_template.source) is not None
        or (call_format is not None and call_format.name == HARMONY),
        pictures=list(rendered.pictures),
    )
    most = 1 if body.parallel_tool_calls is False else None
    parsers = [
        MessageParser(service.encoder.answer_parser(prompt, tools), most)
        for _ in range(generation.choices)
    ]
    return ChatJob(generation, parsers)


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


def chat_grammar(
    body: ChatRequest, tools: Tools | None, call_format: CallFormat | None, service: ModelService
) -> Compile | None:
    """Return the function that compiles `tool_choice`, `response_format` or `grammar`; None without
    them. With tools that may be called and a schema, the answer is calls, or follows the schema.

    Raises
    ------
    ApiError
        The named tool does not exist, or the constraint cannot be enforced.
    """
    grammar, wanted = grammar_of(body, service), schema_of(body)
    choice = body.tool_choice
    if tools is None or call_format is None:
        return grammar
    if body.grammar is not None:
        raise ApiError(
            "[tools] expected no tools with a grammar, which calls cannot follow, got both; try "
            "tool_choice 'none', or a schema",
            "tools",
        )
    may_answer = choice is None or choice == "auto"
    if may_answer and wanted is None:
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
    answer = wanted if may_answer else None  # a schema restricts no calls
    return partial(tool_constraint, tools, call_format, service, several, answer)


def _after_reasoning(grammar: Compile, end: ReasoningEnd) -> ReasoningConstraint:
    """Compile the grammar of the text after the reasoning."""
    return ReasoningConstraint(grammar(), end)


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
