"""Checks of completion requests."""

from __future__ import annotations

import numpy as np

from ...common.errors import SamplingError, ShapeError
from ..completion import CompletionRequest


def check_request(request: CompletionRequest, length: int, vocabulary: int) -> None:
    """Raise an error unless an engine can run a request.

    Raises
    ------
    ShapeError
        The prompt is empty, longer than `length`, or has a token that the model does not have.
    SamplingError
        A number of tokens is not a whole number, or is negative.
    """
    prompt = np.asarray(request.prompt)
    if not prompt.size:
        raise ShapeError("[engine] expected a prompt of at least one token, got none")
    if prompt.size > length:
        raise ShapeError(
            f"[engine] expected a prompt of 1 to {length} tokens, got {prompt.size}; try a shorter "
            "prompt or a larger context"
        )
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
