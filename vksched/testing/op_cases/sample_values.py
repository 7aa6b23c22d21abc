"""Sample values of elementwise ops: ordinary ones within each op's domain, and edge values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...common.dtypes import NDArray
from ...ir.tensor import input
from .op_sample import ErrorSample, bools, floats, ints

MANY = 5003
"""A prime, and more than one workgroup."""
LEAST, MOST = -(2**31), 2**31 - 1
INF, NAN = np.inf, np.nan

EXACT = {"relu", "neg", "abs", "sqrt", "rsqrt", "add", "sub", "mul", "div", "maximum", "minimum"}
"""Float ops that drivers compute within a few units in the last place."""
BITS = {
    *("ceil", "floor", "trunc", "round", "sign", "copysign", "nextafter", "square", "clip"),
    *("remainder", "fmod", "thresholded_relu", "reduce_precision"),
}
"""Float ops with bit-exact results."""
LOOSE = 1e-10
"""Tolerance of ops on exp and log, for which Vulkan allows errors of tens of units in the last
place.
"""
LOOSER = 1e-8
"""Tolerance of pow, and of gelu far from 0: Vulkan's error bound of exp grows with its argument."""


def f32(*values: float) -> NDArray:
    return np.asarray(values, np.float32)


def i32(*values: int) -> NDArray:
    return np.asarray(values, np.int32)


def u32(*values: int) -> NDArray:
    return np.asarray(values, np.uint32)


SPECIAL = f32(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 0.4999, -0.5001, NAN, INF, -INF)
INT_EDGES = i32(0, 1, -1, 2, -2, LEAST, LEAST + 1, MOST, MOST - 1, 65536, -65536)
UINT_EDGES = u32(0, 1, 2, 3, 31, 32, 65536, MOST, MOST + 1, 2**32 - 2, 2**32 - 1)
EDGES = {
    "float32": SPECIAL,
    "int32": INT_EDGES,
    "uint32": UINT_EDGES,
    "bool": np.asarray([False, True]),
}
_GRID = f32(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, INF, -INF, NAN)
_WIDE = np.concatenate([_GRID, f32(3e38, -3e38, 1e-30, -1e-30, 1.0000001)])
_WIDELY = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "nextafter"}


def sample(dtype: str, *shape: int, seed: int = 0) -> NDArray:
    """Return ordinary values of a type."""
    if dtype == "float32":
        return floats(*shape, seed=seed, scale=2.0)
    if dtype == "uint32":
        return ints(*shape, seed=seed, low=0, high=200).astype(np.uint32)
    return ints(*shape, seed=seed) if dtype == "int32" else bools(*shape, seed=seed)


def tolerance(op: str) -> float:
    return 0.0 if op in BITS else 1e-12 if op in EXACT else LOOSER if op == "pow" else LOOSE


def _positive(x: NDArray) -> NDArray:
    return np.asarray(np.abs(x) + np.float32(0.1))


_DOMAINS: dict[str, Callable[[NDArray], NDArray]] = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10"), _positive),
    **dict.fromkeys(("asin", "acos", "atanh"), lambda x: np.tanh(x * np.float32(0.9))),
    "reciprocal": lambda x: np.copysign(_positive(x), x),
    "acosh": lambda x: np.abs(x) + np.float32(1),
    "log1p": lambda x: np.abs(x) - np.float32(0.9),
}


def unary_sample(op: str, dtype: str, *shape: int) -> NDArray:
    """Return values in the op's domain: sqrt, rsqrt and log get values of at least 0.1."""
    x = sample(dtype, *shape)
    return np.asarray(_DOMAINS[op](x)) if op in _DOMAINS else x


def binary_sample(op: str, dtype: str, *shape: int, seed: int = 0) -> NDArray:
    """Return values in the op's domain: a float pow gets a positive base, an int pow a small
    exponent.
    """
    x = sample(dtype, *shape, seed=seed)
    if op == "pow" and dtype == "float32":
        return _positive(x) if seed == 0 else x
    if op == "pow":
        return np.asarray(x % 13 if dtype == "uint32" else x % 13 - 3, x.dtype)
    if op.endswith("shift") and seed:
        return np.asarray(x % 37, x.dtype)
    return np.abs(x) if op == "logaddexp" else x  # its result may cancel otherwise


def grid(op: str, dtype: str) -> tuple[NDArray, NDArray]:
    """Return all pairs of edge values."""
    edges = EDGES[dtype]
    if dtype == "float32":
        edges = _WIDE if op in _WIDELY else _GRID
    elif dtype == "int32":
        edges = np.concatenate([edges, i32(3, -7, 31, 46341)])
    return np.repeat(edges, len(edges)), np.tile(edges, len(edges))


def refused(
    op: str, error: type[Exception], match: str, *types: tuple[str, tuple[int, ...]], **more: Any
) -> ErrorSample:
    """Return a refused call of ops.<op> on inputs of these types."""

    def build() -> object:
        args = [input(f"x{i}", shape, dtype) for i, (dtype, shape) in enumerate(types)]
        return getattr(ops, op)(*args, **more)

    return ErrorSample(build, error, match)


F, I, U, B = (  # noqa: E741 - the four element types
    ("float32", (2, 3)),
    ("int32", (2, 3)),
    ("uint32", (2, 3)),
    ("bool", (2, 3)),
)
