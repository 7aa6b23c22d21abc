"""Halves: weights of products that may be rounded are held as floats of 16 bits where kernels read
that.

    matmul(x, w float32) {precision: mixed}     ->  quantized_linear(x, words of w) {format: f16}
    matmul(x, w float32) {precision: bfloat16}  ->  quantized_linear(x, words of w) {format: bf16}

A product of few rows does little with each weight, so it takes half as long with weights of half
the size. With more rows GPUs read them in tiles as they lie; CPU drivers would unpack them first,
so there these stay. A weight stays as it is if somebody else reads it, as it would be there
twice, or if its format does not hold it. x is not rounded. Examples:
tests/passes/test_fp16_weights.py.
"""

from __future__ import annotations

import math
import weakref
from functools import partial

import numpy as np

from ..common.dtypes import FLOAT32, NDArray
from ..ir.attrs import AttrValue
from ..ir.graph import Graph, Node
from ..ir.precision import (
    BRAIN,
    HALF,
    MIXED,
    bfloat16_bits,
    kept_precision,
    precision_of,
)
from ..ops.quantized.gguf_formats import format_of, pack_u32
from ..topology.limits import Limits
from .constraints import RewriteConstraints
from .rewrite import Rewriter, rewrite

FORMATS = {MIXED: "f16", HALF: "f16", BRAIN: "bf16"}
"""By the word of a product."""
MAX_ROWS = 8
"""Of a result, on CPU drivers: kernels for more unpack weights first."""
MIN_BYTES = 1 << 16
"""Of a weight: less is read at once."""
MIN_LANES = 8
"""CPU drivers of fewer lanes (SwiftShader) take longer to widen float16 than to read float32."""
LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38}

_Words = dict[tuple[str, bool], NDArray]
_words: weakref.WeakKeyDictionary[object, _Words] = weakref.WeakKeyDictionary()
"""By the key of a weight, its format, and whether it is turned, as long as the weight is there:
graphs share them.
"""


def convert_weights_to_fp16(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Holds weights as float16 for products whose precision allows it."""
    limits = constraints.limits  # numpy alone does what a precision says, and no more
    if limits is None:
        return graph
    return rewrite(graph, {"matmul": (partial(_product, limits),)}, constraints)


def _product(limits: Limits, r: Rewriter, node: Node) -> int | None:
    x, w, *bias = node.inputs
    format = FORMATS.get(precision_of(node.attrs))
    if format is None or node.type.dtype != FLOAT32 or node.attrs.as_bool("transpose_a"):
        return None
    few_lanes = limits.subgroup_size < MIN_LANES and format != FORMATS[BRAIN]
    many = math.prod(node.type.shape[:-1]) > MAX_ROWS
    if limits.software and (many or few_lanes):
        return None
    weight = r[w]
    if weight.op != "weight" or weight.type.rank != 2 or not (r.is_free(w) and r.has_single_use(w)):
        return None
    turned = not node.attrs.as_bool("transpose_b")
    columns = weight.type.shape[0 if turned else 1]
    if weight.type.device_bytes < MIN_BYTES or columns % format_of(format).step:
        return None
    words = _pack_u32(r, w, format, turned)
    if words is None:
        return None
    made = r.constant(words, (format, turned, r.key(w)), "weight")
    given: dict[str, AttrValue] = {"format": format, **kept_precision(node.attrs)}
    return r.emit("quantized_linear", (x, made, *bias), given)


def _pack_u32(r: Rewriter, w: int, format: str, turned: bool) -> NDArray | None:
    """Return the words of a weight, rows along k; None where its format does not hold it."""
    made, key = _words.setdefault(r.key(w), {}), (format, turned)
    if key not in made:
        values = r.data(w)
        if values is None or not np.abs(values).max(initial=0) <= LARGEST[format]:  # NaN is not
            return None
        lines = np.ascontiguousarray(values.T if turned else values)
        fp16_lines = bfloat16_bits(lines) if format == FORMATS[BRAIN] else lines.astype(np.float16)
        made[key] = np.asarray(pack_u32(format, fp16_lines.tobytes(), fp16_lines.shape))
    return made[key]
