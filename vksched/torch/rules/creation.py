"""Rules for constants and random numbers.

Random numbers depend on a seed that each run draws from PyTorch's default generator, so
`torch.manual_seed` makes them reproducible. They are not the numbers of PyTorch's own kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.dtypes import numpy_dtype
from ...ir.tensor import Tensor, constant
from ...ops import arange as vs_arange
from ...ops import bernoulli as vs_bernoulli
from ...ops import eye as vs_eye
from ...ops import full as vs_full
from ...ops import random_integers, random_normal, random_uniform, where
from .registry import Call, operand, rule

Ints = Sequence[int]
FOLDED_ELEMENTS = 1 << 12
"""Ranges up to this size are constants, which can be folded."""


@rule("full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
def full(call: Call, *args: Any, dtype: str | None = None) -> Tensor:
    shape: Ints = ()
    if call.op.endswith("full_like.default"):
        shape = args[0].shape
    elif len(args) > 1:
        shape = args[-2]
    return vs_full(tuple(shape), operand_value(args[-1], call.dtype), call.dtype)


def operand_value(value: Any, dtype: str) -> Any:
    """Return a number rounded to an element type."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(numpy_dtype(dtype)).item()


@rule("empty.memory_format", "empty_strided.default", "empty_like.default", "new_empty.default")
@rule("zeros.default", "zeros_like.default", "empty_permuted.default", "new_zeros.default")
def zeros(call: Call, *args: Any, dtype: str | None = None) -> Tensor:
    shape = args[0].shape if isinstance(args[0], Tensor) else args[0]
    if "new_" in call.op:
        shape = args[1]
    return vs_full(tuple(shape), operand_value(0, call.dtype), call.dtype)


@rule("ones.default", "ones_like.default")
def ones(call: Call, *args: Any, dtype: str | None = None) -> Tensor:
    shape = args[0].shape if isinstance(args[0], Tensor) else args[0]
    return vs_full(tuple(shape), operand_value(1, call.dtype), call.dtype)


@rule("eye.default", "eye.m")
def eye(call: Call, rows: int, columns: int | None = None, dtype: str | None = None) -> Tensor:
    return operand(vs_eye(rows, columns, 0, "float32"), call.dtype)


@rule("arange.start_step")
def arange(
    call: Call, start: float, end: float, step: float = 1, dtype: str | None = None
) -> Tensor:
    count = max(0, int(np.ceil((end - start) / step)))
    return _range(count, start, step, call.dtype)


@rule("prims::iota.default")
def iota(
    call: Call,
    length: int,
    start: int,
    step: int,
    dtype: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return _range(length, start, step, call.dtype)


def _range(count: int, start: float, step: float, dtype: str) -> Tensor:
    if count <= FOLDED_ELEMENTS:
        return constant((start + np.arange(count) * step).astype(numpy_dtype(dtype)))
    return vs_arange(start, start + count * step, step, dtype)


# -- random numbers -------------------------------------------------------------------------------


@rule("native_dropout.default")
def native_dropout(
    call: Call, x: Tensor, p: float, train: bool | None = None
) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x, vs_full(x.shape, True, "bool")
    if p == 1:
        return vs_full(x.shape, 0, x.dtype), vs_full(x.shape, False, "bool")
    seed, stream = call.random()
    keep = vs_bernoulli(x.shape, 1 - p, seed=seed, stream=stream)
    return where(keep, x * operand(1 / (1 - p), x.dtype), operand(0, x.dtype)), keep


@rule("bernoulli.p")
def bernoulli(call: Call, x: Tensor, p: float = 0.5) -> Tensor:
    seed, stream = call.random()
    return operand(vs_bernoulli(x.shape, p, seed=seed, stream=stream), call.dtype)


@rule("rand.default", "rand_like.default")
def rand(call: Call, shape: Any, dtype: str | None = None) -> Tensor:
    seed, stream = call.random()
    size = shape.shape if isinstance(shape, Tensor) else tuple(shape)
    return random_uniform(size, seed=seed, stream=stream, dtype=call.dtype)


@rule("randn.default", "randn_like.default")
def randn(call: Call, shape: Any, dtype: str | None = None) -> Tensor:
    seed, stream = call.random()
    size = shape.shape if isinstance(shape, Tensor) else tuple(shape)
    return random_normal(size, seed=seed, stream=stream, dtype=call.dtype)


@rule("randint.low")
def randint(call: Call, low: int, high: int, shape: Ints, dtype: str | None = None) -> Tensor:
    seed, stream = call.random()
    out = random_integers(tuple(shape), low, high, seed=seed, stream=stream)
    return operand(out, call.dtype)


@rule("randint.default")
def randint_from_0(call: Call, high: int, shape: Ints, dtype: str | None = None) -> Tensor:
    return randint(call, 0, high, shape)
