"""Log-probabilities of tokens: log-softmax of logits in float64, and the most likely tokens.

    logprob[token] = logit[token] - top - log(sum(exp(logits - top)))

The logits are those of the model, before all sampling parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.errors import SamplingError, ShapeError
from .completion import TokenLogprobs
from .token_filters import largest

Logits = np.ndarray[Any, np.dtype[Any]]

_CHUNK = 1 << 14
"""Number of logits whose exponentials stay in a core's cache."""


def token_logprobs(logits: Logits, token: int, count: int = 0) -> TokenLogprobs:
    """Return the log-probability of a token, and the most likely tokens with theirs.

    Parameters
    ----------
    logits
        The logits of all tokens, (vocabulary,).
    token
        The token.
    count
        The number of most likely tokens; of equal ones, those with the lowest ids.

    Raises
    ------
    ShapeError
        The logits are not 1-D, or the token does not exist.
    SamplingError
        A logit is NaN or inf, or all are -inf.
    """
    if logits.ndim != 1 or not 0 <= token < len(logits):
        raise ShapeError(
            f"[logprobs] expected 1-D logits with token {token}, got shape {logits.shape}"
        )
    largest_logit, log_sum = _log_sum(logits)
    ids = _most_likely(logits, min(count, len(logits)))
    top = tuple((each, float(logits[each]) - largest_logit - log_sum) for each in ids)
    return TokenLogprobs(token, float(logits[token]) - largest_logit - log_sum, top)


def _log_sum(logits: Logits) -> tuple[float, float]:
    """Return the largest logit, and the logarithm of the sum of exp(logits - largest)."""
    top = float(logits.max(initial=-np.inf))
    if not np.isfinite(top):
        raise SamplingError(
            "[logprobs] expected logits without NaN and inf, at least one of them finite, got "
            f"a maximum of {top}; the weights may be damaged"
        )
    total = sum(
        float(np.exp(np.subtract(logits[at : at + _CHUNK], top, dtype=np.float64)).sum())
        for at in range(0, len(logits), _CHUNK)
    )
    return top, float(np.log(total))


def _most_likely(logits: Logits, count: int) -> list[int]:
    """Return the ids of the largest logits, in descending order."""
    if count <= 0:
        return []
    ids = largest(logits, count)
    return [int(each) for each in ids[np.argsort(-logits[ids], kind="stable")]]
