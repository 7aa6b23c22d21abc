"""Samples of rearranging ops: roll and triangles as kernels, the rest as composed functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import ShapeError
from ....ir.tensor import input
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, ints
from .index import bad

Shape = tuple[int, ...]
_RANK8 = (2, 3, 2, 1, 2, 3, 2, 3)


def roll(x: NDArray, axes: Shape, shifts: Shape) -> OpSample:
    what = f"{x.dtype} {axes} by {shifts}".replace(" ", "")
    return OpSample("roll", (x,), {"axes": axes, "shifts": shifts}, what)


def triangle(op: str, x: NDArray, k: int) -> OpSample:
    return OpSample(op, (x,), {"k": k}, f"{x.dtype}{k}")


CASES: list[OpSample] = [
    roll(floats(), (), ()),
    roll(floats(1), (), ()),
    roll(floats(7), (0,), (3,)),
    roll(floats(5003), (0,), (5002,)),
    roll(floats(13, 7), (0,), (1,)),
    roll(floats(13, 7), (1,), (6,)),
    roll(floats(71, 73), (0, 1), (70, 5)),
    roll(floats(3, 5, 7), (0, 1, 2), (1, 2, 3)),
    roll(floats(2, 3, 2, 3, 2, 3, 2, 3), tuple(range(8)), (1, 2) * 4),
    roll(floats(0, 5), (1,), (2,)),
    roll(ints(13, 7), (0,), (4,)),
    roll(bools(13, 7), (0, 1), (4, 2)),
    roll(floats(13, 7).astype(np.float16), (0, 1), (4, 2)),
    roll(floats(13, 8).astype(np.float16), (0,), (4,)),
    roll(floats(13, 8).astype(np.float16), (0, 1), (4, 3)),
    *(
        triangle(op, x, k)
        for op in ("triu", "tril")
        for x, ks in (
            (floats(1, 1), (0, 1, -1)),
            (floats(5, 7), (0, 1, -1, 2, -3)),
            (floats(71, 73), (0, 3)),
            (floats(3, 7, 5), (0, -1)),
            (floats(*_RANK8), (1,)),
            (floats(0, 5), (0,)),
            (floats(2, 5, 0), (0,)),
            (ints(7, 11), (1, 100, -100, 2**29, -(2**29))),
            (bools(7, 11), (-1,)),
            (floats(7, 11).astype(np.float16), (1,)),
            (np.full((3, 3), np.nan, np.float32), (0,)),
        )
        for k in ks
    ),
]


def function(name: str, what: str, build: Callable[..., Any], *inputs: NDArray) -> FunctionSample:
    """Return a sample named after the Python text of its arguments, which the oracle also reads."""
    return FunctionSample(name, build, inputs, what)


def calls(name: str, shape: Shape, *arguments: tuple[Any, ...]) -> list[FunctionSample]:
    """Return one sample for each tuple of arguments after the tensor."""
    return [
        function(
            name, repr(more), lambda x, more=more: getattr(ops, name)(x, *more), floats(*shape)
        )
        for more in arguments
    ]


FUNCTIONS = [
    *calls("roll", (5, 7), (3,), (-4, 1), ((1, 2), (0, 1)), (2, (0, 1)), ((1, 2), (0, 0)), (35, 0)),
    *calls("roll", (0, 7), (3,), (3, 0)),
    *calls("triu", (5, 7), (), (2**40,)),
    *calls("flip", (5, 7), (), (0,), (1,), ((0, 1),), (-1,)),
    *calls("flip", (71, 73), (1,)),
    *calls("flip", (2, 3, 2, 1, 2, 3, 2, 3), (), ((1, 4, 7),)),
    *calls("flip", (), ()),
    *calls("tile", (5, 7), (1,), (3,), ((2, 3),), ((2, 1),), ((2, 3, 1),), ((2, 2, 3, 4),), (0,)),
    *calls("tile", (), (3,), ((2, 3),)),
    *calls("tile", (2, 1, 3, 1, 2), ((2, 3, 1, 2, 2),)),
    *calls("tile", (1, 2, 1, 2, 1, 2, 1, 2), ((2, 1) * 4,), ((2,) * 8,)),
    *calls("tile", (0, 3), ((2, 2),)),
    *calls("repeat", (5, 7), (3,), (1, 0), (3, 0), (3, 1), (0, 1), ((1, 0, 2, 3, 1), 0), ([2], -1)),
    *calls("repeat", (), (3,)),
    *calls("repeat", (2, 3, 2, 1, 2, 3, 2, 3), (2, 4)),
    *calls("split", (12, 5), (3,), (4, 0), ((5, 0, 7),), (5, 1), ((2, 3), 1), (1,)),
    *calls("unstack", (3, 5), (), (1,), (-1,)),
    *calls("flatten", (3, 5, 7), (), (1,), (0, 1), (1, 1)),
    *calls("flatten", (), ()),
    *calls("unsqueeze", (3, 5), (0,), (-1,), ((0, 2),), ((1, 3, 4),)),
    *calls("moveaxis", (3, 5, 7), (0, 2), (-1, 0), ((0, 1), (2, 0)), ((), ())),
    *calls("swapaxes", (3, 5, 7), (0, 2), (1, 1), (-1, -2)),
    *calls("permute_dims", (3, 5, 7), (), ((2, 0, 1),)),
    *calls("broadcast_to", (5, 1), ((5, 7),), ((3, 5, 2),)),
    *(
        function("stack", str(axis), lambda *xs, axis=axis: ops.stack(xs, axis), *xs)
        for xs in ([floats(3, 5, seed=i) for i in range(3)],)
        for axis in (0, 1, 2, -1)
    ),
    function("stack", "0", lambda *xs: ops.stack(xs), floats()),
    *(
        function("meshgrid", how, lambda *xs, how=how: ops.meshgrid(*xs, indexing=how), *xs)
        for xs in ([floats(3)], [floats(3), floats(5)], [floats(2), floats(3), floats(5)])
        for how in ("xy", "ij")
    ),
]

_F = ("float32", (4, 5))
ERRORS: list[ErrorSample] = [
    bad("roll", ShapeError, "shift for each", _F, shift=(1, 2, 3), axis=(0, 1)),
    bad("roll", ShapeError, "expected an axis", _F, shift=1, axis=2),
    bad("triu", ShapeError, "expected matrices", ("float32", (4,))),
    bad("tril", ShapeError, "expected matrices", ("float32", ())),
    bad("flip", ShapeError, "distinct axes", _F, axes=(0, -2)),
    bad("tile", ShapeError, "0 or more", _F, repeats=-1),
    bad("tile", ShapeError, "rank", _F, repeats=(1,) * 9),
    bad("repeat", ShapeError, "1 or 4 repeats", _F, repeats=(1, 2), axis=0),
    bad("repeat", ShapeError, "1 or 5 repeats", _F, repeats=-1, axis=1),
    bad("repeat", ShapeError, "expected an axis", _F, repeats=1, axis=2),
    bad("split", ShapeError, "divides 4", _F, parts=3),
    bad("split", ShapeError, "add up to 4", _F, parts=(3, 2)),
    bad("split", ShapeError, "got a scalar", ("float32", ()), parts=1),
    ErrorSample(lambda: ops.stack([]), ShapeError, "at least one"),
    ErrorSample(
        lambda: ops.stack([input("a", (2,)), input("b", (3,))]), ShapeError, "equal shapes"
    ),
    bad("unstack", ShapeError, "got a scalar", ("float32", ())),
    bad("flatten", ShapeError, "axes in order", _F, start_axis=1, end_axis=0),
    bad("unsqueeze", ShapeError, "expected an axis", _F, axes=3),
    bad("unsqueeze", ShapeError, "distinct axes", _F, axes=(0, 0)),
    bad("moveaxis", ShapeError, "distinct destinations", _F, source=(0, 1), destination=0),
    bad("moveaxis", ShapeError, "expected an axis", _F, source=2, destination=0),
    bad("swapaxes", ShapeError, "expected an axis", _F, axis1=2, axis2=0),
    bad("meshgrid", ShapeError, "expected vectors", _F),
    bad("meshgrid", ShapeError, "indexing xy or ij", ("float32", (3,)), indexing="ji"),
]
