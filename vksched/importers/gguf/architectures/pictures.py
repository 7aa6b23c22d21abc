"""Pictures: the tokens of pictures in a text.

    ids   2  5  V+0 V+1 V+2 V+3  8  V+4 V+5 V+6 V+7  11      V: the size of the vocabulary
                '-picture 0---'     '-picture 1---'

A token sees all tokens of its own picture, and otherwise those before it. With M-RoPE, it only sees
those before it, and has a position in time, rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.dtypes import FLOAT32, INT32, Shape
from ....common.errors import ModelFormatError, ShapeError, UnsupportedOp
from ....ir.tensor import Tensor
from ....ops import arange, equal, gather, less, reshape, split, where
from ..hparams.hparams import HParams
from .family import Family
from .token_layout import AttentionMask, FullSequence, Recurrence, without_cache


@dataclass(frozen=True)
class Pictures:
    """The tokens of the pictures of a call, (pictures, tokens, width). The id `vocabulary + row`
    stands for a row of all of them. deepstack: the number of layers whose rows follow, in the last
    dimension, those of the embedding.
    """

    tokens: Tensor
    vocabulary: int
    deepstack: int = 0

    def text_ids(self, ids: Tensor) -> Tensor:
        """Return the ids with 0 for tokens of pictures."""
        return where(less(ids, self.vocabulary), ids, 0)

    def inserted(self, ids: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the embeddings x (b, n, width) of ids (b, n) with the tokens of pictures, and the
        rows that first layers add, which are 0 for text.
        """
        pictures, tokens, width = self.tokens.shape
        is_text = less(ids, self.vocabulary)
        rows = where(is_text, 0, ids - self.vocabulary)
        shown = gather(reshape(self.tokens, (pictures * tokens, width)), rows)
        own, *deeper = split_rows(shown, self.deepstack)
        is_text = reshape(is_text, (*ids.shape, 1))
        return where(is_text, x, own), [where(is_text, 0.0, each) for each in deeper]

    def numbers(self, ids: Tensor) -> Tensor:
        """Return the number of the picture of each token, -1 for text."""
        number = (ids - self.vocabulary) // self.tokens.shape[1]
        return where(less(ids, self.vocabulary), -1, number)


def split_rows(shown: Tensor, deepstack: int) -> list[Tensor]:
    """Return the rows (b, n, width) of tokens of pictures: their embeddings, then those that first
    layers add.
    """
    size = shown.shape[2] // (1 + deepstack)
    return list(split(shown, [size] * (1 + deepstack), 2)) if deepstack else [shown]


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
    width = hyper.width * (1 + hyper.deepstack)
    if tokens.rank != 3 or tokens.shape[2] != width or tokens.dtype != FLOAT32:
        raise ShapeError(
            f"[model] expected tokens of pictures (pictures, tokens, {width}) of float32, "
            f"got {tokens.type}; try the projector file of this model"
        )
    return Pictures(tokens, hyper.vocabulary, hyper.deepstack)


def check_picture_step(family: Family, hyper: HParams, tokens: int, parts: int) -> None:
    """Raise an error unless a model takes a picture of so many tokens in a step: the tokens see
    each other, in layers with a window, too, unless attention is causal.
    """
    _check_takes_pictures(family, hyper)
    most = hyper.window if hyper.window and not family.mrope else hyper.context
    if parts > 1 or tokens > most:
        raise ShapeError(
            f"[model] expected a step of one part with a picture, of at most {most} tokens, got "
            f"{parts} and {tokens}"
        )


def _check_takes_pictures(family: Family, hyper: HParams) -> None:
    if not family.takes_pictures:
        raise UnsupportedOp(
            f"[model] expected an architecture that takes pictures, got {hyper.architecture!r}; "
            "try gemma3 or qwen3vl"
        )
    if family.mrope and not hyper.rope.sections:
        raise ModelFormatError(
            f"[gguf] expected the key '{hyper.architecture}.rope.dimension_sections' of a model "
            "that takes pictures, got none; try to convert the model again"
        )


@dataclass(frozen=True)
class PicturedSequence:
    """A complete sequence with pictures. numbers: the index of the picture of each token, (b, n),
    or -1; None for causal attention. rotary: see `SequenceLayout`.
    """

    length: int
    numbers: Tensor | None
    rotary: Tensor | None = None
    positions: None = None
    last: None = None
    count: None = None

    def recur(self, name: str, rows: int, shape: Shape, recurrence: Recurrence) -> Tensor:
        return without_cache(rows, shape, recurrence)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask
    ) -> Tensor:
        if self.numbers is None:
            return FullSequence(self.length).attend(layer, q, k, v, attention_mask)
        at, key = reshape(arange(self.length), (-1, 1)), arange(self.length)
        seen = key <= at
        if attention_mask.window:
            seen = seen & (key > at - attention_mask.window)
        of_query = reshape(self.numbers, (-1, 1, self.length, 1))
        of_key = reshape(self.numbers, (-1, 1, 1, self.length))
        is_own = equal(of_query, of_key) & (of_query >= 0)
        return attention_mask.attend(q, k, v, seen | is_own)


def pictured_sequence(
    family: Family, shown: Pictures, ids: Tensor, positions: Tensor | None
) -> PicturedSequence:
    """Return the layout of a complete sequence with pictures.

    Raises
    ------
    ShapeError
        There are no positions, and the model has M-RoPE, or there are some, and it does not.
    """
    size = ids.shape[0], 3, ids.shape[1]
    is_fitting = positions is not None and positions.shape == size and positions.dtype == INT32
    if is_fitting != bool(family.mrope) or (positions is not None and not family.mrope):
        wanted = f"positions {size} of int32" if family.mrope else "no positions"
        raise ShapeError(
            f"[model] expected {wanted} of this model with pictures, got "
            f"{None if positions is None else positions.type}"
        )
    length = ids.shape[1]
    if family.mrope:
        return PicturedSequence(length, None, positions)
    return PicturedSequence(length, shown.numbers(ids))
