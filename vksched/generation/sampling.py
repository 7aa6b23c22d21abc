"""Sampling: chooses the next token from a model's logits.

    logits -> repeat penalty -> top-k -> top-p -> min-p -> temperature -> draw

The order is llama.cpp's. A draw takes the remaining tokens by index. It depends only on the seed
and the position of the token, so a text that is continued after a device failure does not change.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.errors import SamplingError

Floats = np.ndarray[Any, np.dtype[Any]]
Ids = np.ndarray[Any, np.dtype[np.intp]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_COLUMN = 64
"""Number of scores whose maximum bounds the largest ones."""
_CHUNK = 1 << 14
"""Number of scores whose exponentials stay in a core's cache."""
_SORTED = 4096
"""Largest number of weights that are sorted."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters.

    Parameters
    ----------
    temperature
        The softmax temperature; 0 selects the largest logit (greedy).
    top_k
        The number of most likely tokens to keep; 0 keeps all.
    top_p
        Keep the smallest set of most likely tokens with at least this total probability.
    min_p
        Drop tokens below this fraction of the top probability.
    repeat_penalty
        The divisor of the logits of the last `repeat_last_n` tokens; 1 disables it.

    Raises
    ------
    SamplingError
        A number is out of range, or not an integer where one is required.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0, 1e6),
            ("top_k", 0, 1 << 31),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repeat_penalty", 1e-3, 1e3),
            ("repeat_last_n", 0, 1 << 31),
            ("seed", 0, (1 << 64) - 1),
        ):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and low <= value <= high):
                raise SamplingError(
                    f"[sampling] expected {name} from {low:g} to {high:g}, got {value!r}"
                )
            if name in ("top_k", "repeat_last_n", "seed") and not hasattr(value, "__index__"):
                raise SamplingError(f"[sampling] expected {name} as a whole number, got {value}")

    def choose(self, logits: np.ndarray[Any, Any], tokens: Sequence[int] = ()) -> int:
        """Return the next token.

        Parameters
        ----------
        logits
            The logits of all tokens, 1-D.
        tokens
            The text until now; its length is the position of the draw.

        Raises
        ------
        SamplingError
            A logit is NaN, all are -inf, or there are none.
        """
        scores = np.asarray(logits)
        if scores.dtype != np.float32:
            scores = scores.astype(np.float64)
        top = scores.max(initial=-np.inf) if scores.ndim == 1 else -np.inf
        if not top > -np.inf:
            raise SamplingError(
                "[sampling] expected 1-D logits without NaN, at least one of them finite; the "
                "weights may be damaged, or, without a vs.Chat, values too large for float16"
            )
        if self.repeat_penalty != 1 and self.repeat_last_n:
            scores = self._penalized(scores, tokens)
            top = scores.max()
        if top == np.inf:
            scores, top = np.where(scores == np.inf, 0, -np.inf), 0.0
        if self.temperature == 0:
            return int(np.argmax(scores))
        ids = self._filtered(scores, float(top))
        with np.errstate(over="ignore"):
            distances = (scores[ids].astype(np.float64) - float(top)) / self.temperature
        chances = np.cumsum(np.exp(distances))
        draw = _uniform(self.seed, len(tokens)) * chances[-1]
        return int(ids[min(int(np.searchsorted(chances, draw, "right")), len(ids) - 1)])

    def _filtered(self, scores: Floats, top: float) -> Ids:
        """Return the indices of the tokens that pass all filters, in ascending order.

        Vocabularies are large, so no step sorts all of it.
        """
        least = np.log(self.min_p) + top if self.min_p > 0 else -np.inf
        ids = _largest(scores, self.top_k) if 0 < self.top_k < len(scores) else None
        if self.top_p < 1:
            values = scores if ids is None else scores[ids]
            nucleus = _nucleus(values, top, self.top_p, least)
            ids = nucleus if ids is None else ids[nucleus]
        if ids is None:
            return np.flatnonzero(scores >= least)
        return ids[scores[ids] >= least]

    def _penalized(self, scores: Floats, tokens: Sequence[int]) -> Floats:
        """Return the scores with the repeat penalty."""
        seen = sorted(set(tokens[-self.repeat_last_n :]))
        if seen and not 0 <= seen[0] <= seen[-1] < len(scores):
            wrong = seen[-1] if seen[0] >= 0 else seen[0]
            raise SamplingError(f"[sampling] expected tokens below {len(scores)}, got {wrong}")
        scores = scores.copy()
        of_seen, largest = scores[seen].astype(np.float64), np.finfo(scores.dtype).max
        with np.errstate(over="ignore"):
            penalized = np.where(
                of_seen > 0, of_seen / self.repeat_penalty, of_seen * self.repeat_penalty
            )
        bounded = np.clip(penalized, -largest, largest)  # a finite score stays finite
        scores[seen] = np.where(np.isfinite(of_seen), bounded, of_seen)
        return scores


def _largest(scores: Floats, count: int) -> Ids:
    """Return the indices of the largest scores in ascending order; of equal ones, the first.

    The `count` largest of the maxima of columns bound the `count` largest scores from below.
    """
    columns = len(scores) // _COLUMN
    bound = -np.inf
    if columns > count:
        maxima = scores[: columns * _COLUMN].reshape(_COLUMN, columns).max(axis=0)
        bound = np.partition(maxima, -count)[-count]
    ids = np.flatnonzero(scores >= bound)
    values = scores[ids]
    least = np.partition(values, -count)[-count]
    return ids[_first(values, float(least), count)]


def _nucleus(scores: Floats, top: float, share: float, least: float) -> Ids:
    """Return the indices of the fewest most likely tokens with a share of the probability, at
    least one, in ascending order. Scores below `least` may be absent.
    """
    total = sum(
        float(np.exp(scores[at : at + _CHUNK] - top).sum(dtype=np.float64))
        for at in range(0, len(scores), _CHUNK)
    )
    needed = max(share * total, sys.float_info.min)
    # all scores below this one have together less than the rest of the probability
    least = max(least, top + math.log((1 - share) * total / len(scores)))
    ids = np.flatnonzero(scores >= least)
    weights = np.exp(scores[ids] - top)
    if weights.sum(dtype=np.float64) < needed:
        return ids
    band, count = weights, 0
    while len(band) > _SORTED:
        middle = np.partition(band, len(band) // 2)[len(band) // 2]
        upper = band[band > middle]
        mass = float(upper.sum(dtype=np.float64))
        if mass < needed:
            rest = band[band < middle]
            if mass + float(middle) * (len(band) - len(upper) - len(rest)) >= needed:
                band = band[band >= middle]
                break
            mass = float(band.sum(dtype=np.float64) - rest.sum(dtype=np.float64))
            count, needed, band = count + len(band) - len(rest), needed - mass, rest
        else:
            band = upper
    band = np.sort(band)[::-1]
    reached = np.cumsum(band, dtype=np.float64) >= needed
    last = int(np.argmax(reached)) if reached.any() else len(band) - 1
    return ids[_first(weights, float(band[last]), count + last + 1)]


def _first(values: Floats, least: float, count: int) -> Bools:
    """Return the flags of `count` values: those above `least`, then the first that equal it."""
    flags = values > least
    flags[np.flatnonzero(values == least)[: count - np.count_nonzero(flags)]] = True
    return np.asarray(flags)


def _uniform(seed: int, place: int) -> float:
    """Return a number in [0, 1) that depends only on the seed and the position, by Philox (Salmon
    et al., 2011).
    """
    return float(np.random.Generator(np.random.Philox(key=seed, counter=place)).random())
