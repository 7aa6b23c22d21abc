"""The gated delta rule with decays by channel in numpy: token by token, or in chunks of tokens.

    a chunk, with the decays D[i, j] = exp(g[j + 1] + ... + g[i]) of each channel for j <= i:
    u[i] = (a[i] * D[i, -1]) S + sum_{j < i} (a[i] D[i, j] k[j]) v[j] - (a[i] D[i, j] b[j]) u[j]
    o[i] = (q[i] * D[i, -1]) S + sum_{j <= i} (q[i] D[i, j] k[j]) v[j] - (q[i] D[i, j] b[j]) u[j]

v and u are multiplied by beta before. u is the old value that a token removes; a and b are k by
default. All arrays are (batch, heads, tokens, size). The decays of pairs of tokens are an array, as
factors exp(g[0] + ... + g[i]) and exp(-(g[0] + ... + g[j])) would exceed the range of float32.

Source: https://arxiv.org/abs/2510.26692. Examples: tests/ops/test_delta_rule_channels.py.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import NDArray

CHANNEL_CHUNK = 16
"""Tokens of a chunk: the array of decays is as large as its square."""
MIN_LOG = -110.0
"""The smallest logarithm of a decay that a chunk adds up; exp is 0 in float32 there."""


def channel_token(
    s: NDArray, q: NDArray, k: NDArray, v: NDArray, g: NDArray, beta: NDArray, *removal: NDArray
) -> tuple[NDArray, NDArray]:
    """Return the output of one token and the next state."""
    s = np.exp(g).swapaxes(2, 3) * s
    if not removal:
        s = s + k.swapaxes(2, 3) * (beta * (v - np.matmul(k, s)))
    else:
        a, b = removal
        seen = np.matmul(a, s)
        s = s + k.swapaxes(2, 3) * (beta * v) - b.swapaxes(2, 3) * (beta * seen)
    return np.matmul(q, s), s


def channel_chunk(
    s: NDArray, q: NDArray, k: NDArray, v: NDArray, g: NDArray, beta: NDArray, *removal: NDArray
) -> tuple[NDArray, NDArray]:
    """Return the outputs of some tokens and the next state.

    Differences of sums of `g` cancel after a strong decay, so they are of float64.
    """
    a, b = removal or (k, k)
    tokens = q.shape[2]
    total = np.cumsum(np.maximum(g, MIN_LOG), axis=2, dtype=np.float64)
    begun, last = (np.exp(x.astype(g.dtype)) for x in (total, total[:, :, -1:] - total))
    of_a, of_b = _products(total, (a, q), (k, b) if removal else (k,), g.dtype)
    v = beta * v
    u = np.matmul(begun * a, s) + np.matmul(np.tril(of_a[0], -1), v)
    removed = np.empty_like(u)
    for row in range(tokens):
        seen = np.matmul(of_b[0][:, :, row, None, :row], removed[:, :, :row])[:, :, 0]
        removed[:, :, row] = beta[:, :, row] * (u[:, :, row] - seen)
    out = np.matmul(begun * q, s) + np.matmul(np.tril(of_a[1]), v)
    out -= np.matmul(np.tril(of_b[1]), removed)
    s = begun[:, :, -1:].swapaxes(2, 3) * s + np.matmul((last * k).swapaxes(2, 3), v)
    return out, s - np.matmul((last * b).swapaxes(2, 3), removed)


def _products(
    total: NDArray,
    left: tuple[NDArray, NDArray],
    right: tuple[NDArray, ...],
    dtype: np.dtype[np.generic],
) -> tuple[NDArray, NDArray]:
    """Return the decayed products of both `left` and the first of `right`, and of both and the last
    one, each (2, batch, heads, tokens, tokens). total: the sums of logarithms of decays up to each
    token.
    """
    batch, heads, tokens, _ = right[0].shape
    pairs = np.empty((len(right), 2, batch, heads, tokens, tokens), dtype)
    for row in range(tokens):
        decay = np.exp(np.minimum(total[:, :, row, None] - total, 0.0).astype(dtype))
        for at, each in enumerate(right):
            decayed = (decay * each).swapaxes(2, 3)
            for side, keys in enumerate(left):
                pairs[at, side, :, :, row] = np.matmul(keys[:, :, row, None], decayed)[:, :, 0]
    return pairs[0], pairs[-1]
