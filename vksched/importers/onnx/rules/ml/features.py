"""Rules for feature transforms of ai.onnx.ml: scale, normalize, impute, encode, select.

Ops on strings and maps run on the CPU: nodes/ai_onnx_ml.py. Examples:
tests/importers/test_onnx_classical.py.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from ..... import ops
from .....common.dtypes import FLOAT32, FLOAT64, FLOATS, INT64, NDArray, numpy_dtype
from .....ir.tensor import Tensor
from ...nodes.elements import storage
from ...nodes.node import NodeContext
from ...nodes.values import Value
from ..narrow_types import cast
from ..registry import rule
from .scores import ML, NUMERIC, rows_of

T = TensorProto


def _by_feature(n: NodeContext, values: NDArray) -> NDArray:
    """Broadcast one value per feature (axis 1), or one value for all, to the elements of operand
    0.
    """
    shape = n.shape(0)
    n.require(len(shape) > 0, "an operand without axes")
    features = shape[0] if len(shape) == 1 else shape[1]
    if values.size == features and len(shape) > 2:  # indexed by the flattened position within a row
        return np.resize(values, math.prod(shape)).reshape(shape)
    n.require(values.size in (1, features), f"{values.size} values for {features} features")
    return values


@rule("Scaler", domain=ML, types=NUMERIC)
def scaler(n: NodeContext) -> Value:
    """Return (x - offset) * scale."""
    x = n.tensor(0)
    offset, scale = (np.array(n.attr(name, ()), np.float32) for name in ("offset", "scale"))
    n.require(offset.size == scale.size, f"{offset.size} of offset and {scale.size} of scale")
    if x.dtype != FLOAT64:
        x = cast(x, FLOAT32)
    dtype = numpy_dtype(x.dtype)
    offset, scale = (_by_feature(n, a).astype(dtype) for a in (offset, scale))
    return Value(T.FLOAT, tensor=cast((x - offset) * scale, FLOAT32))


@rule("Normalizer", domain=ML, types=NUMERIC)
def normalizer(n: NodeContext) -> Value:
    """Divide rows by their maximum, L1 norm or L2 norm; rows with a norm of 0 do not change."""
    x, norm = cast(n.tensor(0), FLOAT32), n.attr("norm", "MAX")
    n.require(1 <= x.rank <= 2, f"an operand of {x.rank} axes")
    n.require(norm in ("MAX", "L1", "L2"), f"norm {norm!r}")
    if norm == "MAX":
        size = ops.reduce_max(x, -1, True)
        found = x / size
    elif norm == "L1":
        size = ops.reduce_sum(ops.abs(x), -1, True)
        found = x / size
    else:
        size = ops.reduce_sum(ops.square(x), -1, True)
        root = ops.sqrt(ops.square(x) / size)
        found = ops.where(ops.less(x, 0.0), ops.neg(root), root)
    return Value(T.FLOAT, tensor=ops.where(ops.equal(size, 0.0), x, found))


@rule("Binarizer", domain=ML, types=NUMERIC)
def binarizer(n: NodeContext) -> Value:
    """Return 1 above the threshold, else 0."""
    x, threshold = n.tensor(0), n.attr("threshold", 0.0)
    input_type = n.elem_type(0)
    if x.dtype not in FLOATS:
        x = cast(x, FLOAT64 if x.dtype == INT64 else FLOAT32)
    beyond = ops.greater(x, float(np.float32(threshold)))
    return Value(input_type, tensor=ops.cast(beyond, storage(input_type)))


@rule("Imputer", domain=ML, types=NUMERIC)
def imputer(n: NodeContext) -> Value:
    """Replace missing elements, which are marked by a value."""
    x, input_type = n.tensor(0), n.elem_type(0)
    is_float = x.dtype in FLOATS
    names = ("floats", "float") if is_float else ("int64s", "int64")
    values = np.array(n.attr(f"imputed_value_{names[0]}", ()), np.float32 if is_float else np.int64)
    missing = n.attr(f"replaced_value_{names[1]}", 0)
    n.require(values.size > 0, f"no imputed_value_{names[0]} for {n.elem_type(0)}")
    shape = n.shape(0)
    if values.size != (shape[0] if len(shape) == 1 else shape[1] if shape else 0):
        values = values[:1]
    values = _by_feature(n, values).astype(numpy_dtype(x.dtype))
    if is_float and math.isnan(missing):
        gaps = ops.isnan(x)
    else:
        gaps = ops.equal(x, numpy_dtype(x.dtype).type(missing))
    return Value(input_type, tensor=ops.where(gaps, values, x))


@rule("OneHotEncoder", domain=ML, types=NUMERIC)
def one_hot_encoder(n: NodeContext) -> Value:
    """One-hot encode categories along a new last axis."""
    n.require(bool(n.attr("zeros", 1)), "zeros 0, which forbids other categories")
    x = n.tensor(0)
    count = len(n.attr("cats_int64s", ()) or n.attr("cats_strings", ()))
    n.require(count > 0, "no categories")
    if x.dtype in FLOATS:
        x = ops.trunc(x)
    categories, is_known = np.zeros(count, np.int64), np.zeros(count, bool)
    for category, place in {c: i for i, c in enumerate(n.attr("cats_int64s", ()))}.items():
        categories[place], is_known[place] = category, True
    table = categories.astype(numpy_dtype(x.dtype))
    is_known &= table.astype(np.int64) == categories  # no element can equal the other categories
    hits = ops.equal(ops.unsqueeze(x, -1), table)
    return Value(T.FLOAT, tensor=ops.cast(ops.logical_and(hits, is_known), FLOAT32))


@rule("FeatureVectorizer", domain=ML, types=NUMERIC)
def feature_vectorizer(n: NodeContext) -> Tensor:
    """Concatenate all operands, each truncated or zero-padded to its declared size."""
    sizes = n.attr("inputdimensions", ())
    n.require(len(sizes) == len(n.inputs), f"{len(sizes)} inputdimensions")
    n.require(min(sizes) >= 0, f"inputdimensions {min(sizes)}")
    parts = []
    for i, size in enumerate(sizes):
        x = cast(n.tensor(i), FLOAT32)
        n.require(x.rank > 0, "an operand without axes")
        x = rows_of(n, i) if x.rank == 1 else ops.reshape(x, (x.shape[0], -1))
        x = cast(x, FLOAT32)
        if x.shape[1] > size:
            x = ops.slice(x, 0, size, 1)
        elif x.shape[1] < size:
            x = ops.concat([x, ops.zeros((x.shape[0], size - x.shape[1]))], 1)
        parts.append(x)
    n.require(len({p.shape[0] for p in parts}) == 1, "operands of different numbers of rows")
    return parts[0] if len(parts) == 1 else ops.concat(parts, 1)


@rule("ArrayFeatureExtractor", domain=ML, types=NUMERIC)
def array_feature_extractor(n: NodeContext) -> Value:
    """Select columns of the last axis; a one-dimensional input becomes a row."""
    x, at = n.tensor(0), n.tensor(1)
    n.require(x.rank > 0, "an operand without axes")
    found: Tensor = ops.gather(x, ops.reshape(at, (-1,)), x.rank - 1)
    return Value(n.elem_type(0), tensor=found if x.rank > 1 else ops.reshape(found, (1, -1)))
