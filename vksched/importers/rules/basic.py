"""Rules for values as they are: identity, shapes, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...ops import reshape
from ...ops.tensor import Tensor
from ..elements import ANY
from ..values import Value, known
from .registry import rule

if TYPE_CHECKING:
    from ..node import NodeContext


@rule("Identity", types=ANY)
def identity(n: NodeContext) -> Value:
    return n.value(0)


@rule("Shape", types=ANY)
def shape(n: NodeContext) -> Value:
    rank = len(n.shape(0))
    start, end = n.attr("start", 0), n.attr("end", rank)
    return known(np.array(n.shape(0)[slice(start, end)], np.int64))


@rule("Size", types=ANY)
def size(n: NodeContext) -> Value:
    return known(np.array(np.prod(n.shape(0), dtype=np.int64), np.int64))


@rule("Reshape", types=ANY)
def reshape_rule(n: NodeContext) -> Tensor:
    given, old = n.ints(1), n.shape(0)
    if not n.attr("allowzero", 0):
        given = tuple(old[i] if d == 0 else d for i, d in enumerate(given))
    return reshape(n.tensor(0), given)
