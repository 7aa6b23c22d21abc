"""Oracles of rearranging: numpy's functions of the same names, or plain loops."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle


def roll(case: OpSample) -> NDArray:
    x = case.inputs[0]
    for axis, shift in zip(case.attrs["axes"], case.attrs["shifts"], strict=True):  # type: ignore[arg-type]
        x = np.concatenate(np.split(x, [x.shape[axis] - shift], axis)[::-1], axis)
    return x


def triangle(keeps: Callable[[int, int], bool]) -> Oracle:
    def oracle(case: OpSample) -> NDArray:
        out, k = np.array(case.inputs[0]), case.attrs["k"]
        for row in range(out.shape[-2]):
            for column in range(out.shape[-1]):
                if not keeps(column - row, k):  # type: ignore[arg-type]
                    out[..., row, column] = 0
        return out

    return oracle


def named(function: Callable[..., Any]) -> FunctionOracle:
    """The function of the tensor and of the arguments in the row's name."""

    def oracle(case: FunctionSample) -> Any:
        result = function(*case.inputs, *literal_eval(case.name))
        return tuple(result) if isinstance(result, (list, tuple)) else np.asarray(result)

    return oracle


def split(x: NDArray, parts: Any, axis: int = 0) -> list[NDArray]:
    at = parts if isinstance(parts, int) else np.cumsum(parts)[:-1]
    return np.split(x, at, axis)


def unstack(x: NDArray, axis: int = 0) -> list[NDArray]:
    return [np.take(x, i, axis) for i in range(x.shape[axis])]


def flatten(x: NDArray, start: int = 0, end: int = -1) -> NDArray:
    return x.ravel() if x.ndim < 2 or (start, end) == (0, -1) else merge(x, start, end % x.ndim)


def merge(x: NDArray, start: int, end: int) -> NDArray:
    while end > start:
        x = np.concatenate([np.take(x, i, start) for i in range(x.shape[start])], start)
        end -= 1
    return x


ORACLES: dict[str, Oracle] = {
    "roll": roll,
    "triu": triangle(lambda over, k: over >= k),
    "tril": triangle(lambda over, k: over <= k),
}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "roll": named(np.roll),
    "triu": named(np.triu),
    "flip": named(np.flip),
    "tile": named(np.tile),
    "repeat": named(np.repeat),
    "split": named(split),
    "unstack": named(unstack),
    "flatten": named(flatten),
    "unsqueeze": named(np.expand_dims),
    "moveaxis": named(np.moveaxis),
    "swapaxes": named(np.swapaxes),
    "permute_dims": named(np.transpose),
    "broadcast_to": named(np.broadcast_to),
    "stack": lambda case: np.stack(case.inputs, int(case.name)),
    "meshgrid": lambda case: list(np.meshgrid(*case.inputs, indexing=case.name)),  # type: ignore[arg-type]
}
