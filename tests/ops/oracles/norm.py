"""Oracles of the norms."""

from __future__ import annotations

import numpy as np

from vksched.cases.case import Case
from vksched.types import NDArray

from .common import Oracle, run_onnx


def layer_norm(case: Case) -> NDArray:
    inputs, attrs = list(case.inputs), case.attrs
    axis, eps = attrs["axis"], attrs["eps"]
    shape = inputs[0].shape[int(axis) :]  # type: ignore[arg-type]
    scale = inputs[1] if attrs["scaled"] else np.ones(shape, np.float32)
    rest = [inputs[-1]] if attrs["shifted"] else []
    wide = tuple(x.astype(np.float64) for x in (inputs[0], scale, *rest))
    result = run_onnx("LayerNormalization", wide, {"axis": axis, "epsilon": eps})
    return np.asarray(result, np.float32)


def rms_norm(case: Case) -> NDArray:
    x = case.inputs[0].astype(np.float64)
    rows = x.reshape(*x.shape[: int(case.attrs["axis"])], -1)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
        value = rows / np.sqrt(length**2 / max(1, rows.shape[-1]) + case.attrs["eps"])  # type: ignore[operator]
    value = value.reshape(x.shape)
    return np.asarray(value * case.inputs[1] if case.attrs["scaled"] else value, np.float32)


ORACLES: dict[str, Oracle] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
}
