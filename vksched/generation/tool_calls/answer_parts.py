"""Answer parts: content, reasoning and tool calls, as OpenAI's API names them."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

_ID_CHARS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call. arguments: a JSON object as text."""

    name: str
    arguments: str


AnswerPart = ContentDelta | ReasoningDelta | ToolCall


def new_call_id() -> str:
    """Return an id of a call: 9 letters and digits, as Mistral's templates require."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(9))
