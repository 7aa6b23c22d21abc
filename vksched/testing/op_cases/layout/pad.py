"""Samples of padding: every mode and type, crops, pads beyond the size, empty tensors."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, input
from ....ops.layout.pad import MODES
from ..function_call import call
from ..op_sample import ErrorSample, OpSample, bools, floats, ints

Pads = tuple[tuple[int, int], ...]

SHAPES: list[tuple[tuple[int, ...], Pads]] = [
    ((), ()),
    ((1,), ((0, 3),)),
    ((7,), ((2, 0),)),
    ((7,), ((0, 0),)),
    ((13, 11), ((1, 2), (3, 4))),
    ((13, 11), ((-3, 2), (4, -5))),
    ((13, 11), ((-3, -2), (-4, -5))),
    ((2, 3, 5, 7), ((0, 0), (0, 0), (1, 1), (2, 3))),
    ((61, 67), ((5, 6), (7, 8))),
    ((2, 1, 3, 2, 1, 2, 3, 2), ((1, 0), (0, 1), (1, 1), (0, 0), (2, 0), (-1, 1), (0, 0), (1, 2))),
    ((0, 3), ((2, 1), (1, 0))),
    ((3, 4), ((-2, 2), (-4, 1))),
    ((4,), ((-4, 0),)),
    ((4,), ((-6, 5),)),
]


def constant(x: NDArray, pads: Pads, value: float = 0) -> OpSample:
    begins, ends = tuple(b for b, _ in pads), tuple(e for _, e in pads)
    attrs = {"begins": begins, "ends": ends, "value": x.dtype.type(value).item()}
    text = " ".join(f"{b}.{e}" for b, e in pads)
    return OpSample("pad", (x,), attrs, f"{x.dtype} {text} with {value}")


LONG: list[tuple[tuple[int, ...], Pads]] = [
    ((1,), ((4, 3),)),
    ((2,), ((7, 9),)),
    ((5,), ((23, 17),)),
    ((3, 4), ((10, 1), (2, 15))),
    ((9, 8), ((-3, 20), (11, -2))),
]
REPEATED = [(s, p) for s, p in SHAPES if 0 not in s and s not in ((3, 4), (4,))] + LONG
CASES = [
    *(constant(floats(*shape), pads, 1.5) for shape, pads in SHAPES),
    *(constant(floats(13, 11), ((1, 2), (3, 4)), v) for v in (0, -0.0, np.inf, np.nan, 1e-40)),
    *(constant(ints(*shape), pads, -7) for shape, pads in SHAPES[3:6]),
    constant(ints(3), ((1, 1),), 2**31 - 1),
    constant(ints(3), ((1, 1),), -(2**31)),
    constant(np.asarray(ints(13, 11, low=0), np.uint32), ((1, 2), (3, -4)), 2**32 - 1),
    *(constant(bools(*shape), pads, value) for shape, pads in SHAPES[3:5] for value in (0, 1)),
]
FUNCTIONS = [
    *(
        call("pad", floats(*shape), name=f"{mode} {pads}", pads=pads, mode=mode)
        for mode in MODES
        for shape, pads in REPEATED
    ),
    *(
        call("pad", make(5, 6), name=f"{mode} {make.__name__}", pads=((1, 2), (3, 0)), mode=mode)
        for mode in MODES[1:]
        for make in (ints, bools)
    ),
    call("pad", bools(5, 6), name="bools", pads=1),
    call("pad", bools(5, 6), name="bools with 1", pads=1, value=1),
    call("pad", floats(5, 6), name="all alike", pads=2, value=3.0),
    call("pad", floats(5, 6), name="one pair", pads=(2, 1), mode="edge"),
    call("pad", floats(3, 5, 6), name="of axes", pads=((2, 1), (0, 4)), axes=(-1, 0), value=3),
    call("pad", floats(0, 6), name="an empty one", pads=((0, 0), (2, 1)), mode="reflect"),
]


def x() -> Tensor:
    return input("x", (4, 6))


ERRORS = [
    ErrorSample(lambda: ops.pad(x(), 1, "around"), ShapeError, "a mode of constant"),
    ErrorSample(lambda: ops.pad(x(), ((1, 1),)), ShapeError, "expected 2 pairs"),
    ErrorSample(lambda: ops.pad(x(), ((1, 1), 2)), ShapeError, r"pairs \(begin, end\)"),  # type: ignore[arg-type]
    ErrorSample(lambda: ops.pad(x(), ((1, 1), (1.5, 0)), "edge"), ShapeError, "integers as"),  # type: ignore[arg-type]
    ErrorSample(lambda: ops.pad(x(), ((-5, 0), (1, 0))), ShapeError, "crop no more"),
    ErrorSample(lambda: ops.pad(x(), ((-5, 0), (0, 0))), ShapeError, "elements to repeat"),
    ErrorSample(lambda: ops.pad(x(), ((-4, 1), (0, 0)), "wrap"), ShapeError, "along axis 0"),
    ErrorSample(lambda: ops.pad(x(), ((1, 1),), axes=(2,)), ShapeError, "an axis in -2..1"),
    ErrorSample(lambda: ops.pad(x(), 1, axes=(1, -1)), ShapeError, "distinct axes"),
    ErrorSample(lambda: ops.pad(x(), 1, value=[1.0]), ShapeError, "one value"),  # type: ignore[arg-type]
    ErrorSample(
        lambda: ops.pad(input("i", (3,), "int32"), 1, value=0.5), DTypeError, "values of int32"
    ),
]
