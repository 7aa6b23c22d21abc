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
    concat,
    greater,
    less_equal,
    logical_and,
    reshape,
    scatter_nd,
    transpose,
)
from ...ops.core.tensor import Tensor
from ...ops.sources.state import state


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
    """A part of a step: `tokens` of a text, behind those of the parts before it. Keys and values of
    all tokens before the step are kept.

    start: how many tokens these are. last: whose logits are wanted, as an index of this part.
    updates: fills while a graph is written.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        tokens: int,
        start: Tensor,
        last: Tensor,
        before: CachedText | None = None,
    ) -> None:
        self._cache = cache
        self.length = cache.length
        self.last = last
        self._end: int = tokens + (before._end if before else 0)
        self.positions = start + arange(self._end - tokens, self._end)
        self.updates: dict[Tensor, Tensor] = {}
        self._new: dict[str, list[Tensor]] = {}
        self._before = before
        self._rows = reshape(start + arange(self._end), (self._end, 1))
        self._own_rows = reshape(self.positions, (tokens, 1))
        self._seen = less_equal(arange(cache.length), self._own_rows)

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
            seen = logical_and(seen, greater(arange(self.length), self._own_rows - window))
        return attention(q, keys, values, mask=seen, scale=scale, softcap=softcap)

    def _put(self, name: str, new: Tensor) -> Tensor:
        """Returns (1, heads, length, size): what is kept with all of the step up to here. new: of
        this part, (1, heads, n, size).
        """
        _, heads, _, size = new.shape
        kept = self._cache.state(name, heads, size)
        before = self._before._new[name] if self._before else []
        self._new[name] = [*before, transpose(new, (0, 2, 1, 3))]
        every = concat(self._new[name], axis=1) if before else self._new[name][0]
        rows = reshape(every, (self._end, heads, size))
        self.updates[kept] = scatter_nd(kept, self._rows, rows)
        return transpose(reshape(self.updates[kept], (1, *kept.shape)), (0, 2, 1, 3))
