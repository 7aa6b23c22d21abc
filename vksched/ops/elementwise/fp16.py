"""Functions of several ops on float16, computed in float32 from end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...common.dtypes import FLOAT16, FLOAT32
from ...ir.tensor import Tensor
from .select import cast


def all_computed_wide(
    build: Callable[..., tuple[Tensor, ...]], operands: Sequence[Tensor], name: str | None
) -> tuple[Tensor, ...]:
    """Does what `computed_wide` does, for several results; the first gets the name."""
    if any(t.dtype != FLOAT16 for t in operands):
        return build(*operands, name=name)
    results = build(*(cast(t, FLOAT32) for t in operands), name=None)
    return tuple(cast(r, FLOAT16, name=None if i else name) for i, r in enumerate(results))


def computed_wide(
    build: Callable[..., Tensor], operands: Sequence[Tensor], name: str | None
) -> Tensor:
    """Return build(*operands, name=name); of float16 operands in float32, rounded once at the end.

    Between the ops of a function float16 would overflow from 256 * 256 on.
    """
    return all_computed_wide(lambda *t, name: (build(*t, name=name),), operands, name)[0]
