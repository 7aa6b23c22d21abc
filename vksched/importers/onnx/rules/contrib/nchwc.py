"""Rules for com.microsoft.nchwc, which onnxruntime's layout optimizer writes.

These ops store channels in blocks. Here, values keep the NCHW layout, with channels padded to whole
blocks; weights are transposed back once per model.

    ReorderInput (1, 20, h, w) -> (1, 32, h, w) -> Conv -> ... -> ReorderOutput (1, 20, h, w)
"""

from __future__ import annotations

import numpy as np

from .....common.dtypes import NDArray
from .....ir.tensor import Tensor
from .....ops import pad, resize
from .....ops import slice as slice_
from ...nodes.node import NodeContext
from ...nodes.schemas import BLOCK, NCHWC
from ..image import NAMES
from ..pool import (
    average_pool_rule,
    global_average_pool_rule,
    global_max_pool_rule,
    max_pool_rule,
)
from ..registry import rule
from ..window import channels_first, channels_last
from .fused import fused_convolution
from .matmul_nbits import once

for _name, _build in (
    ("AveragePool", average_pool_rule),
    ("GlobalAveragePool", global_average_pool_rule),
    ("GlobalMaxPool", global_max_pool_rule),
    ("MaxPool", max_pool_rule),
):
    rule(_name, domain=NCHWC)(_build)


@rule("ReorderInput", domain=NCHWC)
def reorder_input(n: NodeContext) -> Tensor:
    x = channels_first(n.tensor(0)) if n.attr("channels_last", 0) else n.tensor(0)
    more = -x.shape[1] % n.attr(BLOCK)
    return pad(x, [(0, 0), (0, more), (0, 0), (0, 0)]) if more else x


@rule("ReorderOutput", domain=NCHWC)
def reorder_output(n: NodeContext) -> Tensor:
    x = slice_(n.tensor(0), 0, n.attr("channels"), 1)
    return channels_last(x) if n.attr("channels_last", 0) else x


@rule("Conv", domain=NCHWC)
def conv_rule(n: NodeContext) -> Tensor:
    size, groups = n.attr(BLOCK), n.attr("group", 1)
    outer, inner, *_ = n.shape(1)
    # (outs, ins, kernel, in a block: ins, outs); ins are not blocked if the weights have none
    alone = inner == 1 and outer == groups if groups > 1 else inner < size
    n.require(outer % size == 0 and (alone or inner % size == 0), f"weights of {n.shape(1)}")

    def make(w: NDArray) -> NDArray:
        part = 1 if alone else size
        blocks = w.reshape(outer // size, inner // part, *w.shape[2:], part, size)
        return np.asarray(blocks.transpose(0, 5, 1, 4, 2, 3).reshape(w.shape))

    return fused_convolution(n, once(n, (1,), make))


@rule("Upsample", domain=NCHWC)
def upsample(n: NodeContext) -> Tensor:
    mode = n.attr("mode", "nearest")
    return resize(
        n.tensor(0),
        scales=[float(v) for v in n.attr("scales")],
        mode=NAMES.get(mode, mode),
        coordinate_transformation_mode=n.attr("coordinate_transformation_mode", "asymmetric"),
        nearest_mode="floor",
    )
