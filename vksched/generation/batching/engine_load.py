"""Engine load: the work of an engine, and the time at which a new request would end there.

    prompts that are read | a slot becomes free | the own prompt | one decode step for each token
    ----------------------+---------------------+----------------+-------------------------------> t

Examples: tests/generation/batching/test_engine_load.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..completion import CompletionRequest
from .step_costs import StepCosts

TYPICAL_TOKENS = 256.0
"""The length of an answer before any has ended, if the request allows more."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The work of an engine before a new request.

    Parameters
    ----------
    slots
        The number of slots.
    rest_tokens, waiting_tokens
        The maximum numbers of tokens that running and waiting requests will generate.
    prompt_tokens
        The number of prompt tokens of these requests that are not computed.
    reusable_tokens
        The number of prompt tokens of the new request that are in the KV cache.
    """

    slots: int
    rest_tokens: tuple[int, ...] = ()
    waiting_tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0
    reusable_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineSpeeds:
    """The predicted times of an engine's steps.

    Parameters
    ----------
    token_s
        The time of one prompt token, in seconds.
    decode_s
        The time of a decode step in seconds, by its number of rows.
    """

    token_s: float = 0.0
    decode_s: Mapping[int, float] = field(default_factory=dict)

    def step_s(self, rows: int, costs: StepCosts) -> float:
        """Return the time of a decode step, as measured for the nearest number of rows, or as
        predicted.
        """
        known = costs.by_tokens("decode") or self.decode_s
        if not known:
            return 0.0
        return known[min(known, key=lambda count: (abs(count - rows), count))]

    def prompt_s(self, tokens: int, costs: StepCosts) -> float:
        """Return the time of prompt tokens, as measured for the largest chunk, or as predicted."""
        known = costs.by_tokens("prefill")
        if not known:
            return tokens * self.token_s
        largest = max(known)
        return tokens * known[largest] / largest


def expected_s(
    load: EngineLoad,
    request: CompletionRequest,
    speeds: EngineSpeeds,
    costs: StepCosts,
    mean_answer: float,
) -> float:
    """Return the estimated time until a request ends on an engine with some load, in seconds.

    mean_answer: the mean number of tokens of earlier answers; infinite if none has ended.
    """
    typical = mean_answer if mean_answer < float("inf") else TYPICAL_TOKENS
    others = [min(rest, typical) for rest in (*load.rest_tokens, *load.waiting_tokens)]
    rows = min(load.slots, len(others) + 1)
    own_prompt = len(request.prompt) - load.reusable_tokens
    steps = min(request.max_tokens, typical)
    if len(others) >= load.slots:  # it waits until its share of the slots is free
        steps += sum(others) / load.slots
    step_s = speeds.step_s(rows, costs)
    return speeds.prompt_s(load.prompt_tokens + own_prompt, costs) + steps * step_s
