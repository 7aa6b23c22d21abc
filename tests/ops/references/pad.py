"""Oracles of padding: numpy.pad, after numpy's slices where a pad is negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.function_call import FunctionCall
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle


def by_numpy(x: NDArray, pads: Sequence[tuple[int, int]], mode: str, value: object) -> NDArray:
    if x.ndim == 0:
        return x
    over = []
    for axis, (begin, end) in enumerate(pads):
        # a crop beyond the other end takes of what that end pads
        reach = x.shape[axis] + begin + end
        x = np.delete(x, np.s_[: max(-begin, 0)], axis)
        x = np.delete(x, np.s_[max(0, x.shape[axis] + min(end, 0)) :], axis)
        over.append((min(max(begin, 0), reach), min(max(end, 0), reach - max(begin, 0))))
    extra = {"constant_values": value} if mode == "constant" else {}
    return np.asarray(np.pad(x, over, mode, **extra))  # type: ignore[call-overload]


def constant(case: OpSample) -> NDArray:
    pads = list(zip(case.attrs["begins"], case.attrs["ends"], strict=True))  # type: ignore[arg-type]
    return by_numpy(case.inputs[0], pads, "constant", case.attrs["value"])  # type: ignore[arg-type]


def any_mode(case: FunctionSample) -> NDArray:
    assert isinstance(case, FunctionCall)
    values, x = case.arguments, case.inputs[0]
    if x.ndim == 0:
        return x
    pads, axes = values["pads"], values.get("axes", range(x.ndim))
    pairs = np.broadcast_to(pads, (len(axes), 2)).tolist()
    every = [(0, 0)] * x.ndim
    for axis, pair in zip(axes, pairs, strict=True):
        every[axis] = tuple(pair)
    return by_numpy(x, every, values.get("mode", "constant"), values.get("value", 0))


ORACLES: dict[str, Oracle] = {"pad": constant}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {"pad": any_mode}
