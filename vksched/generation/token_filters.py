"""Token filters: top-k and top-p of large vocabularies, without a sort of all scores.

Both sets are prefixes of the tokens in descending order, with the first of equal ones. The sum of
all exponentials, which top-p needs, takes most of the time. So the nucleus is first searched among
the scores near the largest one, with bounds of the sum:

    sum of the near ones  <=  sum of all  <=  sum of the near ones + number of others * their bound

If both bounds give one set, it is the nucleus. Otherwise all exponentials are summed.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[Any]]
Ids = np.ndarray[Any, np.dtype[np.intp]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_COLUMN = 64
"""Number of scores whose maximum bounds the largest ones."""
_CHUNK = 1 << 14
"""Number of scores whose exponentials stay in a core's cache."""
_SORTED = 4096
"""Largest number of weights that are sorted."""
_BOUNDED = 1 << 14
"""Smallest number of scores whose nucleus is first searched by bounds."""
_MARGIN = 4.0
"""The distance of near scores below the least one that can remain."""
_ROUNDING = 1e-5
"""A bound of the relative rounding error of a sum of float32 exponentials."""


def largest(scores: Floats, count: int) -> Ids:
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


def nucleus(scores: Floats, top: float, share: float, least: float) -> Ids:
    """Return the indices of the fewest most likely tokens with a share of the probability, at
    least one, in ascending order. Scores below `least` may be absent. top: the largest score.
    """
    if len(scores) >= _BOUNDED:
        floor = least if least > -np.inf else top
        found = _bounded_nucleus(scores, top, share, least, floor - _MARGIN)
        if found is not None:
            return found
    return _exact_nucleus(scores, top, share, least)


def _bounded_nucleus(
    scores: Floats, top: float, share: float, least: float, near: float
) -> Ids | None:
    """Return the nucleus if the scores of at least `near` determine it, else None."""
    ids = np.flatnonzero(scores >= near)
    if 2 * len(ids) > len(scores):
        return None  # no faster than the sum of all
    values = scores[ids]
    weights = np.exp(values - top)
    low = float(weights.sum(dtype=np.float64)) * (1 - _ROUNDING)
    high = low * (1 + 3 * _ROUNDING) + (len(scores) - len(ids)) * math.exp(near - top)
    if least > near:
        likely = values >= least
        ids, values, weights = ids[likely], values[likely], weights[likely]
        if float(weights.sum(dtype=np.float64)) < share * low:
            return ids  # the nucleus has all scores of at least `least`, and more
    candidates = values >= top + math.log((1 - share) * low / len(scores))
    ids, weights = ids[candidates], weights[candidates]
    if len(ids) > _SORTED:
        return None
    reached = _reach(weights, share * low)
    if reached is None or reached != _reach(weights, share * high):
        return None
    return ids[_first(weights, *reached)]


def _exact_nucleus(scores: Floats, top: float, share: float, least: float) -> Ids:
    total, buffer = 0.0, np.empty(min(_CHUNK, len(scores)), scores.dtype)
    for at in range(0, len(scores), _CHUNK):
        chunk = scores[at : at + _CHUNK]
        distances = np.subtract(chunk, top, out=buffer[: len(chunk)])
        total += float(np.exp(distances, out=distances).sum(dtype=np.float64))
    # all scores below this one have together less than the rest of the probability
    least = max(least, top + math.log((1 - share) * total / len(scores)))
    ids = np.flatnonzero(scores >= least)
    weights = np.exp(scores[ids] - top)
    reached = _reach(weights, share * total)
    return ids if reached is None else ids[_first(weights, *reached)]


def _reach(weights: Floats, needed: float) -> tuple[float, int] | None:
    """Return the least weight, and the number, of the fewest largest weights whose sum is `needed`;
    None if all together have less.
    """
    needed = max(needed, sys.float_info.min)
    if weights.sum(dtype=np.float64) < needed:
        return None
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
    return float(band[last]), count + last + 1


def _first(values: Floats, least: float, count: int) -> Bools:
    """Return the flags of `count` values: those above `least`, then the first that equal it."""
    flags = values > least
    flags[np.flatnonzero(values == least)[: count - np.count_nonzero(flags)]] = True
    return np.asarray(flags)
