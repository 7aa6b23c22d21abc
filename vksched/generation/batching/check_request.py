"""Checks of completion requests."""

from __future__ import annotations

import numpy as np

from ...common.errors import SamplingError, ShapeError
from ..completion import CompletionRequest
from ..pictures.prompt_pictures import text_ids


def check_request(request: CompletionRequest, length: int, vocabulary: int) -> None:
    """Raise an error unless an engine can run a request.

    Raises
    ------
    ShapeError
        The prompt is empty, longer than `length`, or has a token that the model does not have.
    SamplingError
        A number of tokens is not a whole number, or is negative; or the log-probabilities of a
        prompt with pictures are wanted.
    """
    count = len(request.prompt)
    if not count:
        raise ShapeError("[engine] expected a prompt of at least one token, got none")
    if count > length:
        raise ShapeError(
            f"[engine] expected a prompt of 1 to {length} tokens, got {count}; try a shorter "
            "prompt or a larger context"
        )
    if request.pictures and request.prompt_logprobs is not None:
        raise SamplingError(
            "[engine] expected no prompt_logprobs with pictures, whose tokens have none, got "
            f"{request.prompt_logprobs}"
        )
    # without pictures, their ids are wrong like all others
    prompt = np.asarray(text_ids(request.prompt) if request.pictures else request.prompt)
    if not prompt.size:
        return
    if prompt.dtype.kind not in "iu" or prompt.ndim != 1:
        raise ShapeError(f"[engine] expected a prompt of token ids, got {request.prompt[:8]}")
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise ShapeError(
            f"[engine] expected token ids from 0 to {vocabulary - 1}, got {wrong}; try the "
            "tokenizer of this model"
        )
    for name in ("max_tokens", "logprobs", "prompt_logprobs"):
        value = getattr(request, name)
        if name != "max_tokens" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise SamplingError(
                f"[engine] expected {name} as a whole number of at least 0, got {value!r}"
            )
