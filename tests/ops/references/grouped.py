"""Oracle of products by chosen matrices: row by row, in float64."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import Case

from .common import Oracle
from .packed import values


def _rows(x: NDArray, weight: NDArray, chosen: NDArray) -> NDArray:
    out = np.zeros((*chosen.shape, weight.shape[1]))
    for row, slot in np.ndindex(*chosen.shape):
        own = x[row, slot] if x.ndim == 3 else x[row]
        out[row, slot] = weight[chosen[row, slot]].astype(np.float64) @ own.astype(np.float64)
    return out.astype(np.float32)


def grouped_linear(case: Case) -> NDArray:
    return _rows(*case.inputs)


def grouped_packed(case: Case) -> NDArray:
    x, words, chosen = case.inputs
    flat = values(case.attrs["format"], words.reshape(-1, words.shape[-1]))
    return _rows(x, flat.reshape(*words.shape[:2], -1), chosen)


ORACLES: dict[str, Oracle] = {"grouped_linear": grouped_linear, "grouped_packed": grouped_packed}
