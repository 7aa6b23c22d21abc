"""Pictures: the tokens of pictures in a text.

    ids   2  5  V+0 V+1 V+2 V+3  8  V+4 V+5 V+6 V+7  11      V: the size of the vocabulary
                '-picture 0---'     '-picture 1---'

A token sees all tokens of its own picture, and otherwise those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.dtypes import FLOAT32, Shape
from ....common.errors import ShapeError, UnsupportedOp
from ....ir.tensor import Tensor
from ....ops import arange, equal, gather, less, reshape, where
from ..hparams.hparams import HParams
from .family import Family
from .token_layout import AttentionMask, Recurrence, without_cache


@dataclass(frozen=True)
class Pictures:
    """The tokens of the pictures of a call, (pictures, tokens, width). The id `vocabulary + row`
    stands for a row of all of them.
    """

    tokens: Tensor
    vocabulary: int

    def text_ids(self, ids: Tensor) -> Tensor:
        """Return the ids with 0 for tokens of pictures."""
        return where(less(ids, self.vocabulary), ids, 0)

    def inserted(self, ids: Tensor, x: Tensor) -> Tensor:
        """Return the embeddings x (b, n, width) of ids (b, n) with the tokens of pictures."""
        pictures, tokens, width = self.tokens.shape
        is_text = less(ids, self.vocabulary)
        rows = where(is_text, 0, ids - self.vocabulary)
        shown = gather(reshape(self.tokens, (pictures * tokens, width)), rows)
        return where(reshape(is_text, (*ids.shape, 1)), x, shown)

    def numbers(self, ids: Tensor) -> Tensor:
        """Return the number of the picture of each token, -1 for text."""
        number = (ids - self.vocabulary) // self.tokens.shape[1]
        return where(less(ids, self.vocabulary), -1, number)


def checked_pictures(family: Family, hyper: HParams, tokens: Tensor) -> Pictures:
    """Return the tokens of pictures after a check of their shape.

    Raises
    ------
    UnsupportedOp
        The architecture takes no pictures.
    ShapeError
        The tokens have another width.
    """
    _check_takes_pictures(family, hyper)
    if tokens.rank != 3 or tokens.shape[2] != hyper.width or tokens.dtype != FLOAT32:
        raise ShapeError(
            f"[model] expected tokens of pictures (pictures, tokens, {hyper.width}) of float32, "
            f"got {tokens.type}; try the projector file of this model"
        )
    return Pictures(tokens, hyper.vocabulary)


def check_picture_step(family: Family, hyper: HParams, tokens: int, parts: int) -> None:
    """Raise an error unless a model takes a picture of so many tokens in a step: the tokens see
    each other, in layers with a window, too.
    """
    _check_takes_pictures(family, hyper)
    most = hyper.window or hyper.context
    if parts > 1 or tokens > most:
        raise ShapeError(
            f"[model] expected a step of one part with a picture, of at most {most} tokens, got "
            f"{parts} and {tokens}"
        )


def _check_takes_pictures(family: Family, hyper: HParams) -> None:
    if not family.takes_pictures:
        raise UnsupportedOp(
            f"[model] expected an architecture that takes pictures, got {hyper.architecture!r}; "
            "try gemma3"
        )


@dataclass(frozen=True)
class PicturedSequence:
    """A complete sequence with pictures. numbers: the index of the picture of each token, (b, n),
    or -1.
    """

    length: int
    numbers: Tensor
    positions: None = None
    last: None = None
    count: None = None

    def recur(self, name: str, rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
        return without_cache(rows, shape, recurrence)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        at, key = reshape(arange(self.length), (-1, 1)), arange(self.length)
        seen = key <= at
        if attention_mask.window:
            seen = seen & (key > at - attention_mask.window)
        of_query = reshape(self.numbers, (-1, 1, self.length, 1))
        of_key = reshape(self.numbers, (-1, 1, 1, self.length))
        is_own = equal(of_query, of_key) & (of_query >= 0)
        return attention_mask.attend(q, k, v, seen | is_own)
