"""The sampling parameters of a request, with OpenAI's defaults."""

from __future__ import annotations

import random
from typing import Any

from ..generation.sampling import Sampling
from .api_error import ApiError
from .schemas.sampling_fields import SamplingFields

MASK = (1 << 64) - 1


def seed_of(body: SamplingFields) -> int:
    """Return the seed of the first choice; a random one without `seed`, or with -1."""
    if body.seed is None or body.seed == -1:
        return random.getrandbits(63)
    return body.seed & MASK


def sampling_of(body: SamplingFields, vocabulary: int, seed: int) -> Sampling:
    """Return the sampling parameters of a choice.

    The defaults are OpenAI's: temperature 1, and no filter or penalty.

    Raises
    ------
    ApiError
        A value is out of range.
    """
    penalty = _one_of(body, "repeat_penalty", "repetition_penalty")
    top_k = body.top_k or 0
    return Sampling(
        temperature=_or(body.temperature, 1.0),
        top_k=max(0, top_k),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repeat_penalty=_or(penalty, 1.0),
        repeat_last_n=64 if body.repeat_last_n is None else body.repeat_last_n,
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=bias_of(body, vocabulary),
        seed=seed & MASK,
    )


def bias_of(body: SamplingFields, vocabulary: int) -> dict[int, float]:
    """Return the logit bias by token."""
    out: dict[int, float] = {}
    for name, value in (body.logit_bias or {}).items():
        if not (name.isascii() and name.isdecimal() and int(name[:10]) < vocabulary):
            raise ApiError(
                f"[logit_bias] expected tokens from 0 to {vocabulary - 1} as keys, got "
                f"{name[:40]!r}",
                "logit_bias",
            )
        out[int(name)] = value
    return out


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _one_of(body: SamplingFields, *names: str) -> Any:
    """Return the value of a parameter that has several names."""
    found = {name: value for name in names if (value := getattr(body, name)) is not None}
    if len(set(found.values())) > 1:
        raise ApiError(
            f"[{names[0]}] expected one of {' and '.join(names)}, got both with different values",
            names[0],
        )
    return next(iter(found.values()), None)
