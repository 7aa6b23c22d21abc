"""Keys and values of the tokens of a text, kept on the devices from run to run.

ids, start, count --> q, k, v of these tokens
                           '-- put into the states at start, start + 1, ...
each token sees the states up to its own position --> logits after the last token
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass

import numpy as np

from ...ops import (
    arange,
    attention,
    greater,
    less_equal,
    logical_and,
    reshape,
    scatter_nd,
    transpose,
)
from ...ops.core.tensor import Tensor, input
from ...ops.sources.state import state
from ...types import INT32


class KeyValueCache:
    """States with the keys and values of `length` tokens, made as layers first ask for them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.states: dict[str, Tensor] = {}

    def state(self, name: str, heads: int, size: int) -> Tensor:
        """Returns a state (length, heads, size)."""
        if name not in self.states:
            empty = np.zeros((self.length, heads, size), np.float32)
            empty.flags.writeable = False  # so it is not copied, and takes no memory
            self.states[name] = Context().run(state, empty, name, backup=False)
        return self.states[name]


@dataclass(frozen=True, eq=False)
class Step:
    """A call that reads more tokens of a text: `sched.compile(step.logits, updates=step.updates)`.

    logits: after the last token, (1, vocabulary). updates: the states with these tokens.
    """

    logits: Tensor
    updates: Mapping[Tensor, Tensor]


class CachedText:
    """A text of which `tokens` more are given at a time; keys and values of those before are kept.

    updates: fills while a graph is written.
    """

    def __init__(self, cache: KeyValueCache, tokens: int) -> None:
        self._cache = cache
        self.length = cache.length
        start = input("start", (), INT32, bounds=(0, cache.length - tokens))
        self.positions = start + arange(tokens)
        self.last = input("count", (), INT32, bounds=(1, tokens)) - 1
        self.updates: dict[Tensor, Tensor] = {}
        self._rows = reshape(self.positions, (tokens, 1))
        self._seen = less_equal(arange(cache.length), self._rows)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        softcap: float = 0.0,
        window: int = 0,
    ) -> Tensor:
        """Returns the attention of q to the keys and values up to its position, or to the last ones
        of them where there is a window.
        """
        keys, values = self._put(f"blk.{layer}.keys", k), self._put(f"blk.{layer}.values", v)
        seen = self._seen
        if window:
            seen = logical_and(seen, greater(arange(self.length), self._rows - window))
        return attention(q, keys, values, mask=seen, scale=scale, softcap=softcap)

    def _put(self, name: str, new: Tensor) -> Tensor:
        """Returns (1, heads, length, size): what is kept with new ones (1, heads, n, size)."""
        _, heads, tokens, size = new.shape
        kept = self._cache.state(name, heads, size)
        rows = reshape(transpose(new, (0, 2, 1, 3)), (tokens, heads, size))
        self.updates[kept] = scatter_nd(kept, self._rows, rows)
        return transpose(reshape(self.updates[kept], (1, *kept.shape)), (0, 2, 1, 3))
