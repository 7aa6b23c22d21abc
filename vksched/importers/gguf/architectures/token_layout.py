"""Token layout: the sequences that the tokens of a call belong to, their attention, and the
recurrent states before them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from ....common.dtypes import Shape
from ....ir.tensor import Tensor, constant
from ....ops import (
    arange,
    attention,
    concat,
    equal,
    expand_dims,
    gather,
    less,
    reshape,
    split,
    transpose,
    where,
)
from .alibi import alibi
from .attention_sinks import after_sink

Recurrence = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The state before the tokens, (b, ...) -> a layer's output for the tokens, and the state after
them.
"""


@dataclass(frozen=True)
class AttentionMask:
    """The attention mask of a layer, and its score parameters.

    scale, softcap: as in `vs.attention`. window: the number of visible keys, including the token's
    own; 0: all. chunked: the text is split into chunks of `window` tokens, and a token sees the
    keys of its own chunk up to itself. sink: queries and keys are extended for an attention sink by
    `attention_sinks.widened`. alibi: the maximum bias of ALiBi in an encoder; 0: none.
    has_digits: keys have digits of their positions (`PositionDigits`), and scores exceed float16.
    """

    scale: float
    softcap: float = 0.0
    window: int = 0
    chunked: bool = False
    sink: bool = False
    alibi: float = 0.0
    has_digits: bool = False

    @property
    def has_one_rule(self) -> bool:
        """True if all tokens of a step see keys by the same rule, wherever they are in the step."""
        return not (self.window and (self.chunked or self.sink))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seen: Tensor | None = None,
        *,
        left: int | None = None,
        past: int | Tensor = 0,
        used: Tensor | None = None,
        new: tuple[Tensor, Tensor] | None = None,
        slots: Tensor | None = None,
        pending: tuple[Tensor, Tensor] | None = None,
        chunk: int | None = None,
        causal: bool = True,
    ) -> Tensor:
        """Return the attention of each token to itself and at most `left` earlier keys, also to all
        later ones unless `causal`, or to the keys that `seen` selects; otherwise as `vs.attention`.
        """
        return attention(
            *(q, k, v, seen),
            causal=causal and seen is None,
            past_len=past,
            window=(left, None),
            scale=self.scale,
            softcap=self.softcap,
            kv_len=used,
            k_new=None if new is None else new[0],
            v_new=None if new is None else new[1],
            slots=slots,
            k_pending=None if pending is None else pending[0],
            v_pending=None if pending is None else pending[1],
            chunk=chunk,
            float32_sums=self.has_digits,
        )


class SequenceLayout(Protocol):
    """The sequences that the tokens of a call belong to.

    length: the maximum length of the text. positions: the positions of the tokens, (n,), or
    (b, n) for several rows; None for 0, 1, .... last: the index of the token whose logits are
    wanted, () or (b,) for several rows; None for all tokens. count: the number of tokens of a row
    that are not padding, () or (b,) for several rows; None if padding changes no later token.
    rotary: the positions for rotary embedding if they differ from `positions`: of the same shape,
    or those in time, rows and columns of M-RoPE, (b, 3, n); None if they do not.
    """

    @property
    def length(self) -> int: ...

    @property
    def positions(self) -> Tensor | None: ...

    @property
    def last(self) -> Tensor | None: ...

    @property
    def count(self) -> Tensor | None: ...

    @property
    def rotary(self) -> Tensor | None: ...

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention of a layer.

        q: (b, heads, n, d), k, v: (b, kv_heads, n, d), with rotary embedding -> (b, heads, n, d).
        q may be (b, heads, 1, d), the query of the token `last`. v may be k. layer: that of k and
        v; several layers may share them. attention_mask: the layer's mask.
        """

    def recur(self, name: str, rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
        """Return the output of a layer with a recurrent state, (rows, n, ...). A new sequence
        begins with a state of zeros. The state after the tokens must not depend on padding: see
        `count`.

        name: as "blk.3.conv_state". shape: the shape of the state of one row.
        """


def without_cache(rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
    """Return the output of a layer with a recurrent state for complete sequences."""
    return recurrence(constant(np.zeros((rows, *shape), np.float32)))[0]


def last_tokens(x: Tensor, last: Tensor) -> Tensor:
    """Return one token of each row of x (b, n, width), (b, width).

    last: the index of the token, () for all rows or (b,).
    """
    rows, tokens, width = x.shape
    if not last.rank:
        return gather(x, last, axis=1)
    chosen = arange(0, rows * tokens, tokens) + last
    return gather(reshape(x, (rows * tokens, width)), chosen)


def last_queries(q: Tensor, last: Tensor) -> Tensor:
    """Return the queries of one token of each row of q (b, heads, n, d), (b, heads, 1, d).

    last: the index of the token, () for all rows or (b,).
    """
    rows, heads, tokens, size = q.shape
    if rows == 1:
        last = reshape(last, ())
    if not last.rank:
        return expand_dims(gather(q, last, axis=2), 2)
    starts = np.arange(0, rows * heads * tokens, tokens, dtype=np.int32).reshape(rows, heads)
    chosen = constant(starts) + reshape(last, (rows, 1))
    flat = reshape(q, (rows * heads * tokens, size))
    return reshape(gather(flat, chosen), (rows, heads, 1, size))


@dataclass(frozen=True)
class FullSequence:
    """A complete sequence with causal attention."""

    length: int
    positions: None = None
    last: None = None
    count: None = None
    rotary: None = None

    def recur(self, name: str, rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
        return without_cache(rows, shape, recurrence)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        window = attention_mask.window if attention_mask.window < self.length else 0
        if attention_mask.chunked and window:
            rest = self.length % window
            sizes = [size for size in (self.length - rest, rest) if size]
            parts = zip(*(split(each, sizes, 2) for each in (q, k, v)), strict=True)
            return concat([_in_pieces(part, attention_mask) for part in parts], axis=2)
        if not attention_mask.sink:
            return attention_mask.attend(q, k, v, left=window - 1 if window else None)
        keys, values = after_sink(k, v)
        if not window:
            return attention_mask.attend(q, keys, values, past=1)
        key, at = arange(self.length + 1) - 1, reshape(arange(self.length), (-1, 1))
        seen = equal(key, -1) | ((key <= at) & (key > at - window))
        return attention_mask.attend(q, keys, values, seen)


def _in_pieces(qkv: tuple[Tensor, ...], attention_mask: AttentionMask) -> Tensor:
    """Return the attention of a text (b, heads, n, d) within chunks of `window` tokens, or within
    one shorter chunk.
    """
    b, heads, n, _ = qkv[0].shape
    count, size = max(1, n // attention_mask.window), min(n, attention_mask.window)

    def apart(x: Tensor) -> Tensor:
        cut = reshape(x, (b, x.shape[1], count, size, x.shape[3]))
        return reshape(transpose(cut, (0, 2, 1, 3, 4)), (b * count, x.shape[1], size, x.shape[3]))

    attended = attention_mask.attend(*map(apart, qkv))
    attended = transpose(
        reshape(attended, (b, count, heads, size, attended.shape[3])), (0, 2, 1, 3, 4)
    )
    return reshape(attended, (b, heads, n, attended.shape[4]))


@dataclass(frozen=True)
class PaddedTexts:
    """A batch of padded texts, with `counts` (b,) int32 tokens each.

    causal: causal attention; otherwise each token sees its whole text, or half of the window on
    each side.
    """

    length: int
    counts: Tensor
    causal: bool
    positions: None = None
    last: None = None
    masks: dict[int, Tensor] = field(default_factory=dict)
    """The masks of the texts, which all layers share, by the number of heads; 0: that of tokens."""
    count: None = None
    rotary: None = None

    def recur(self, name: str, rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
        return without_cache(rows, shape, recurrence)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        if self.causal:  # padding follows the text
            return FullSequence(self.length).attend(layer, q, k, v, attention_mask)
        side = attention_mask.window // 2 if attention_mask.window else None
        return attention(
            *(q, k, v),
            mask=self._mask(q.shape[1] if attention_mask.alibi else 0, attention_mask.alibi),
            window=(side, side),
            scale=attention_mask.scale,
            softcap=attention_mask.softcap,
        )

    def _mask(self, heads: int, max_bias: float) -> Tensor:
        """Return the mask of the tokens of each text, with the ALiBi of some heads if not 0."""
        if heads not in self.masks:
            seen = less(arange(self.length), reshape(self.counts, (-1, 1, 1, 1)))
            mask = where(seen, alibi(heads, self.length, max_bias), -inf) if heads else seen
            self.masks[heads] = mask
        return self.masks[heads]
