"""Oracle of dequantize_linear: Python's integers, and a product of two float32, which float64 holds
exactly.
"""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle


def dequantize_linear(case: OpSample) -> NDArray:
    x, *rest = case.inputs
    axis = case.attrs["axis"]
    feeds = {part.dtype.kind: part.reshape(-1) for part in rest}
    out = np.empty(x.shape, np.float32 if "f" in feeds else np.int32)
    for at in np.ndindex(*x.shape):
        own = {k: p[at[axis] if p.size > 1 else 0] for k, p in feeds.items()}
        whole = (int(x[at]) - int(own.get("i", 0)) + 2**31) % 2**32 - 2**31
        out[at] = float(np.float32(whole)) * float(own["f"]) if "f" in own else whole
    return out


ORACLES: dict[str, Oracle] = {"dequantize_linear": dequantize_linear}
