"""NgramLookup: guesses that a text goes on as it did after the same last tokens before.

    ... the cat sat on the mat . the cat       last tokens: "the cat"
        ------- sat on the mat                 they were followed by: "sat on the mat"

Source: Saxena, Prompt lookup decoding, 2023. Complexity: O(1) per token of a text that is one list,
which grows; a list that is another object is compared with the tokens before, O(tokens). Examples:
tests/generation/speculation/test_ngram_lookup.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..batching.cached_prefix import common_prefix
from ..sampling import Sampling

SIZES = (4, 3, 2)
"""The numbers of last tokens that are looked up, the first one that occurs before is taken."""


class NgramLookup:
    """A `Drafter` that reads only the texts themselves. A list that it gets again has only grown.

    slots: the number of slots.
    """

    def __init__(self, slots: int) -> None:
        self._indices = [_NgramIndex() for _ in range(slots)]

    def unread_chunk(self, slot: int, text: Sequence[int], cache_key: str) -> int:
        """Return 0: all tokens are read by `propose`."""
        return 0

    def read_chunk(self, slot: int, text: Sequence[int]) -> None:
        """Do nothing."""

    def propose(
        self, slot: int, text: Sequence[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        """Return the tokens after the previous occurrence of the last ones; see `Drafter`."""
        return self._indices[slot].following(text, count)

    def seconds(self, count: int) -> float:
        """Return 0: a lookup takes microseconds."""
        return 0.0

    def prepare(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Forget all texts."""
        self._indices = [_NgramIndex() for _ in self._indices]


class _NgramIndex:
    """The places of all n-grams of a text that grows."""

    def __init__(self) -> None:
        self._text: Sequence[int] = ()
        self._known = 0
        """The number of its tokens whose n-grams are noted."""
        self._ends: dict[tuple[int, ...], int] = {}

    def following(self, text: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens that followed the last tokens, repeated if the text ends before;
        none if these do not occur before.
        """
        self._extend(text)
        for size in SIZES:
            start = self._ends.get(tuple(text[-size:])) if size < len(text) else None
            if start is not None:
                found: list[int] = []
                for at in range(start, start + count):
                    found.append(text[at] if at < len(text) else found[at - len(text)])
                return found
        return []

    def _extend(self, text: Sequence[int]) -> None:
        """Note the n-grams of the text that end before its last token."""
        if text is not self._text:
            if common_prefix(list(self._text[: self._known]), text) < self._known:
                self._known = 0
                self._ends.clear()
            self._text = text
        for end in range(self._known, len(text)):
            for size in SIZES:
                if size <= end:
                    self._ends[tuple(text[end - size : end])] = end
        self._known = len(text)
