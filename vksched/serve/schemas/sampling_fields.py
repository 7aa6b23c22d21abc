"""SamplingFields: the fields that chat and text completions share."""

from __future__ import annotations

from reprlib import repr as shortened
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from ..api_error import ApiError
from .unsupported import refuse_unsupported

Probability = Annotated[float, Field(ge=0, le=1)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
MAX_STOPS = 16
StopTexts = Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)]
MAX_BIASES = 1 << 18
"""The tokens of the largest vocabularies."""
MAX_ALTERNATIVES = 20
MAX_BIAS = 100


def _checked_bias(value: object) -> object:
    """Return a logit bias. The first wrong value is the error: one error for each of many values
    would take seconds.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected an object of tokens and numbers, got {shortened(value)}")
    if len(value) > MAX_BIASES:
        raise ValueError(f"expected at most {MAX_BIASES} tokens, got {len(value)}")
    for token, bias in value.items():
        is_number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not (is_number and -MAX_BIAS <= bias <= MAX_BIAS):
            param = f"logit_bias.{token[:40]}"
            raise ApiError(
                f"[{param}] expected numbers from -{MAX_BIAS} to {MAX_BIAS}, got {shortened(bias)}",
                param,
            )
    return value


class Body(BaseModel):
    """A request. Unknown fields are accepted; null selects the default."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None


class JsonSchemaFormat(Body):
    """The schema of `response_format`."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.wanted_schema() is None:
            raise ValueError("expected json_schema with a schema")
        return self

    def wanted_schema(self) -> dict[str, Any] | bool | None:
        """Return the schema; None if there is none."""
        inner = self.json_schema.schema_ if self.json_schema else None
        return self.schema_ if inner is None else inner


class SamplingFields(Body):
    """The fields that chat and text completions share."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    stop: StopText | StopTexts | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    repeat_last_n: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    logit_bias: Annotated[dict[str, float], PlainValidator(_checked_bias)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | bool | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    ignore_eos: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        if isinstance(value, dict):
            refuse_unsupported(value)
        return value

    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
