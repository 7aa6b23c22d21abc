"""The answer of a request that runs alone: the oracle for tests of engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from vksched.generation.completion import CompletionRequest, CompletionStream, TokenLogprobs
from vksched.generation.step_runner import StepRunner

Logprob = tuple[int, float, tuple[tuple[int, float], ...]]
Answer = tuple[list[int], list[Logprob | None], list[Logprob], str]
"""The tokens, their log-probabilities, those of the prompt, and the finish reason."""


def lone_answer(
    steps: StepRunner,
    request: CompletionRequest,
    ends: frozenset[int] = frozenset(),
    losses: Collection[int] = (),
) -> Answer:
    """Return the answer to a request without a constraint, by one loop over slot 0.

    losses: the numbers of generated tokens after which the text was prefilled again.
    """
    text, prompt_logprobs = list(request.prompt), []
    ends = ends if request.ends is None else request.ends
    rows_of_all = request.prompt_logprobs is not None

    def prefill(start: int, end: int, all_logits: bool) -> Any:
        while start < end:
            count = chunk_by_rule(end - start, steps.length - start, steps.chunk_sizes)
            logits = steps.prefill(0, text[start : start + count], start, all_logits=all_logits)
            for token, row in enumerate(logits if all_logits else (), start + 1):
                if token < end:
                    entry = logprob(row, text[token], request.prompt_logprobs or 0)
                    prompt_logprobs.append(entry)
            logits = logits[-1] if all_logits else logits
            start += count
        return logits

    logits = prefill(0, len(text), rows_of_all)
    prompt_logprobs = prompt_logprobs[:]
    logprobs: list[Logprob | None] = []
    reason = "length"
    while len(logprobs) < request.max_tokens:
        token = request.sampling.choose(logits, text, prompt_tokens=len(request.prompt))
        if token in ends:
            reason = "stop"
            break
        n = request.logprobs
        logprobs.append(None if n is None else logprob(logits, token, n))
        text.append(token)
        if len(logprobs) == request.max_tokens:
            break
        if len(text) > steps.length:
            reason = "context"
            break
        if len(logprobs) in losses:
            known = prompt_logprobs[:]
            prefill(0, len(request.prompt), rows_of_all)
            prompt_logprobs[:] = known
            logits = prefill(len(request.prompt), len(text), False)
        else:
            logits = steps.decode([0], [token], [len(text) - 1])[0]
    return text[len(request.prompt) :], logprobs, prompt_logprobs, reason


def chunk_by_rule(rest: int, room: int, sizes: Sequence[int]) -> int:
    """Return the tokens of the next chunk: a size that is at least half full and fits; sizes above
    128 must be full, and those above 512 are not used.
    """
    for size in reversed([size for size in sizes if size <= 512]):
        if rest >= (size if size > 128 else size / 2) and size <= room:
            return min(size, rest)
    return min(sizes[0], rest)


def logprob(logits: Any, token: int, alternatives: int) -> Logprob:
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    order = sorted(range(len(values)), key=lambda i: (-logits[i], i))[:alternatives]
    return token, float(values[token]), tuple((i, float(values[i])) for i in order)


def streamed_answer(stream: CompletionStream) -> Answer:
    """Return the answer that a stream yields."""
    outputs = list(stream)
    return (
        [output.token for output in outputs],
        [None if o.logprobs is None else plain(o.logprobs) for o in outputs],
        [plain(entry) for entry in stream.prompt_logprobs],
        stream.finish_reason,
    )


def plain(entry: TokenLogprobs) -> Logprob:
    return entry.token, entry.logprob, entry.top


def rounded(answer: Answer) -> Answer:
    """Return an answer with log-probabilities to nine digits, for comparison with an oracle."""

    def shorter(entry: Logprob | None) -> Any:
        if entry is None:
            return None
        token, value, top = entry
        return token, round(value, 9), tuple((i, round(v, 9)) for i, v in top)

    tokens, logprobs, prompt_logprobs, reason = answer
    return tokens, [*map(shorter, logprobs)], [*map(shorter, prompt_logprobs)], reason
