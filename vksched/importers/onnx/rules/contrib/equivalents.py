"""Rules for ops of com.microsoft that are equivalent to ops of the default domain, or nearly so.

onnxruntime had them before ONNX did; exporters and its optimizer still write them.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .....common.dtypes import INT32, normalize_axis
from .....ir.tensor import Tensor
from .....ops import (
    gather,
    matmul,
    maximum,
    moveaxis,
    reduce_sum,
    reshape,
    sqrt,
    square,
    unsqueeze,
)
from ...nodes.elements import ANY, EVERY
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ...nodes.values import Value
from ..basic import identity, range_rule
from ..image import grid_sample_rule
from ..index import gather_nd_rule
from ..layout import pad_rule, trilu
from ..narrow_types import WRAPPING
from ..nn import transposed_convolution
from ..registry import rule

MAX_DIFFERENCES = 1 << 24
"""Up to this number of elements, distances are sums of squared differences; beyond it, they are
computed with matmul, as in onnxruntime, which loses precision if points are close.
"""

for _name, _build in (
    ("GatherND", gather_nd_rule),
    ("GridSample", grid_sample_rule),
    ("Pad", pad_rule),
    ("Range", range_rule),
    ("Trilu", trilu),
):
    rule(_name, types=ANY, domain=MICROSOFT)(_build)
rule("SampleOp", types=EVERY, domain=MICROSOFT)(identity)


@rule("ExpandDims", types=ANY, domain=MICROSOFT)
def expand_dims(n: NodeContext) -> Tensor:
    return unsqueeze(n.tensor(0), int(n.number(1)))


@rule("UnfoldTensor", types=ANY, domain=MICROSOFT)
def unfold(n: NodeContext) -> Tensor:
    """Return all windows of a size along one axis; their elements become the last axis."""
    x, size, step = n.tensor(0), n.attr("size"), n.attr("step", 1)
    axis = normalize_axis("unfold", n.attr("dim", -1), x.rank)
    count = (x.shape[axis] - size) // step + 1
    n.require(0 < size <= x.shape[axis] and step > 0, f"windows of {size} each {step}")
    n.require_room((count, size), INT32)
    places = np.arange(count, dtype=np.int32)[:, None] * step + np.arange(size, dtype=np.int32)
    return moveaxis(gather(x, places, axis), axis + 1, -1)


@rule("ConvTransposeWithDynamicPads", rounds=True, domain=MICROSOFT)
def conv_transpose_of_pads(n: NodeContext) -> Tensor:
    return transposed_convolution(n, n.ints(2) if n.has(2) else None, n.optional(3))


@rule("MatMulInteger16", types=WRAPPING, domain=MICROSOFT)
def matmul_integer16(n: NodeContext) -> Value:
    return Value(TensorProto.INT32, tensor=matmul(n.tensor(0), n.tensor(1)))


@rule("CDist", domain=MICROSOFT)
def distances(n: NodeContext) -> Tensor:
    """(m, k), (n, k) -> (m, n)"""
    a, b, metric = n.tensor(0), n.tensor(1), n.attr("metric", "sqeuclidean")
    n.require(metric in ("euclidean", "sqeuclidean"), f"the metric {metric}")
    if a.size * b.shape[0] <= MAX_DIFFERENCES:
        squares = reduce_sum(square(unsqueeze(a, 1) - unsqueeze(b, 0)), 2)
    else:
        lengths = reshape(reduce_sum(square(b), 1), (1, -1))
        products = matmul(a, b, transpose_b=True)
        squares = maximum(reduce_sum(square(a), 1, keepdims=True) + lengths - products * 2.0, 0.0)
    return sqrt(squares) if metric == "euclidean" else squares
