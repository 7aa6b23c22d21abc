"""Coopmat check: calls by cooperative matrices, compared with exact results.

    matmul            both types, with a and b along k and across, and float16 rows of whole and
                      half vec8
    quantized_linear  q8_0: other formats differ in the dequantization, not in the products; with
                      the Vulkan memory model also in parts of k, which the last workgroup adds
    conv              padded
    attention         the softmax selects two keys for each query, with equal weights

Drivers of a list (topology/coopmat_drivers.py) are checked, with each kernel that a static choice
may select. Parts of k are added in several runs with other operands, so that parts of an earlier
run are found. Operands are integers. The sums of float32 results exceed the integers that float16
represents, so that a driver that adds in float16 computes them wrong. `VKSCHED_COOPMAT=0` turns
cooperative matrices off, without a check. Examples: tests/runtime/test_coopmat_check.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, UINT32, NDArray, TensorType, numpy_dtype
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import Call, get_op
from ...ir.precision import MIXED, PRECISION
from ...ops.linalg.coopmat import CONV, guessed_shape, guessed_tiles
from ...ops.linalg.split_k import PARTS, parts_of, split_name
from ...ops.lowering.lower import choice_of, variants_of
from ...ops.lowering.variants import COOPMAT
from ...ops.quantized.gguf_formats import format_of
from ...ops.quantized.quant_gemm import may_split, quant_gemm_tiles
from ...topology.coopmat_drivers import lists_coopmat
from ...topology.device_spec import DeviceSpec
from ...topology.limits import Limits
from ...topology.tuned_variants import TunedVariants
from .device_probe import DeviceInfo
from .shaders import left_out
from .single_call import SingleCall
from .single_dispatch import SingleDispatcher
from .vulkan_device import VulkanDevice

STEPS, UNALIGNED_STEPS = 3 * 32 + 8, 3 * 32 + 4
"""Lengths of a sum: complete tiles along k and a part of one, for rows of float16 that are aligned
to 8 elements or not.
"""
LARGEST = {FLOAT16: 4, FLOAT32: 200}
"""Largest operand by the type of the result: sums stay below 2^11 and 2^24, up to which float16 and
float32 represent all integers.
"""
CONV_CHANNELS = 12
"""Channels of a convolution by 3 x 3: 108 steps."""
DEPTH = 64
"""Length of the rows of q, k and v, and number of different rows of k."""
LARGEST_V = 2047
"""Odd sums of two such values differ from all float16 values."""
_FORMAT, _QUANTIZED_STEPS = "q8_0", 3 * 32
_LARGEST_WEIGHT = 127
_SPLIT_STEPS, _SPLIT_CORES, _SPLIT_RUNS = 24 * 32, 128, 6
"""Length of a sum in parts, cores that are assumed for the split, and runs of a call."""
_LAYOUTS = (
    *product((FLOAT32, FLOAT16), (False, True), (False, True), (STEPS,)),
    (FLOAT16, False, True, UNALIGNED_STEPS),
)
"""Type, transpose_a, transpose_b and length of the sums of each product."""


def is_checked(spec: DeviceSpec, info: DeviceInfo) -> bool:
    """Return True if the driver of a device is listed, and the device has such kernels."""
    listed = lists_coopmat(info.driver_id, info.driver, info.label)
    has_kernels = bool(guessed_tiles(spec.limits)) and not left_out()
    return listed and has_kernels and not spec.limits.software


def check_products(device: VulkanDevice) -> str:
    """Return a description of the first wrong result, "" if all are exact."""
    singles = SingleDispatcher(device.context, device.disable_aliasing)
    for op, call in checked_calls(device.limits):
        single = SingleCall(device.context, singles, get_op(op), call)
        failure = _failure(single, op, call)
        single.close()
        if failure:
            return failure
    return ""


def _failure(single: SingleCall, op: str, call: Call) -> str:
    """Return a description of the first run of a call with a wrong result, "" if all are exact."""
    for run in range(_SPLIT_RUNS if parts_of(call.variant) > 1 else 1):
        operands = operands_of(op, call, run)
        got = single.run(operands)
        wrong = int(np.count_nonzero(got != expected_of(op, call, operands)))
        if wrong:
            layout = "".join(f", {name}" for name, value in call.attrs.items() if value is True)
            return (
                f"{wrong} of {got.size} results of run {run + 1} of {op} of {call.output.dtype} by "
                f"{call.variant}{layout} are wrong"
            )
    return ""


def checked_calls(limits: Limits) -> Iterator[tuple[str, Call]]:
    """Yield the op and the call of each kernel, with edges of its tiles."""
    yield from (("quantized_linear", call) for call in _quantized_calls(limits))
    yield from (("matmul", call) for call in _products(limits))
    yield from (("conv", call) for call in _convolutions(limits))
    yield from (("attention", call) for call in _attentions(limits))


def matrix_product(
    limits: Limits, dtype: str, transpose_a: bool, transpose_b: bool, sizes: tuple[int, int, int]
) -> Call:
    """Return a matrix product; sizes: rows, columns and steps along k."""
    attrs: dict[str, AttrValue] = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if dtype == FLOAT32:
        attrs[PRECISION] = MIXED
    m, n, k = sizes
    a, b = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
    types = TensorType(a, dtype), TensorType(b, dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(attrs), limits)


def _products(limits: Limits) -> Iterator[Call]:
    for dtype, transpose_a, transpose_b, k in _LAYOUTS:
        layout = limits, dtype, transpose_a, transpose_b
        names = variants_of(get_op("matmul"), matrix_product(*layout, (256, 256, k)))
        for tile in guessed_tiles(limits, names=names):
            sizes = tile.rows + tile.rows // 2, tile.columns + 8, k
            yield replace(matrix_product(*layout, sizes), variant=tile.name)


def _quantized_calls(limits: Limits) -> Iterator[Call]:
    for tile in quant_gemm_tiles(limits).values():
        if (tile.shape, tile.subgroup) == guessed_shape(limits) and not tile.fp16_sums:
            m, n = tile.rows + tile.rows // 2, tile.columns + 8
            yield _quantized_call(limits, tile.name, (m, n, _QUANTIZED_STEPS))
            if may_split(limits):
                many = m, 4 * tile.columns + 8, _SPLIT_STEPS
                large = replace(limits, cores=_SPLIT_CORES)
                yield _quantized_call(large, split_name(tile.name, PARTS[-1]), many)


def _quantized_call(limits: Limits, variant: str, sizes: tuple[int, int, int]) -> Call:
    """Return a product by a quantized weight; sizes: rows, columns and steps along k."""
    m, n, k = sizes
    types = TensorType((m, k)), TensorType((n, format_of(_FORMAT).row_words(k)), UINT32)
    attrs = Attrs({"format": _FORMAT, PRECISION: MIXED})
    return Call(types, TensorType((m, n)), attrs, limits, variant)


def convolution(limits: Limits, rows: int) -> Call:
    """Return a padded convolution of two images with 144 positions."""
    x = TensorType((2, CONV_CHANNELS, 12, 12))
    attrs = Attrs(
        {
            "begin": (1, 1),
            "dilation": (1, 1),
            "end": (1, 1),
            "groups": 1,
            "stride": (1, 1),
            PRECISION: MIXED,
        }
    )
    w = TensorType((rows, CONV_CHANNELS, 3, 3))
    return Call((x, w), TensorType((2, rows, 12, 12)), attrs, limits)


def _convolutions(limits: Limits) -> Iterator[Call]:
    names = variants_of(get_op("conv"), convolution(limits, 256))
    for tile in guessed_tiles(limits, CONV, names):
        yield replace(convolution(limits, tile.rows + tile.rows // 2), variant=tile.name)


def attention(limits: Limits, queries: int, depth: int = DEPTH) -> Call:
    """Return attention to pairs of equal keys, and to 8 keys that no query selects."""
    q, k = (TensorType((1, 2, count, depth)) for count in (queries, 2 * depth + 8))
    attrs = Attrs(
        {
            "fully_masked_is_nan": False,
            "is_bshd": (0, 0, 0, 0),
            "past_len": 0,
            "left": -1,
            "right": -1,
            "scale": 1 / math.sqrt(depth),
            "softcap": 0.0,
            PRECISION: MIXED,
        }
    )
    return Call((q, k, k), q, attrs, limits)


def _attentions(limits: Limits) -> Iterator[Call]:
    checked = replace(limits, coopmat_checked=True, tuned=TunedVariants())
    call = attention(limits, 96)
    variant = choice_of(get_op("attention"), replace(call, limits=checked)).variant
    if variant.startswith(COOPMAT):
        yield replace(call, variant=variant)


def operands_of(op: str, call: Call, run: int = 0) -> tuple[NDArray, ...]:
    """Return operands of a run of a call that has an exact result."""
    rng, largest = np.random.default_rng(1 + run), LARGEST[call.output.dtype]
    if op == "attention":
        return _attention_operands(rng, call)
    if op == "quantized_linear":
        k = call.inputs[0].shape[-1]
        x = _integers(rng, call.inputs[0], min(largest, (1 << 24) // (_LARGEST_WEIGHT * k)))
        return x, _quantized(rng, call.output.shape[-1], k)
    return tuple(_integers(rng, each, largest) for each in call.inputs)


def expected_of(op: str, call: Call, operands: tuple[NDArray, ...]) -> NDArray:
    """Return the exact result of a call."""
    exact = (each if each.dtype == np.uint32 else each.astype(np.float32) for each in operands)
    return get_op(op).reference(tuple(exact), call.attrs)


def _integers(rng: np.random.Generator, type_: TensorType, largest: int) -> NDArray:
    values = rng.integers(-largest, largest, type_.shape, endpoint=True)
    return values.astype(numpy_dtype(type_.dtype))


def _quantized(rng: np.random.Generator, rows: int, k: int) -> NDArray:
    """Return the words of a weight whose values are integers: all scales are 1."""
    values = rng.integers(-_LARGEST_WEIGHT, _LARGEST_WEIGHT, (rows, k), np.int8, endpoint=True)
    blocks: NDArray = np.empty((rows, k // 32, 34), np.uint8)
    blocks[..., :2] = np.ones(1, np.float16).view(np.uint8)
    blocks[..., 2:] = values.view(np.uint8).reshape(rows, k // 32, 32)
    return format_of(_FORMAT).pack_u32(blocks.reshape(rows, -1), k)


def _attention_operands(rng: np.random.Generator, call: Call) -> tuple[NDArray, ...]:
    """Return q, k and v: rows of q and k are those of a Hadamard matrix. Scores of equal rows are
    large, all others 0, and their weights vanish.
    """
    signs: NDArray = np.ones((1, 1), np.float32)
    while len(signs) < call.inputs[0].shape[-1]:
        signs = np.block([[signs, signs], [signs, -signs]])
    q, k = (np.zeros(each.shape, np.float32) for each in call.inputs[:2])
    pairs = np.arange(2 * len(signs)) // 2
    for head in range(q.shape[1]):
        q[0, head] = 16 * signs[rng.integers(0, len(signs), q.shape[2])]
        k[0, head, : len(pairs)] = 16 * signs[rng.permutation(pairs)]
    return q, k, _integers(rng, call.inputs[2], LARGEST_V)
