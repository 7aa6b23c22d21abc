"""The requests of /v1/chat/completions and /apply-template.

Messages and tools are checked by `vksched.generation.conversation`, for all users of a template.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..api_error import ApiError
from .sampling_fields import MAX_ALTERNATIVES, Body, SamplingFields

MAX_MESSAGES, MAX_TOOLS = 4096, 1024
"""Maximum numbers in a request: many small ones take far more memory than their text."""
Messages = Annotated[
    list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]
Tools = Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True)]


class NamedFunction(Body):
    """The name of a function."""

    name: str


class NamedChoice(Body):
    """The tool that the answer must call."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(SamplingFields):
    """The request of /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("expected logprobs true with top_logprobs, got none")
        check_end(self.add_generation_prompt, self.continue_final_message)
        return self

    def alternatives(self) -> int | None:
        """Return the number of most likely tokens of each position; None without logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TemplateRequest(Body):
    """The request of /apply-template."""

    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> TemplateRequest:
        check_end(self.add_generation_prompt, self.continue_final_message)
        return self


def check_end(add_generation_prompt: bool | None, continue_final_message: bool | None) -> None:
    """Raise ApiError if the answer is a new message and continues the last one."""
    if add_generation_prompt and continue_final_message:
        raise ApiError(
            "[continue_final_message] expected false with add_generation_prompt true, got true",
            "continue_final_message",
        )
