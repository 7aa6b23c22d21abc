"""Pooling: reduces the hidden states of a text's tokens to one vector."""

from __future__ import annotations

from ...common.errors import ModelFormatError, ShapeError
from ...ir.tensor import Tensor
from ...ops import arange, cast, equal, less, matmul, reshape, squeeze, where

WAYS = ("mean", "cls", "last")
"""The mean of all tokens, the first token, the last token."""


def chosen_pooling(asked: str | None, held: str) -> str:
    """Return the pooling: the requested one, or that of the file.

    Raises
    ------
    ShapeError
        Neither is valid.
    """
    if held == "rank":
        raise ShapeError(
            f"[model] expected a pooling of {', '.join(WAYS)}, got rank, which makes scores; try "
            "vs.Reranker or `vksched rerank`"
        )
    way = asked or held
    if way not in WAYS:
        raise ShapeError(
            f"[model] expected a pooling of {', '.join(WAYS)}, got {way or 'none in the file'}; "
            "try 'mean', or 'last' for a decoder"
        )
    return way


def check_ranks(held: str) -> None:
    """Raise ModelFormatError unless the pooling of a file is that of a reranker."""
    if held != "rank":
        raise ModelFormatError(
            f"[gguf] expected a file of a reranker, with pooling_type 4 (rank), got "
            f"{held or 'no pooling'}; try vs.Embedder"
        )


def pooled(hidden: Tensor, counts: Tensor, way: str) -> Tensor:
    """Return the pooled vector of each text.

    hidden: (b, n, width), counts: (b,) int32, the number of tokens of each text -> (b, width).
    """
    at, ends = arange(hidden.shape[1]), reshape(counts, (-1, 1))
    if way == "mean":
        shares = where(less(at, ends), 1.0 / cast(ends, "float32"), 0.0)
    else:
        chosen = equal(at, ends - 1 if way == "last" else ends * 0)
        shares = cast(chosen, "float32")
    return squeeze(matmul(reshape(shares, (-1, 1, at.shape[0])), hidden), 1)
