"""The onnx package's reference evaluator, with corrected versions of ops that are wrong.

The errors were found by comparing random calls of each op with onnxruntime, for opsets 7 to 24,
with onnx 1.23 (tests/importers/onnx_calls/onnx_calls.py). Small ops are reimplemented here
according to the specification:

| op                            | opsets  | error in the evaluator                                |
|-------------------------------|---------|-------------------------------------------------------|
| BatchNormalization            | 7 to 13 | mixes in the statistics of the batch, as in training  |
| Softmax, LogSoftmax, Hardmax  | to 12   | reduces one axis, not all from it on; -1 for 1        |
| GlobalMaxPool                 | all     | wrong axes for inputs that are not images             |
| LRN                           | all     | uses the number of batches as that of channels        |
| DequantizeLinear              | 10 to 18| missing                                               |
| MaxRoiPool                    | all     | missing                                               |
| Scatter                       | all     | missing                                               |
| Shape                         | 15 on   | adds the rank again to a start or end before axis 0   |
| Unique                        | all     | the wrong axis if results are not sorted              |
| Unsqueeze                     | to 12   | inserts axes in their order, not in ascending order   |

String ops are in string_ops.py, those of ai.onnx.ml in ai_onnx_ml.py. The ops that may be evaluated
are in allow_list.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ....common.dtypes import NDArray
from .ai_onnx_ml import OPS as CLASSICAL
from .contrib_cpu import HOST_OPS
from .functions import canonical_domain
from .string_ops import OPS as TEXTS

Results = tuple[NDArray, ...]


def make_evaluator(
    proto: ModelProto | FunctionProto,
    functions: list[ReferenceEvaluator | FunctionProto] | None = None,
) -> ReferenceEvaluator:
    """Return an evaluator of a model or function, with corrected ops and those of com.microsoft."""
    opset = max(
        (o.version for o in proto.opset_import if not canonical_domain(o.domain)), default=1
    )
    new = [op for since, until, op in _MENDED if since <= opset <= until]
    new += HOST_OPS
    return ReferenceEvaluator(proto, functions=functions or None, new_ops=new)


class BatchNormalization(OpRun):
    """Normalize with the mean and variance operands, as in inference."""

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
        ones = (1,) * (x.ndim - 1 - scale.ndim)  # opset 7 may also have one value per element
        scale, bias, mean, var = (a.reshape(a.shape + ones) for a in (scale, bias, mean, var))
        y = scale * (x - mean) / np.sqrt(var + epsilon) + bias
        return (y.astype(x.dtype),)


class _Flattened(OpRun):
    """An op on rows; a row consists of all axes from `axis` on, by default from 1."""

    def _run(self, x: NDArray, **_: Any) -> Results:
        axis = next((a.i for a in self.onnx_node.attribute if a.name == "axis"), 1)
        axis += x.ndim if axis < 0 else 0
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return (self._rows(rows).reshape(x.shape).astype(x.dtype) if x.size else x,)

    def _rows(self, rows: NDArray) -> NDArray:
        raise NotImplementedError


class Softmax(_Flattened):
    """Softmax before opset 13."""

    def _rows(self, rows: NDArray) -> NDArray:
        powers = np.exp(rows - rows.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))


class LogSoftmax(_Flattened):
    """LogSoftmax before opset 13."""

    def _rows(self, rows: NDArray) -> NDArray:
        rows = rows - rows.max(1, keepdims=True)
        return np.asarray(rows - np.log(np.exp(rows).sum(1, keepdims=True)))


class Hardmax(_Flattened):
    """Hardmax before opset 13."""

    def _rows(self, rows: NDArray) -> NDArray:
        return np.asarray(np.arange(rows.shape[1]) == rows.argmax(1)[:, None])


class GlobalMaxPool(OpRun):
    """Reduce all axes from the third on."""

    def _run(self, x: NDArray) -> Results:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class LRN(OpRun):
    """Divide by a power of the sum of squares of neighboring channels."""

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
    """Before opset 19: (x - zero point) * scale, per element along an axis or per tensor."""

    def _run(
        self, x: NDArray, scale: NDArray, zero: NDArray | None = None, axis: int = 1, **_: Any
    ) -> Results:
        def along(a: NDArray) -> NDArray:
            if a.size == 1:
                return a.reshape(())
            return a.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])

        steps = x.astype(np.int64) - (0 if zero is None else along(zero.astype(np.int64)))
        return ((steps.astype(np.float32) * along(scale)).astype(scale.dtype),)


class MaxRoiPool(OpRun):
    """Return the maximum of each cell of each region; 0 for empty cells."""

    def _run(
        self, x: NDArray, rois: NDArray, pooled_shape: Sequence[int], spatial_scale: float = 1.0
    ) -> Results:
        out = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
        scaled = rois[:, 1:].astype(np.float32) * np.float32(spatial_scale)
        ends = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int64)
        for found, image, (left, top, right, bottom) in zip(
            out, x[rois[:, 0].astype(np.int64)], ends.tolist(), strict=True
        ):
            lines = _cells(top, bottom, pooled_shape[0], x.shape[2])
            columns = _cells(left, right, pooled_shape[1], x.shape[3])
            for i, line in enumerate(lines):
                for j, column in enumerate(columns):
                    cell = image[:, line, column]
                    if cell.size:
                        found[:, i, j] = cell.max((1, 2))
        return (out,)


def _cells(start: int, end: int, count: int, size: int) -> list[slice]:
    """Return the cells of a region along one axis, clipped to the image."""
    step = np.float32(max(end - start + 1, 1)) / np.float32(count)
    lows = [int(np.floor(np.float32(i) * step)) + start for i in range(count)]
    highs = [int(np.ceil(np.float32(i + 1) * step)) + start for i in range(count)]
    clip = partial(np.clip, a_min=0, a_max=size)
    return [slice(int(clip(low)), int(clip(high))) for low, high in zip(lows, highs, strict=True)]


class Scatter(OpRun):
    """ScatterElements under its name before opset 11."""

    def _run(
        self, data: NDArray, indices: NDArray, updates: NDArray, axis: int | None = 0
    ) -> Results:
        from onnx.reference.ops.op_scatter_elements import scatter_elements  # imports all ops

        found = scatter_elements(data, indices, updates, axis=axis or 0)  # type: ignore[no-untyped-call]
        return (np.asarray(found),)


class Shape(OpRun):
    """Return the sizes of some axes; a start or end before the first axis is clipped to it."""

    def _run(self, x: NDArray, start: int = 0, end: int | None = None) -> Results:
        rank = np.ndim(x)
        first, last = (
            min(max(at + rank if at < 0 else at, 0), rank)
            for at in (start or 0, rank if end is None else end)
        )
        return (np.array(np.shape(x)[first:last], np.int64),)


class Unique(OpRun):
    """Return unique elements, or slices along an axis; sorted, or in order of first occurrence."""

    def _run(self, x: NDArray, axis: int | None = None, sorted: int | None = 1) -> Results:
        text = x.dtype.kind in "OUS"
        values = x.astype(str) if text else x
        y, first, inverse, counts = np.unique(values, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not sorted:
            order = np.argsort(first)
            y, first, counts = np.take(y, order, axis or 0), first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        places = (a.astype(np.int64) for a in (first, inverse, counts))
        return (y.astype(object) if text else y, *places)[: len(self.onnx_node.output)]


class Unsqueeze(OpRun):
    """Before opset 13: insert axes of size 1 in ascending order."""

    def _run(self, data: NDArray, axes: Sequence[int]) -> Results:
        for axis in sorted(axis + (data.ndim + len(axes)) * (axis < 0) for axis in axes):
            data = np.expand_dims(data, axis)
        return (data,)


_EVER = 1 << 31
_MENDED: tuple[tuple[int, int, type[OpRun]], ...] = (
    (7, 13, BatchNormalization),
    (1, 12, Softmax),
    (1, 12, LogSoftmax),
    (1, 12, Hardmax),
    (1, _EVER, GlobalMaxPool),
    (1, _EVER, LRN),
    (10, 18, DequantizeLinear),
    (1, 12, Unsqueeze),
    *((1, _EVER, op) for op in (MaxRoiPool, Scatter, Shape, Unique)),
    *((1, _EVER, op) for op in (*TEXTS, *CLASSICAL)),
)
"""First and last opset of each reimplemented op."""


def mended_names() -> frozenset[str]:
    """Return the names of the reimplemented ONNX ops."""
    return frozenset(op.__name__ for _, _, op in _MENDED if op.op_domain != "vksched")
