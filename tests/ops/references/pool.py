"""Oracles of the pools: windows in plain Python, and ONNX where it gives the same by its text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle, run_onnx

ONNX_STEPS = 20000
Values = list[float]


def sliding(case: OpSample, axis: int, index: int) -> Iterator[int]:
    """Place that a window reads along one axis, some of them outside."""
    attrs: Any = case.attrs
    for step in range(attrs["kernel"][axis]):
        place = index * attrs["stride"][axis] + step * attrs["dilation"][axis]
        yield place - attrs["begin"][axis]


def windows(case: OpSample) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]], int]]:
    """Each result with the places inside x of its window, and how many count with the padding."""
    x, attrs = case.inputs[0], case.attrs
    sizes: Any = attrs["sizes"]
    for index in itertools.product(*map(range, sizes)):
        lines, counted = [], 1
        for axis, at in enumerate(index):
            size = x.shape[2 + axis]
            if "kernel" in attrs:
                places = list(sliding(case, axis, at))
                begin, end = attrs["begin"][axis], attrs["end"][axis]  # type: ignore[index]
            else:
                count = sizes[axis]
                places = list(range(at * size // count, math.ceil((at + 1) * size / count)))
                begin = end = 0
            lines.append([p for p in places if 0 <= p < size])
            counted *= sum(-begin <= p < size + end for p in places)
        yield index, list(itertools.product(*lines)), counted


def pool(result: Callable[[OpSample, Values, int], float]) -> Oracle:
    def compute(case: OpSample) -> NDArray:
        x = case.inputs[0]
        out = np.zeros(case.expected().shape, case.expected().dtype)
        table = list(windows(case))
        for lead in np.ndindex(*x.shape[:2]):
            plane = x[lead].tolist()
            for index, places, counted in table:
                values = []
                for place in places:
                    value = plane
                    for at in place:
                        value = value[at]
                    values.append(value)
                out[lead + index] = result(case, values, counted)
        return out

    return compute


def largest(case: OpSample, values: Values, _counted: int) -> float:
    if any(v != v for v in values):
        return math.nan
    least = -(2**31) if case.inputs[0].dtype == np.int32 else -math.inf
    return max(values, default=least)


def mean(case: OpSample, values: Values, counted: int) -> float:
    count = counted if case.attrs.get("count_include_pad") else len(values)
    total = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    return total / count if count else 0.0


def norm(case: OpSample, values: Values, _counted: int) -> float:
    p: Any = case.attrs["p"]
    return float(np.linalg.norm(np.asarray(values, np.float64), p)) if values else 0.0


def indices(case: OpSample) -> NDArray:
    x, out = case.inputs[0], np.zeros(case.expected().shape, np.int64)
    for lead in np.ndindex(*x.shape[:2]):
        for index, places, _ in windows(case):
            best = -1
            for place in places:
                value, held = x[lead + place], x.reshape(-1)[best] if best >= 0 else None
                if held is None or (held == held and (value != value or value > held)):
                    best = int(np.ravel_multi_index(lead + place, x.shape))
            out[lead + index] = best
    return out


def checked(oracle: Oracle, op_type: str, *names: str) -> Oracle:
    """Plain Python's result, which for small finite calls must be that of ONNX too.

    Without what onnx 1.23 gets wrong or does not know: unequal padding, ceil_mode, dilated means,
    and means of nothing.
    """

    def compute(case: OpSample) -> NDArray:
        out, attrs = oracle(case), dict(case.attrs)
        kernel: Any = attrs["kernel"]
        small = 0 < out.size * math.prod(kernel) <= ONNX_STEPS
        known = attrs["begin"] == attrs["end"] and out.dtype == np.float32
        mean = op_type == "AveragePool"
        if mean:
            known = known and set(attrs["dilation"]) == {1}  # type: ignore[arg-type]
        if (
            small
            and known
            and not any(w in case.name for w in ("ceil", "only"))
            and np.isfinite(out).all()
        ):
            feeds: dict[str, Any] = {
                "kernel_shape": kernel,
                "strides": attrs["stride"],
                **({} if mean else {"dilations": attrs["dilation"]}),
                "pads": (*attrs["begin"], *attrs["end"]),  # type: ignore[misc]
                **{name: int(attrs[name]) for name in names},  # type: ignore[arg-type]
            }
            if all(attrs[name] == feeds[name] for name in names):  # p is an integer there
                by_onnx = run_onnx(op_type, case.inputs, feeds)
                np.testing.assert_allclose(by_onnx, out, 1e-4, 1e-5)
        return out

    return compute


ORACLES: dict[str, Oracle] = {
    "max_pool": checked(pool(largest), "MaxPool"),
    "max_pool_indices": indices,
    "average_pool": checked(pool(mean), "AveragePool", "count_include_pad"),
    "lp_pool": checked(pool(norm), "LpPool", "p"),
    "adaptive_max_pool": pool(largest),
    "adaptive_average_pool": pool(mean),
}


def by_onnx(op_type: str) -> FunctionOracle:
    return lambda case: run_onnx(op_type, case.inputs, {})


def global_max(case: FunctionSample) -> NDArray:
    """Not by onnx 1.23, whose GlobalMaxPool keeps the first spatial axis and not the channels."""
    x = case.inputs[0]
    largest = np.sort(x.reshape(*x.shape[:2], -1))[..., -1]
    return np.asarray(largest.reshape(*x.shape[:2], *(1,) * (x.ndim - 2)))


def global_lp(case: FunctionSample) -> NDArray:
    p = float(case.name.split()[1]) if case.name else 2.0
    rows = case.inputs[0].astype(np.float64).reshape(*case.inputs[0].shape[:2], -1)
    norms = np.linalg.norm(rows, p, axis=2)
    return np.asarray(
        norms.reshape(*norms.shape, *(1,) * (case.inputs[0].ndim - 2)), case.inputs[0].dtype
    )


FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "global_max_pool": global_max,
    "global_average_pool": by_onnx("GlobalAveragePool"),
    "global_lp_pool": global_lp,
    "adaptive_max_pool": global_max,
    "adaptive_average_pool": by_onnx("GlobalAveragePool"),
}
