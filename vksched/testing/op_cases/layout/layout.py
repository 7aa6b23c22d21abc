"""Samples of layout ops: reshape, transpose, slice, concat, expand."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import input
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats, ints

Shape = tuple[int, ...]


def sample(dtype: str, shape: Shape, seed: int = 0) -> NDArray:
    """Return random values of a type."""
    if dtype == "float32":
        return floats(*shape, seed=seed)
    return ints(*shape, seed=seed) if dtype == "int32" else bools(*shape, seed=seed)


def text(values: tuple[int, ...]) -> str:
    """Return axes or a shape as a part of a sample's name."""
    return ",".join(map(str, values)) or "()"


# -- reshape and expand ----------------------------------------------------------------------------

_RESHAPES: list[tuple[Shape, Shape]] = [
    ((), ()),
    ((), (1, 1)),
    ((1,), ()),
    ((6, 35), (-1,)),
    ((6, 35), (5, -1, 7)),
    ((5003,), (5003, 1)),
    ((71, 73), (73, 71)),
    ((2, 3, 2, 1, 2, 1, 2, 3), (144,)),
    ((144,), (2, 3, 2, 1, 2, 1, 2, 3)),
    ((0,), (0, 5)),
    ((0, 3), (-1,)),
    ((0, 3), (-1, 3)),
    ((4, 0, 2), (7, 0)),
]
RESHAPE = [
    OpSample("reshape", (sample("float32", old),), {"shape": new}, text(new))
    for old, new in _RESHAPES
]
RESHAPE += [
    OpSample("reshape", (sample(dtype, (7, 11)),), {"shape": (11, -1)}, dtype)
    for dtype in ("int32", "bool")
]

_EXPANDS: list[tuple[str, Shape, Shape]] = [
    ("float32", (), ()),
    ("float32", (), (5003,)),
    ("float32", (), (3, 5)),
    ("float32", (1,), (1,)),
    ("float32", (1,), (7,)),
    ("float32", (3, 5), (1, 1, 3, 5)),
    ("float32", (5, 1, 7), (5, 3, 7)),
    ("float32", (7,), (11, 7)),
    ("float32", (71, 1), (71, 73)),
    ("float32", (1, 255), (257, 255)),
    ("float32", (2, 1, 3, 1, 2, 1, 2, 1), (2, 3, 3, 2, 2, 3, 2, 2)),
    ("int32", (1, 3, 1, 2, 1, 3, 1, 2), (2, 3, 2, 2, 2, 3, 2, 2)),
    ("float32", (1,), (2, 1, 2, 1, 2, 1, 2, 3)),
    ("float32", (1, 3), (0, 3)),
    ("float32", (0, 1), (0, 5)),
    ("bool", (71, 1), (71, 73)),
    ("bool", (), (7,)),
]
EXPAND = [
    OpSample("expand", (sample(dtype, old),), {"shape": new}, f"{dtype[0]}{text(new)}")
    for dtype, old, new in _EXPANDS
]

# -- transpose -------------------------------------------------------------------------------------

_TRANSPOSES: list[tuple[str, Shape, Shape]] = [
    *(("float32", (3, 5, 7), axes) for axes in permutations(range(3))),
    *(("float32", (17, 19, 23), axes) for axes in permutations(range(3))),
    ("int32", (3, 5, 7), (2, 0, 1)),
    ("bool", (3, 5, 7), (2, 0, 1)),
    ("float32", (), ()),
    ("float32", (1,), (0,)),
    ("float32", (5003,), (0,)),
    ("float32", (1, 5003), (1, 0)),
    ("float32", (61, 83), (1, 0)),
    ("float32", (257, 251), (1, 0)),
    ("float32", (260, 68), (1, 0)),
    ("int32", (2, 3, 8, 12), (2, 1, 3, 0)),
    ("float32", (3, 8, 5, 12), (1, 3, 2, 0)),
    ("float32", (5, 1036, 12), (0, 2, 1)),
    ("float32", (3, 2048, 20), (0, 2, 1)),
    ("float16", (5, 12, 20), (0, 2, 1)),
    ("int32", (61, 83), (1, 0)),
    ("bool", (61, 83), (1, 0)),
    ("float32", (7, 1, 11, 1), (3, 2, 1, 0)),
    ("float32", (2, 16, 3, 16), (0, 2, 1, 3)),
    ("float32", (3, 11, 2, 8), (0, 2, 1, 3)),
    ("int32", (5, 7, 3, 2, 9), (3, 2, 1, 0, 4)),
    ("float32", (2, 3, 4, 5, 6), (4, 2, 0, 3, 1)),
    ("float32", (2, 3, 4, 2, 3, 2, 4, 3), (7, 6, 5, 4, 3, 2, 1, 0)),
    ("int32", (2, 3, 2, 2, 3, 2, 2, 3), (1, 3, 5, 7, 0, 2, 4, 6)),
    ("bool", (2, 3, 1, 2, 3, 1, 2, 3), (3, 0, 7, 1, 6, 2, 5, 4)),
    ("float32", (0,), (0,)),
    ("float32", (0, 3), (1, 0)),
    ("float32", (4, 0, 5), (2, 0, 1)),
]
TRANSPOSE = [
    OpSample("transpose", (sample(dtype, shape),), {"axes": axes}, f"{dtype[0]}{text(axes)}")
    for dtype, shape, axes in _TRANSPOSES
]

# -- slice -----------------------------------------------------------------------------------------

_SLICES: list[tuple[Any, ...]] = [  # name, shape, axes, starts, stops, steps
    ("whole", (7, 11), (), (), (), ()),
    ("scalar", (), (), (), (), ()),
    ("one of one", (1,), (0,), (0,), (1,), (1,)),
    ("one of many", (5003,), (0,), (5002,), (5003,), (1,)),
    ("back", (5003,), (0,), (5,), (None,), (1,)),
    ("rows", (13, 7), (0,), (3,), (11,), (1,)),
    ("column", (71, 73), (1,), (72,), (73,), (1,)),
    ("from the end", (13, 7), (0, 1), (-5, -3), (-1, None), (1, 1)),
    ("out of range", (13, 7), (0, 1), (-100, 3), (100, 100), (1, 1)),
    ("far limits", (13,), (0,), (-(2**31),), (2**31 - 1,), (1,)),
    ("every other", (5003,), (0,), (0,), (None,), (2,)),
    ("step over all", (5003,), (0,), (4,), (None,), (6000,)),
    ("reversed", (5003,), (0,), (-1,), (None,), (-1,)),
    ("reversed part", (13,), (0,), (10,), (2,), (-3,)),
    ("reversed to 0", (13,), (0,), (100,), (-100,), (-2,)),
    ("reversed rows", (71, 73), (0,), (-1,), (None,), (-1,)),
    ("reversed columns", (71, 73), (1,), (-1,), (None,), (-1,)),
    ("mixed", (11, 13, 17), (0, 1, 2), (9, 2, -1), (1, 12, None), (-2, 3, -4)),
    ("outer axes", (11, 13, 17), (0, 1), (1, 3), (10, 12), (1, 2)),
    ("inner axis", (11, 13, 17), (2,), (1,), (16,), (5,)),
    ("axes in disorder", (11, 13, 17), (2, 0), (3, 8), (9, 2), (2, -1)),
    ("block", (17, 19, 23), (0, 1, 2), (1, 2, 3), (16, 17, 18), (1, 1, 1)),
    ("middle plane", (11, 13, 17), (1,), (6,), (7,), (1,)),
    ("large", (257, 251), (0, 1), (1, 1), (None, None), (1, 1)),
    ("rank 8", (2, 3) * 4, (1, 3, 5, 7), (0, 2, 1, -1), (2, 0, 3, None), (1, -1, 1, -2)),
    ("rank 8 all", (3,) * 8, tuple(range(8)), (0, 2) * 4, (2, None) * 4, (1, -2) * 4),
    ("empty", (13,), (0,), (5,), (5,), (1,)),
    ("empty crossed", (13, 7), (0,), (9,), (3,), (1,)),
    ("empty beyond", (13, 7), (1,), (50,), (60,), (1,)),
    ("empty backwards", (13, 7), (1,), (2,), (5,), (-1,)),
    ("empty inner", (13, 7), (0, 1), (2, 3), (9, 3), (2, 1)),
    ("of empty", (0,), (0,), (0,), (None,), (1,)),
    ("of empty reversed", (0, 3), (0, 1), (-1, -1), (None, None), (-1, -1)),
    ("full of empty", (5, 0), (0,), (1,), (4,), (2,)),
]
_KEYS = ("axes", "starts", "stops", "steps")
SLICE = [
    OpSample("slice", (sample("float32", shape),), dict(zip(_KEYS, attrs, strict=True)), name)
    for name, shape, *attrs in _SLICES
]
SLICE += [
    OpSample("slice", (sample(dtype, (71, 73)),), dict(zip(_KEYS, attrs, strict=True)), name)
    for dtype in ("int32", "bool")
    for name, *attrs in (
        (f"{dtype} forward", (0, 1), (1, 3), (None, None), (1, 2)),
        (f"{dtype} backward", (0, 1), (1, -1), (None, None), (1, -3)),
    )
]

# -- concat ----------------------------------------------------------------------------------------

_CONCATS: list[tuple[str, int, list[Shape]]] = [
    ("float32", 0, [(7,)]),
    ("float32", 1, [(7, 11)]),
    ("float32", 0, [(5003,), (1,), (13,)]),
    ("float32", 0, [(3, 5, 7), (2, 5, 7), (4, 5, 7)]),
    ("float32", 1, [(3, 5, 7), (3, 1, 7), (3, 11, 7)]),
    ("float32", 2, [(3, 5, 7), (3, 5, 1), (3, 5, 2)]),
    ("float32", 0, [(3, 5, 7), (0, 5, 7), (1, 5, 7)]),
    ("float32", 1, [(3, 0, 7), (3, 5, 7), (3, 0, 7)]),
    ("float32", 2, [(3, 5, 0), (3, 5, 7)]),
    ("float32", 0, [(0,), (0,)]),
    ("float32", 1, [(0, 3), (0, 5)]),
    ("float32", 0, [(71, 73), (79, 73)]),
    ("float32", 1, [(71, 73), (71, 79)]),
    ("float32", 1, [(127, 255), (127, 257)]),
    ("float32", 0, [(n % 5,) for n in range(37)]),
    ("float32", 1, [(3, n % 4 + 1) for n in range(23)]),
    ("float32", 0, [(2, 1, 3, 1, 2, 1, 2, 3), (3, 1, 3, 1, 2, 1, 2, 3)]),
    ("float32", 3, [(2, 1, 3, 1, 2, 1, 2, 3), (2, 1, 3, 4, 2, 1, 2, 3)]),
    ("float32", 7, [(2, 1, 3, 1, 2, 1, 2, 3), (2, 1, 3, 1, 2, 1, 2, 1)]),
    ("int32", 0, [(61, 83), (3, 83)]),
    ("bool", 0, [(61, 83), (3, 83)]),
    ("int32", 1, [(61, 83), (61, 2), (61, 1)]),
    ("bool", 1, [(61, 83), (61, 2), (61, 1)]),
]
CONCAT = [
    OpSample(
        "concat",
        tuple(sample(dtype, shape, seed) for seed, shape in enumerate(shapes)),
        {"axis": axis},
        f"{dtype[0]}{axis}",
    )
    for dtype, axis, shapes in _CONCATS
]

FUNCTIONS = [
    *(
        FunctionSample(
            "expand_dims", lambda x, a=axis: ops.expand_dims(x, a), (floats(5, 7),), str(axis)
        )
        for axis in (0, 1, 2, -1)
    ),
    FunctionSample("squeeze", ops.squeeze, (floats(1, 5, 1, 7),)),
    FunctionSample("squeeze", lambda x: ops.squeeze(x, (0, -2)), (ints(1, 5, 1, 1),), "axes"),
]

CASES: list[OpSample] = [*RESHAPE, *EXPAND, *TRANSPOSE, *SLICE, *CONCAT]

# -- errors ----------------------------------------------------------------------------------------


def refused(op: str, match: str, shape: Shape, *args: Any, **more: Any) -> ErrorSample:
    """Return a refused call of ops.<op> on an input of this shape."""
    return ErrorSample(
        lambda: getattr(ops, op)(input("x", shape), *args, **more), ShapeError, match
    )


def concat_refused(
    match: str, axis: int, *types: tuple[str, Shape], error: type[Exception] = ShapeError
) -> ErrorSample:
    def build() -> object:
        xs = [input(f"x{i}", shape, dtype) for i, (dtype, shape) in enumerate(types)]
        return ops.concat(xs, axis)

    return ErrorSample(build, error, match)


_F = ("float32", (2, 3))
ERRORS: list[ErrorSample] = [
    refused("reshape", "expected 6 elements", (2, 3), (4, 2)),
    refused("reshape", "cannot make", (2, 3), (4, -1)),
    refused("reshape", "cannot make", (0, 3), (0, -1)),
    refused("reshape", "at most one -1", (2, 3), (-1, -1)),
    refused("reshape", "sizes of -1 or more", (2, 3), (-2, 3)),
    refused("reshape", "rank", (1,), (1,) * 9),
    refused("transpose", "all axes in 0..1, each once", (2, 3), (0, 0)),
    refused("transpose", "all axes in 0..1, each once", (2, 3), (0, 1, 0)),
    refused("transpose", "expected an axis", (2, 3), (0, 2)),
    refused("slice", "steps other than 0", (7,), 0, 5, steps=0),
    refused("slice", "steps other than 0", (7, 3), (0, 0), (5, 1), steps=(1, 0)),
    refused("slice", "expected an axis", (7,), 0, 5, axes=1),
    refused("slice", "expected an axis", (), 0, 5),
    refused("slice", "each once", (7, 3), (0, 0), (5, 1), axes=(1, -1)),
    refused("slice", "expected 2 stops", (7, 3), (0, 0), (5,)),
    refused("slice", "expected 1 stops", (7, 3), 0, 5, axes=(0, 1)),
    refused("expand", "cannot broadcast", (3, 5), (5,)),
    refused("expand", "cannot broadcast", (3,), (1,)),
    refused("expand", "expand", (3,), (4,)),
    refused("expand", "rank", (1,), (1,) * 9),
    refused("squeeze", "axes of size 1", (1, 3), 1),
    refused("expand_dims", "expected an axis", (2, 3), 3),
    concat_refused("at least one", 0),
    concat_refused("got a scalar", 0, ("float32", ()), ("float32", ())),
    concat_refused("expected an axis", 2, _F, _F),
    concat_refused("but for axis 0", 0, _F, ("float32", (2, 4))),
    concat_refused("but for axis 1", 1, _F, ("float32", (3, 3))),
    concat_refused("but for axis 1", 1, _F, ("float32", (2, 3, 1))),
    concat_refused("expected float32", 0, _F, ("int32", (2, 3)), error=DTypeError),
    concat_refused("expected bool", 0, ("bool", (2, 3)), _F, error=DTypeError),
]
