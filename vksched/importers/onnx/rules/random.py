"""Rules for random ops: without a seed, results differ in every run."""

from __future__ import annotations

import struct

from onnx import TensorProto
from onnx.helper import make_node

from .... import ops
from ....common.dtypes import BOOL, FLOAT32, INT32, Shape
from ....ir.tensor import Tensor
from ..nodes.cpu_node import add_host_node
from ..nodes.elements import ANY
from ..nodes.node import NodeContext
from ..nodes.values import CpuValueType, Value
from .narrow_types import NUMBERS, cast, convert
from .registry import rule

T = TensorProto


@rule("Dropout", types=ANY)
def dropout(n: NodeContext) -> tuple[Value, Value | Tensor | None]:
    """Dropout in inference: the mask is all true."""
    trains = n.version >= 12 and n.has(2) and bool(n.number(2))
    n.require(not trains or n.number(1, 0.5) == 0, "training_mode")
    mask = None
    if n.wants(1):
        bools = n.version >= 10
        mask = ops.ones(n.shape(0), BOOL if bools else n.tensor(0).dtype)
    return n.value(0), mask


def _seed(n: NodeContext) -> int | Tensor:
    """Return the bits of the seed, which is a float. Without a seed the CPU draws one in every
    run.
    """
    if n.has_attr("seed"):
        return int(struct.unpack("<I", struct.pack("<f", n.attr("seed")))[0])
    node = make_node("RandomUniform", [], ["seed"], shape=[2], low=-(2.0**31), high=2.0**31)
    reason = "it draws a new seed in every run"
    opsets = n.lowering.context.opsets
    drawn = add_host_node(node, opsets, (), (), [CpuValueType(T.FLOAT, (2,))], reason)[0]
    assert drawn is not None
    return ops.cast(drawn, INT32)


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
    """Return 1 with the probability of each element."""
    x, elem_type = n.tensor(0), n.attr("dtype") or n.elem_type(0)
    drawn = ops.random_uniform(x.shape, seed=_seed(n))
    ones = ops.less(drawn, cast(x, FLOAT32))
    return Value(elem_type, tensor=convert(ones, T.BOOL, elem_type))


@rule("Multinomial")
def multinomial(n: NodeContext) -> Value:
    """Sample classes by their log probabilities: (rows, classes) -> (rows, samples)."""
    samples, elem_type = n.attr("sample_size", 1), n.attr("dtype", T.INT32)
    below = ops.cumsum(ops.softmax(cast(n.tensor(0), FLOAT32), -1), -1)
    rows, classes = below.shape
    drawn = ops.random_uniform((rows, samples, 1), seed=_seed(n))
    passed = ops.greater_equal(drawn, ops.reshape(below, (rows, 1, classes)))
    count = ops.reduce_sum(ops.cast(passed, INT32), -1)
    return Value(elem_type, tensor=convert(ops.minimum(count, classes - 1), T.INT32, elem_type))
