"""How calls are drawn of the com.microsoft ops that no optimizer makes: exporters write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx_calls import Drawn, Source
from onnx_calls import calls as register
from onnx_calls_math import BYTES, scale_of, zero_of
from onnx_calls_nn import room, window

calls = partial(register, domain="com.microsoft", since=17)
KINDS = ("float32", "float64", "int64", "int32", "int8", "uint8", "bool")


# -- twins of ops of the default domain ------------------------------------------------------------


@calls("Trilu")
def trilu(s: Source) -> Drawn:
    kind = s.pick("float32", "float64", "int64")
    at = np.array(s.int(-2, 2), np.int64) if s.chance(0.6) else None
    shape = (*s.shape(0, 2, empty=False), s.int(1, 5), s.int(1, 5))
    return [s.values(shape, kind), at], {"upper": s.pick(0, 1, None)}


@calls("GatherND")
def gather_nd(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    depth = s.int(1, len(shape))
    before = s.shape(0, 2, empty=False)
    index = np.stack([s.rng.integers(-d, d, before) for d in shape[:depth]], -1)
    return [s.values(shape, s.pick(*KINDS)), index.astype(s.pick(np.int32, np.int64))], {}


@calls("Pad")
def pad(s: Source) -> Drawn:
    mode = s.pick("constant", "constant", "reflect", "edge")
    shape = tuple(d + 3 for d in s.shape(1, 3, empty=False))
    low = -1 if mode == "constant" else 0
    pads = s.vector(s.ints(2 * len(shape), low, 2))
    value = s.values(s.pick((), (1,))) if mode == "constant" and s.chance(0.5) else None
    if s.chance(0.2):
        pads = pads.reshape(1, -1)
    return [s.values(shape), pads, value], {"mode": mode}


@calls("ExpandDims")
def expand_dims(s: Source) -> Drawn:
    shape = s.shape(0, 3)
    at = s.int(-len(shape) - 1, len(shape))
    return [s.values(shape, s.pick(*KINDS)), np.array(at, np.int32)], {}


@calls("Range")
def range_of(s: Source) -> Drawn:
    kind = s.pick("int32", "int64", "int16", "float32", "float64")
    step = s.pick(1, 2, -1, None)
    start, span = s.int(-4, 4), s.int(0, 9)
    ends = [start, start + span * (-1 if step == -1 else 1)]
    inputs = [np.array(v, kind).reshape(s.pick((), (1,))) for v in ends]
    return [*inputs, None if step is None else np.array(step, kind)], {}


@calls("GridSample")
def grid_sample(s: Source) -> Drawn:
    x = s.values((s.int(1, 2), s.int(1, 2), s.int(2, 5), s.int(2, 5)))
    grid = s.rng.uniform(-1.2, 1.2, (x.shape[0], s.int(1, 3), s.int(1, 3), 2))
    mode = s.pick("bilinear", "bicubic", None)
    border = () if mode == "bicubic" else ("border",)  # as of the default domain's
    return [x, grid.astype(np.float32)], {
        "mode": mode, "align_corners": s.pick(0, 1, None),
        "padding_mode": s.pick("zeros", *border, "reflection", None),
    }  # fmt: skip


@calls("UnfoldTensor")
def unfold(s: Source) -> Drawn:
    shape = tuple(d + 2 for d in s.shape(1, 3, empty=False))
    axis = s.axis(len(shape))
    attrs = {"dim": s.pick(axis, None), "size": s.int(1, 3), "step": s.pick(1, 2, None)}
    return [s.values(shape, s.pick(*KINDS))], attrs


@calls("SampleOp")
def sample_op(s: Source) -> Drawn:
    return [s.values(s.shape(0, 3))], {}


@calls("ConvTransposeWithDynamicPads")
def conv_transpose(s: Source) -> Drawn:
    kernel = s.ints(2, 1, 3)
    groups = s.pick(1, 2)
    x = s.values((s.int(1, 2), 2 * groups, s.int(2, 4), s.int(2, 4)))
    w = s.values((2 * groups, 2, *kernel))
    pads = s.vector([s.int(0, k - 1) for k in kernel * 2])
    bias = s.values((2 * groups,)) if s.chance(0.5) else None
    attrs = {"strides": s.ints(2, 1, 3), "group": groups, "kernel_shape": kernel}
    return [x, w, pads, bias], attrs


@calls("MatMulInteger16")
def matmul_integer16(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    before = s.shape(0, 1, empty=False)
    return [s.values((*before, m, k), np.int16), s.values((k, n), np.int16)], {}


@calls("CDist")
def distances(s: Source) -> Drawn:
    depth, kind = s.int(1, 6), s.pick("float32", "float64")
    metric = s.pick("euclidean", "sqeuclidean", None)
    return [s.values((s.int(1, 5), depth), kind), s.values((s.int(1, 5), depth), kind)], {
        "metric": metric
    }


@calls("Inverse")
def inverse(s: Source) -> Drawn:
    size, kind = s.int(1, 4), s.pick("float32", "float64")
    x = s.values((*s.shape(0, 2, empty=False), size, size), kind)
    return [x + np.eye(size, dtype=kind) * 6], {}


# -- images ----------------------------------------------------------------------------------------


@calls("CropAndResize")
def crop_and_resize(s: Source) -> Drawn:
    x = s.values((s.int(1, 2), s.int(1, 3), s.int(2, 6), s.int(2, 6)))
    count = s.int(1, 3)
    regions = s.rng.uniform(-0.2, 1.2, (count, 4)).astype(np.float32)
    if s.chance(0.4):
        regions = np.tile(np.array([[0, 0, 1, 1]], np.float32), (count, 1))
    images = s.rng.integers(0, x.shape[0], count).astype(np.int32)
    return [x, regions, images, s.vector(s.ints(2, 1, 4), np.int32)], {
        "mode": s.pick("bilinear", "nearest", None), "extrapolation_value": s.pick(1.5, None),
    }  # fmt: skip


@calls("MaxpoolWithMask")
def pool_with_mask(s: Source) -> Drawn:
    axes = s.int(1, 3)
    kernel = s.ints(axes, 1, 3)
    sizes = [k + s.int(0, 3) for k in kernel]
    shape = (s.int(1, 2), s.int(1, 2), *sizes)
    # of more masks onnxruntime reads them from places in between
    mask = (s.rng.random((1, 1, *sizes)) < 0.8).astype(np.int32)
    pads = [s.int(0, k // 2) for k in kernel * 2] if s.chance(0.5) else None
    strides = s.ints(axes, 1, 2) if s.chance(0.5) else None
    return [s.values(shape), mask], {"kernel_shape": kernel, "strides": strides, "pads": pads}


@calls("NhwcMaxPool")
def nhwc_pool(s: Source) -> Drawn:
    attrs = window(s, 2)
    kernel = s.ints(2, 1, 3)
    if "pads" in attrs:
        attrs["pads"] = [s.int(0, k // 2) for k in kernel * 2]
    x = s.values((s.int(1, 2), *room(s, attrs, kernel), s.int(1, 3)), s.pick(*BYTES), full=True)
    return [x], {**attrs, "kernel_shape": kernel}


# -- quantised -------------------------------------------------------------------------------------


@calls("QLinearWhere")
def quantized_where(s: Source) -> Drawn:
    kind, (a, b, c) = s.pick(*BYTES), s.broadcasts(3, 3)
    operands: list[Any] = [s.values(a, np.bool_)]
    for shape in (b, c):
        operands += [s.values(shape, kind, full=True), scale_of(s), zero_of(s, kind)]
    # of scales that are initializers beside zero points that are none onnxruntime ends the process
    s.fixed = frozenset((2, 3, 5, 6, 7, 8) if s.chance(0.7) else ())
    return [*operands, scale_of(s), zero_of(s, kind)], {}


@calls("QAttention")
def quantized_attention(s: Source) -> Drawn:
    batch, heads, size, length = s.int(1, 2), s.pick(1, 2), s.pick(2, 4), s.int(1, 4)
    width, depth = heads * size, s.pick(3, 8)
    kind = s.pick(np.uint8, np.int8)
    past = s.int(1, 3) if s.chance(0.4) else 0
    columns = s.pick((), (3 * width,))
    mask: Any = None
    if s.chance(0.5):
        mask = (s.rng.random((batch, length + past)) < 0.7).astype(np.int32)
        if s.chance(0.3):
            mask = s.rng.integers(1, length + past + 1, batch).astype(np.int32)
    zeros = [zero_of(s, np.uint8), zero_of(s, kind, columns)] if s.chance(0.7) else [None, None]
    return [
        s.values((batch, length, depth), np.uint8, full=True),
        s.values((depth, 3 * width), kind, full=True), s.values((3 * width,)),
        scale_of(s) * np.float32(0.1), scale_of(s, columns) * np.float32(0.1), mask, *zeros,
        s.values((2, batch, heads, past, size)) if past else None,
    ], {"num_heads": heads, "unidirectional": s.pick(0, 1, None), "scale": s.pick(0.3, None)}, (
        2 if past else 1
    )  # fmt: skip


@calls("MatMulBnb4")
def bnb4(s: Source) -> Drawn:
    k, n, block = s.pick(16, 20, 64), s.int(1, 4), s.pick(16, 32, 64)
    packed = s.values(((n * k + 1) // 2,), np.uint8, full=True)
    scales = scale_of(s, (-(-n * k // block),))
    return [s.values((*s.shape(1, 2, empty=False), k)), packed, scales], {
        "K": k, "N": n, "block_size": block, "quant_type": s.pick(0, 1),
    }  # fmt: skip


@calls("MatMulFpQ4")
def fp_q4(s: Source) -> Drawn:
    k, n, kind = s.pick(32, 40, 64), s.int(1, 4), s.pick(0, 1, None)
    begin = 4 if kind == 0 else 5
    blocks = s.values((n, -(-k // 32), begin + 16), np.uint8, full=True)
    blocks[..., :4] = scale_of(s, (*blocks.shape[:2], 1)).view(np.uint8)
    if kind != 0:
        blocks[..., 4] &= 15
    x, shape = s.values((*s.shape(1, 2, empty=False), k)), s.vector([k, n])
    s.fixed = frozenset((1, 2))
    return [x, blocks.reshape(-1), shape], {"blk_quant_type": kind}


@calls("GatherPacked")
def gather_packed(s: Source) -> Drawn:
    number, row = s.pick((0, 128), (1, 64), (2, 18), (6, 22), (8, 34), (20, 18))
    table = s.values((s.int(1, 5), row * 2), np.uint8, full=True)
    halves = {0: np.float32, 1: np.float16}.get(number)
    if halves is not None:
        table = s.values((len(table), 64), halves).view(np.uint8)
    else:
        table.reshape(-1, row)[:, 1] &= 0x3B  # scales that are numbers
    at = s.rng.integers(-1, len(table) + 1, s.shape(0, 2)).astype(s.pick(np.int32, np.int64))
    return [table, at], {"K": 64, "packed_type": number, "output_dtype": s.pick(1, 10)}


# -- on the host -----------------------------------------------------------------------------------


@calls("MurmurHash3")
def murmur(s: Source) -> Drawn:
    kind = s.pick("int32", "uint32", "int64", "uint64", "float32", "float64")
    return [s.values(s.shape(0, 3), kind, full=True)], {
        "positive": s.pick(0, 1, None), "seed": s.pick(7, 123456789, None)
    }  # fmt: skip


@calls("Unique")
def unique(s: Source) -> Drawn:
    return [np.round(s.values((s.int(1, 8),)))], {}, 3


@calls("DynamicTimeWarping")
def time_warping(s: Source) -> Drawn:
    shape = (s.int(1, 7), s.int(1, 7))
    return [np.abs(s.values(shape if s.chance(0.5) else (1, *shape)))], {}


@calls("BifurcationDetector")
def bifurcation(s: Source) -> Drawn:
    source, current = (s.rng.integers(0, 3, s.int(1, 6)) for _ in range(2))
    at = s.int(0, len(source))
    predicted = np.append(source[at:], 1)
    predicted[s.rng.random(len(predicted)) < 0.2] = 2
    sizes = s.int(1, 2)
    return [source, current, np.array([at]), predicted if s.chance(0.7) else None], {
        "min_ngram_size": sizes, "max_ngram_size": sizes + s.int(0, 2),
    }, 2  # fmt: skip
