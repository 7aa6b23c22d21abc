"""Oracle of dynamic_update_slice: row by row."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle
from .elementwise import FP16_OVERFLOW


def dynamic_update_slice(case: OpSample) -> NDArray:
    data, rows, start = case.inputs
    if case.attrs.get("overflow_nan"):
        rows = np.where(np.abs(rows) < FP16_OVERFLOW, rows, np.nan)
    axis = case.attrs["axis"]
    assert isinstance(axis, int)
    out = np.moveaxis(np.array(data), axis, 0)
    new = np.moveaxis(rows, axis, 0)
    for row in range(new.shape[0]):
        if start.ndim == 0:
            if 0 <= int(start) + row < out.shape[0]:
                out[int(start) + row] = new[row]
            continue
        for batch, where in enumerate(start):
            first, slot = (where, batch) if start.ndim == 1 else where
            if 0 <= int(first) + row < out.shape[0] and 0 <= int(slot) < data.shape[0]:
                out[int(first) + row, int(slot)] = new[row, batch]
    return np.moveaxis(out, 0, axis)


ORACLES: dict[str, Oracle] = {"dynamic_update_slice": dynamic_update_slice}
