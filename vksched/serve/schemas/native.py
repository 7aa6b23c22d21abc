"""The requests of /completion, in the form of llama-server's own API."""

from __future__ import annotations

from collections.abc import Iterator
from reprlib import repr as shortened
from typing import Annotated, Any

from pydantic import Field, model_validator

from ..api_error import ApiError
from .sampling_fields import MAX_ALTERNATIVES, MAX_BIAS, MAX_BIASES, SamplingFields
from .text import Token
from .unsupported import NEUTRAL, refuse_unsupported

Mixed = Annotated[list[str | Token], Field(min_length=1, fail_fast=True)]
NativePrompt = str | Mixed
NativePrompts = NativePrompt | Annotated[list[NativePrompt], Field(min_length=1, fail_fast=True)]
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""The sampling parameters of llama-server that differ from OpenAI's."""
NEUTRAL_OF_NATIVE: dict[str, tuple[object, ...]] = {
    **{name: values for name, values in NEUTRAL.items() if name != "n_probs"},
    "image_data": ([],),
    "n": (1,),
    "n_cmpl": (1,),
    "n_indent": (0,),
    "n_keep": (0, -1),
    "return_progress": (False,),
    "t_max_prompt_ms": (-1,),
}
"""These values of the fields of llama-server that this server does not support change nothing."""
Bias = tuple[int | str, float]
"""A token, or a text, and the number that is added to the logits of its tokens."""


def _biases(value: object) -> Iterator[Bias]:
    """Yield the pairs of a logit bias; the first wrong one is the error. `false` excludes."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or len(pairs) > MAX_BIASES:
        raise ApiError(
            f"[logit_bias] expected an object, or a list of at most {MAX_BIASES} pairs of a token "
            f"and a number, got {shortened(value)}",
            "logit_bias",
        )
    for pair in pairs:
        token, bias = _pair(pair)
        if isinstance(value, dict) and str(token).isdecimal():
            token = int(str(token)[:10])
        yield token, bias


def _pair(pair: object) -> Bias:
    """Return a pair of a logit bias."""
    token, bias = pair if isinstance(pair, (list, tuple)) and len(pair) == 2 else (None, None)
    if isinstance(token, (int, str)) and not isinstance(token, bool):
        if bias is False:
            return token, float("-inf")
        if isinstance(bias, (int, float)) and bias is not True and abs(bias) <= MAX_BIAS:
            return token, float(bias)
    raise ApiError(
        f"[logit_bias] expected pairs of a token or a text, and a number from -{MAX_BIAS} to "
        f"{MAX_BIAS} or false, got {shortened(pair)}",
        "logit_bias",
    )


class NativeBody(SamplingFields):
    """The request of /completion. biases: the pairs of `logit_bias`."""

    prompt: NativePrompts
    n_probs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Field(max_length=100, fail_fast=True)] | None = None
    biases: tuple[Bias, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        refuse_unsupported(value, NEUTRAL_OF_NATIVE)
        fields = {name: field for name, field in value.items() if field is not None}
        bias = fields.pop("logit_bias", {})
        return {**DEFAULTS, **fields, "biases": tuple(_biases(bias))}

    def native_prompts(self) -> list[list[str | int]]:
        """Return the prompts as lists of texts and tokens."""
        if isinstance(self.prompt, str):
            return [[self.prompt]]
        is_one = not any(isinstance(each, list) for each in self.prompt)
        if is_one and any(isinstance(each, int) for each in self.prompt):
            return [[each for each in self.prompt if not isinstance(each, list)]]
        return [each if isinstance(each, list) else [each] for each in self.prompt]
