"""The onnx package's reference evaluator, with those of its ops mended that are wrong.

Found by comparing it with onnxruntime on random calls of each op, for opsets 7 to 24, with onnx
1.23 (tests/importers/onnx_calls.py). Ops that are wrong in short are written anew here, after the
specification:

| op                            | opsets  | what the evaluator does                               |
|-------------------------------|---------|-------------------------------------------------------|
| BatchNormalization            | 7 to 13 | mixes the batch's own statistics in, as if it trained |
| Softmax, LogSoftmax, Hardmax  | to 12   | one axis, where all from it on are meant; -1 for 1    |
| GlobalMaxPool                 | all     | the wrong axes of what is no image                    |
| LRN                           | all     | so many channels as there are batches                 |
| DequantizeLinear              | 10 to 18| has none                                              |

Ops that are wrong in some of their forms are in `DOUBTED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ....types import NDArray
from .contrib import HOST_OPS
from .functions import canonical_domain

DOUBTED = frozenset(
    (
        "AveragePool",  # ceil_mode that counts padding
        "ConvTranspose",  # groups, auto_pad
        "GRU",  # lengths, clip, backward
        "LSTM",  # lengths, clip, backward
        "LpNormalization",  # p = 1
        "LpPool",  # ceil_mode, dilations
        "MaxPool",  # auto_pad, what has no two axes
        "QLinearConv",  # groups, one axis
        "RNN",  # lengths, clip, backward
        "ReduceSumSquare",  # gives int64 for int32
        "RoiAlign",  # before opset 16
        "Unsqueeze",  # before opset 11, axes out of order
    )
)
"""Ops of the default domain that the evaluator computes wrongly in some of their forms."""

Results = tuple[NDArray, ...]


def make_evaluator(
    proto: ModelProto | FunctionProto,
    functions: list[ReferenceEvaluator | FunctionProto] | None = None,
) -> ReferenceEvaluator:
    """Returns an evaluator of a model or function, with mended ops and those of onnxruntime.
    functions: as the class takes them.
    """
    opset = max(
        (o.version for o in proto.opset_import if not canonical_domain(o.domain)), default=1
    )
    new = [op for since, until, op in _MENDED if since <= opset <= until]
    new += HOST_OPS
    return ReferenceEvaluator(proto, functions=functions or None, new_ops=new)


def find_doubted(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Returns the nodes that the evaluator may compute wrongly."""
    return (n for n in nodes if n.op_type in DOUBTED and not canonical_domain(n.domain))


class BatchNormalization(OpRun):
    """As in inference: with the statistics that it is given."""

    def _run(
        self,
        x: NDArray,
        scale: NDArray,
        bias: NDArray,
        mean: NDArray,
        var: NDArray,
        epsilon: float,
        **_: Any,
    ) -> Results:
        ones = (1,) * (x.ndim - 1 - scale.ndim)  # opset 7 may have numbers for each element, too
        scale, bias, mean, var = (a.reshape(a.shape + ones) for a in (scale, bias, mean, var))
        y = scale * (x - mean) / np.sqrt(var + epsilon) + bias
        return (y.astype(x.dtype),)


class _Flattened(OpRun):
    """An op of rows. A row is all axes from `axis` on, by default from 1."""

    def _run(self, x: NDArray, **_: Any) -> Results:
        axis = next((a.i for a in self.onnx_node.attribute if a.name == "axis"), 1)
        axis += x.ndim if axis < 0 else 0
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return (self._rows(rows).reshape(x.shape).astype(x.dtype) if x.size else x,)

    def _rows(self, rows: NDArray) -> NDArray:
        raise NotImplementedError


class Softmax(_Flattened):
    """Before opset 13."""

    def _rows(self, rows: NDArray) -> NDArray:
        powers = np.exp(rows - rows.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))


class LogSoftmax(_Flattened):
    """Before opset 13."""

    def _rows(self, rows: NDArray) -> NDArray:
        rows = rows - rows.max(1, keepdims=True)
        return np.asarray(rows - np.log(np.exp(rows).sum(1, keepdims=True)))


class Hardmax(_Flattened):
    """Before opset 13."""

    def _rows(self, rows: NDArray) -> NDArray:
        return np.asarray(np.arange(rows.shape[1]) == rows.argmax(1)[:, None])


class GlobalMaxPool(OpRun):
    """Over all axes from the third on."""

    def _run(self, x: NDArray) -> Results:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class LRN(OpRun):
    """Divides by a power of the sum of squares of channels nearby."""

    def _run(self, x: NDArray, alpha: float, beta: float, bias: float, size: int) -> Results:
        before, behind = (size - 1) // 2, size // 2
        squares = np.stack(
            [
                np.square(x[:, max(0, c - before) : c + behind + 1]).sum(axis=1)
                for c in range(x.shape[1])
            ],
            axis=1,
        )
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


class DequantizeLinear(OpRun):
    """Before opset 19: (x - zero point) * scale, of each element along an axis or of all."""

    def _run(
        self, x: NDArray, scale: NDArray, zero: NDArray | None = None, axis: int = 1, **_: Any
    ) -> Results:
        def along(a: NDArray) -> NDArray:
            if a.size == 1:
                return a.reshape(())
            return a.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])

        steps = x.astype(np.int64) - (0 if zero is None else along(zero.astype(np.int64)))
        return ((steps.astype(np.float32) * along(scale)).astype(scale.dtype),)


_EVER = 1 << 31
_MENDED: tuple[tuple[int, int, type[OpRun]], ...] = (
    (7, 13, BatchNormalization),
    (1, 12, Softmax),
    (1, 12, LogSoftmax),
    (1, 12, Hardmax),
    (1, _EVER, GlobalMaxPool),
    (1, _EVER, LRN),
    (10, 18, DequantizeLinear),
)
"""First and last opset of each op that is written anew."""
