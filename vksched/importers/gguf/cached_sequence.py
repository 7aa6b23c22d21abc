"""CachedSequence: the tokens of a step, whose texts a KV cache holds.

    ids, start, count, slot --> q, k, v of these tokens
    each token attends to cached rows before start, and to new rows up to its own --> logits
    at the end of the run: the new rows are written into the states at start, start + 1, ...

With `is_one_text` the rows of a step are consecutive tokens of one text, in one slot. Each has the
result of a step of its own: rows of earlier tokens are read as the cache represents them.

A layer with a recurrent state reads the states of its slots, or zeros for rows with start 0. At the
end of the run, the states after the last tokens that are not padding are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, UINT32, Shape
from ...ir.tensor import Tensor, constant
from ...ops import (
    arange,
    cast,
    concat,
    dequantize_q8_0,
    dynamic_update_slice,
    equal,
    gather,
    maximum,
    quantize_q8_0,
    reshape,
    where,
)
from .architectures.attention_sinks import after_sink
from .architectures.token_layout import AttentionMask, Recurrence
from .kv_cache import KeyValueCache

Pair = tuple[Tensor, Tensor]


class _CachedRows(NamedTuple):
    """The keys and values of a layer in the cache, and the encoded rows that the step appends, if
    other rows of the step read them.
    """

    keys: Tensor
    values: Tensor
    pending: Pair | None


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
    """A call that appends tokens to texts: `sched.compile(step.logits, updates=step.updates)`.

    logits: the logits after the last token, (rows, vocabulary), or after each token. updates: the
    states' next values.
    """

    logits: Tensor
    updates: Mapping[Tensor, Tensor]


class CachedSequence:
    """A microbatch of a step: for each row `tokens` tokens after those of the previous parts. The
    keys and values of all tokens before the step are cached.

    start: the number of cached tokens, () for a cache of one slot, or (rows,). slots: the slots of
    the rows, (rows,); None for a cache of one slot. last: the index in this part of the token whose
    logits are wanted, as start; None for all tokens. count: see `SequenceLayout`. is_rounded:
    attend to the rows of the step, too, as the cache represents them. is_one_text: the rows have
    one token each, and rows of a slot are consecutive tokens. is_picture: the tokens are those of
    one picture, and see each other. rotary: positions in time, rows and columns, (rows, 3, n), or
    the difference of positions and indices, as start. updates: filled while the graph is built.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        tokens: int,
        start: Tensor,
        last: Tensor | None,
        before: CachedSequence | None = None,
        is_rounded: bool = False,
        slots: Tensor | None = None,
        is_one_text: bool = False,
        is_picture: bool = False,
        count: Tensor | None = None,
        rotary: Tensor | None = None,
    ) -> None:
        self._cache = cache
        self.length = cache.length
        self.last = last
        self.count = count
        self._end: int = tokens + (before._end if before else 0)
        self._first = reshape(start, (-1, 1)) if start.rank else start
        self.positions = self._first + constant(
            np.arange(self._end - tokens, self._end, dtype=np.int32)
        )
        if rotary is not None and rotary.rank < 3:
            rotary = self.positions + (reshape(rotary, (-1, 1)) if rotary.rank else rotary)
        self.rotary = rotary
        self.updates: dict[Tensor, Tensor] = {}
        self._new: dict[str, list[Tensor]] = {}
        self._of_layer: dict[int, tuple[Tensor, ...]] = {}
        """The states, rows and encoded rows of keys and of values of each layer."""
        self._states: dict[str, Tensor] = {}
        """The recurrent states after this part."""
        self._before = before
        self._start = start
        self._slots = slots
        self._is_rounded = is_rounded
        self._is_one_text = is_one_text
        self._is_picture = is_picture

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of q to the keys and values up to its position, within the window if
        there is one. Only keys are cached if v is k. Several calls may be of one layer. If q is one
        query of several tokens, it is that of the token `last`.
        """
        is_last = self.last is not None and q.shape[2] < k.shape[2]
        if layer not in self._of_layer:
            rows = self._rows(f"blk.{layer}.keys", k)
            self._of_layer[layer] = rows + (
                rows if v is k else self._rows(f"blk.{layer}.values", v)
            )
        keys, new_keys, pending_keys, values, new_values, pending_values = self._of_layer[layer]
        cached = _CachedRows(
            _values(keys, k.shape[3]),
            _values(values, v.shape[3]),
            (pending_keys, pending_values) if self._is_one_text else None,
        )
        new = new_keys, new_values
        window = attention_mask.window if attention_mask.window < self.length else 0
        if window and attention_mask.chunked:
            return self._attend_chunk(q, cached, new, attention_mask)
        if window and attention_mask.sink:
            return self._attend_window(q, cached, new, attention_mask)
        if attention_mask.sink:
            new = after_sink(*new)
        left = window - 1 if window else None
        if is_last:
            first = self._end - k.shape[2]
            return self._attend(q, cached, new, attention_mask, first, left, last=self.last)
        return self._attend(q, cached, new, attention_mask, left=left)

    def recur(self, name: str, rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
        """Return the output of a layer with a recurrent state; see `SequenceLayout`."""
        cached = self._cache.recurrent_state(name, shape)
        before = self._before._states[name] if self._before else self._begun(cached)
        out, after = recurrence(before)
        self._states[name] = after
        if self._slots is None:
            self.updates[cached] = after
        else:
            first = constant(np.zeros(rows, np.int32))
            self.updates[cached] = dynamic_update_slice(
                cached, after, first, axis=1, slots=self._slots
            )
        return out

    def _begun(self, cached: Tensor) -> Tensor:
        """Return the recurrent states before the step, zeros for new sequences."""
        # an idle row reads any slot, and its result is dropped
        own = cached if self._slots is None else gather(cached, maximum(self._slots, 0))
        is_new = reshape(equal(self._start, 0), (-1, *(1 for _ in cached.shape[1:])))
        return where(is_new, 0.0, own)

    def _attend(
        self,
        q: Tensor,
        cached: _CachedRows,
        new: Pair,
        attention_mask: AttentionMask,
        first: int | None = None,
        left: int | None = None,
        chunk: int | None = None,
        last: Tensor | None = None,
    ) -> Tensor:
        """Return the attention of q to cached keys and to new ones, up to its position. first: the
        index of the first query in the step, by default that of this part. last: the index of the
        only query from there.
        """
        first = self._end - q.shape[2] if first is None else first
        start = first + new[0].shape[2] - self._end  # a sink comes before the new keys
        past = start if last is None else last + start if start else last
        return attention_mask.attend(
            *(q, cached.keys, cached.values),
            left=left,
            past=past,
            used=self._start,
            new=new,
            slots=self._slots,
            pending=cached.pending,
            chunk=chunk,
            causal=not self._is_picture,
        )

    def _attend_chunk(
        self, q: Tensor, cached: _CachedRows, new: Pair, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of q within the chunk of its position; the window is the size of a
        chunk.
        """
        size = attention_mask.window
        begun = self._attend(q, cached, new, attention_mask, chunk=size)
        if self._end == 1:
            return begun
        # a chunk that begins within the step has only new tokens
        own = self._by_row(self._first + arange(self._end))
        at = self._by_query(self.positions)
        since = at // size * size
        later = attention_mask.attend(q, *new, (own >= since) & (own <= at))
        return where(equal(since, self._by_query(self._first) // size * size), begun, later)

    def _attend_window(
        self, q: Tensor, cached: _CachedRows, new: Pair, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of q to a sink and to the last `window` keys.

        The sink comes before the new keys. The first `window` tokens of a step see it in their
        window, which is one key longer for it; windows of later tokens have only new keys.
        """
        window, joined = attention_mask.window, after_sink(*new)
        first = self._end - q.shape[2]
        early = min(max(window - first, 0), q.shape[2])
        parts = []
        if early:
            head = q[:, :, :early] if early < q.shape[2] else q
            parts.append(self._attend(head, cached, joined, attention_mask, first, window))
        if early < q.shape[2]:
            key, at = np.arange(-1, self._end), np.arange(first + early, self._end)[:, None]
            seen = (key == -1) | ((key <= at) & (key > at - window))
            tail = q[:, :, early:] if early else q
            parts.append(attention_mask.attend(tail, *joined, constant(seen)))
        return concat(parts, axis=2) if len(parts) > 1 else parts[0]

    def _by_row(self, x: Tensor) -> Tensor:
        """Return numbers of keys, (n,) or (rows, n), as they broadcast to scores."""
        return reshape(x, (-1, 1, 1, x.shape[1])) if x.rank == 2 else x

    def _by_query(self, x: Tensor) -> Tensor:
        """Return numbers of queries, (n,) or (rows, n), as they broadcast to scores."""
        return reshape(x, (-1, 1, x.shape[1], 1)) if x.rank == 2 else reshape(x, (-1, 1))

    def _rows(self, name: str, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the state, (slots, heads, length, ...), and the rows of the step up to this part:
        those to attend to, and as the state represents them.

        own: the rows of this part, (rows, heads, n, size).
        """
        _, heads, _, size = own.shape
        cache = self._cache
        cached = cache.rows(name, (heads, size))
        before = self._before._new[name] if self._before else []
        self._new[name] = [*before, own]
        new = concat(self._new[name], axis=2) if before else own
        encoded = _encoded(new, cached.dtype)
        self.updates[cached] = dynamic_update_slice(
            cached, encoded, self._start, axis=2, slots=self._slots
        )
        rounded = cast(_values(encoded, size), FLOAT32) if self._is_rounded else new
        return cached, rounded, encoded
