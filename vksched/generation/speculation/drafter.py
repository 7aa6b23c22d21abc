"""Drafter: the interface of methods that guess the next tokens of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..sampling import Sampling


class Drafter(Protocol):
    """A method that guesses the next tokens of the texts in the slots of an engine. One thread
    calls it.
    """

    def unread_chunk(self, slot: int, text: Sequence[int], cache_key: str) -> int:
        """Return the number of tokens that `read_chunk` must read before `propose`; 0 if none.

        It is called before each `propose`.

        Parameters
        ----------
        slot
            The slot of the text; it held another text before, or the beginning of this one.
        cache_key
            What texts of other keys left is not reused.
        """

    def read_chunk(self, slot: int, text: Sequence[int]) -> None:
        """Read the next tokens of a text."""

    def propose(
        self, slot: int, text: Sequence[int], prompt_tokens: int, sampling: Sampling, count: int
    ) -> list[int]:
        """Return the tokens that may follow a text, at most `count`; none if nothing is known.

        prompt_tokens, sampling: as in `Sampling.choose`; the next tokens are drawn in this way.
        """

    def seconds(self, count: int) -> float:
        """Return the estimated time to guess `count` tokens."""

    def prepare(self) -> None:
        """Compile what is needed."""

    def close(self) -> None:
        """Free all memory."""
