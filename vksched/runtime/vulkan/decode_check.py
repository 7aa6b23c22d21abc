"""Decode check: attention of a decode step in one dispatch, compared with numpy.

Its last workgroup combines parts that others have written (ops/attention/attention_decode.py). The
result is wrong if a driver makes their stores visible too late, or finds the last workgroup too
early. Runs with other queries follow each other, so that parts of an earlier run are found.
Examples: tests/runtime/test_device_check.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, INT32, UINT32, NDArray, TensorType
from ...ir.attrs import Attrs
from ...ir.op import Call, get_op
from ...ops.attention.attention_decode import DECODE, decode_rows
from ...ops.attention.attention_with_kvcache import NAME
from ...ops.attention.kv_q8_0 import pack_q8_0, row_words
from ...topology.device_spec import DeviceSpec
from ...topology.limits import Limits
from .device_probe import DeviceInfo
from .single_call import SingleCall
from .single_dispatch import SingleDispatcher
from .vulkan_device import VulkanDevice

SHARED, SHARE, SIZE, KEYS = 8, 4, 64, 2048
"""Heads of keys, heads of queries for each, values of a head, and cached keys."""
COUNTS = (KEYS, KEYS, 700, KEYS, 300, KEYS)
"""Keys in use of the runs of a call, which have more than one part each."""
TOLERANCE = 1e-4
"""Maximum error of a result. A part of an earlier run changes most results by more."""


def is_checked(spec: DeviceSpec, info: DeviceInfo) -> bool:
    """Return True if a device has the kernel."""
    return bool(decode_rows(spec.limits, SHARE, SIZE, SIZE))


def check_decode(device: VulkanDevice) -> str:
    """Return a description of the first wrong result, "" if all are right."""
    singles, op = SingleDispatcher(device.context, device.disable_aliasing), get_op(NAME)
    for _, call in checked_calls(device.limits):
        attention = SingleCall(device.context, singles, op, call)
        for number, count in enumerate(COUNTS):
            operands = _operands(call, number, count)
            expected = op.reference(operands, call.attrs)
            wrong = ~np.isclose(attention.run(operands), expected, TOLERANCE, TOLERANCE)
            if wrong.any():
                return (
                    f"{np.count_nonzero(wrong)} of {wrong.size} results of run {number + 1} of "
                    f"attention to {count} keys of {call.inputs[1].dtype} are wrong"
                )
        attention.close()
    return ""


def checked_calls(limits: Limits) -> Iterator[tuple[str, Call]]:
    """Yield a call for each type of cached keys, with as many parts as on a large GPU."""
    for dtype in (FLOAT32, FLOAT16, UINT32):
        columns = row_words(SIZE) if dtype == UINT32 else SIZE
        q, new = (TensorType((1, heads, 1, SIZE)) for heads in (SHARED * SHARE, SHARED))
        cached = TensorType((1, SHARED, KEYS, columns), dtype)
        attrs = Attrs(
            {
                "scale": SIZE**-0.5,
                "softcap": 0.0,
                "past_len": 0,
                "left": -1,
                "right": 0,
                "is_bshd": (0,) * 4,
                "fully_masked_is_nan": False,
                **({"columns": SIZE} if dtype == UINT32 else {}),
            }
        )
        types = q, cached, cached, TensorType((), INT32), new, new
        yield NAME, Call(types, q, attrs, replace(limits, cores=0), variant=DECODE)


def _operands(call: Call, number: int, count: int) -> tuple[NDArray, ...]:
    """Return the operands of a run: the same cached keys, and queries of its own."""
    own, cached = np.random.default_rng(number), np.random.default_rng(len(COUNTS))
    floats = [cached.standard_normal((1, SHARED, KEYS, SIZE)).astype(np.float32) for _ in "kv"]
    dtype = call.inputs[1].dtype
    held = [pack_q8_0(x) if dtype == UINT32 else x.astype(dtype) for x in floats]
    q, *new = (
        own.standard_normal(call.inputs[operand].shape).astype(np.float32) for operand in (0, 4, 5)
    )
    return q, *held, np.array(count, np.int32), *new
