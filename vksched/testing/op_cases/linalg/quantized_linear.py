"""Samples of quantized matmuls: every block format, one block and several, partial tiles, scales
that are not finite, all bits of a block; few and many rows.
"""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.dtypes import FLOAT16, FLOAT32, NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.precision import MIXED
from ....ir.tensor import Tensor, input
from ....ops.elementwise.epilogue import epilogue_attrs
from ....ops.quantized.gguf_formats import FORMATS, repack
from ..conv.precision import with_precision
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats, ints

SCALES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("f16", "q8_0", "q4_0", "q5_0", "iq4_nl", "iq4_xs"), (0,)),
    **dict.fromkeys(("q4_1", "q5_1", "q4_K", "q5_K"), (0, 2)),
    "q2_K": (80, 82),
    "q3_K": (108,),
    "q6_K": (208,),
}
"""Offsets of float16 scales in a block; mxfp4 has a power of two in its first byte, bf16 is one
number.
"""
BLOCKS: dict[tuple[str, bytes], NDArray] = {}
"""The blocks of repacked words, for the oracle."""


def blocks(name: str, rows: int, columns: int, seed: int = 0) -> NDArray:
    """Return random blocks with scales near 1 / 16: uint8 (rows, blocks, bytes)."""
    kind = FORMATS[name]
    rng = np.random.default_rng((seed, rows, columns, kind.number))
    blocks = rng.integers(0, 256, (rows, columns // kind.values, kind.block_bytes), np.uint8)
    for at in SCALES.get(name, ()):
        scales = rng.uniform(-0.125, 0.125, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    if name == "mxfp4":
        blocks[..., 0] = rng.integers(120, 126, blocks.shape[:2])
    if name == "bf16":
        blocks[..., 1] = 0x3D | blocks[..., 1] & 0x80
    return blocks


def words_of(name: str, blocks: NDArray) -> NDArray:
    """Return blocks as words, and store the blocks for the oracle."""
    kind = FORMATS[name]
    words = repack(name, blocks, (len(blocks), blocks.shape[1] * kind.values))
    BLOCKS[name, words.tobytes()] = blocks
    return words


def words(name: str, rows: int, columns: int, seed: int = 0) -> NDArray:
    """Return random words of a weight."""
    return words_of(name, blocks(name, rows, columns, seed))


ANY_SCALE = (0x7C00, 0xFC00, 0x7E01, 0x0001, 0x83FF, 0x0000, 0x8000, 0x7BFF)
"""float16: both infinities, NaN, subnormals, zeros, the largest."""
NO_INFINITY = (0x2C00, 0x7E01, 0x0001, 0x83FF, 0x0000, 0x8000, 0x7BFF, 0xAC00)
"""A product with an infinite scale is infinite or NaN, depending on the order of summation."""


def wild(name: str, scales: tuple[int, ...] = ANY_SCALE) -> NDArray:
    """Return words of eight rows with unusual scales."""
    encoded = blocks(name, 8, FORMATS[name].step)
    for at in SCALES.get(name, ()):
        encoded[..., at : at + 2] = np.array(scales, np.uint16)[:, None, None].view(np.uint8)
    if name == "mxfp4":
        encoded[..., 0] = np.array([2, 3, 255, 254, 128, 127, 126, 4])[:, None]
    if name == "bf16":
        wild = (0x7F80, 0xFF80, 0x7FC1, 0x0001, 0x8000, 0x0000, 0x7F7F, 0x0080)
        encoded[..., :] = np.array(wild, np.uint16)[:, None, None].view(np.uint8)
    return words_of(name, encoded)


def dequantize(
    name: str, held: NDArray, columns: int, what: str = "", exact: bool = True
) -> OpSample:
    attrs: dict[str, AttrValue] = {"format": name, "columns": columns}
    return OpSample("dequantize", (held,), attrs, f"{name} {what}".strip(), exact=exact)


def linear(
    name: str,
    shape: tuple[int, ...],
    n: int,
    bias: bool = False,
    what: str = "",
    held: NDArray | None = None,
) -> OpSample:
    """Return x of a shape times a weight of n rows."""
    held = words(name, n, shape[-1]) if held is None else held
    rows = (floats(n, seed=2),) if bias else ()
    inputs = floats(*shape), held, *rows
    return OpSample("quantized_linear", inputs, {"format": name}, f"{name} {what}".strip())


FIRST = ("f16", "q8_0", "q4_0", "q4_K", "q6_K")
"""Formats with more samples, one of each kind of layout."""
OF_MANY_ROWS: list[OpSample] = [
    linear(name, (*lead, k), n, bias, f"{lead} tiles")
    for name in ("f16", "bf16")
    for lead, k, n, bias in (
        *(((9,), 64, 17, True), ((70,), 160, 40, False), ((3, 11), 1120, 68, True)),
        ((130,), 32, 129, True),
    )
]
"""16-bit weights, which tiles read directly."""
CASES: list[OpSample] = [
    *OF_MANY_ROWS,
    *(
        dequantize(name, words(name, rows, count * kind.step), count * kind.step)
        for name, kind in FORMATS.items()
        for rows, count in ((1, 1), (13, 3), (71, 1))
    ),
    *(
        dequantize(name, words(name, 3, columns), columns)
        for name in FIRST
        for columns in (256, 512, 2560)
    ),
    *(
        dequantize(name, words(name, 5, 32 * count), 32 * count, "ends within a tile")
        for name in ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
        for count in (9, 18, 31)
    ),
    *(
        dequantize(name, words(name, 6, 256).reshape(lead + (-1,)), 256, "ranks")
        for name in ("q8_0", "q4_K")
        for lead in ((2, 3), (1, 6, 1))
    ),
    dequantize("q4_K", words("q4_K", 1, 512)[0], 512, "a row"),
    dequantize("q4_K", words("q4_K", 1, 512)[:0], 512, "no rows"),
    *(dequantize(name, wild(name), FORMATS[name].step, "wild", exact=False) for name in FORMATS),
    *(
        linear(name, (m, count * kind.step), n, bias)
        for name, kind in FORMATS.items()
        for m, n, count, bias in ((1, 37, 3, True), (3, 36, 2, False))
    ),
    *(
        linear(name, (*lead, 512), n, bias, f"{lead}")
        for name in FIRST
        for lead, n, bias in (
            *(((1,), 300, True), ((1,), 1, False), ((8,), 71, True), ((2, 3), 40, False)),
            *(((9,), 12, True), ((2, 3, 5), 7, False), ((0,), 8, False)),
        )
    ),
    *(linear(name, (2, 32 * 18), 20, True, "ends within a tile") for name in ("q8_0", "q4_1")),
    *(linear("mxfp4", (m, 32 * runs), 20, True, "within a pair") for m, runs in ((1, 9), (8, 18))),
    *(
        linear(name, (m, count * FORMATS[name].step), 37, False, f"{m} rows")
        for name in ("q4_1", "q5_1", "q2_K", "q3_K", "q5_0", "q5_K", "iq4_nl", "iq4_xs", "mxfp4")
        for m, count in ((5, 3), (8, 4))
    ),
    *(
        linear(name, (m, FORMATS[name].step), 8, False, f"wild {m}", wild(name, NO_INFINITY))
        for name in FIRST
        for m in (1, 3, 17)
    ),
    *(
        OpSample(
            "quantized_linear",
            (floats(m, 256), words("q4_K", 36, 256), floats(36, seed=2), *operands),
            {"format": "q4_K", **epilogue_attrs(1 + len(operands), steps, ())},
            f"then {' '.join(op for op, _, _ in steps)} {m}",
        )
        for m in (1, 3, 17)
        for operands, steps in (
            ((), (("silu", (0,), ()),)),
            ((floats(m, 36, seed=3),), (("add", (0, 1), ()), ("relu", (2,), ()))),
        )
    ),
    # rows of words are gathered before they are dequantized
    OpSample(
        "gather", (words("q6_K", 9, 512), ints(4, low=-9, high=9)), {"axis": 0}, "of few bits"
    ),
]
ROUNDED = [
    *(with_precision(linear(name, (33, 1024), 36), MIXED) for name in FORMATS),
    *(
        with_precision(case, MIXED).as_dtypes({FLOAT32: FLOAT16})
        for case in (linear("q4_K", (33, 512), 48), linear("f16", (20, 96), 17, True))
    ),
]
"""Samples of many rows that may be rounded, with k long enough for a split, some of rows that are
stored as float16.
"""
FUNCTIONS = [
    FunctionSample("quantized_weight", lambda x, name=name: _tied(x, name), (floats(3, 512),), name)
    for name in FIRST
]


def _tied(x: Tensor, name: str) -> Tensor:
    """Return a weight read by a matmul and by an op without quantized kernels."""
    weight = ops.quantized_weight(blocks(name, 5, 512), name, (5, 512), name="w")
    return ops.linear(x, weight) + ops.reduce_sum(weight, -1)


def _x(*shape: int, dtype: str = "float32") -> Tensor:
    return input("x", shape, dtype)


ERRORS = [
    ErrorSample(
        lambda: ops.quantized_weight(blocks("q4_0", 2, 64), "q4_7", (2, 64)), DTypeError, "one of"
    ),
    ErrorSample(
        lambda: ops.quantized_weight(blocks("q4_0", 2, 64), "q4_0", (2, 96)), ShapeError, "bytes"
    ),
    ErrorSample(lambda: ops.quantized_weight(b"", "q4_K", (2, 96)), ShapeError, "multiple of 256"),
    ErrorSample(
        lambda: ops.quantized_weight(blocks("q4_0", 2, 64), "q4_0", (64,)),
        ShapeError,
        "two sizes",
    ),
    ErrorSample(lambda: ops.dequantize(_x(2, 36), "q4_0", 256), DTypeError, "words of uint32"),
    ErrorSample(
        lambda: ops.dequantize(_x(2, 35, dtype="uint32"), "q4_0", 256), ShapeError, "36 words"
    ),
    ErrorSample(lambda: ops.dequantize(_x(dtype="uint32"), "q4_0", 256), ShapeError, "36 words"),
    ErrorSample(
        lambda: ops.dequantize(_x(2, 36, dtype="uint32"), "q4_0", 0), ShapeError, "multiple"
    ),
    ErrorSample(lambda: linear("q4_0", (64,), 3).result_type(), ShapeError, "expected matrices"),
    ErrorSample(
        lambda: linear("q4_0", (2, 64), 3, held=words("q4_0", 3, 32)).result_type(),
        ShapeError,
        "rows of",
    ),
]
