"""Initializers: random initial values of parameters that are equal on every machine.

The values of a parameter depend only on the seed and its name, not on the device or on other
parameters. They come from the counter-based generator of the random ops (ops/creation/random.py),
computed by numpy.

    w = vs.state(vs.init.kaiming_normal((64, 128), name="w", seed=1), "w")
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from ..common.dtypes import NDArray, as_float, as_shape
from ..common.errors import ShapeError
from ..ir.evaluate import compute
from ..ir.op import get_op
from ..ir.tensor import Tensor
from ..ops.creation.random import random_normal, random_uniform

Sizes = int | Sequence[int]


def normal(
    shape: Sizes, std: float = 1.0, mean: float = 0.0, *, name: str, seed: int = 0
) -> NDArray:
    """Return normally distributed float32 values.

    Parameters
    ----------
    shape
        The shape of the parameter.
    std, mean
        The standard deviation and the mean.
    name
        The name of the parameter, which selects its values.
    seed
        The seed of all parameters.
    """
    return _values(random_normal(shape, mean, std, seed=seed, stream=_stream(name)))


def uniform(
    shape: Sizes, low: float = -1.0, high: float = 1.0, *, name: str, seed: int = 0
) -> NDArray:
    """Return uniformly distributed float32 values.

    Parameters
    ----------
    shape
        The shape of the parameter.
    low, high
        The bounds of the values.
    name
        The name of the parameter, which selects its values.
    seed
        The seed of all parameters.
    """
    return _values(random_uniform(shape, low, high, seed=seed, stream=_stream(name)))


def glorot_uniform(
    shape: Sizes,
    gain: float = 1.0,
    *,
    name: str,
    seed: int = 0,
    fans: tuple[int, int] | None = None,
) -> NDArray:
    """Return uniform values in -a..a with a = gain sqrt(6 / (fan in + fan out)), as
    torch.nn.init.xavier_uniform_.

    Parameters
    ----------
    shape
        The shape of the parameter.
    gain
        The gain of the nonlinearity.
    name
        The name of the parameter, which selects its values.
    seed
        The seed of all parameters.
    fans
        Fan in and fan out, as in `kaiming_normal`.

    References
    ----------
    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks,
    AISTATS 2010.
    """
    into, out_of = fans_of("glorot_uniform", shape, fans)
    end = as_float("glorot_uniform", "gain", gain) * math.sqrt(6.0 / (into + out_of))
    return uniform(shape, -end, end, name=name, seed=seed)


def kaiming_normal(
    shape: Sizes,
    gain: float = math.sqrt(2.0),
    *,
    name: str,
    seed: int = 0,
    fans: tuple[int, int] | None = None,
) -> NDArray:
    """Return normal values with a deviation of gain / sqrt(fan in), as
    torch.nn.init.kaiming_normal_.

    Parameters
    ----------
    shape
        The shape of the parameter.
    gain
        The gain of the nonlinearity, by default that of relu.
    name
        The name of the parameter, which selects its values.
    seed
        The seed of all parameters.
    fans
        Fan in and fan out. By default those of a weight of shape (out, in, kernel ...), as in
        vs.linear and convolutions; for w in x @ w pass its (rows, columns).

    References
    ----------
    He, Zhang, Ren and Sun, Delving deep into rectifiers, ICCV 2015.
    """
    into, _ = fans_of("kaiming_normal", shape, fans)
    std = as_float("kaiming_normal", "gain", gain) / math.sqrt(into)
    return normal(shape, std, name=name, seed=seed)


def fans_of(op: str, shape: Sizes, fans_arg: Sequence[int] | None = None) -> tuple[int, int]:
    """Return the given fan in and fan out, or those of a weight of shape (out, in, kernel ...).

    Raises
    ------
    ShapeError
        The shape does not determine them, or they are not two positive integers.
    """
    if fans_arg is not None:
        fans = as_shape(fans_arg)
        if len(fans) != 2 or 0 in fans:
            raise ShapeError(f"[{op}] expected fans as two numbers of 1 or more, got {fans_arg!r}")
        return fans[0], fans[1]
    sizes = as_shape(shape)
    if len(sizes) < 2 or 0 in sizes:
        raise ShapeError(f"[{op}] expected a weight (out, in, kernel ...), got {sizes}; try fans=")
    window = math.prod(sizes[2:])
    return sizes[1] * window, sizes[0] * window


def _stream(name: str) -> int:
    """Return the random stream of a parameter, one of 2^63."""
    if not isinstance(name, str) or not name:
        raise ShapeError(f"[init] expected the parameter's name, got {name!r}")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def _values(drawn: Tensor) -> NDArray:
    operands = tuple(np.asarray(t.data) for t in drawn.inputs)
    return np.asarray(compute(get_op(drawn.op), operands, drawn.attrs))


__all__ = ["glorot_uniform", "kaiming_normal", "normal", "uniform"]
