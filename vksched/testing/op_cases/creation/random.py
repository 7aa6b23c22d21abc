"""Samples of random values: bits equal to numpy's everywhere, for every seed and size."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import input
from ....ops.creation.random import normal_pieces
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats, fp16_array

SEED = np.asarray([20240229, -7], np.int32)
SEEDS = [
    np.asarray(0, np.int32),
    np.asarray(-1, np.int32),
    np.asarray([5], np.int32),
    np.asarray([0, 0], np.int32),
    np.asarray([-1, 2**31 - 1], np.int32),
]
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (4,), (5,), (71, 73), (2, 1, 3, 2, 1, 2, 3, 2)]
SHAPES += [(0,), (3, 0)]


def drawn(
    op: str, seed: NDArray = SEED, shape: tuple[int, ...] = (1009,), **attrs: AttrValue
) -> OpSample:
    """Return a call, named after its arguments."""
    defaults: dict[str, dict[str, AttrValue]] = {
        "random_uniform": {"start": 0.0, "scale": 1.0},
        "random_normal": {"mean": 0.0, "deviation": 1.0},
        "random_integers": {"start": -5, "scale": 11},
        "bernoulli": {"start": 0, "scale": 1 << 23},
    }
    dtypes = {"random_integers": "int32", "bernoulli": "bool"}
    dtype = dtypes.get(op, "float32")
    all_attrs = {"shape": shape, "stream": 0, "dtype": dtype, **defaults[op], **attrs}
    inputs = (seed, normal_pieces()) if op == "random_normal" else (seed,)
    changed = ",".join(f"{k}{v}" for k, v in attrs.items())
    words = ".".join(str(v) for v in seed.reshape(-1))
    sides = "x".join(map(str, shape))
    return OpSample(op, inputs, all_attrs, f"{words} {sides} {changed}", exact=True)


OPS = ("random_uniform", "random_normal", "random_integers", "bernoulli")
CASES: list[OpSample] = [
    *(drawn(op, shape=shape) for op in OPS for shape in SHAPES),
    *(drawn(op, seed) for op in OPS for seed in SEEDS),
    *(drawn(op, stream=stream) for op in OPS for stream in (1, 2**32, 2**64 - 1)),
    *(
        drawn("random_uniform", start=start, scale=scale)
        for start, scale in ((-1.0, 2.0), (0.25, 0.125), (1e30, 1e31), (5.0, 0.0), (3.0, -2.0))
    ),
    *(
        drawn("random_normal", mean=mean, deviation=deviation)
        for mean, deviation in ((3.0, 0.5), (-1e10, 1e20), (7.0, 0.0))
    ),
    *(
        drawn("random_integers", start=start, scale=scale)
        for start, scale in ((0, 1), (-(2**31), 2**32), (-3, 7), (2**31 - 2, 2), (0, 2**31))
    ),
    *(drawn(op, dtype="float16") for op in ("random_uniform", "random_normal")),
    *(drawn("bernoulli", scale=scale) for scale in (0, 1 << 24, 3 << 20)),
]

_X = floats(31, 37)
FUNCTIONS = [
    FunctionSample("dropout", lambda x: ops.dropout(x, 0.25, seed=7), (_X,), "7"),
    FunctionSample("dropout", lambda x: ops.dropout(x, 0.0, seed=9), (_X,), "9"),
    FunctionSample(
        "dropout",
        lambda x, seed: ops.dropout(x, 0.9, seed=seed, stream=3),
        (_X, np.asarray(-3, np.int32)),
        "tensor",
    ),
    FunctionSample(
        "dropout",
        lambda x: ops.dropout(x, 0.999985, seed=13),
        (fp16_array(31, 37, scale=1e-4),),
        "13",
    ),
    FunctionSample("random_bits", lambda: ops.random_bits((5, 7), seed=11, stream=2), ()),
    FunctionSample(
        "random_integers", lambda: ops.random_integers((5, 7), -3, 4, seed=-(2**40)), (), "int"
    ),
]

_UNSEEDED: Any = ops.bernoulli
_S = input("seed", (), "int32")
ERRORS: list[ErrorSample] = [
    ErrorSample(lambda: _UNSEEDED((2,)), TypeError, "keyword-only argument: 'seed'"),
    ErrorSample(lambda: ops.random_uniform((2,), seed=0.5), DTypeError, "integer as seed"),  # type: ignore[arg-type]
    ErrorSample(lambda: ops.random_uniform((2,), seed=2**64), ShapeError, "expected seed in"),
    ErrorSample(lambda: ops.random_uniform((2,), seed=_S, stream=-1), ShapeError, "stream in"),
    ErrorSample(lambda: ops.random_uniform((2,), seed=input("seed", ())), DTypeError, "int32 seed"),
    ErrorSample(
        lambda: ops.random_normal((2,), seed=input("seed", (3,), "int32")),
        ShapeError,
        "one or two elements",
    ),
    ErrorSample(
        lambda: ops.random_uniform((2,), seed=1, dtype="float64"),
        DTypeError,
        "float32 or float16",
    ),
    ErrorSample(lambda: ops.random_uniform((2,), high=1e39, seed=1), ShapeError, "finite float32"),
    ErrorSample(lambda: ops.random_normal((2,), std=-1.0, seed=1), ShapeError, "std of 0 or more"),
    ErrorSample(lambda: ops.random_normal((-2,), seed=1), ShapeError, "0 or more"),
    ErrorSample(lambda: ops.random_integers((2,), 5, 5, seed=1), ShapeError, "expected high in 6"),
    ErrorSample(lambda: ops.random_integers((2,), 2**31, 5, seed=1), ShapeError, "expected low in"),
    ErrorSample(lambda: ops.bernoulli((2,), 1.5, seed=1), ShapeError, "probability in 0..1"),
    ErrorSample(lambda: ops.dropout(_X, 1.0, seed=1), ShapeError, "below 1"),
    ErrorSample(
        lambda: ops.dropout(input("x", (3,), "int32"), seed=1), DTypeError, "expected floats"
    ),
]
