"""Oracles of softmax and log_softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle

scipy_special = pytest.importorskip("scipy.special")


def under_mask(case: OpSample) -> NDArray:
    x = case.inputs[0].astype(np.float64)
    if len(case.inputs) == 1:
        return x
    mask = case.inputs[1]
    with np.errstate(all="ignore"):
        if mask.dtype == bool:
            return np.ma.masked_array(x, ~np.broadcast_to(mask, x.shape)).filled(-np.inf)
        return x + mask


def by_scipy(compute: Callable[..., Any]) -> Oracle:
    def oracle(case: OpSample) -> NDArray:
        x, axis = under_mask(case), int(case.attrs["axis"])  # type: ignore[arg-type]
        if x.size == 0:
            return case.inputs[0]
        with np.errstate(all="ignore"):
            result = np.asarray(compute(x, axis=axis), np.float32)
        # scipy.special.log_softmax calls the others of a row with +infinity impossible; softmax,
        # whose logarithm this is, has NaN there
        result[np.broadcast_to((x == np.inf).any(axis, keepdims=True), x.shape)] = np.nan
        return result

    return oracle


ORACLES: dict[str, Oracle] = {
    "softmax": by_scipy(scipy_special.softmax),
    "log_softmax": by_scipy(scipy_special.log_softmax),
}
