"""Oracles of the convolutions: scipy's correlation by channel, and ONNX where it is quick."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle, run_onnx
from .epilogue import with_epilogue

signal = pytest.importorskip("scipy.signal")

ONNX_STEPS = 20000
"""Products up to which the ONNX reference, which loops in Python, is asked too."""


def spread(x: NDArray, steps: tuple[int, ...]) -> NDArray:
    """With zeros between values of the last axes."""
    sizes = [max(0, (s - 1) * d + 1) for s, d in zip(x.shape[2:], steps, strict=True)]
    out = np.zeros((*x.shape[:2], *sizes), x.dtype)
    out[(slice(None), slice(None), *(slice(None, None, d) for d in steps))] = x
    return out


def wide(case: OpSample) -> list[NDArray]:
    return [a.astype(np.float64 if a.dtype.kind == "f" else np.int64) for a in case.inputs]


def finish(
    case: OpSample, out: NDArray, inputs: list[NDArray], op_type: str, **more: Any
) -> NDArray:
    if len(inputs) > 2:
        out = out + inputs[2].reshape(-1, *(1,) * (out.ndim - 2))
    with np.errstate(over="ignore"):
        result = np.asarray(out.astype(case.inputs[0].dtype))
    w = inputs[1]
    # onnx 1.23 adds the bias of a transpose in groups wrongly, and its dilated ones come out short
    grouped = case.attrs["groups"] != 1 and len(inputs) > 2
    dilated = any(more.get("output_padding", ())) and set(case.attrs["dilation"]) != {1}  # type: ignore[arg-type]
    unknown = op_type == "ConvTranspose" and (grouped or dilated)
    quick = (
        not unknown
        and 0 < out.size * math.prod(w.shape[1:]) <= ONNX_STEPS
        and min(inputs[0].shape) > 0
    )
    if quick and case.inputs[0].dtype == np.float32 and np.isfinite(result).all():
        attrs: dict[str, Any] = {
            "strides": case.attrs["stride"],
            "dilations": case.attrs["dilation"],
            "pads": (*case.attrs["begin"], *case.attrs["end"]),  # type: ignore[misc]
            "group": case.attrs["groups"],
            **more,
        }
        by_onnx = run_onnx(op_type, tuple(case.inputs), attrs)
        np.testing.assert_allclose(by_onnx, result, 1e-3, 1e-4)
    return result


def conv(case: OpSample) -> NDArray:
    x, w, *_ = inputs = wide(case)
    attrs: Any = case.attrs
    if min(case.expected().shape, default=1) == 0:
        return case.expected()
    padded = np.pad(x, ((0, 0), (0, 0), *zip(attrs["begin"], attrs["end"], strict=True)))
    dilated = spread(w, attrs["dilation"])
    per_group = w.shape[0] // attrs["groups"]
    out = np.zeros(case.expected().shape, x.dtype)
    strides = tuple(slice(None, None, s) for s in attrs["stride"])
    for image in range(out.shape[0]):
        for row in range(out.shape[1]):
            for channel in range(w.shape[1]):
                source = padded[image, row // per_group * w.shape[1] + channel]
                whole = signal.correlate(source, dilated[row, channel], "valid", "direct")
                with np.errstate(invalid="ignore"):
                    out[image, row] += whole[strides]
    return finish(case, out, inputs, "Conv")


def conv_transpose(case: OpSample) -> NDArray:
    x, w, *_ = inputs = wide(case)
    attrs: Any = case.attrs
    out = np.zeros(case.expected().shape, x.dtype)
    if out.size == 0:
        return case.expected()
    dilated = spread(w, attrs["dilation"])
    per_group = x.shape[1] // attrs["groups"]
    if np.isfinite(x).all() and np.isfinite(w).all():
        stretched = spread(x, attrs["stride"])
        for image in range(x.shape[0]):
            for channel in range(x.shape[1]):
                for row in range(w.shape[1]):
                    target = out[image, channel // per_group * w.shape[1] + row]
                    whole = signal.convolve(
                        stretched[image, channel], dilated[channel, row], "full", "direct"
                    )
                    whole = np.pad(whole, [(0, extra) for extra in attrs["output_padding"]])
                    cut = zip(attrs["begin"], target.shape, strict=True)
                    target += whole[tuple(slice(b, b + s) for b, s in cut)]
    else:  # zeros between values would make NaN
        for place in np.ndindex(*x.shape):
            for tap in np.ndindex(*w.shape[2:]):
                steps = zip(place[2:], attrs["stride"], tap, attrs["dilation"], strict=True)
                at = tuple(i * s + k * d for i, s, k, d in steps)
                at = tuple(a - b for a, b in zip(at, attrs["begin"], strict=True))
                if all(0 <= a < s for a, s in zip(at, out.shape[2:], strict=True)):
                    first = place[1] // per_group * w.shape[1]
                    rows = slice(first, first + w.shape[1])
                    weights = w[(place[1], slice(None), *tap)]
                    with np.errstate(invalid="ignore"):
                        out[(place[0], rows, *at)] += x[place] * weights
    extra = {"output_padding": attrs["output_padding"]}
    return finish(case, out, inputs, "ConvTranspose", **extra)


def flip_filters(case: OpSample) -> NDArray:
    """Every weight, one after the other."""
    (w,), groups = case.inputs, int(case.attrs["groups"])  # type: ignore[arg-type]
    lines, channels, *kernel = w.shape
    rows = lines // groups
    out = np.zeros((groups * channels, rows, *kernel), w.dtype)
    for line, channel, *place in np.ndindex(*w.shape):
        group, row = divmod(line, rows)
        flipped = tuple(size - 1 - at for size, at in zip(kernel, place, strict=True))
        out[(group * channels + channel, row, *flipped)] = w[(line, channel, *place)]
    return out


def depthwise_conv_weight_grad(case: OpSample) -> NDArray:
    """scipy's correlation of each image with the gradients, spread by the stride."""
    x, g = wide(case)
    attrs: Any = case.attrs
    out = np.zeros(case.expected().shape, x.dtype)
    padded = np.pad(x, ((0, 0), (0, 0), *zip(attrs["begin"], attrs["end"], strict=True)))
    taps = tuple(slice(None, None, d) for d in attrs["dilation"])
    read = tuple(
        slice((n - 1) * s + (k - 1) * d + 1)
        for n, s, k, d in zip(
            g.shape[2:], attrs["stride"], out.shape[2:], attrs["dilation"], strict=True
        )
    )
    per_channel = g.shape[1] // x.shape[1]
    for image, row in np.ndindex(*g.shape[:2]):
        stretched = spread(g[image : image + 1, row : row + 1], attrs["stride"])[0, 0]
        met = padded[(image, row // per_channel, *read)]
        out[row, 0] += signal.correlate(met, stretched, "valid", "direct")[taps]
    return out.astype(case.inputs[0].dtype)


def toom_cook(tile: int) -> NDArray:
    """The points of three weights: their polynomial's values at 0, 1, -1 (2, -2) and infinity, each
    divided by the product of its distances to the others; the one at 0 with a plus.
    """
    places = np.array([0, 1, -1, 2, -2][: tile + 1], np.float64)
    powers = places[:, None] ** np.arange(3)
    apart = np.where(np.eye(len(places)) > 0, 1, places[:, None] - places)
    products = apart.prod(1, keepdims=True)
    products[0] = abs(products[0])
    return np.vstack([powers / products, [[0, 0, 1]]])


def winograd_weights(case: OpSample) -> NDArray:
    w, tile = case.inputs[0].astype(np.float64), int(case.attrs["tile"])  # type: ignore[arg-type]
    by = toom_cook(tile)
    points = np.einsum("ia,jb,rcab->ijrc", by, by, w)
    return points.reshape(len(by) ** 2, *w.shape[:2]).astype(np.float32)


def winograd_conv(case: OpSample) -> NDArray:
    """scipy's correlation with the weights that make these points best."""
    x, points, *bias = case.inputs
    by = toom_cook(int(case.attrs["tile"]))  # type: ignore[arg-type]
    w, *_ = np.linalg.lstsq(
        np.kron(by, by), points.reshape(len(points), math.prod(points.shape[1:])), rcond=None
    )
    weights = w.T.reshape(*points.shape[1:], 3, 3).astype(np.float32)
    ones = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
    attrs = {"begin": case.attrs["begin"], "end": case.attrs["end"], **ones}
    return conv(replace(case, op="conv", inputs=(x, weights, *bias), attrs=attrs))


ORACLES: dict[str, Oracle] = {
    "winograd_conv": with_epilogue(winograd_conv),
    "winograd_weights": winograd_weights,
    "conv": with_epilogue(conv),
    "conv_transpose": conv_transpose,
    "depthwise_conv_weight_grad": depthwise_conv_weight_grad,
    "flip_filters": flip_filters,
}
