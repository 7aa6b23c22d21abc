"""Oracles of ops on codes of 8 bits: the onnx package's reference evaluator, on codes taken out of
words one by one.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle


def _onnx(op: str, inputs: list[NDArray], result: int, **attrs: object) -> NDArray:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attrs)
    operands = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    built = [helper.make_tensor_value_info("y", result, None)]
    graph = helper.make_graph([node], "oracle", operands, built)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (out,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(out)


def _code(words: NDArray, row: int, column: int) -> int:
    word = int(words[column // 16, 1 + row // 4, column % 16])
    byte = word >> 8 * (row % 4) & 255
    return byte - 256 if byte > 127 else byte


def _matrix(words: NDArray, k: int, n: int) -> NDArray:
    built = [_code(words, row, column) for row in range(k) for column in range(n)]
    return np.array(built, np.int8).reshape(k, n)


def _wrapped(x: NDArray) -> NDArray:
    return x.astype(np.int64).astype(np.int32)


def _narrow(x: NDArray, signed: bool) -> NDArray:
    return x.astype(np.int8 if signed else np.uint8)


def matmul_integer(case: OpSample) -> NDArray:
    """Zero points are subtracted by hand, as ONNX has those of b in b's own type."""
    a, words, a_zero, b_zero = case.inputs
    k, n = a.shape[-1], case.attrs["columns"]
    shape = (*a.shape[:-1], n)
    if 0 in (*shape, k):
        return np.zeros(shape, np.int32)
    int8_values = _narrow(a, case.attrs["signed"]).reshape(-1, *a.shape[-2:])
    own = words.reshape(-1, *words.shape[-3:])
    out = []
    for at, left in enumerate(int8_values):
        right = _matrix(own[at % len(own)], k, n)
        plain = _onnx("MatMulInteger", [left, right], TensorProto.INT32).astype(np.int64)
        wide = left.astype(np.int64) - a_zero.item()
        by_columns = right.astype(np.int64).sum(0) * a_zero.item()
        out.append(plain - by_columns - wide.sum(1)[:, None] * b_zero.reshape(-1).astype(np.int64))
    return _wrapped(np.array(out)).reshape(shape)


def conv_integer(case: OpSample) -> NDArray:
    """By the onnx package's convolution of float64, which holds these sums exactly."""
    x, words, x_zero, w_zero = case.inputs
    attrs = case.attrs
    outputs, kernel, channels = attrs["channels"], attrs["kernel"], x.shape[1]
    fours = -(-channels // 4) * 4
    matrix = _matrix(words, fours * int(np.prod(kernel)), outputs)
    w = np.empty((outputs, channels, *kernel))
    for tap, at in enumerate(np.ndindex(*kernel)):
        w[(slice(None), slice(None), *at)] = matrix[tap * fours :][:channels].T
    w -= w_zero.reshape(-1, 1, *(1,) * len(kernel))
    values = _narrow(x, attrs["signed"]).astype(np.float64) - x_zero.item()
    if 0 in x.shape:
        return np.zeros(case.result_type().shape, np.int32)
    built = _onnx(
        "Conv",
        [values, w],
        TensorProto.DOUBLE,
        pads=[*attrs["begin"], *attrs["end"]],
        strides=attrs["stride"],
        dilations=attrs["dilation"],
    )
    return _wrapped(built)


def prepack_int8(case: OpSample) -> NDArray:
    (x,) = case.inputs
    *batch, k, n = x.shape
    tiles, depth = -(-n // 16), -(-k // 4)
    out = np.zeros((*batch, tiles, 1 + depth, 16), np.int64)
    for at in np.ndindex(*x.shape):
        *matrix, row, column = at
        code = int(x[at]) if case.attrs["signed"] else int(x[at]) - 128
        place = (*matrix, column // 16)
        out[(*place, 1 + row // 4, column % 16)] += (code % 256) << 8 * (row % 4)
        out[(*place, 0, column % 16)] += code
    return (out % 2**32).astype(np.uint32)


def _along(part: NDArray, rank: int, axis: int) -> NDArray:
    return part.reshape([-1 if a == axis else 1 for a in range(rank)] if part.size > 1 else ())


def quantize_linear(case: OpSample) -> NDArray:
    """In float64, with the quotient rounded to float32 as ONNX has it."""
    x, scale, zero = case.inputs
    axis = case.attrs["axis"]
    wide = x.astype(np.float64) / _along(scale, x.ndim, axis)
    return _clipped(wide, _along(zero, x.ndim, axis), case)


def requantize(case: OpSample) -> NDArray:
    x, scale, bias = case.inputs
    axis = case.attrs["axis"]
    sums = _wrapped(x.astype(np.int64) + _along(bias, x.ndim, axis)).astype(np.float32)
    wide = sums.astype(np.float64) * _along(scale, x.ndim, axis)
    return _clipped(wide, np.asarray(case.attrs["zero"]), case)


def _clipped(wide: NDArray, zero: NDArray, case: OpSample) -> NDArray:
    low, high = case.attrs["low"], case.attrs["high"]
    out = np.empty(wide.shape, np.int32)
    zeros = np.broadcast_to(zero, wide.shape)
    for at in np.ndindex(*wide.shape):
        value = float(np.float32(wide[at]))
        if value != value:
            out[at] = low
        else:
            out[at] = min(max(round(min(max(value, -1e9), 1e9)) + int(zeros[at]), low), high)
    return out


ORACLES: dict[str, Oracle] = {
    "matmul_integer": matmul_integer,
    "conv_integer": conv_integer,
    "prepack_int8": prepack_int8,
    "quantize_linear": quantize_linear,
    "requantize": requantize,
}
