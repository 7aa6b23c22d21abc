"""First values of parameters: random, yet the same on every machine.

The values of a parameter depend on the seed and on its name, and on nothing else: not on the device
and not on what was made before. They come from the counter-based generator of the random ops
(ops/creation/random.py), computed by numpy.

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
    """Normally distributed float32 values. name: of the parameter; another one has other values."""
    return _values(random_normal(shape, mean, std, seed=seed, stream=_stream(name)))


def uniform(
    shape: Sizes, low: float = -1.0, high: float = 1.0, *, name: str, seed: int = 0
) -> NDArray:
    """Uniform float32 values in low..high. name: of the parameter; another one has other values."""
    return _values(random_uniform(shape, low, high, seed=seed, stream=_stream(name)))


def glorot_uniform(
    shape: Sizes,
    gain: float = 1.0,
    *,
    name: str,
    seed: int = 0,
    fans: tuple[int, int] | None = None,
) -> NDArray:
    """Uniform values in -a..a with a = gain sqrt(6 / (fan in + fan out)), as
    torch.nn.init.xavier_uniform_. fans: as in `kaiming_normal`.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
    networks, AISTATS 2010.
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
    """Normal values with a deviation of gain / sqrt(fan in), as torch.nn.init.kaiming_normal_; the
    gain is that of relu unless another is given.

    fans: how many values go into each result and out of each operand. Weights of vs.linear and of
        convolutions, (out, in, kernel ...), tell it; for w in x @ w give its (rows, columns).

    Source: He, Zhang, Ren and Sun, Delving deep into rectifiers, ICCV 2015.
    """
    into, _ = fans_of("kaiming_normal", shape, fans)
    std = as_float("kaiming_normal", "gain", gain) / math.sqrt(into)
    return normal(shape, std, name=name, seed=seed)


def fans_of(op: str, shape: Sizes, given: Sequence[int] | None = None) -> tuple[int, int]:
    """Return fan in and fan out, as given or those of a weight (out, in, kernel ...).

    Raises:
        ShapeError: the shape does not tell them, or those given are not two of 1 or more.
    """
    if given is not None:
        fans = as_shape(given)
        if len(fans) != 2 or 0 in fans:
            raise ShapeError(f"[{op}] expected fans as two numbers of 1 or more, got {given!r}")
        return fans[0], fans[1]
    sizes = as_shape(shape)
    if len(sizes) < 2 or 0 in sizes:
        raise ShapeError(f"[{op}] expected a weight (out, in, kernel ...), got {sizes}; try fans=")
    window = math.prod(sizes[2:])
    return sizes[1] * window, sizes[0] * window


def _stream(name: str) -> int:
    """Return the number of a parameter's stream of random values, one of 2^63."""
    if not isinstance(name, str) or not name:
        raise ShapeError(f"[init] expected the parameter's name, got {name!r}")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def _values(drawn: Tensor) -> NDArray:
    operands = tuple(np.asarray(t.data) for t in drawn.inputs)
    return np.asarray(compute(get_op(drawn.op), operands, drawn.attrs))


__all__ = ["glorot_uniform", "kaiming_normal", "normal", "uniform"]
