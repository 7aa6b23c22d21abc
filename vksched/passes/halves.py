"""Halves: weights of products that may be rounded are held as float16 where kernels read that.

    matmul(x, w float32) {precision: mixed}  ->  linear_packed(x, words of w) {format: f16}

A product of few rows does little with each weight, so it takes half as long with weights of half
the size. With more rows GPUs read them in tiles as they lie; CPU drivers would unpack them first,
so there these stay. A weight stays as it is if somebody else
reads it, as it would be there twice, or if float16 does not hold it. x is not rounded.
Examples: tests/passes/test_halves.py.
"""

from __future__ import annotations

import math
import weakref
from functools import partial

import numpy as np

from ..graph import Graph, Node
from ..ops.core.attrs import AttrValue
from ..ops.core.precision import allows_half, kept_precision
from ..ops.products.blocks import format_of, held_words
from ..types import FLOAT32, NDArray
from .rewrite import Rewriter, rewrite
from .wishes import Wishes

FORMAT = "f16"
MOST_ROWS = 8
"""Of a result, on CPU drivers: kernels for more unpack weights first."""
LEAST_BYTES = 1 << 16
"""Of a weight: less is read at once."""
LEAST_LANES = 8
"""CPU drivers of fewer lanes (SwiftShader) take longer to widen a weight than to read it."""
LARGEST = 65504.0
"""Of float16."""

_words: weakref.WeakKeyDictionary[object, dict[bool, NDArray]] = weakref.WeakKeyDictionary()
"""By the key of a weight, and whether it is turned, as long as the weight is there: graphs share
them.
"""


def hold_halves(graph: Graph, wishes: Wishes) -> Graph:
    """Holds weights as float16 for products whose precision allows it."""
    limits = wishes.limits  # numpy alone does what a precision says, and no more
    if limits is None or (limits.software and limits.subgroup_size < LEAST_LANES):
        return graph
    return rewrite(graph, {"matmul": (partial(_product, limits.software),)}, wishes)


def _product(few_only: bool, r: Rewriter, node: Node) -> int | None:
    x, w, *bias = node.inputs
    if not allows_half(node.attrs) or node.type.dtype != FLOAT32:
        return None
    many = math.prod(node.type.shape[:-1]) > MOST_ROWS
    if (few_only and many) or node.attrs.as_bool("transpose_a"):
        return None
    weight = r[w]
    if weight.op != "weight" or weight.type.rank != 2 or not (r.is_free(w) and r.is_sole(w)):
        return None
    turned = not node.attrs.as_bool("transpose_b")
    columns = weight.type.shape[0 if turned else 1]
    if weight.type.device_bytes < LEAST_BYTES or columns % format_of(FORMAT).step:
        return None
    words = _words_of(r, w, turned)
    if words is None:
        return None
    made = r.constant(words, (FORMAT, turned, r.key(w)), "weight")
    given: dict[str, AttrValue] = {"format": FORMAT, **kept_precision(node.attrs)}
    return r.emit("linear_packed", (x, made, *bias), given)


def _words_of(r: Rewriter, w: int, turned: bool) -> NDArray | None:
    """Returns the words of a weight, rows along k; None where float16 does not hold it."""
    made = _words.setdefault(r.key(w), {})
    if turned not in made:
        values = r.data(w)
        if values is None or not np.abs(values).max(initial=0) <= LARGEST:  # of NaN it is not
            return None
        halves = np.ascontiguousarray(values.T if turned else values, np.float16)
        made[turned] = np.asarray(held_words(FORMAT, halves.tobytes(), halves.shape))
    return made[turned]
