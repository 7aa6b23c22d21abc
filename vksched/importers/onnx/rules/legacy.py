"""Rules for ops that ONNX removed from the default domain.

onnxruntime runs them up to opset 9, and converters of that time wrote them.
"""

from __future__ import annotations

import numpy as np

from ....common.dtypes import numpy_dtype
from ....ir.tensor import Tensor, constant
from ....ops import add, mul, slice
from ..nodes.elements import ANY
from ..nodes.node import NodeContext
from .registry import rule


@rule("Affine")
def affine(n: NodeContext) -> Tensor:
    return add(mul(n.tensor(0), n.attr("alpha", 1.0)), n.attr("beta", 0.0))


@rule("Scale")
def scale(n: NodeContext) -> Tensor:
    return mul(n.tensor(0), n.attr("scale", 1.0))


@rule("ImageScaler")
def image_scaler(n: NodeContext) -> Tensor:
    """x: (batch, channels, height, width), with a bias per channel."""
    x = n.tensor(0)
    bias = np.array(n.attr("bias"), numpy_dtype(x.dtype)).reshape(-1, 1, 1)
    return add(mul(x, n.attr("scale", 1.0)), constant(bias))


@rule("Crop", types=ANY)
def crop(n: NodeContext) -> Tensor:
    """border: left, top, right, bottom. scale: height and width, from the top left corner."""
    x = n.tensor(0)
    left, top, right, bottom = n.attr("border")
    height, width = n.attr("scale", ()) or (x.shape[2] - bottom - top, x.shape[3] - right - left)
    return slice(x, (top, left), (top + height, left + width), (2, 3))
