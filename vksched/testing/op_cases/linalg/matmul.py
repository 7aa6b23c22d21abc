"""Samples of matmul: odd shapes, every batch broadcast, transposes, bias, edges."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import Tensor, input
from ..op_sample import ErrorSample, OpSample, floats, fp16_array, ints


def attrs(transpose_a: bool = False, transpose_b: bool = False) -> dict[str, AttrValue]:
    return {"transpose_a": transpose_a, "transpose_b": transpose_b}


def swapped(array: NDArray, yes: bool) -> NDArray:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)) if yes else array


def whole(*shape: int, seed: int = 0) -> NDArray:
    """Return all bits of uint32."""
    return ints(*shape, seed=seed, low=-(2**31), high=2**31 - 1).view(np.uint32)


SIZES = [
    *((1, 1, 1), (1, 64, 1), (1, 7, 33), (31, 1, 5), (8, 8, 8), (7, 13, 11), (32, 64, 32)),
    *((33, 17, 65), (64, 16, 128), (65, 31, 129), (100, 3, 100), (3, 300, 2), (257, 5, 1)),
    *((130, 40, 263), (512, 8, 1024)),
]
BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((3,), (3,)), ((3,), ()), ((), (3,)), ((3,), (1,)), ((1,), (3,)), ((2, 3), (2, 3))),
    *(((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 1), (1, 3)), ((1, 1), (2, 3)), ((2, 3, 2), (2, 1, 2))),
    *(((2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2)), ((2, 1, 2, 1, 2, 3), (2, 2, 1, 2, 1, 3))),
    ((40,), (40,)),
]

# kernels read four elements at a time, float16 as two words
IN_VEC4 = [
    OpSample(
        "matmul",
        (swapped(floats(m, 24), ta), swapped(floats(24, 36, seed=1), tb), floats(36, seed=2)),
        attrs(ta, tb),
        f"in fours {m} t{int(ta)}{int(tb)}",
    )
    for m in (1, 3, 40)
    for ta in (False, True)
    for tb in (False, True)
]
# tiles of one row with all their columns
IN_VEC4 += [
    OpSample(
        "matmul",
        (floats(*lead, 1, 20), swapped(floats(*lead, 20, 48, seed=1), tb), *bias),
        attrs(False, tb),
        f"whole tiles t{int(tb)}",
    )
    for lead, bias in (((), ()), ((3,), (floats(48, seed=2),)), ((2, 3), ()))
    for tb in (False, True)
]
# more than the largest tile, with edges
IN_VEC4 += [
    OpSample(
        "matmul",
        (swapped(floats(2, 140, 20), ta), swapped(floats(20, n, seed=1), tb), floats(n, seed=2)),
        attrs(ta, tb),
        f"several tiles in fours t{int(ta)}{int(tb)}",
    )
    for n, ta, tb in (
        (200, False, False),
        (201, False, True),
        (200, True, False),
        (196, True, True),
    )
]
# split-k, with operands that several tiles read
LONG_K = [
    OpSample(
        "matmul",
        (swapped(floats(128, k), ta), floats(k, 132, seed=1), floats(132, seed=2)),
        attrs(ta),
        f"long k {k} t{int(ta)}",
    )
    for k, ta in ((2048, False), (2051, True))
]
CASES = [
    *IN_VEC4,
    *LONG_K,
    *(
        OpSample(
            "matmul",
            (floats(m, 44), floats(44, 300, seed=1), floats(300, seed=2)),
            attrs(),
            f"several tiles {m}",
        )
        for m in (1, 3, 70)
    ),
    *(
        OpSample("matmul", (floats(m, k), floats(k, n, seed=1)), attrs(), f"{m}.{k}.{n}")
        for m, k, n in SIZES
    ),
    *(
        OpSample(
            "matmul",
            (swapped(floats(*lead, 19, 37), ta), swapped(floats(*lead, 37, 23, seed=1), tb)),
            attrs(ta, tb),
            f"t{int(ta)}{int(tb)}",
        )
        for lead in ((), (2,))
        for ta in (False, True)
        for tb in (False, True)
    ),
    *(
        OpSample("matmul", (floats(*a, 5, 6), floats(*b, 6, 9, seed=1)), attrs(), "batch")
        for a, b in BATCHES
    ),
    OpSample("matmul", (floats(4, 9, 6), floats(11, 6, seed=1)), attrs(False, True), "rows folded"),
    OpSample("matmul", (floats(4, 6, 9), floats(11, 6, seed=1)), attrs(True, True), "not folded"),
    *(
        OpSample(
            "matmul", (floats(*s, 5, 6), floats(6, n, seed=1), floats(n, seed=2)), attrs(), "bias"
        )
        for s in ((), (3,))
        for n in (1, 9, 70)
    ),
    OpSample("matmul", (ints(17, 33), ints(33, 9, seed=1)), attrs()),
    OpSample(
        "matmul", (ints(3, 5, 7), ints(4, 7, seed=1), ints(4, seed=2)), attrs(False, True), "t"
    ),
    OpSample(
        "matmul",
        (ints(4, 5, low=-(2**31), high=2**31 - 1), ints(5, 4, low=-(2**31), high=2**31 - 1)),
        attrs(),
        "wraps",
    ),
    OpSample("matmul", (whole(17, 33), whole(33, 9, seed=1)), attrs(), "uint32"),
    OpSample("matmul", (whole(3, 5, 7), whole(4, 7), whole(4)), attrs(False, True), "uint32 t"),
    OpSample("matmul", (floats(3, 0), floats(0, 4)), attrs(), "no k"),
    OpSample("matmul", (floats(3, 0), floats(0, 4), floats(4)), attrs(), "only bias"),
    OpSample("matmul", (floats(64, 0), floats(0, 64), floats(64)), attrs(), "only bias, a tile"),
    OpSample("matmul", (floats(0, 3), floats(3, 4)), attrs(), "no rows"),
    OpSample("matmul", (floats(0, 2, 3), floats(3, 4)), attrs(), "no batch"),
    OpSample("matmul", (floats(2, 3) * np.float32(1e18), floats(3, 2)), attrs(), "huge"),
    OpSample(
        "matmul",
        (np.array([[np.inf, 1], [np.nan, 1], [1, 2]], np.float32), floats(2, 3)),
        attrs(),
        "inf and nan stay in their rows",
    ),
    *(
        # more iterations than llvmpipe's loop limit
        OpSample(
            "matmul", (floats(2, k), floats(k, 8, seed=1), floats(8)), attrs(), "part", large=True
        )
        for k in (70001, 140000)
    ),
    OpSample("matmul", (ints(2, 70001), ints(70001, 3)), attrs(), "part", large=True),
    OpSample("matmul", (floats(2, 4000, scale=10), floats(4000, 2, seed=1)), attrs(), "long k"),
]
FP16 = [
    *(case.as_dtypes({"float32": "float16"}) for case in IN_VEC4),
    *(
        OpSample(
            "matmul",
            (
                swapped(fp16_array(33, 17), ta),
                swapped(fp16_array(17, 65, seed=1), tb),
                fp16_array(65, seed=2),
            ),
            attrs(ta, tb),
            f"float16 in no fours t{int(ta)}{int(tb)}",
        )
        for ta, tb in ((False, False), (True, True))
    ),
    # several tiles with edges, of which eight neighbors are read together
    *(
        OpSample(
            "matmul",
            (
                swapped(fp16_array(2, 136, 40), ta),
                swapped(fp16_array(2, 40, 200, seed=1), tb),
                fp16_array(200, seed=2),
            ),
            attrs(ta, tb),
            f"float16 in eights t{int(ta)}{int(tb)}",
        )
        for ta in (False, True)
        for tb in (False, True)
    ),
    # only the first part is infinite in float16
    OpSample(
        "matmul",
        (
            np.ones((4, 1 << 16), np.float16),
            np.repeat(np.array([3, -3], np.float16), 1 << 15)[:, None].repeat(4, axis=1),
        ),
        attrs(),
        "parts of float16",
        large=True,
    ),
]


def build(a: tuple[int, ...], b: tuple[int, ...], **keywords: object) -> Tensor:
    return ops.matmul(input("a", a), input("b", b), **keywords)  # type: ignore[arg-type]


ERRORS = [
    ErrorSample(lambda: build((2, 3), (4, 5)), ShapeError, "inner sizes"),
    ErrorSample(lambda: build((2, 3), (3, 5), transpose_a=True), ShapeError, "transpose"),
    ErrorSample(lambda: build((2, 2, 3), (3, 3, 5)), ShapeError, "broadcast"),
    ErrorSample(lambda: build((), (3, 3)), ShapeError, "operands with axes"),
    ErrorSample(lambda: build((3,), (3, 3), transpose_a=True), ShapeError, "a matrix"),
    ErrorSample(lambda: build((3,), (4, 3)), ShapeError, "inner sizes"),
    ErrorSample(lambda: build((2, 3), (3, 5), bias=input("c", (4,))), ShapeError, r"bias of shape"),
    ErrorSample(
        lambda: ops.matmul(input("a", (2, 2)), input("b", (2, 2), "int32")),
        DTypeError,
        "all float32, all int32",
    ),
    ErrorSample(
        lambda: ops.matmul(input("a", (2, 2), "bool"), input("b", (2, 2), "bool")),
        DTypeError,
        "float32",
    ),
]
