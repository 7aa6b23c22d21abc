"""Logit penalties: the bias of tokens, and the penalties of tokens that a text has.

The functions change scores in place. A finite score stays finite, and -inf stays -inf.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from reprlib import repr as shortened
from typing import Any

import numpy as np

from ..common.errors import SamplingError
from .token_filters import Floats

MAX_BIAS = 100.0


class Bias(tuple[tuple[int, float], ...]):
    """Pairs of a token and the value that is added to its logit, in ascending order of tokens. It
    was checked, and has its arrays, so that many answers can share it.
    """

    @cached_property
    def ids(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The tokens, int64."""
        return np.array([token for token, _ in self], np.int64)

    @cached_property
    def values(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The value of each token, float64."""
        return np.array([value for _, value in self], np.float64)

    def __getnewargs__(self) -> tuple[object, ...]:
        return (tuple(self),)


def checked_bias(bias: object) -> Bias:
    """Return a logit bias as pairs.

    Raises
    ------
    SamplingError
        It is no mapping of token ids to numbers from -100 to 100, or -inf.
    """
    if isinstance(bias, Bias):
        return bias
    pairs: Iterable[object] = bias.items() if isinstance(bias, Mapping) else _pairs(bias)
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise _wrong_bias(bias)
        token, value = pair
        is_whole = hasattr(token, "__index__") and not isinstance(token, bool)
        if not is_whole or not 0 <= token < 1 << 63:
            raise SamplingError(
                f"[sampling] expected token ids in logit_bias, got {shortened(token)}"
            )
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (-MAX_BIAS <= value <= MAX_BIAS or value == -np.inf):
            raise SamplingError(
                f"[sampling] expected values from -{MAX_BIAS:g} to {MAX_BIAS:g}, or -inf, in "
                f"logit_bias, got {shortened(value)} for token {token}"
            )
        found[operator.index(token)] = float(value)
    return Bias(sorted(found.items()))


def _pairs(bias: object) -> Iterable[object]:
    if isinstance(bias, tuple):
        return bias
    raise _wrong_bias(bias)


def _wrong_bias(bias: object) -> SamplingError:
    return SamplingError(
        "[sampling] expected logit_bias as a mapping of token ids to numbers, got "
        f"{shortened(bias)}"
    )


def add_bias(scores: Floats, bias: Bias) -> None:
    """Add the bias of tokens to their scores."""
    ids = bias.ids
    _check_tokens(ids[[0, -1]].tolist(), len(scores), "in logit_bias ")
    values = scores[ids].astype(np.float64) + bias.values
    bounded = _bounded(scores, values)
    bounded[values == -np.inf] = -np.inf
    scores[ids] = np.where(scores[ids] == np.inf, np.inf, bounded)


def divide_repeats(scores: Floats, tokens: Sequence[int], penalty: float) -> None:
    """Divide the positive scores of tokens by a penalty, and multiply the negative ones."""
    seen = sorted(set(tokens))
    _check_tokens(seen, len(scores))
    of_seen = scores[seen].astype(np.float64)
    with np.errstate(over="ignore"):
        penalized = np.where(of_seen > 0, of_seen / penalty, of_seen * penalty)
    scores[seen] = np.where(np.isfinite(of_seen), _bounded(scores, penalized), of_seen)


def subtract_counts(
    scores: Floats, tokens: Sequence[int], presence: float, frequency: float
) -> None:
    """Subtract from the scores of tokens, once and for each time that they occur."""
    seen, counts = np.unique(np.asarray(tokens, np.int64), return_counts=True)
    _check_tokens(seen.tolist(), len(scores))
    values = scores[seen].astype(np.float64) - presence - frequency * counts
    scores[seen] = np.where(np.isfinite(scores[seen]), _bounded(scores, values), scores[seen])


def _bounded(scores: Floats, values: Floats) -> Floats:
    limit = np.finfo(scores.dtype).max
    return np.clip(values, -limit, limit)


def _check_tokens(ascending: Sequence[int], size: int, place: str = "") -> None:
    if ascending and not 0 <= ascending[0] <= ascending[-1] < size:
        wrong = ascending[-1] if ascending[0] >= 0 else ascending[0]
        raise SamplingError(f"[sampling] expected tokens {place}below {size}, got {wrong}")
