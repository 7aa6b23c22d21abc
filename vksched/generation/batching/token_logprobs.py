"""Log-probabilities of tokens from a model's logits."""

from __future__ import annotations

import numpy as np

from ...common.errors import SamplingError
from ..completion import TokenLogprobs
from ..step_runner import Logits


def token_logprobs(logits: Logits, token: int, alternatives: int) -> TokenLogprobs:
    """Return the log-probability of a token, and the most likely tokens of its position.

    Of equally likely tokens, those with the lower id come first.

    Parameters
    ----------
    logits
        The logits of all tokens, (vocabulary,).
    alternatives
        The number of most likely tokens.

    Raises
    ------
    SamplingError
        A logit is NaN, or none is finite.
    """
    largest = float(logits.max())
    if not np.isfinite(largest):
        raise SamplingError(
            "[logprobs] expected logits without NaN, at least one of them finite, got a maximum of "
            f"{largest}; the weights may be damaged"
        )
    total = largest + float(np.log(np.exp(logits - np.float64(largest)).sum()))
    top = most_likely(logits, min(alternatives, len(logits)))
    return TokenLogprobs(
        token, float(logits[token]) - total, tuple((i, float(logits[i]) - total) for i in top)
    )


def most_likely(logits: Logits, count: int) -> list[int]:
    """Return the tokens with the largest logits, in descending order."""
    if not count:
        return []
    least = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= least)
    order = np.argsort(-logits[ids], kind="stable")[:count]
    return [int(i) for i in ids[order]]
