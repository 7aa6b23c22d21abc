"""Oracles of the norms."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle, run_onnx, stored


def layer_norm(case: OpSample) -> NDArray:
    inputs, attrs = list(case.inputs), case.attrs
    axis, eps = attrs["axis"], attrs["eps"]
    shape = inputs[0].shape[int(axis) :]  # type: ignore[arg-type]
    scale = inputs[1] if attrs["scaled"] else np.ones(shape, np.float32)
    rest = [inputs[-1]] if attrs["shifted"] else []
    wide = tuple(x.astype(np.float64) for x in (inputs[0], scale, *rest))
    result = run_onnx("LayerNormalization", wide, {"axis": axis, "epsilon": eps})
    return stored(case, result)


def rms_norm(case: OpSample) -> NDArray:
    x = case.inputs[0].astype(np.float64)
    rows = x.reshape(*x.shape[: int(case.attrs["axis"])], -1)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
        value = rows / np.sqrt(length**2 / max(1, rows.shape[-1]) + case.attrs["eps"])  # type: ignore[operator]
    value = value.reshape(x.shape)
    return stored(case, value * case.inputs[1] if case.attrs["scaled"] else value)


def layer_norm_backward(case: OpSample) -> NDArray:
    """The product with the matrix of derivatives of each row, written out."""
    g, x = (value.astype(np.float64) for value in case.inputs[:2])
    columns = int(np.prod(x.shape[int(case.attrs["axis"]) :]))  # type: ignore[arg-type]
    rows, out = x.reshape(-1, columns) if x.size else x, np.empty_like(x)
    scale = case.inputs[2].reshape(-1) if case.attrs["scaled"] else 1.0
    built = out.reshape(-1, max(1, columns))
    for number, row in enumerate(rows if x.size else ()):
        centered = case.attrs["kind"] == "layer_norm"
        with np.errstate(all="ignore"):
            away = row - row.mean() if centered else row
            length = np.sqrt(np.mean(away**2) + case.attrs["eps"])  # type: ignore[operator]
            h = g.reshape(-1, columns)[number] * scale
            through = h / length - away * (away @ h) / (columns * length**3)
        built[number] = through - through.mean() if centered else through
    return np.asarray(out, np.float32)


ORACLES: dict[str, Oracle] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "layer_norm_backward": layer_norm_backward,
}
