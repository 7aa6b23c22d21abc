"""Rules for what draws random numbers. Without a seed every run draws others: on the host."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onnx import TensorProto

from ... import ops
from ...ops.tensor import Tensor
from ...types import BOOL, FLOAT32, Shape
from ..elements import ANY
from ..values import Value
from .narrow import NUMBERS, cast, convert
from .registry import rule

if TYPE_CHECKING:
    from ..node import NodeContext

T = TensorProto


@rule("Dropout", types=ANY)
def dropout(n: NodeContext) -> tuple[Value, Value | Tensor | None]:
    """What it is when nothing is trained: all is kept."""
    trains = n.version >= 12 and n.has(2) and bool(n.number(2))
    n.require(not trains or n.number(1, 0.5) == 0, "training_mode")
    mask = None
    if n.wants(1):
        bools = n.version >= 10
        mask = ops.ones(n.shape(0), BOOL if bools else n.tensor(0).dtype)
    return n.value(0), mask


def _seed(n: NodeContext) -> int:
    """Returns the bits of the seed, which is a float."""
    n.require(n.has_attr("seed"), "no seed: every run draws other numbers")
    return int(struct.unpack("<I", struct.pack("<f", n.attr("seed")))[0])


def _drawn(n: NodeContext, shape: Shape, elem_type: int) -> Value:
    if n.op_type.startswith("RandomNormal"):
        drawn = ops.random_normal(shape, n.attr("mean"), n.attr("scale"), seed=_seed(n))
    else:
        drawn = ops.random_uniform(shape, n.attr("low"), n.attr("high"), seed=_seed(n))
    return Value(elem_type, tensor=convert(drawn, T.FLOAT, elem_type))


@rule("RandomNormal", "RandomUniform")
def draw(n: NodeContext) -> Value:
    return _drawn(n, tuple(n.attr("shape")), n.attr("dtype"))


@rule("RandomNormalLike", "RandomUniformLike", types=ANY)
def draw_like(n: NodeContext) -> Value:
    return _drawn(n, n.shape(0), n.attr("dtype") or n.elem_type(0))


@rule("Bernoulli", types=NUMBERS)
def bernoulli(n: NodeContext) -> Value:
    """1 with the probability that each element is."""
    x, elem_type = n.tensor(0), n.attr("dtype") or n.elem_type(0)
    drawn = ops.random_uniform(x.shape, seed=_seed(n))
    ones = ops.less(drawn, cast(x, FLOAT32))
    return Value(elem_type, tensor=convert(ones, T.BOOL, elem_type))
