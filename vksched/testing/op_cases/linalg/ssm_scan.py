"""Samples of selective state spaces: rates per state and per head, groups, blocks of channels and
of states, several dispatches, no time steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats

Sizes = tuple[int, int, int, int, int, int]
"""batch, time, heads, head_dim, groups, d_state"""


def operands(sizes: Sizes, per_head: bool = False) -> dict[str, NDArray]:
    """Return the operands by name; the time steps are positive and the rates negative."""
    batch, time, heads, head_dim, groups, d_state = sizes
    of_groups = (batch, time, groups, d_state)
    return {
        "x": floats(batch, time, heads, head_dim, seed=1),
        "dt": np.exp(floats(batch, time, heads, seed=2) - 1),
        "a": -np.exp(floats(heads, 1 if per_head else d_state, seed=3)),
        "b": floats(*of_groups, seed=4),
        "c": floats(*of_groups, seed=5),
        "state": floats(batch, d_state, heads, head_dim, seed=6),
    }


def scan(sizes: Sizes, per_head: bool = False, label: str = "") -> OpSample:
    """Return a call of the op."""
    arrays = tuple(operands(sizes, per_head).values())
    return OpSample("ssm_scan", arrays, {}, label, nmse=1e-9)


def _with_idle_steps(sizes: Sizes, per_head: bool) -> OpSample:
    """Return a call in which every other time step has dt = 0."""
    arrays = operands(sizes, per_head)
    arrays["dt"][:, 1::2] = 0
    return OpSample("ssm_scan", tuple(arrays.values()), {}, "idle steps", nmse=1e-9)


CASES = [
    scan((1, 1, 1, 1, 1, 1)),
    scan((1, 7, 37, 1, 1, 16)),  # Mamba 1
    scan((2, 5, 71, 1, 1, 3)),
    scan((1, 6, 4, 17, 2, 8), per_head=True),  # Mamba 2
    scan((2, 3, 6, 5, 3, 19), per_head=True),
    scan((1, 3, 2, 64, 1, 128), per_head=True),
    scan((2, 1, 4, 33, 4, 5), per_head=True),
    scan((1, 4, 6, 7, 2, 11), label="rates per state"),
    scan((2, 0, 3, 4, 1, 5)),
    scan((0, 3, 3, 4, 1, 5), per_head=True),
    scan((1, 3, 2, 0, 1, 5)),
    _with_idle_steps((1, 6, 4, 3, 1, 9), True),
    scan((1, 1300, 2, 20, 1, 17), per_head=True, label="long"),
]
FUNCTIONS = [
    FunctionSample("ssm_scan", ops.ssm_scan, tuple(operands(sizes, per_head).values()), nmse=1e-9)
    for sizes, per_head in (((2, 4, 6, 3, 2, 5), True), ((1, 5, 9, 1, 1, 4), False))
]


def _call(**changes: NDArray) -> tuple[Tensor, Tensor]:
    """Return a call with replaced operands."""
    arrays: dict[str, Any] = operands((2, 3, 4, 5, 2, 6)) | changes
    return ops.ssm_scan(*(input(n, x.shape, x.dtype.name) for n, x in arrays.items()))


_REFUSED: list[tuple[str, type[Exception], dict[str, NDArray]]] = [
    (r"x \(batch, time, heads, head_dim\)", ShapeError, {"x": floats(3, 4, 5)}),
    (r"b \(batch, time, groups, ", ShapeError, {"b": floats(3, 4, 5)}),
    ("groups that divide 4 heads", ShapeError, {"b": floats(2, 3, 3, 6)}),
    ("b of 1 or more states", ShapeError, {"b": floats(2, 3, 2, 0)}),
    ("dt of shape", ShapeError, {"dt": floats(2, 3, 5)}),
    (r"a of shape \(4, 6\) or \(4, 1\)", ShapeError, {"a": floats(4, 2)}),
    ("b of shape", ShapeError, {"b": floats(2, 4, 2, 6)}),
    ("c of shape", ShapeError, {"c": floats(2, 3, 2, 5)}),
    ("state of shape", ShapeError, {"state": floats(2, 4, 5, 6)}),
    ("dt of float32, got int32", DTypeError, {"dt": np.zeros((2, 3, 4), np.int32)}),
]
ERRORS = [
    ErrorSample(partial(_call, **changes), error, match) for match, error, changes in _REFUSED
]
