"""numpy implementations of the cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
EPSILON = 1e-5


def softmax(x: Array) -> Array:
    """Return softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    return np.asarray(e)


def later_of(tokens: int) -> Array:
    """Return the causal mask that is added to attention scores, (tokens, tokens)."""
    return np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    """Return layer norm over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(EPSILON))
    return np.asarray(centred / deviation * scale + shift)


def gelu(x: Array) -> Array:
    """Return x / 2 (1 + erf(x / sqrt 2)); erf by Abramowitz and Stegun, 7.1.26, within 1.5e-7."""
    z = np.abs(x).astype(np.float64) / 2**0.5
    t = 1 / (1 + 0.3275911 * z)
    series = np.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + factor) * t
    erf = np.copysign(1 - series * np.exp(-z * z), x)
    return np.asarray(0.5 * x * (1 + erf), np.float32)


def windows(x: Array, kernel: int, stride: int, pad: int, fill: float = 0.0) -> Array:
    """Return x (channels, side, side) as windows (channels, out, out, kernel, kernel)."""
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))
    return np.asarray(found[:, ::stride, ::stride])


def conv(x: Array, w: Array, stride: int = 1, pad: int = 0, groups: int = 1) -> Array:
    """Return a convolution. x: (1, channels, side, side), w: (out, channels / groups, kernel,
    kernel).
    """
    kernel = w.shape[2]
    seen = windows(x[0], kernel, stride, pad)
    side, per = seen.shape[1], x.shape[1] // groups
    if per == 1:  # depthwise
        return np.asarray(np.einsum("chwij,cij->chw", seen, w[:, 0], optimize=True))[None]
    columns = seen.transpose(0, 3, 4, 1, 2).reshape(groups, per * kernel**2, side * side)
    rows = w.reshape(groups, w.shape[0] // groups, -1)
    return np.asarray((rows @ columns).reshape(1, w.shape[0], side, side))
