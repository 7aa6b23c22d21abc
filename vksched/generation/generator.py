"""Generator: runs prefill and decode steps of a language model over a KV cache.

text, as tokens --skip the cached prefix--> rest --steps of 128, 32, 8, 1--> logits
                                                    (on a card of 512, too)
                                                    |
a device is lost, with its KV cache --> layers are placed on the remaining devices,
                                        and the whole text is prefilled again
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import NDArray, Progress
from .compiled_steps import CompiledSteps, CompilingScheduler, StepSize, suitable_size
from .device_precision import FLOAT16_CACHE

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.request_precision import Precision
    from ..importers.gguf.model import LanguageModel
    from ..plan.plan import Plan


class Generator:
    """A sequence and its KV cache; a text with a common prefix continues from the cached tokens.

    tokens: the tokens in the KV cache. length: the capacity of the cache in tokens. placement,
    cache_type, precision, prefetch: as of `CompiledSteps`.
    """

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        length: int,
        placement: Placements | None = None,
        progress: Progress | None = None,
        cache_type: str | None = None,
        precision: Precision | None = None,
        prefetch: bool = True,
    ) -> None:
        self.tokens: list[int] = []
        self.length = length
        about = placement, progress, cache_type, precision, prefetch
        self.steps = CompiledSteps(scheduler, model, length, *about)
        self._is_cache_checked = False

    def prepare(self, tokens: int | None = None) -> None:
        """Compile the steps that a text of `tokens` tokens needs, or all steps if None."""
        self.steps.retry_if_lost(lambda: self._prepare(tokens), self.forget)

    def _prepare(self, tokens: int | None) -> None:
        self.steps.decide()
        sizes = self.steps.sizes if tokens is None else self._sizes_for(tokens)
        for size in dict.fromkeys(sizes):
            self.steps.run(StepSize(size))

    def plans(self) -> Iterator[Plan]:
        """Yield the plans of the steps; see `CompiledSteps.plans`."""
        return self.steps.plans()

    @property
    def placement(self) -> Placements | None:
        """The placement of the layers, once it is decided."""
        return self.steps.placement

    @property
    def layers(self) -> dict[str, int]:
        """The number of layers whose KV cache is on each device, once a step is compiled."""
        return self.steps.layers

    @property
    def away(self) -> int:
        """The number of layers whose experts are on the CPU but whose KV cache is not."""
        return self.steps.away

    def prefill(self, text: Sequence[int]) -> NDArray:
        """Return the logits of the next token of a text, (vocabulary,).

        If a device fails or runs out of memory, layers are placed again and the whole text is
        prefilled again.
        """
        steps = self.steps
        gone = set(steps.scheduler.failed_devices)
        if steps.user_placement is None and steps.sizes and gone != steps.without:
            self.forget()
        return steps.retry_if_lost(lambda: self._prefill(text), self.forget)

    def _prefill(self, text: Sequence[int]) -> NDArray:
        """Return the logits after a text; process it again after an overflow of float16."""
        logits = self._run_steps(text)
        while (
            not (is_finite(logits) and self._is_cache_finite(text)) and self.steps.handle_overflow()
        ):
            self.forget()
            logits = self._run_steps(text)
        return logits

    def _is_cache_finite(self, text: Sequence[int]) -> bool:
        """Return False if the cached keys and values of the first text exceed float16's range.

        Kernels that round the keys of their own step may hide them. A step of the last token reads
        the cache.
        """
        if self._is_cache_checked or FLOAT16_CACHE not in self.steps.cache_types or len(text) == 1:
            return True
        self._is_cache_checked = is_finite(self._run_steps(text))
        return self._is_cache_checked

    def _run_steps(self, text: Sequence[int]) -> NDArray:
        del self.tokens[min(_common_prefix(self.tokens, text), len(text) - 1) :]
        self.steps.decide()
        logits: Any = None
        while (start := len(self.tokens)) < len(text):
            size = self._size(start, len(text))
            part = list(text[start : start + size])
            ids = np.zeros((1, size), np.int32)
            ids[0, : len(part)] = part
            numbers = np.array((start, len(part)), np.int32)
            logits = self.steps.run(StepSize(size))(ids=ids, start=numbers[0], count=numbers[1])
            self.tokens += part
        return np.asarray(logits[0])

    def _sizes_for(self, end: int) -> Iterator[int]:
        """Yield the sizes of the steps that prefill a text of `end` tokens."""
        start = 0
        while start < end:
            yield (size := self._size(start, end))
            start += size

    def _size(self, start: int, end: int) -> int:
        """Return the size of the next step from token `start` of a text of `end` tokens."""
        return suitable_size(self.steps.sizes, start, end, self.length)

    def close(self) -> None:
        """Free everything; devices that were out of memory are considered again."""
        self.steps.close()
        self.tokens.clear()

    def forget(self) -> None:
        """Free the compiled steps and the KV cache; the next text is prefilled from its first
        token.
        """
        self.steps.forget()
        self.tokens.clear()


def is_finite(logits: NDArray) -> bool:
    """Return True if all logits are finite; a sum of squares is the fastest check."""
    with np.errstate(all="ignore"):
        return math.isfinite(float(np.dot(logits, logits))) or bool(np.isfinite(logits).all())


def _common_prefix(known: list[int], text: Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences.

    One comparison suffices if all cached tokens match, as they do while an answer grows.
    """
    if known == list(text[: len(known)]):
        return len(known)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(known, text, strict=False))
    return sum(1 for _ in same)
