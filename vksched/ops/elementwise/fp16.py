"""Computation of composite float16 functions in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...common.dtypes import FLOAT16, FLOAT32
from ...ir.tensor import Tensor
from .select import cast


def all_computed_wide(
    build: Callable[..., tuple[Tensor, ...]], operands: Sequence[Tensor], name: str | None
) -> tuple[Tensor, ...]:
    """Apply `computed_wide` to a function with several results; the first gets the name."""
    if any(t.dtype != FLOAT16 for t in operands):
        return build(*operands, name=name)
    results = build(*(cast(t, FLOAT32) for t in operands), name=None)
    return tuple(cast(r, FLOAT16, name=None if i else name) for i, r in enumerate(results))


def computed_wide(
    build: Callable[..., Tensor], operands: Sequence[Tensor], name: str | None
) -> Tensor:
    """Return build(*operands, name=name); float16 is computed in float32 and rounded once.

    Intermediate float16 values would overflow, e.g. 256 * 256.
    """
    return all_computed_wide(lambda *t, name: (build(*t, name=name),), operands, name)[0]
