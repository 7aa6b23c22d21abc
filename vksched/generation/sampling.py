"""Sampling: chooses the next token from a model's logits.

    logits -> logit bias -> repeat, frequency and presence penalties
           -> top-k -> top-p -> min-p -> temperature -> draw

The order is llama.cpp's. The repeat penalty counts the prompt, too; the frequency and presence
penalties count generated tokens only, as in OpenAI's API. A draw takes the remaining tokens by
index. It depends only on the seed and the position of the token, so a text that is continued after
a device failure does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..common.errors import SamplingError
from .logit_penalties import Bias, add_bias, checked_bias, divide_repeats, subtract_counts
from .pictures.prompt_pictures import text_ids
from .token_filters import Floats, Ids, largest, nucleus


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
    presence_penalty
        Subtracted from the logits of all tokens that were generated, from -2 to 2.
    frequency_penalty
        Subtracted from the logits of generated tokens for each time, from -2 to 2.
    logit_bias
        Values to add to the logits, by token id, from -100 to 100; -inf excludes a token. Pass a
        mapping; it is stored as a tuple of pairs.

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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    _bias: Bias = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0, 1e6),
            ("top_k", 0, 1 << 31),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repeat_penalty", 1e-3, 1e3),
            ("repeat_last_n", 0, 1 << 31),
            ("seed", 0, (1 << 64) - 1),
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
        ):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and low <= value <= high):
                raise SamplingError(
                    f"[sampling] expected {name} from {low:g} to {high:g}, got {value!r}"
                )
            if name in ("top_k", "repeat_last_n", "seed") and not hasattr(value, "__index__"):
                raise SamplingError(f"[sampling] expected {name} as a whole number, got {value}")
        bias = checked_bias(self.logit_bias)
        object.__setattr__(self, "logit_bias", bias)
        object.__setattr__(self, "_bias", bias)

    @property
    def is_greedy(self) -> bool:
        """True if `choose` returns the most likely token, whatever the text is."""
        return self.temperature == 0 and not (
            self.logit_bias
            or (self.repeat_penalty != 1 and self.repeat_last_n)
            or self.presence_penalty
            or self.frequency_penalty
        )

    def choose(
        self, logits: np.ndarray[Any, Any], tokens: Sequence[int] = (), *, prompt_tokens: int = 0
    ) -> int:
        """Return the next token.

        Parameters
        ----------
        logits
            The logits of all tokens, 1-D.
        tokens
            The text until now; its length is the position of the draw.
        prompt_tokens
            The number of tokens at the beginning of the text that were not generated.

        Raises
        ------
        SamplingError
            A logit is NaN, all are -inf, or there are none; or `logit_bias` excludes all tokens, or
            has one that does not exist.
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
        adjusted = self._adjusted(scores, tokens, prompt_tokens)
        if adjusted is not scores:
            scores, top = adjusted, adjusted.max()
            if top == -np.inf:
                raise SamplingError("[sampling] expected logit_bias to leave a token, got none")
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
        ids = largest(scores, self.top_k) if 0 < self.top_k < len(scores) else None
        if self.top_p < 1:
            values = scores if ids is None else scores[ids]
            likely = nucleus(values, top, self.top_p, least)
            ids = likely if ids is None else ids[likely]
        if ids is None:
            return np.flatnonzero(scores >= least)
        return ids[scores[ids] >= least]

    def _adjusted(self, scores: Floats, tokens: Sequence[int], prompt_tokens: int) -> Floats:
        """Return the scores with bias and penalties; a copy if there are any."""
        repeats = self.repeat_penalty != 1 and self.repeat_last_n and len(tokens) > 0
        counts = (self.presence_penalty or self.frequency_penalty) and prompt_tokens < len(tokens)
        if not (self.logit_bias or repeats or counts):
            return scores
        scores = scores.copy()
        if self.logit_bias:
            add_bias(scores, self._bias)
        if repeats:
            seen = text_ids(tokens[-self.repeat_last_n :])
            divide_repeats(scores, seen, self.repeat_penalty)
        if counts:
            generated = tokens[prompt_tokens:]
            subtract_counts(scores, generated, self.presence_penalty, self.frequency_penalty)
        return scores


def _uniform(seed: int, place: int) -> float:
    """Return a number in [0, 1) that depends only on the seed and the position, by Philox (Salmon
    et al., 2011).
    """
    return float(np.random.Generator(np.random.Philox(key=seed, counter=place)).random())
