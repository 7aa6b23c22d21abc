"""Text: what the tokens of a call belong to, and so what each of them sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ....ops import arange, attention, concat, less, reshape, split, transpose
from ....ops.core.tensor import Tensor


class Text(Protocol):
    """The text that the tokens of a call belong to.

    length: of the text at most. positions: of the tokens in it, (n,); None: 0, 1, ... last: whose
    logits are wanted, as an index of the tokens; None: those of all.
    """

    @property
    def length(self) -> int: ...

    @property
    def positions(self) -> Tensor | None: ...

    @property
    def last(self) -> Tensor | None: ...

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
        chunked: bool = False,
    ) -> Tensor:
        """Returns the attention of a layer. q: (b, heads, n, d), k, v: (b, kv_heads, n, d), turned
        by position -> (b, heads, n, d).

        scale, softcap: as in `vs.attention`. window: a token sees so many, itself among them; 0:
        all. chunked: the text is cut into pieces of so many tokens, and a token sees those of its
        own up to itself.
        """


@dataclass(frozen=True)
class WholeText:
    """A text that is given from its first token on. Each token sees itself and those before it."""

    length: int
    positions: None = None
    last: None = None

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
        chunked: bool = False,
    ) -> Tensor:
        if chunked and 0 < window < self.length:
            rest = self.length % window
            sizes = [size for size in (self.length - rest, rest) if size]
            parts = zip(*(split(each, sizes, 2) for each in (q, k, v)), strict=True)
            made = [_in_pieces(part, window, scale=scale, softcap=softcap) for part in parts]
            return concat(made, axis=2)
        window = 0 if chunked else window
        sides = window - 1 if window else None, None
        return attention(q, k, v, causal=True, window=sides, scale=scale, softcap=softcap)


def _in_pieces(qkv: tuple[Tensor, ...], size: int, *, scale: float, softcap: float) -> Tensor:
    """Returns the attention of a text (b, heads, n, d) within pieces of so many tokens, or fewer in
    one.
    """
    b, heads, n, _ = qkv[0].shape
    count, size = max(1, n // size), min(n, size)

    def apart(x: Tensor) -> Tensor:
        cut = reshape(x, (b, x.shape[1], count, size, x.shape[3]))
        return reshape(transpose(cut, (0, 2, 1, 3, 4)), (b * count, x.shape[1], size, x.shape[3]))

    made = attention(*map(apart, qkv), causal=True, scale=scale, softcap=softcap)
    made = transpose(reshape(made, (b, count, heads, size, made.shape[3])), (0, 2, 1, 3, 4))
    return reshape(made, (b, heads, n, made.shape[4]))


@dataclass(frozen=True)
class PaddedTexts:
    """Texts of which each has `counts` tokens, (b,) int32, and what fills it up to `length`.

    causal: no token sees those behind it; else each sees all of its text.
    """

    length: int
    counts: Tensor
    causal: bool
    positions: None = None
    last: None = None

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
        chunked: bool = False,
    ) -> Tensor:
        if self.causal:  # what fills a text is behind it
            return WholeText(self.length).attend(
                *(layer, q, k, v),
                scale=scale,
                softcap=softcap,
                window=window,
                chunked=chunked,
            )
        seen = less(arange(self.length), reshape(self.counts, (-1, 1, 1, 1)))
        return attention(q, k, v, mask=seen, scale=scale, softcap=softcap)
