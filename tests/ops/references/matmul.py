"""Oracles of the matmul family."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle
from .epilogue import with_epilogue


def matmul(case: OpSample) -> NDArray:
    a, b = (x.astype(np.float64 if x.dtype == np.float32 else object) for x in case.inputs[:2])
    left = "...km" if case.attrs["transpose_a"] else "...mk"
    right = "...nk" if case.attrs["transpose_b"] else "...kn"
    if a.dtype == object:
        left_first = a.swapaxes(-1, -2) if case.attrs["transpose_a"] else a
        right_first = b.swapaxes(-1, -2) if case.attrs["transpose_b"] else b
        out = (left_first[..., :, None, :] * right_first.swapaxes(-1, -2)[..., None, :, :]).sum(-1)
    else:
        with np.errstate(all="ignore"):
            out = np.einsum(f"{left},{right}->...mn", a, b)
    if len(case.inputs) > 2:
        out = out + case.inputs[2].astype(a.dtype)
    if case.inputs[0].dtype == np.uint32:
        return np.asarray(out % 2**32, np.uint32)
    if a.dtype == object:
        return np.asarray((out + 2**31) % 2**32 - 2**31, np.int32)
    return np.asarray(out, np.float32)


ORACLES: dict[str, Oracle] = {
    "matmul": with_epilogue(matmul),
}
