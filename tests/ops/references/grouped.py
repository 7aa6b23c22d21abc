"""Oracle of products by chosen matrices: row by row, in float64."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle
from .packed import values


def _rows(x: NDArray, weight: NDArray, expert_ids: NDArray) -> NDArray:
    out = np.zeros((*expert_ids.shape, weight.shape[1]))
    for row, slot in np.ndindex(*expert_ids.shape):
        own = x[row, slot] if x.ndim == 3 else x[row]
        out[row, slot] = weight[expert_ids[row, slot]].astype(np.float64) @ own.astype(np.float64)
    return out.astype(np.float32)


def moe_linear(case: OpSample) -> NDArray:
    return _rows(*case.inputs)


def quantized_moe_linear(case: OpSample) -> NDArray:
    x, words, expert_ids = case.inputs
    flat = values(case.attrs["format"], words.reshape(-1, words.shape[-1]))
    return _rows(x, flat.reshape(*words.shape[:2], -1), expert_ids)


ORACLES: dict[str, Oracle] = {
    "moe_linear": moe_linear,
    "quantized_moe_linear": quantized_moe_linear,
}
