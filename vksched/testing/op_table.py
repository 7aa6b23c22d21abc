"""Op table: the samples of all ops, collected from the modules of the families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import VkschedError
from ..ir.value_range import bounds_of_data, fits
from ..topology.limits import Limits
from .op_cases.conv import conv, epilogue, pool, resize, sample, winograd
from .op_cases.conv.epilogue import FP16 as FP16_OF_EPILOGUES
from .op_cases.conv.precision import precise
from .op_cases.creation import create, random
from .op_cases.elementwise import binary, dequantize_linear, elementwise, fused_elementwise, unary
from .op_cases.layout import control, dynamic_update_slice, index, layout, pad, rearrange, scatter
from .op_cases.linalg import (
    attention,
    attention_with_kvcache,
    einsum,
    gated_delta_rule,
    int8,
    kv_q8_0,
    linear,
    matmul,
    merged_linear,
    merged_linear_rope,
    moe_linear,
    quantized_linear,
    rnn,
    ssm_scan,
)
from .op_cases.linalg.attention import OF_BLOCKS
from .op_cases.linalg.attention_with_kvcache import OF_PROMPTS
from .op_cases.linalg.matmul import FP16 as FP16_OF_MATMUL
from .op_cases.linalg.matmul import LONG_K
from .op_cases.linalg.quantized_linear import OF_MANY_ROWS
from .op_cases.op_sample import ErrorSample, FunctionSample, OpSample
from .op_cases.reduction import arg, batch_norm, norm, reduce, scan, softmax, sort

FAMILIES: tuple[ModuleType, ...] = (
    conv,
    epilogue,
    pool,
    resize,
    sample,
    winograd,
    create,
    random,
    binary,
    dequantize_linear,
    elementwise,
    fused_elementwise,
    unary,
    control,
    dynamic_update_slice,
    index,
    layout,
    pad,
    rearrange,
    scatter,
    attention,
    attention_with_kvcache,
    einsum,
    gated_delta_rule,
    int8,
    kv_q8_0,
    linear,
    matmul,
    merged_linear,
    merged_linear_rope,
    moe_linear,
    quantized_linear,
    rnn,
    ssm_scan,
    arg,
    batch_norm,
    norm,
    reduce,
    scan,
    softmax,
    sort,
)
CASES: list[OpSample] = [case for family in FAMILIES for case in family.CASES]
FUNCTIONS: list[FunctionSample] = [
    case for family in FAMILIES for case in getattr(family, "FUNCTIONS", ())
]
ERRORS: list[ErrorSample] = [case for family in FAMILIES for case in family.ERRORS]


def fits_32_bits(array: NDArray) -> bool:
    """Return True if a device can hold an array: int64 has 32 bits there."""
    return array.dtype != np.int64 or fits(bounds_of_data(array))


DERIVED_PER_OP = 4
"""Number of samples per op that are repeated with wider and narrower types."""


def derived(cases: Iterable[OpSample], change: Mapping[str, str]) -> list[OpSample]:
    """Return some samples of every op with other element types, for example float16 instead of
    float32.

    They are evenly spaced among convertible ones; casts are excluded, because they name their
    types.
    """
    able: dict[str, list[OpSample]] = {}
    for case in cases:
        named = case.op == "cast" or "dtype" in case.attrs
        if not case.large and not named and any(a.dtype.name in change for a in case.inputs):
            able.setdefault(case.op, []).append(case)
    picked = []
    for group in able.values():
        step = max(1, len(group) // DERIVED_PER_OP)
        picked += [case.as_dtypes(change) for case in group[::step][:DERIVED_PER_OP]]
    return [case for case in picked if is_taken(case)]


def is_taken(case: OpSample) -> bool:
    """Return True if the op accepts operands of these types: nextafter refuses float16, and uint32
    cannot be padded with -1.
    """
    numbers = (v for v in case.attrs.values() if isinstance(v, (int, float)))
    if any(a.dtype == np.uint32 for a in case.inputs) and any(v < 0 for v in numbers):
        return False
    try:
        case.call(Limits())
    except VkschedError:
        return False
    return True


FP16 = [*derived(CASES, {"float32": "float16"}), *FP16_OF_MATMUL, *FP16_OF_EPILOGUES]
PRECISE = [
    *precise(CASES),
    *precise(LONG_K),
    *precise((*OF_PROMPTS, *OF_BLOCKS, *OF_MANY_ROWS)),
    *merged_linear.ROUNDED,
    *quantized_linear.ROUNDED,
    *norm.ROUNDED,
    *merged_linear_rope.ROUNDED,
    *attention_with_kvcache.ROUNDED,
]
LONGS = derived(CASES, {"int32": "int64"})
UNSIGNED = derived(CASES, {"int32": "uint32"})
DOUBLES = derived(CASES, {"float32": "float64"})
