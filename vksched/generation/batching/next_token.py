"""The next token of a request: from its logits, its constraint and its sampling parameters."""

from __future__ import annotations

from concurrent.futures import wait

import numpy as np

from ...common.errors import SamplingError
from ..completion import TokenOutput
from ..logprobs import token_logprobs
from ..step_runner import Logits
from .constraint_thread import Mask
from .request_state import RequestState

MASK_WAIT_S = 0.005
"""The time for which a step waits for a mask; other requests go on if it takes longer."""
MASK_POLL_S = 0.05
"""The time between two looks at the clock while all requests wait for masks."""


def is_mask_ready(state: RequestState) -> bool:
    """Return True if the mask of the next token is there, or none is needed."""
    mask = state.mask
    return mask is None or mask.done() or bool(wait([mask], MASK_WAIT_S).done)


def choose_token(state: RequestState, logits: Logits) -> int | None:
    """Return the next token, or None if the answer ends.

    Raises
    ------
    SamplingError
        The logits are damaged, or the constraint allows no token.
    """
    if state.mask is not None:
        mask = state.mask.result()
        if mask is None:
            return None
        logits = masked(logits, mask)
    request = state.request
    token = request.sampling.choose(logits, state.text, prompt_tokens=len(request.prompt))
    return None if token in state.ends else token


def masked(logits: Logits, mask: Mask) -> Logits:
    """Return the logits with -inf for tokens that a mask excludes, and for those after its end."""
    if len(mask) < len(logits):
        mask = np.concatenate((mask, np.zeros(len(logits) - len(mask), np.bool_)))
    if not (mask := mask[: len(logits)]).any():
        raise SamplingError(
            "[engine] expected a constraint that allows a token, got an empty mask; try a grammar "
            "that the tokens of the model can write"
        )
    return np.where(mask, logits, np.float32(-np.inf))


def token_output(state: RequestState, logits: Logits, token: int) -> TokenOutput:
    """Return a token with the log-probabilities that its request needs."""
    alternatives = state.request.logprobs
    if alternatives is None:
        return TokenOutput(token)
    return TokenOutput(token, token_logprobs(logits, token, alternatives))


def append_prompt_logprobs(state: RequestState, start: int, logits: Logits) -> None:
    """Append the log-probabilities of the prompt's tokens after those of a chunk.

    start: the first token of the chunk. logits: those after each of its tokens.
    """
    prompt, alternatives = state.request.prompt, state.request.prompt_logprobs
    for token, row in enumerate(logits, start + 1):
        is_missing = len(state.prompt_logprobs) == token - 1  # else the chunk is a repetition
        if token < len(prompt) and is_missing:
            state.prompt_logprobs.append(token_logprobs(row, prompt[token], alternatives or 0))
