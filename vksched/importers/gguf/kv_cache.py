"""KV cache: keys and values of a text's tokens, as states on the devices.

    ids, start, count --> q, k, v of these tokens
    each token attends to cached rows before start, and to new rows up to its own --> logits
    at the end of the run: the new rows are written into the states at start, start + 1, ...

The cost of a step depends on the used rows and the written rows, not on the capacity of the cache.

A value beyond the range of float16 becomes NaN in an f16 cache, not infinity. The product of an
infinite key and a query may be -inf, which softmax turns into a weight of 0 without notice; NaN
arrives at the logits of all later steps that attend to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, UINT32, numpy_dtype
from ...ir.tensor import Tensor
from ...ops import (
    arange,
    cast,
    concat,
    dequantize_q8_0,
    dynamic_update_slice,
    equal,
    gather,
    maximum,
    minimum,
    quantize_q8_0,
    reshape,
    where,
)
from ...ops.attention.kv_q8_0 import row_words
from ...ops.creation.state import state
from .architectures.attention_sinks import after_sink
from .architectures.token_layout import AttentionMask

Pair = tuple[Tensor, Tensor]
KINDS = {"f32": FLOAT32, "f16": FLOAT16, "q8_0": UINT32}
"""The element types of states by their names on the command line; q8_0 rows are stored as 32-bit
words.
"""


class KeyValueCache:
    """The states with the keys and values of `length` tokens, created at first use by layers.

    kind: the element type, one of KINDS. by_layer: the element types of layers with another one.
    """

    def __init__(
        self, length: int, kind: str = "f32", by_layer: Mapping[int, str] | None = None
    ) -> None:
        self.length = length
        self.kind = kind
        self.dtype = KINDS[kind]
        self.by_layer = dict(by_layer or {})
        self.states: dict[str, Tensor] = {}
        self.sizes: dict[str, tuple[int, int]] = {}
        """The arguments of the states: heads, and values per row."""

    def state(self, name: str, heads: int, size: int) -> Tensor:
        """Return a state with rows of `size` values: (1, heads, length, size), or 32-bit words for
        q8_0. name: as "blk.3.keys".
        """
        if name not in self.states:
            kinds = {f"blk.{layer}": kind for layer, kind in self.by_layer.items()}
            dtype = KINDS[kinds.get(name.rpartition(".")[0], self.kind)]
            width = row_words(size) if dtype == UINT32 else size
            nothing = np.zeros((), numpy_dtype(dtype))
            empty = np.broadcast_to(nothing, (1, heads, self.length, width))  # needs no memory
            self.sizes[name] = heads, size
            self.states[name] = Context().run(state, empty, name, backup=False)
        return self.states[name]


def _encoded(rows: Tensor, dtype: str) -> Tensor:
    """Return rows in the element type of a state."""
    if dtype == UINT32:
        return quantize_q8_0(rows)
    return cast(rows, dtype, overflow_nan=dtype == FLOAT16)


def _values(rows: Tensor, size: int) -> Tensor:
    """Return the values of a state's rows; attention reads them without a copy."""
    return dequantize_q8_0(rows, size) if rows.dtype == UINT32 else rows


@dataclass(frozen=True, eq=False)
class Step:
    """A call that appends tokens to a text: `sched.compile(step.logits, updates=step.updates)`.

    logits: the logits after the last token, (1, vocabulary), or after each token. updates: the
    states' next values.
    """

    logits: Tensor
    updates: Mapping[Tensor, Tensor]


class CachedSequence:
    """A microbatch of a step: `tokens` tokens after those of the previous parts. The keys and
    values of all tokens before the step are cached.

    start: the number of cached tokens. last: the index in this part of the token whose logits are
    wanted; None for all tokens. is_rounded: attend to the rows of the step, too, as the cache
    represents them. updates: filled while the graph is built.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        tokens: int,
        start: Tensor,
        last: Tensor | None,
        before: CachedSequence | None = None,
        is_rounded: bool = False,
    ) -> None:
        self._cache = cache
        self.length = cache.length
        self.last = last
        self._end: int = tokens + (before._end if before else 0)
        self.positions = start + arange(self._end - tokens, self._end)
        self.updates: dict[Tensor, Tensor] = {}
        self._new: dict[str, list[Tensor]] = {}
        self._before = before
        self._start = start
        self._is_rounded = is_rounded

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of q to the keys and values up to its position, within the window if
        there is one.
        """
        keys, new_keys = self._rows(f"blk.{layer}.keys", k)
        values, new_values = self._rows(f"blk.{layer}.values", v)
        cached, new = (keys, values), (new_keys, new_values)  # cached rows, and new values
        window = attention_mask.window if attention_mask.window < self.length else 0
        used, past = self._start, self._end - q.shape[2]
        if window and attention_mask.chunked:
            return self._attend_piece(q, cached, new, attention_mask)
        if window and attention_mask.sink:
            return self._attend_last(q, cached, new, attention_mask)
        if attention_mask.sink:
            new, past = after_sink(*new), past + 1
        left = window - 1 if window else None
        return attention_mask.attend(
            q, *self._values(cached, k, v), left=left, past=past, used=used, new=new
        )

    def _attend_piece(
        self, q: Tensor, cached: Pair, new: Pair, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of q within the chunk of its position; the window is the size of a
        chunk.
        """
        size = attention_mask.window
        first = self._start // size * size  # the start of the chunk in which the step begins
        rows = minimum(first + arange(size), self.length - 1)
        begun_with = self._values([gather(each, rows, axis=2) for each in cached], *new)
        used, past = self._start - first, self._end - q.shape[2]
        begun = attention_mask.attend(q, *begun_with, past=past, used=used, new=new)
        if self._end == 1:
            return begun
        # a chunk that begins within the step has only new tokens
        own, at = self._start + arange(self._end), reshape(self.positions, (-1, 1))
        since = at // size * size
        later = attention_mask.attend(q, *new, (own >= since) & (own <= at))
        return where(equal(since, first), begun, later)

    def _attend_last(
        self, q: Tensor, cached: Pair, new: Pair, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of q to a sink and to the last `window` keys."""
        before = arange(1 - attention_mask.window, 0) + self._start
        rows = maximum(before, 0)
        last = self._values([gather(each, rows, axis=2) for each in cached], *new)
        pairs = zip(last, new, strict=True)
        joined = (concat([cast(old, q.dtype), own], axis=2) for old, own in pairs)
        key = arange(-attention_mask.window, self._end) + self._start
        at = reshape(self.positions, (-1, 1))
        seen = (key >= 0) & (key <= at) & (key > at - attention_mask.window)
        is_sink = equal(arange(key.shape[0]), 0)
        return attention_mask.attend(q, *after_sink(*joined), is_sink | seen)

    def _rows(self, name: str, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state, (1, heads, length, ...), and the rows of the step up to this part.

        own: the rows of this part, (1, heads, n, size).
        """
        _, heads, _, size = own.shape
        cache = self._cache
        cached = cache.state(name, heads, size)
        before = self._before._new[name] if self._before else []
        self._new[name] = [*before, own]
        new = concat(self._new[name], axis=2) if before else own
        encoded = _encoded(new, cached.dtype)
        self.updates[cached] = dynamic_update_slice(cached, encoded, self._start, axis=2)
        return cached, cast(_values(encoded, size), FLOAT32) if self._is_rounded else new

    def _values(self, cached: Sequence[Tensor], k: Tensor, v: Tensor) -> list[Tensor]:
        """Return the values of the rows of states. k, v: rows with as many values."""
        return [_values(each, own.shape[3]) for each, own in zip(cached, (k, v), strict=True)]
