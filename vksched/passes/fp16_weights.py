"""Convert weights to fp16: store weights of matmuls as 16-bit floats if their precision allows it.

    matmul(x, w float32) {precision: mixed}     ->  quantized_linear(x, fp16 w) {format: f16}
    matmul(x, w float32) {precision: bfloat16}  ->  quantized_linear(x, bf16 w) {format: bf16}

A matmul of few rows is bound by the bandwidth of its weights, so weights of half the size double
its speed. Matmuls of more rows are converted for GPUs, whose kernels load 16-bit tiles, but not for
CPU drivers, whose kernels would dequantize the weights first. A weight is not converted if another
op reads it, which would store it twice, or if it overflows the format. x is not rounded. Examples:
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
    precision_attrs,
    precision_of,
)
from ..ops.quantized.gguf_formats import format_of, pack_u32
from ..topology.limits import Limits
from .constraints import RewriteConstraints
from .rewrite import Rewriter, rewrite

FORMATS = {MIXED: "f16", HALF: "f16", BRAIN: "bf16"}
"""The storage format of the weights, by precision mode."""
MAX_ROWS = 8
"""Maximum rows of a result on CPU drivers; kernels for more rows dequantize the weights first."""
MIN_BYTES = 1 << 16
"""Minimum size of a weight; smaller ones load in negligible time."""
MIN_LANES = 8
"""CPU drivers with smaller subgroups (SwiftShader) convert float16 slower than they load float32.
"""
MAX_VALUE = {"f16": 65504.0, "bf16": 3.3895313892515355e38}

_Words = dict[tuple[str, bool], NDArray]
_words: weakref.WeakKeyDictionary[object, _Words] = weakref.WeakKeyDictionary()
"""Converted weights by weight key, format, and whether they are transposed; graphs share them."""


def convert_weights_to_fp16(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Store weights as 16-bit floats for matmuls whose precision allows it."""
    limits = constraints.limits  # the CPU backend rounds exactly as the precision says
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
    transposed = not node.attrs.as_bool("transpose_b")
    columns = weight.type.shape[0 if transposed else 1]
    if weight.type.device_bytes < MIN_BYTES or columns % format_of(format).step:
        return None
    words = _pack_u32(r, w, format, transposed)
    if words is None:
        return None
    converted = r.constant(words, (format, transposed, r.key(w)), "weight")
    new_attrs: dict[str, AttrValue] = {"format": format, **precision_attrs(node.attrs)}
    return r.emit("quantized_linear", (x, converted, *bias), new_attrs)


def _pack_u32(r: Rewriter, w: int, format: str, transposed: bool) -> NDArray | None:
    """Return a converted weight as uint32 words, rows along k; None if it overflows the format."""
    cached, key = _words.setdefault(r.key(w), {}), (format, transposed)
    if key not in cached:
        values = r.data(w)
        if (
            values is None or not np.abs(values).max(initial=0) <= MAX_VALUE[format]
        ):  # False for NaN
            return None
        lines = np.ascontiguousarray(values.T if transposed else values)
        fp16_lines = bfloat16_bits(lines) if format == FORMATS[BRAIN] else lines.astype(np.float16)
        cached[key] = np.asarray(pack_u32(format, fp16_lines.tobytes(), fp16_lines.shape))
    return cached[key]
