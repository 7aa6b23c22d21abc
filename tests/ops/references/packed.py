"""Oracle of weights of few bits: `gguf.quants`, which reads the blocks that words were made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.ops.quantized.gguf_formats import FORMATS
from vksched.testing.op_cases.linalg.quantized_linear import BLOCKS, words
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle, stored
from .epilogue import with_epilogue

special = pytest.importorskip("scipy.special")


def values(name: str, words: NDArray) -> NDArray:
    """The values of words that the case table made."""
    gguf = pytest.importorskip("gguf")
    built, kind = BLOCKS[name, words.tobytes()], gguf.GGMLQuantizationType(FORMATS[name].number)
    if not built.size:
        shape = gguf.quant_shape_from_byte_shape(built.shape, kind)
        return np.zeros((len(built), math.prod(shape[1:])), np.float32)
    with np.errstate(all="ignore"):
        numbers = gguf.quants.dequantize(built, kind)
    return np.asarray(numbers).reshape(len(built), -1)


def dequantize(case: OpSample) -> NDArray:
    (words,), columns = case.inputs, case.attrs["columns"]
    if not words.size:
        return np.zeros((*words.shape[:-1], columns), np.float32)
    rows = words.reshape(-1, words.shape[-1])
    return values(case.attrs["format"], rows).reshape(*words.shape[:-1], columns)


def quantized_linear(case: OpSample) -> NDArray:
    x, words, *bias = case.inputs
    weight = values(case.attrs["format"], words).astype(np.float64)
    built = np.einsum("...k,nk->...n", x.astype(np.float64), weight)
    return np.asarray(built + (bias[0] if bias else 0)).astype(np.float32)


RATES: dict[str, Callable[[NDArray], NDArray]] = {
    "silu": special.expit,
    "gelu": special.ndtr,
    "gelu_tanh": lambda x: special.expit(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)),
}
"""What an activation multiplies its operand by."""


def merged_linear(case: OpSample) -> NDArray:
    x, *rest = case.inputs
    built, gate = x.astype(np.float64), case.attrs["gate"]
    if case.attrs["normed"]:
        spread = np.sqrt(np.mean(built * built, -1, keepdims=True) + case.attrs["eps"])
        built = np.divide(built, spread, where=spread > 0, out=built * np.nan) * rest.pop(0)
    parts = [built @ values(case.attrs["format"], words).astype(np.float64).T for words in rest]
    if gate:
        parts = [parts[0] * RATES[gate](parts[0]) * parts[1]]
    if case.attrs.get("stacked"):
        parts = [part.reshape(-1) for part in parts]
    return stored(case, np.concatenate(parts, -1))


def merged_linear_rope(case: OpSample) -> NDArray:
    *own, cos, sin = case.inputs
    attrs = {**case.attrs, "gate": ""}
    built = merged_linear(replace(case, inputs=tuple(own), attrs=attrs)).astype(np.float64)
    size, dims = int(attrs["head_size"]), int(attrs["rotary_dim"])
    turns, rows = cos.astype(np.float64) + 1j * sin, len(cos)
    sizes = [len(words) for words in own[1 + bool(attrs["normed"]) :]]
    ends = [rows * sum(sizes[:count]) for count in range(1, len(sizes))]
    parts = np.split(built, ends) if attrs.get("stacked") else [built]
    products = [part.reshape(rows, -1) for part in parts]
    heads = [
        product[:, i : i + size] for product in products for i in range(0, product.shape[1], size)
    ]
    for head, row in np.ndindex(int(attrs["heads"]), rows):
        x = heads[head][row, :dims]
        pairs = x.reshape(-1, 2).T if attrs["interleaved"] else x.reshape(2, -1)
        rotated = (pairs[0] + 1j * pairs[1]) * turns[row].reshape(-1)
        both = np.stack([rotated.real, rotated.imag], -1 if attrs["interleaved"] else 0)
        x[:] = both.reshape(-1)
    if attrs.get("by_heads"):
        built = np.concatenate([head.reshape(-1) for head in heads])
    return built.astype(np.float32)


ORACLES: dict[str, Oracle] = {
    "dequantize": dequantize,
    "quantized_linear": with_epilogue(quantized_linear),
    "merged_linear": with_epilogue(merged_linear),
    "merged_linear_rope": merged_linear_rope,
}


def tied(case: FunctionSample) -> NDArray:
    (x,), name = case.inputs, case.name
    weight = values(name, words(name, 5, 512)).astype(np.float64)
    return np.asarray(x @ weight.T + weight.sum(-1)).astype(np.float32)


FUNCTION_ORACLES: dict[str, FunctionOracle] = {"quantized_weight": tied}
