"""Sampling: chooses the next token from a model's logits.

    logits -> repeat penalty -> top-k -> top-p -> min-p -> temperature -> draw

The order is llama.cpp's. A draw depends only on the seed and the position of the token, so a text
that is continued after a device failure does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.errors import SamplingError

Floats = np.ndarray[Any, np.dtype[np.float64]]


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
        scores = np.asarray(logits, np.float64).copy()
        if scores.ndim != 1 or not scores.max(initial=-np.inf) > -np.inf:
            raise SamplingError(
                "[sampling] expected 1-D logits without NaN, at least one of them finite; the "
                "weights may be damaged, or keys and values too large for float16"
            )
        self._penalize(scores, tokens)
        if self.temperature == 0:
            return int(np.argmax(scores))
        ids = _largest(scores, self.top_k or len(scores))
        candidates = scores[ids]
        if self.top_p < 1:
            reached = np.cumsum(_softmax(candidates)) >= self.top_p
            candidates = candidates[
                : int(np.argmax(reached)) + 1 if reached.any() else len(candidates)
            ]
        if self.min_p > 0:
            candidates = candidates[candidates >= candidates[0] + np.log(self.min_p)]
        with np.errstate(over="ignore", invalid="ignore"):
            warmed = np.where(
                candidates == candidates[0], 0.0, (candidates - candidates[0]) / self.temperature
            )
        chances = np.cumsum(_softmax(warmed))
        draw = _uniform(self.seed, len(tokens)) * chances[-1]
        return int(ids[min(int(np.searchsorted(chances, draw, "right")), len(candidates) - 1)])

    def _penalize(self, scores: Floats, tokens: Sequence[int]) -> None:
        if self.repeat_penalty == 1 or not self.repeat_last_n:
            return
        seen = sorted(set(tokens[-self.repeat_last_n :]))
        if seen and not 0 <= seen[0] <= seen[-1] < len(scores):
            wrong = seen[-1] if seen[0] >= 0 else seen[0]
            raise SamplingError(f"[sampling] expected tokens below {len(scores)}, got {wrong}")
        of_seen = scores[seen]
        scores[seen] = np.where(
            of_seen > 0, of_seen / self.repeat_penalty, of_seen * self.repeat_penalty
        )


def _largest(scores: Floats, count: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the indices of the largest logits in descending order, ties by index.

    Only candidates are sorted, because vocabularies are large.
    """
    ids = np.arange(len(scores))
    if count < len(scores):
        ids = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return ids[np.argsort(-scores[ids], kind="stable")][:count]


def _softmax(scores: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max())
    powers = np.where(np.isnan(powers), 1.0, powers)
    return np.asarray(powers / powers.sum())


def _uniform(seed: int, place: int) -> float:
    """Return a number in [0, 1) that depends only on the seed and the position, by Philox (Salmon
    et al., 2011).
    """
    return float(np.random.Generator(np.random.Philox(key=seed, counter=place)).random())
