"""Gradients against torch.autograd, where PyTorch is installed: what both take for the slope at
kinks and ties too, which differences cannot tell. But for clip at its ends: releases of PyTorch
differ there.

The table of tests/ops/test_torch.py, and rows of our own. On numpy, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.testing.numeric_gradient import evaluate

torch: Any = pytest.importorskip("torch")
from test_torch import RNNS, ROWS  # noqa: E402 - needs torch

Row = tuple[str, tuple[NDArray, ...], Callable[..., Any], Callable[..., Any]]
RNG = np.random.default_rng(21)


def values(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape))


A, B, ROW, COLUMN = values(4, 6), values(4, 6), values(6), values(4, 1)
POSITIVE, WITHIN = np.abs(A) + 0.1, np.tanh(A)
TIES = np.asarray([[0.0, 1.0, -2.0, 1.0], [3.0, 3.0, 3.0, -1.0], [0.0, 0.0, 0.5, 0.0]])
FAR = np.asarray([-800.0, -30.0, -1e-8, 0.0, 1e-8, 30.0, 800.0])
BATCH, SQUARES = values(2, 3, 4, 5), values(3, 5, 5)
PLACES = np.asarray([[0, 2, 1, 3], [3, 0, 0, 1]])


def unary(name: str, x: NDArray, theirs: str = "") -> Row:
    of = theirs or name
    function = getattr(torch, of, None) or getattr(torch.nn.functional, of)
    return name, (x,), getattr(vs, name), function


def binary(name: str, a: NDArray, b: NDArray, theirs: str = "") -> Row:
    return f"{name} {b.shape}", (a, b), getattr(vs, name), getattr(torch, theirs or name)


OWN: list[Row] = [
    *(unary(n, A) for n in ("exp", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "atan")),
    *(unary(n, A) for n in ("asinh", "erf", "sigmoid", "silu", "square", "reciprocal", "gelu")),
    *(unary(n, POSITIVE) for n in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")),
    *(unary(n, WITHIN) for n in ("asin", "acos", "atanh")),
    unary("acosh", POSITIVE + 1),
    *(unary(n, TIES) for n in ("abs", "relu", "softplus", "sigmoid")),
    *(unary(n, FAR) for n in ("sigmoid", "softplus", "tanh", "silu", "relu", "abs", "erf")),
    *(binary(n, A, b) for n in ("add", "sub", "mul", "div") for b in (B, ROW, COLUMN)),
    *(binary(n, A, b) for n in ("maximum", "minimum", "atan2", "hypot") for b in (B, ROW)),
    binary("logaddexp", A, COLUMN),
    binary("maximum", TIES, np.asarray(TIES[:1])),
    binary("minimum", TIES, np.asarray(TIES[:1])),
    binary("pow", POSITIVE, ROW),
    ("pow 2", (TIES,), lambda x: vs.pow(x, 2.0), lambda x: x**2),
    ("clip", (A,), lambda x: vs.clip(x, 0.0, 1.0), lambda x: x.clamp(0.0, 1.0)),
    ("leaky_relu", (TIES,), vs.leaky_relu, torch.nn.functional.leaky_relu),
    ("elu", (A,), vs.elu, torch.nn.functional.elu),
    (
        "where",
        (A, ROW),
        lambda a, b: vs.where(a > 0.3, a * a, b),
        lambda a, b: torch.where(a > 0.3, a * a, b),
    ),
    ("matmul", (BATCH, values(5, 7)), vs.matmul, torch.matmul),
    ("matmul batch", (values(3, 4, 5), SQUARES), vs.matmul, torch.matmul),
    ("matmul vector", (SQUARES, values(5)), vs.matmul, torch.matmul),
    (
        "einsum",
        (SQUARES, values(5, 4)),
        lambda a, b: vs.einsum("bij,jk->kb", a, b),
        lambda a, b: torch.einsum("bij,jk->kb", a, b),
    ),
    ("sum", (BATCH,), lambda x: vs.reduce_sum(x, (1, 3)), lambda x: x.sum((1, 3))),
    ("mean", (BATCH,), lambda x: vs.reduce_mean(x, 2), lambda x: x.mean(2)),
    ("max ties", (TIES,), lambda x: vs.reduce_max(x, 1), lambda x: x.amax(1)),
    ("min ties", (TIES,), lambda x: vs.reduce_min(x, 0), lambda x: x.amin(0)),
    ("prod zeros", (TIES[:2],), lambda x: vs.reduce_prod(x, 1), lambda x: x.prod(1)),
    ("logsumexp far", (FAR,), lambda x: vs.reduce_logsumexp(x, 0), lambda x: x.logsumexp(0)),
    ("softmax", (BATCH,), lambda x: vs.softmax(x, 2), lambda x: x.softmax(2)),
    ("cumprod", (A,), lambda x: vs.cumprod(x, 1), lambda x: x.cumprod(1)),
    ("sort", (A,), lambda x: vs.sort(x, 1), lambda x: x.sort(1)[0]),
    (
        "transpose",
        (BATCH,),
        lambda x: vs.transpose(x, (2, 0, 3, 1)),
        lambda x: x.permute(2, 0, 3, 1),
    ),
    ("flip", (A,), lambda x: vs.flip(x, 0), lambda x: x.flip(0)),
    ("roll", (A,), lambda x: vs.roll(x, 2, 1), lambda x: x.roll(2, 1)),
    ("tril", (SQUARES,), lambda x: vs.tril(x, -1), lambda x: x.tril(-1)),
    ("concat", (A, B), lambda a, b: vs.concat([a, b], 0), lambda a, b: torch.cat([a, b], 0)),
    ("slice", (BATCH,), lambda x: x[:, 1:, ::2], lambda x: x[:, 1:, ::2]),
    (
        "gather",
        (A,),
        lambda x: vs.gather_elements(x, PLACES, 0),
        lambda x: x.gather(0, torch.from_numpy(PLACES)),
    ),
    (
        "pad",
        (A,),
        lambda x: vs.pad(x, ((1, 2), (0, 3)), value=1.5),
        lambda x: torch.nn.functional.pad(x, (0, 3, 1, 2), value=1.5),
    ),
]
ALL = [*OWN, *((f"ops {row[0]}", *row[1:]) for row in ROWS if row[0] not in RNNS)]


@pytest.mark.parametrize("row", ALL, ids=[row[0] for row in ALL])
def test_gradients_equal_those_of_pytorch(row: Row) -> None:
    name, arrays, ours, theirs = row
    rtol = 1e-6 if name == "ops celu" else 1e-9  # theirs is off its own differences by 1e-8
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    inputs = [vs.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(wide)]
    smooth = [i for i, a in enumerate(wide) if a.dtype.kind == "f"]
    result = ours(*inputs)
    tensors = [torch.from_numpy(a.copy()).requires_grad_(i in smooth) for i, a in enumerate(wide)]
    expected = theirs(*tensors)
    c = np.random.default_rng(3).standard_normal(tuple(expected.shape))
    wanted = torch.autograd.grad(expected, [tensors[i] for i in smooth], torch.from_numpy(c))
    pulled = vs.vjp(result, c, {f"x{i}": inputs[i] for i in smooth})
    feeds = {f"x{i}": a for i, a in enumerate(wide)}
    got = evaluate(vs.build_graph(pulled)[0], feeds)
    for i, w in zip(smooth, wanted, strict=True):
        np.testing.assert_allclose(got[f"x{i}"], w.numpy(), rtol=rtol, atol=1e-2 * rtol)
