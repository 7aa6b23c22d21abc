"""Perplexity: measures the accuracy of a precision mode on a text, against float32.

    text --tokens--> chunks of ctx --steps over a KV cache--+--> logits in float32
                                                            '--> logits in the measured mode
    both, token by token --> perplexity, KL divergence, equal top-1

Both models process the same tokens. A token attends to all keys and values, those of its own step,
too, as the KV cache represents them. A step's logits are compared before the next step runs, in
blocks of rows, so the memory does not grow with the text. Complexity: two prefills of the text.
Examples: tests/generation/test_perplexity.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import DTypeError, ModelFormatError, ShapeError, VkschedError
from ..engine.request_precision import check_precision
from ..ir.precision import SINGLE
from ..plan.explain.precision_text import float32_lines
from .device_precision import FLOAT32_CACHE, cache_type_of_mode
from .overflow import SCALED_ROWS, OverflowFallback

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.executable import CompiledGraph
    from ..importers.gguf.model import LanguageModel
    from .compiled_steps import CompilingScheduler

CONTEXT = 512
MIN_CONTEXT = 2
STEP = 128
"""The maximum number of tokens of a step."""
LOGITS_BYTES = 1 << 26
"""The maximum size of the logits of a step, which fits the buffers of all devices."""
BLOCK_BYTES = 1 << 24
"""The size of a block of float64 probabilities."""

TokenProgress = Callable[[int, int], None]
"""A callback with the number of tokens done and in total."""


@dataclass(frozen=True)
class PrecisionLoss:
    """The accuracy of a precision mode on a text, next to float32.

    Parameters
    ----------
    precision, cache_type
        The measured mode and element type of the KV cache; after an overflow of float16 those that
        replaced them.
    tokens
        The number of predicted tokens.
    perplexity, reference_perplexity
        exp(mean of -log p(token)), in the mode and in float32.
    mean_kl, max_kl
        The Kullback-Leibler divergence of next-token distributions, sum(p * log(p / q)), with p in
        float32 and q in the mode, in nats.
    same_top
        The fraction of tokens after which both predict the same most likely token.
    notes
        Overflows of float16 and their remedies, and devices that compute in float32 all the same.
    """

    precision: str
    cache_type: str
    tokens: int
    perplexity: float
    reference_perplexity: float
    mean_kl: float
    max_kl: float
    same_top: float
    notes: tuple[str, ...] = ()

    @property
    def perplexity_change(self) -> float:
        """The relative change of the perplexity."""
        return self.perplexity / self.reference_perplexity - 1


def perplexity(
    scheduler: CompilingScheduler,
    model: LanguageModel,
    text: str,
    *,
    precision: str = "mixed",
    cache_type: str | None = None,
    ctx: int | None = None,
    max_tokens: int | None = None,
    reference: LanguageModel | None = None,
    placement: Placements | None = None,
    progress: TokenProgress | None = None,
) -> PrecisionLoss:
    """Return the accuracy of a precision mode on a text, next to float32 with a float32 KV cache.

    Parameters
    ----------
    scheduler
        The scheduler whose devices compute.
    model
        A model loaded from a GGUF file by `vs.load`.
    text
        The text, at least two tokens.
    precision
        The measured mode; see `Scheduler`.
    cache_type
        The measured element type of the KV cache: "f32", "f16" or "q8_0". None selects that of a
        GPU in this mode: "f16" for "mixed" and "float16", else "f32".
    ctx
        The number of tokens of a chunk; each is processed on its own, with the model's BOS token
        first if the model expects one. The first token of a chunk is not predicted. The default is
        the model's context length, at most 512.
    max_tokens
        The maximum number of predicted tokens; None for the whole text.
    reference
        The model that is computed in float32, with the same tokens; by default the same model.
    placement
        See `Scheduler.compile`.
    progress
        A callback with the number of tokens done and in total.

    Raises
    ------
    PlanError
        The precision is unknown.
    ShapeError
        The text has fewer than two tokens, or a number is out of range.
    DTypeError
        `cache_type` is unknown, or the text is no string.
    ModelFormatError
        The reference has another vocabulary.
    VkschedError
        The logits are not finite in float32, or the perplexity exceeds the range of float64.
    """
    check_precision(precision, "perplexity")
    cache_type = cache_type or cache_type_of_mode(precision)
    exact = model if reference is None else reference
    if exact is not model and _tokens_of(exact) != _tokens_of(model):
        raise ModelFormatError(
            "[perplexity] expected a reference with the same vocabulary, got another one"
        )
    longest = min(model.hyper.context, exact.hyper.context)
    ctx = min(CONTEXT, longest) if ctx is None else ctx
    if not MIN_CONTEXT <= ctx <= longest:
        raise ShapeError(
            f"[perplexity] expected a ctx of {MIN_CONTEXT} to {longest} tokens, got {ctx}"
        )
    chunks = _chunks_of(model, text, ctx, max_tokens)
    total = sum(len(chunk) - 1 for chunk in chunks)
    max_size = max(1, min(STEP, LOGITS_BYTES // (4 * model.hyper.vocabulary)))
    length = max(map(len, chunks)) - 1
    size = min(max_size, length)
    if exact.is_recurrent or model.is_recurrent:  # no token may be computed twice
        size = next(n for n in range(size, 0, -1) if -(-length // n) * n <= longest)
        length = -(-length // size) * size
    compared, fallback = _Comparison(), OverflowFallback()

    def steps(model: LanguageModel, precision: str, cache_type: str) -> _Steps:
        is_scaled = precision != SINGLE and fallback.level == SCALED_ROWS
        about = scheduler, model, length, size, placement
        return _Steps(*about, precision, cache_type, is_scaled)

    with ExitStack() as opened:
        expected = opened.enter_context(closing(steps(exact, SINGLE, FLOAT32_CACHE)))
        measured = opened.enter_context(closing(steps(model, precision, cache_type)))
        for chunk in chunks:
            while not compared.add_chunk(expected, measured, chunk, progress, total):
                if not fallback.advance(measured.precision, (measured.cache_type,)):
                    raise _not_finite("in float32, too; the weights")
                measured.close()
                if fallback.is_exact:
                    precision = SINGLE
                cache_type = fallback.cache_type(cache_type)
                measured = opened.enter_context(closing(steps(model, precision, cache_type)))
        notes = (*fallback.notes, *measured.notes())
    return compared.result(precision, cache_type, notes)


def _tokens_of(model: LanguageModel) -> Sequence[str]:
    return model.tokenizer.vocabulary.tokens


def _chunks_of(
    model: LanguageModel, text: str, ctx: int, max_tokens: int | None
) -> list[list[int]]:
    """Return the chunks of a text, each of 2 to ctx tokens."""
    if not isinstance(text, str):
        raise DTypeError(f"[perplexity] expected a text, got {type(text).__name__}")
    if max_tokens is not None and max_tokens < 1:
        raise ShapeError(f"[perplexity] expected max_tokens of at least 1, got {max_tokens}")
    tokenizer = model.tokenizer
    bos = tokenizer.role("bos")
    begin = [bos] if bos is not None and tokenizer.encode("", bos=True)[:1] == [bos] else []
    tokens = tokenizer.encode(text)
    body = ctx - len(begin)
    chunks = [begin + tokens[at : at + body] for at in range(0, len(tokens), body)]
    left = sum(map(len, chunks)) if max_tokens is None else max_tokens
    out = []
    for chunk in chunks:
        if len(chunk) > 1 and left > 0:
            out.append(chunk[: left + 1])
            left -= len(out[-1]) - 1
    if not out:
        raise ShapeError(
            f"[perplexity] expected a text of at least {2 - len(begin)} tokens, got {len(tokens)}"
        )
    return out


class _Steps:
    """A model's compiled step in one precision, with the logits of all tokens.

    length: the capacity of the cache in tokens. size: the number of tokens of a step.
    """

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        length: int,
        size: int,
        placement: Placements | None,
        precision: str,
        cache_type: str,
        scale_rows: bool,
    ) -> None:
        self.precision, self.cache_type = precision, cache_type
        self.size = size
        self._scheduler, self._length = scheduler, length
        self._is_counted = model.is_recurrent
        self._cache = model.cache(length, cache_type)
        step = model.step(
            self._cache, size, all_logits=True, scale_rows=scale_rows, round_rows=True
        )
        self._run: CompiledGraph = scheduler.compile(
            step.logits, placement, updates=step.updates, precision=precision
        )
        self._run.disable_overflow_check()

    def logits(self, tokens: Sequence[int], start: int) -> NDArray:
        """Return the logits after each token of a step that begins at position `start`.

        tokens: those of the chunk. Where a whole step exceeds the cache, tokens before `start` are
        computed again.
        """
        begin = min(start, self._length - self.size)
        part = tokens[begin : start + self.size]
        ids = np.zeros((1, self.size), np.int32)
        ids[0, : len(part)] = part
        feeds = {"ids": ids, "start": np.int32(begin)}
        if self._is_counted:
            feeds["count"] = np.int32(len(part))
        return np.asarray(self._run(**feeds))[0, start - begin : len(part)]

    def notes(self) -> list[str]:
        """Return a note on each device that computes in float32 in spite of the mode."""
        return float32_lines(self._run.plan)

    def close(self) -> None:
        self._run.close()
        for state in self._cache.states.values():
            self._scheduler.delete_state(state)
        self._cache.states.clear()


class _Comparison:
    """The sums over all predicted tokens."""

    def __init__(self) -> None:
        self._tokens = 0
        self._same = 0
        self._loss, self._reference_loss, self._kl = 0.0, 0.0, 0.0
        self._max_kl = 0.0

    def add_chunk(
        self,
        expected: _Steps,
        measured: _Steps,
        chunk: Sequence[int],
        progress: TokenProgress | None,
        total: int,
    ) -> bool:
        """Add a chunk, and return True; False without any change if measured logits are not
        finite.

        Raises
        ------
        VkschedError
            The expected logits are not finite.
        """
        added, size = _Comparison(), measured.size
        inputs, targets = chunk[:-1], np.array(chunk[1:])
        for start in range(0, len(inputs), size):
            exact, rounded = (each.logits(inputs, start) for each in (expected, measured))
            is_finite = np.isfinite(rounded).all()
            if not np.isfinite(exact).all():
                weights = "the weights of the reference" if is_finite else "too; the weights"
                raise _not_finite(f"in float32{'; ' if is_finite else ', '}{weights}")
            if not is_finite:
                return False
            added._add_step(exact, rounded, targets[start : start + size])
            if progress is not None:
                progress(self._tokens + added._tokens, total)
        self._merge(added)
        return True

    def _add_step(self, exact: NDArray, rounded: NDArray, targets: NDArray) -> None:
        for rows in _blocks(len(targets), exact.shape[1]):
            log_p, log_q = _log_softmax(exact[rows]), _log_softmax(rounded[rows])
            at = np.arange(len(log_p)), targets[rows]
            kl = np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0)
            self._tokens += len(kl)
            self._same += int((exact[rows].argmax(-1) == rounded[rows].argmax(-1)).sum())
            self._kl += float(kl.sum())
            self._max_kl = max(self._max_kl, float(kl.max()))
            self._loss -= float(log_q[at].sum())
            self._reference_loss -= float(log_p[at].sum())

    def _merge(self, other: _Comparison) -> None:
        self._tokens += other._tokens
        self._same += other._same
        self._kl += other._kl
        self._max_kl = max(self._max_kl, other._max_kl)
        self._loss += other._loss
        self._reference_loss += other._reference_loss

    def result(self, precision: str, cache_type: str, notes: Sequence[str]) -> PrecisionLoss:
        count = self._tokens
        return PrecisionLoss(
            precision=precision,
            cache_type=cache_type,
            tokens=count,
            perplexity=_exp(self._loss / count),
            reference_perplexity=_exp(self._reference_loss / count),
            mean_kl=self._kl / count,
            max_kl=self._max_kl,
            same_top=self._same / count,
            notes=tuple(notes),
        )


def _not_finite(where: str) -> VkschedError:
    return VkschedError(
        f"[perplexity] expected finite logits, got NaN or infinity {where} may be damaged"
    )


def _exp(loss: float) -> float:
    """Return the perplexity of a mean loss in nats."""
    try:
        return math.exp(loss)
    except OverflowError:
        raise VkschedError(
            f"[perplexity] expected a perplexity in the range of float64, got exp({loss:.6g}); the "
            "weights may be damaged"
        ) from None


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield blocks of rows whose float64 values have at most BLOCK_BYTES."""
    size = max(1, BLOCK_BYTES // (8 * columns))
    return (slice(at, at + size) for at in range(0, rows, size))


def _log_softmax(logits: NDArray) -> NDArray:
    """Return the log-probabilities of rows in float64."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x
