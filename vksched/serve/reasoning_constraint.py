"""ReasoningConstraint: a constraint of an answer whose prompt has begun the reasoning.

prompt "...<think>"   answer: any tokens   "</think>"   tokens that the constraint allows
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..generation.completion import TokenConstraint
from ..importers.gguf.tokenizer.tokenizer import Tokenizer

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class AnswerConstraint(TokenConstraint, Protocol):
    """A constraint that can be copied for several answers."""

    @property
    def param(self) -> str | None:
        """The field of the request that the constraint comes from."""

    def copy(self) -> AnswerConstraint:
        """Return a constraint of another answer in the same state."""


class ReasoningEnd:
    """The marker that ends the reasoning, and the tokens that may be a part of it. It is shared by
    all answers of a request.

    Parameters
    ----------
    marker
        The text that ends the reasoning.
    vocabulary
        The number of logits of the model.
    """

    def __init__(self, tokenizer: Tokenizer, marker: str, vocabulary: int) -> None:
        self.marker = marker.encode()
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._masks: dict[bytes, Mask] = {}

    def mask_after(self, begun: bytes) -> Mask:
        """Return the tokens that may follow a beginning of the marker, (vocabulary,) of bool.

        An answer does not end in the reasoning. A token that contains the end of the marker has
        nothing but spaces after it, because the constraint begins there.
        """
        if begun not in self._masks:
            mask = np.ones(self._vocabulary, np.bool_)
            mask[self._tokenizer.size :] = False
            mask[[each for each in self._tokenizer.ends if each < self._vocabulary]] = False
            for token in range(min(self._tokenizer.size, self._vocabulary)):
                _, _, rest = (begun + self.bytes_of(token)).partition(self.marker)
                if rest.strip():
                    mask[token] = False
            self._masks[begun] = mask
        return self._masks[begun]

    def bytes_of(self, token: int) -> bytes:
        """Return the text of a token, with the names of control tokens."""
        return self._tokenizer.bytes_of(token, special=True)

    def begun_by(self, data: bytes) -> bytes:
        """Return the longest end of a text that begins the marker."""
        ends = (data[at:] for at in range(max(0, len(data) - len(self.marker) + 1), len(data)))
        return next((end for end in ends if self.marker.startswith(end)), b"")


class ReasoningConstraint:
    """Allows any tokens until the reasoning has ended, then those of another constraint; it
    implements `TokenConstraint`.

    Parameters
    ----------
    inner
        The constraint of the text after the reasoning.
    end
        The end of the reasoning.
    """

    def __init__(self, inner: AnswerConstraint, end: ReasoningEnd) -> None:
        self._inner = inner
        self._end = end
        self._begun: bytes | None = b""
        """The beginning of the marker at the end of the text; None after the marker."""

    def mask(self) -> Mask:
        """Return the tokens that may follow, (vocabulary,) of bool."""
        return self._inner.mask() if self._begun is None else self._end.mask_after(self._begun)

    def accept(self, token: int) -> None:
        """Append a token. An end token ends the answer if the mask allowed it."""
        if self._begun is None:
            self._inner.accept(token)
            return
        data = self._begun + self._end.bytes_of(token)
        self._begun = None if self._end.marker in data else self._end.begun_by(data)

    def copy(self) -> ReasoningConstraint:
        """Return a constraint of another answer in the same state."""
        other = ReasoningConstraint(self._inner.copy(), self._end)
        other._begun = self._begun
        return other

    @property
    def param(self) -> str | None:
        """The field of the request that the inner constraint comes from."""
        return self._inner.param

    @property
    def is_finished(self) -> bool:
        """True if only an end token may follow."""
        return self._begun is None and self._inner.is_finished
