"""The requests of /v1/completions, /v1/embeddings, /v1/rerank, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .sampling_fields import MAX_ALTERNATIVES, Body, SamplingFields
from .unsupported import NEUTRAL_OF_RERANK, refuse_unsupported

Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Prompts = str | Tokens | Texts | Annotated[list[Tokens], Field(min_length=1, fail_fast=True)]
"""A text, its tokens, or a list of these."""


class CompletionBody(SamplingFields):
    """The request of /v1/completions."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts as a list."""
        return listed(self.prompt)


class EmbeddingRequest(Body):
    """The request of /v1/embeddings."""

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class RerankRequest(Body):
    """The request of /v1/rerank."""

    query: str
    documents: Texts
    model: str | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        if isinstance(value, dict):
            refuse_unsupported(value, NEUTRAL_OF_RERANK)
        return value


class TokenizeRequest(Body):
    """The request of /tokenize."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Body):
    """The request of /detokenize."""

    tokens: Annotated[list[Token], Field(fail_fast=True)]


def listed(value: Prompts) -> list[str] | list[list[int]]:
    """Return a prompt, or several, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value[0], int):
        return [value]
    return value
