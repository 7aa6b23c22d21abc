"""Coopmat check: products of small integers by cooperative matrices, compared with exact results.

Drivers of a list (topology/coopmat_drivers.py) are checked, with each tile that a static choice may
select. `VKSCHED_COOPMAT=0` turns cooperative matrices off, without a check. Examples:
tests/runtime/test_device_check.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, UINT32, NDArray, TensorType, numpy_dtype
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import Call, get_op
from ...ir.precision import MIXED, PRECISION
from ...ops.linalg.coopmat import COOPMAT_SHADERS, guessed_shape, guessed_tiles
from ...ops.lowering.lower import variants_of
from ...ops.quantized.gguf_formats import format_of
from ...ops.quantized.quant_gemm import quant_gemm_tiles
from ...topology.coopmat_drivers import lists_coopmat
from ...topology.device_spec import DeviceSpec
from ...topology.limits import Limits
from .device_probe import DeviceInfo
from .shaders import left_out
from .single_call import SingleCall
from .single_dispatch import SingleDispatcher
from .vulkan_device import VulkanDevice

CHECKED_STEPS = 3 * 32 + 8
"""Length of a sum: complete tiles along k, and a part of one."""
LARGEST = 4
"""Largest operand: all sums are integers below 2048, which float16 represents exactly."""
_FORMAT, _QUANTIZED_STEPS = "q8_0", 3 * 32
"""Format of a quantized weight and length of its sums: whole runs."""
CHECKED_SHADERS = (*COOPMAT_SHADERS, f"quant_gemm_coopmat_{_FORMAT}")


def is_checked(spec: DeviceSpec, info: DeviceInfo) -> bool:
    """Return True if the driver of a device is listed, and the device has such kernels."""
    listed = lists_coopmat(info.driver_id, info.driver, info.label)
    has_kernels = bool(guessed_tiles(spec.limits)) and not left_out()
    return listed and has_kernels and not spec.limits.software


def check_products(device: VulkanDevice) -> str:
    """Return a description of the first wrong product, "" if all are exact."""
    singles = SingleDispatcher(device.context, device.disable_aliasing)
    for call in _quantized_calls(device.limits):
        x, words, values = _quantized_operands(call)
        got = _product(device, singles, "quantized_linear", call, (x, words))
        wrong = int(np.count_nonzero(got != x.astype(np.float64) @ values.T))
        if wrong:
            return (
                f"{wrong} of {got.size} results of a quantized product by {call.variant} are wrong"
            )
    for call in _calls(device.limits):
        a, b = _operands(call)
        left = a.astype(np.float64)
        right = b.astype(np.float64)
        expected = left @ (right.T if call.attrs["transpose_b"] else right)
        got = _product(device, singles, "matmul", call, (a, b))
        wrong = int(np.count_nonzero(got != expected))
        if wrong:
            how = "b transposed" if call.attrs["transpose_b"] else "b not transposed"
            return (
                f"{wrong} of {expected.size} results of a product of {call.inputs[0].dtype} by "
                f"{call.variant}, {how}, are wrong"
            )
    return ""


def _calls(limits: Limits) -> Iterator[Call]:
    """Yield products of both types and with both layouts of b, with each tile that a static choice
    selects for them, and with edges.
    """
    matmul = get_op("matmul")
    for dtype in (FLOAT32, FLOAT16):
        for transpose_b in (False, True):
            call = _call(limits, dtype, transpose_b, 256, 256)
            for tile in guessed_tiles(limits, names=variants_of(matmul, call)):
                m, n = tile.rows + tile.rows // 2, tile.columns + 8
                yield replace(_call(limits, dtype, transpose_b, m, n), variant=tile.name)


def _call(limits: Limits, dtype: str, transpose_b: bool, m: int, n: int) -> Call:
    attrs: dict[str, AttrValue] = {"transpose_a": False, "transpose_b": transpose_b}
    if dtype == FLOAT32:
        attrs[PRECISION] = MIXED
    b = (n, CHECKED_STEPS) if transpose_b else (CHECKED_STEPS, n)
    types = TensorType((m, CHECKED_STEPS), dtype), TensorType(b, dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(attrs), limits)


def _operands(call: Call) -> tuple[NDArray, NDArray]:
    """Return operands with small integers."""
    rng = np.random.default_rng(1)
    a, b = (
        rng.integers(-LARGEST, LARGEST, t.shape, endpoint=True).astype(numpy_dtype(t.dtype))
        for t in call.inputs
    )
    return a, b


def _quantized_calls(limits: Limits) -> Iterator[Call]:
    """Yield products by quantized weights with each tile that a static choice may select."""
    kind, k = format_of(_FORMAT), _QUANTIZED_STEPS
    for tile in quant_gemm_tiles(limits).values():
        if (tile.shape, tile.subgroup) == guessed_shape(limits) and not tile.fp16_sums:
            m, n = tile.rows + tile.rows // 2, tile.columns + 8
            types = TensorType((m, k)), TensorType((n, kind.row_words(k)), UINT32)
            attrs = Attrs({"format": _FORMAT, PRECISION: MIXED})
            yield Call(types, TensorType((m, n)), attrs, limits, tile.name)


def _quantized_operands(call: Call) -> tuple[NDArray, NDArray, NDArray]:
    """Return x and words with small integers, and the values of the words."""
    rng, k = np.random.default_rng(2), _QUANTIZED_STEPS
    x = rng.integers(-LARGEST, LARGEST, call.inputs[0].shape, endpoint=True).astype(np.float32)
    values = rng.integers(-LARGEST, LARGEST, (call.output.shape[-1], k), np.int8, endpoint=True)
    blocks: NDArray = np.empty((len(values), k // 32, 34), np.uint8)
    blocks[..., :2] = np.ones(1, np.float16).view(np.uint8)
    blocks[..., 2:] = values.view(np.uint8).reshape(len(values), k // 32, 32)
    words = format_of(_FORMAT).pack_u32(blocks.reshape(len(values), -1), k)
    return x, words, values.astype(np.float64)


def _product(
    device: VulkanDevice,
    singles: SingleDispatcher,
    op: str,
    call: Call,
    operands: tuple[NDArray, NDArray],
) -> NDArray:
    """Return the result of a product on a device."""
    product = SingleCall(device.context, singles, get_op(op), call)
    try:
        return product.run(operands).astype(np.float64)
    finally:
        product.close()
