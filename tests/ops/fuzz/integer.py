"""Draws of ops on codes of 8 bits: any sizes, zero points and windows."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.linalg.int8 import convolution, int8_values, product
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, shapes

SIZES = st.integers(0, 40)


def _zeros(pick: Pick, columns: int) -> NDArray:
    count = pick(st.sampled_from((1, columns)))
    rng = np.random.default_rng(pick(st.integers(0, 99)))
    return rng.integers(-128, 128, count).astype(np.int32)


def _product(pick: Pick) -> OpSample:
    m, k, n = (pick(SIZES) for _ in range(3))
    signed = pick(st.booleans())
    return product(
        m,
        k,
        n,
        signed=signed,
        a_zero=pick(st.integers(-128, 127)) + 128 * (not signed),
        b_zero=_zeros(pick, n),
        batch=pick(st.sampled_from(((), (2,), (1, 3)))),
        many=pick(st.booleans()),
    )


def _convolution(pick: Pick) -> OpSample:
    axes = pick(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(pick(st.integers(low, high)) for _ in range(axes))

    kernel, dilation, begin, end = each(1, 3), each(1, 2), each(0, 2), each(0, 2)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = tuple(
        max(1, r - b - e) + pick(st.integers(0, 4))
        for r, b, e in zip(reach, begin, end, strict=True)
    )
    images, channels, outputs = (pick(st.integers(1, 20)) for _ in range(3))
    return convolution(
        (min(images, 3), channels, *sizes),
        (outputs, channels, *kernel),
        x_zero=pick(st.integers(0, 255)),
        w_zero=_zeros(pick, outputs),
        stride=each(1, 3),
        dilation=dilation,
        begin=begin,
        end=end,
    )


def _pack(pick: Pick) -> OpSample:
    signed = pick(st.booleans())
    x = int8_values(pick(SIZES), pick(SIZES), signed=signed)
    return OpSample("prepack_int8", (x,), {"signed": signed}, exact=True)


def _quantize(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        shape = pick(shapes(4, 5))
        axis = pick(st.integers(0, len(shape) - 1)) if shape else 0
        many = (shape[axis],) if shape and pick(st.booleans()) else ()
        exponents = np.random.default_rng(pick(st.integers(0, 99))).integers(-9, 3, many)
        scale = np.exp2(exponents).astype(np.float32)
        x = array(pick, "float32" if op == "quantize_linear" else "int32", shape)
        attrs = {"low": -128, "high": 127, "axis": axis}
        more = {} if op == "quantize_linear" else {"zero": pick(st.integers(-128, 127))}
        other = np.random.default_rng(3).integers(-100, 100, many).astype(np.int32)
        return OpSample(op, (x, scale, np.asarray(other)), {**attrs, **more}, exact=True)

    return draw


DRAWS: dict[str, Draw] = {
    "matmul_integer": _product,
    "conv_integer": _convolution,
    "prepack_int8": _pack,
    "quantize_linear": _quantize("quantize_linear"),
    "requantize": _quantize("requantize"),
}
