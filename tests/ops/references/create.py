"""Oracles of creation: numpy's functions of the same names, ramps in double precision."""

from __future__ import annotations

from ast import literal_eval
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle


def full(case: OpSample) -> NDArray:
    values = [case.attrs["value"]] * case.expected().size
    return np.asarray(values, case.attrs["dtype"]).reshape(case.attrs["shape"])  # type: ignore[call-overload, no-any-return]


def eye(case: OpSample) -> NDArray:
    (rows, columns), k = case.attrs["shape"], case.attrs["diagonal"]  # type: ignore[misc]
    values = [int(c - r == k) for r in range(rows) for c in range(columns)]  # type: ignore[call-overload]
    return np.asarray(values, case.attrs["dtype"]).reshape(rows, columns)  # type: ignore[call-overload, no-any-return]


def arange(case: OpSample) -> NDArray:
    start, step, count = case.attrs["start"], case.attrs["step"], case.attrs["shape"][0]  # type: ignore[index]
    values = [start + i * step for i in range(count)]  # type: ignore[operator, arg-type]
    return np.asarray(values, case.attrs["dtype"])  # type: ignore[call-overload, no-any-return]


def linspace(case: OpSample) -> NDArray:
    count = case.attrs["shape"][0]  # type: ignore[index]
    values = np.linspace(case.attrs["start"], case.attrs["stop"], count)  # type: ignore[call-overload]
    return np.asarray(values, case.attrs["dtype"])  # type: ignore[call-overload, no-any-return]


def from_name(function: Any) -> FunctionOracle:
    """numpy's function of the numbers in the row's name; our defaults are 32 bits wide."""

    def oracle(case: FunctionSample) -> NDArray:
        value = np.asarray(function(*literal_eval(f"({case.name},)")))
        return value.astype({"i": np.int32, "f": np.float32}.get(value.dtype.kind, value.dtype))

    return oracle


ORACLES: dict[str, Oracle] = {"full": full, "eye": eye, "arange": arange, "linspace": linspace}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "full": from_name(lambda value: np.full((2, 3), value)),
    "zeros": lambda case: np.zeros((2, 3), bool) if case.name else np.zeros(5, np.float32),
    "ones": lambda case: np.ones((2, 3), case.name or np.float32),
    "zeros_like": lambda case: np.zeros_like(case.inputs[0]),
    "ones_like": lambda case: np.ones_like(
        case.inputs[0], np.int32 if case.name == "other" else None
    ),
    "full_like": lambda case: np.full_like(case.inputs[0], 3),
    "eye": lambda case: np.eye(4, 6, -2, np.int32) if case.name else np.eye(4, dtype=np.float32),
    "arange": from_name(np.arange),
    "linspace": from_name(np.linspace),
}
