"""Parts of the bodies of answers that chat and text completions share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..common.version import __version__
from ..generation.completion import CompletionStream, TokenLogprobs, TokenOutput
from .model_service import ModelService
from .text_assembler import Piece

FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "tool_calls": "tool_calls",
}
"""OpenAI's finish reason by that of the engine."""
FINGERPRINT = f"build-vksched-{__version__}"
"""The version of the software: another one may give other answers to the same request."""


class AnswerHeader:
    """The fields with which each body or chunk of an answer begins."""

    def __init__(self, kind: str, prefix: str, model: str) -> None:
        self._fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def body(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return a body with choices."""
        return {**self._fields, "choices": list(choices), **more}


class UsageCounter:
    """Counts the tokens of all choices of a request. choices: their number per prompt."""

    def __init__(self, prompts: Iterable[Sequence[int]], choices: int = 1) -> None:
        self._prompt_tokens = sum(map(len, prompts))
        self._choices = choices
        self._completion_tokens = 0

    def add(self, piece: Piece) -> None:
        """Count the generated tokens of a piece."""
        self._completion_tokens += len(piece.outputs) + piece.stop_tokens

    def body(self, streams: Sequence[CompletionStream]) -> dict[str, Any]:
        """Return the usage. streams: those of all choices, by prompt."""
        cached = sum(stream.cached_tokens for stream in streams[:: self._choices])
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def chat_logprobs(outputs: Iterable[TokenOutput], service: ModelService) -> list[dict[str, Any]]:
    """Return the log-probabilities of tokens as in a chat completion."""
    return [
        {
            **_chat_token(o.logprobs.token, o.logprobs.logprob, service),
            "top_logprobs": [_chat_token(t, value, service) for t, value in o.logprobs.top],
        }
        for o in outputs
        if o.logprobs is not None
    ]


def _chat_token(token: int, logprob: float, service: ModelService) -> dict[str, Any]:
    text, data = service.token_text(token)
    return {"token": text, "logprob": finite(logprob), "bytes": list(data)}


class TextLogprobs:
    """The log-probabilities of a text completion: lists with an entry per token."""

    def __init__(self, service: ModelService) -> None:
        self._service = service
        self._offset = 0

    def body(
        self, entries: Sequence[TokenLogprobs], first: int | None = None, top: bool = True
    ) -> dict[str, Any]:
        """Return the lists of some tokens.

        Parameters
        ----------
        first
            A token without log-probability before the others: the first one of the prompt.
        top
            Include the most likely tokens.
        """
        tokens = [first] * (first is not None) + [entry.token for entry in entries]
        nothing = [None] * (first is not None)
        names = [self._name(token) for token in tokens if token is not None]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._service.token_text(token)[0]) if token is not None else 0
        likely = [
            {self._name(t): finite(v) for t, v in ((e.token, e.logprob), *reversed(e.top))}
            for e in entries
        ]
        return {
            "tokens": names,
            "token_logprobs": [*nothing, *(finite(e.logprob) for e in entries)],
            "top_logprobs": [*nothing, *likely] if top else None,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """Return the text of a token; "bytes:\\\\xe2" for a part of a character, as OpenAI does."""
        data = self._service.token_text(token)[1]
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{each:02x}" for each in data)


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold: -9999 stands for impossible tokens."""
    return max(logprob, -9999.0)
