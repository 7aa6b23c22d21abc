"""TextReader: the logits of growing texts, from the steps of one slot."""

from __future__ import annotations

from collections.abc import Sequence

from vksched.common.dtypes import NDArray
from vksched.common.errors import StateLost
from vksched.generation.batching.cached_prefix import common_prefix
from vksched.generation.slot_steps import SlotSteps


class TextReader:
    """Reads texts from the first token that is not cached, and again after a loss of the cache."""

    def __init__(self, steps: SlotSteps) -> None:
        self.steps = steps
        self.tokens: list[int] = []

    def read(self, text: Sequence[int]) -> NDArray:
        """Return the logits after a text."""
        start = min(common_prefix(self.tokens, text), len(text) - 1)
        self.tokens = list(text)
        while True:
            try:
                return self.steps.prefill(0, text[start:], start)
            except StateLost:
                start = 0
