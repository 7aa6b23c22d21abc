"""Samples of int8 matmuls and convolutions, of packed weights and of quantize ops: ends of ranges,
partial words and tiles, all kinds of zero points.
"""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import Tensor, apply, constant, input
from ....ops.conv.conv_int8 import as_matrix
from ....ops.linalg.int8_weights import pack_int8
from ..op_sample import ErrorSample, OpSample, floats, ints
from ..sample_values import MANY, f32, i32


def int8_values(*shape: int, signed: bool = False, seed: int = 0) -> NDArray:
    """Return random int8 values as int32, both ends of their range first."""
    low = -128 if signed else 0
    rng = np.random.default_rng((seed, *shape))
    values = rng.integers(low, low + 256, shape).astype(np.int32)
    ends = np.array([low, low + 255], np.int32)[: values.size]
    values.reshape(-1)[: ends.size] = ends
    return values


def weights(*shape: int, seed: int = 1) -> NDArray:
    return int8_values(*shape, signed=True, seed=seed).astype(np.int8)


def product(
    m: int,
    k: int,
    n: int,
    name: str = "",
    *,
    signed: bool = False,
    a_zero: int = 3,
    b_zero: NDArray | None = None,
    batch: tuple[int, ...] = (),
    many: bool = False,
) -> OpSample:
    """Return a matmul. many: each matrix of a batch has its own weights."""
    words = pack_int8(weights(*(batch if many else ()), k, n))
    zero = i32(0) if b_zero is None else b_zero
    inputs = int8_values(*batch, m, k, signed=signed), words, np.asarray(a_zero, np.int32), zero
    return OpSample("matmul_integer", inputs, {"columns": n, "signed": signed}, name, exact=True)


def convolution(
    x: tuple[int, ...],
    w: tuple[int, ...],
    name: str = "",
    *,
    signed: bool = False,
    x_zero: int = 3,
    w_zero: NDArray | None = None,
    stride: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    begin: tuple[int, ...] = (),
    end: tuple[int, ...] = (),
) -> OpSample:
    axes = len(x) - 2
    attrs: dict[str, AttrValue] = {
        "channels": w[0],
        "kernel": w[2:],
        "stride": stride or (1,) * axes,
        "dilation": dilation or (1,) * axes,
        "begin": begin or (0,) * axes,
        "end": end or begin or (0,) * axes,
        "signed": signed,
    }
    zero = i32(0) if w_zero is None else w_zero
    words = pack_int8(as_matrix(weights(*w)))
    inputs = int8_values(*x, signed=signed), words, np.asarray(x_zero, np.int32), zero
    return OpSample("conv_integer", inputs, attrs, name, exact=True)


def _quantize(
    x: NDArray, scale: NDArray, zero: NDArray, name: str, axis: int = 0, low: int = 0
) -> OpSample:
    attrs: dict[str, AttrValue] = {"low": low, "high": low + 255, "axis": axis}
    return OpSample("quantize_linear", (x, scale, zero), attrs, name, exact=True)


def _requantize(
    x: NDArray, scale: NDArray, bias: NDArray, name: str, axis: int = 0, zero: int = 0
) -> OpSample:
    attrs: dict[str, AttrValue] = {"zero": zero, "low": -128, "high": 127, "axis": axis}
    return OpSample("requantize", (x, scale, bias), attrs, name, exact=True)


_ENDS = i32(0), i32(-128)
"""The zero points farthest from the largest quantized values."""
_HALVES = np.arange(-40, 41, dtype=np.float32).reshape(9, 9) / 2
_BETWEEN = np.arange(-126, 130, dtype=np.float32).reshape(32, 8) - np.float32(0.5)
_ODD = f32(0.0123, 0.037, 0.31, 7.7, 1 / 3, 127, 1e-9, 3e20)
"""Scales with quotients at or near the midpoint of two quantized values: the last bit decides."""
CASES: list[OpSample] = [
    *(
        OpSample(
            "prepack_int8",
            (int8_values(*shape, signed=s),),
            {"signed": s},
            f"signed {s}",
            exact=True,
        )
        for shape in ((1, 1), (3, 17), (4, 16), (70, 33), (2, 3, 5, 2), (0, 3), (2, 0))
        for s in (False, True)
    ),
    *(product(m, k, n) for m, k, n in ((1, 1, 1), (2, 3, 5), (1, 129, 71), (8, 4, 16))),
    *(product(71, 37, 73, f"signed {s}", signed=s, a_zero=-5 * s) for s in (False, True)),
    *(product(9, 50, 19, f"zero of b {z}", b_zero=i32(z)) for z in (-128, 127)),
    product(9, 50, 19, "zeros of b", b_zero=ints(19, low=-128, high=127)),
    product(130, 67, 66, "tiles", b_zero=ints(66, low=-128, high=127), signed=True, a_zero=-128),
    product(1, 67, 130, "a row", b_zero=ints(130, low=-128, high=127), a_zero=255),
    product(19, 600, 33, "parts", b_zero=ints(33, low=-128, high=127)),
    product(17, 515, 7, "parts of a batch", batch=(2,), many=True, a_zero=255),
    OpSample(
        "matmul_integer",
        (
            i32(*[255] * 17 * 516).reshape(17, 516),
            pack_int8(np.full((516, 5), 127, np.int8)),
            *_ENDS,
        ),
        {"columns": 5, "signed": False},
        "largest sums",
        exact=True,
    ),
    product(5, 9, 7, "batch", batch=(2, 3)),
    product(5, 9, 7, "batch of weights", batch=(2, 3), many=True, b_zero=i32(9)),
    product(1, 9, 7, "rows of weights", batch=(4,), many=True),
    *(product(m, k, n, "nothing") for m, k, n in ((0, 3, 5), (3, 0, 5), (3, 5, 0))),
    OpSample(
        "matmul_integer",
        (ints(3, 5, low=-1000, high=1000), pack_int8(weights(5, 4)), i32(0), i32(0)),
        {"columns": 4, "signed": False},
        "more bits",
        exact=True,
    ),
    convolution((1, 1, 1), (1, 1, 1)),
    convolution((2, 3, 9, 11), (5, 3, 3, 3), "padded", begin=(1, 1)),
    convolution((1, 8, 13, 17), (19, 8, 1, 1), "of a place", signed=True, x_zero=-7),
    convolution((1, 5, 12, 9), (17, 5, 3, 2), "steps", stride=(2, 3), begin=(1, 0), end=(0, 1)),
    convolution((1, 2, 12, 9), (3, 2, 3, 3), "dilated", dilation=(2, 1), begin=(2, 1)),
    convolution((2, 6, 31), (4, 6, 5), "a line", begin=(2,), w_zero=i32(4), x_zero=255),
    convolution(
        (1, 3, 4, 5, 6),
        (18, 3, 2, 3, 2),
        "a body",
        w_zero=ints(18, low=-9, high=9),
        begin=(1, 1, 0),
    ),
    convolution((2, 37, 6, 5), (5, 37, 3, 3), "parts", begin=(1, 1), w_zero=i32(-9)),
    convolution((7, 4, 3, 4), (19, 4, 2, 2), "small images", w_zero=ints(19, low=-9, high=9)),
    convolution((0, 3, 4, 5), (2, 3, 3, 3), "nothing"),
    *(_quantize(floats(*s), f32(0.5), i32(7), "") for s in ((), (1,), (MANY,), (71, 73), (0,))),
    _quantize(_HALVES, f32(1), i32(0), "ties", low=-128),
    _quantize(_BETWEEN * _ODD, _ODD, ints(8), "between two codes", 1, low=-128),
    _quantize(_HALVES, np.exp2(ints(9, low=-3, high=3)).astype(np.float32), ints(9), "each", 1),
    _quantize(floats(3, 5, 4), f32(0.25), ints(5), "zeros", 1),
    _quantize(f32(np.nan, np.inf, -np.inf, 3e38, -0.0), f32(1), i32(9), "special"),
    *(
        _requantize(ints(*s, low=-(2**20), high=2**20), f32(2.0**-13), i32(5), "")
        for s in ((), (1,), (MANY,), (71, 73), (0,))
    ),
    _requantize(
        ints(2, 5, 9, low=-(2**20), high=2**20),
        np.exp2(-ints(5, low=9, high=15)).astype(np.float32),
        ints(5, low=-999, high=999),
        "each",
        1,
        zero=-3,
    ),
    _requantize(i32(2**31 - 1, 5, -(2**31)), f32(2.0**-25), i32(1), "wraps", zero=100),
]


def _a() -> Tensor:
    return input("a", (3, 5), "int32")


def _words(k: int = 5, n: int = 4) -> Tensor:
    return constant(pack_int8(weights(k, n)))


def _conv(x: Tensor, kernel: tuple[int, ...] = (3,)) -> Tensor:
    return ops.conv_integer(x, _words(24, 4), 4, kernel)


ERRORS: list[ErrorSample] = [
    ErrorSample(build, error, match)
    for build, error, match in (
        (lambda: ops.matmul_integer(input("a", (3, 5)), _words(), 4), DTypeError, "as int32"),
        (
            lambda: ops.matmul_integer(input("a", (5,), "int32"), _words(), 4),
            ShapeError,
            "mat",
        ),
        (lambda: ops.matmul_integer(_a(), _words(9), 4), ShapeError, "expected words"),
        (lambda: ops.matmul_integer(_a(), _words(), 17), ShapeError, "expected words"),
        (lambda: ops.matmul_integer(_a(), _a(), 4), DTypeError, "words of uint32"),
        (lambda: ops.matmul_integer(_a(), _words(), 4, 0.5), DTypeError, "."),
        (lambda: ops.matmul_integer(_a(), _words(), 4, ints(3)), ShapeError, "zero points"),
        (lambda: ops.matmul_integer(_a(), _words(), 4, 0, ints(3)), ShapeError, "zero points"),
        (
            lambda: ops.matmul_integer(_a(), constant(pack_int8(weights(2, 5, 4))), 4),
            ShapeError,
            "matrix of weights",
        ),
        (lambda: ops.prepack_int8(input("b", (3, 5))), DTypeError, "as int32"),
        (lambda: ops.prepack_int8(input("b", (5,), "int32")), ShapeError, "matrices"),
        (lambda: _conv(input("x", (1, 8, 9))), DTypeError, "as int32"),
        (lambda: _conv(input("x", (1, 8, 9), "int32"), (5,)), ShapeError, "expected words"),
        (lambda: _conv(input("x", (1, 8, 2), "int32")), ShapeError, "window within"),
        (lambda: ops.quantize_linear(_a(), f32(1)), DTypeError, "operands of float32"),
        (lambda: ops.quantize_linear(input("x", (3, 5)), floats(4)), ShapeError, "along axis 0"),
        (
            lambda: ops.quantize_linear(input("x", (3,)), f32(1), high=1 << 20),
            ShapeError,
            "as high",
        ),
        (lambda: ops.requantize(_a(), constant(floats(4)), axis=1), ShapeError, "axis 1"),
        (
            lambda: apply("requantize", (_a(),) * 3, {"axis": 0, "zero": 0, "low": 0, "high": 1}),
            DTypeError,
            "operands",
        ),
    )
]
