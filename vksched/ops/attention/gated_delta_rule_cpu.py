"""The gated delta rule in numpy: token by token, or in chunks of tokens as matrix products.

    a chunk, with the decay D[i, j] = exp(g[j + 1] + ... + g[i]) for j <= i:
    (I + strictly lower(beta k k^T * D)) u = beta (v - exp(g[0] + ... + g[i]) k S)
    o = exp(...) q S + lower(q k^T * D) u          S = exp(all g) S + (k * D[last])^T u

Decays by channel are part of the products of keys: see gated_delta_rule_channels_cpu.py.

Source of the chunks: Yang et al., Parallelizing Linear Transformers with the Delta Rule, 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...common.dtypes import NDArray
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece
from .gated_delta_rule_channels_cpu import CHANNEL_CHUNK, channel_chunk, channel_token

CHUNK = 32
"""Tokens of a chunk."""
MIN_CHUNK = 4
"""Minimum tokens for which a chunk is faster than its tokens one by one."""
MIN_LOG = -110.0
"""The smallest logarithm of a decay that a chunk adds up; exp is 0 in float32 there."""
MIN_PIECE = 1 << 21
"""Minimum multiplications of a piece, about 1 ms."""
OWN_OPERANDS = 4
"""The operands after q and k with the heads of v: v, g, beta and the state."""
Index = tuple[slice, slice, slice]


def _by_heads(x: NDArray, heads: int) -> NDArray:
    """Return q, k, v or a state as (batch, heads, tokens, size), with repeated key heads."""
    by_heads = x.swapaxes(1, 2)
    repeats = heads // x.shape[2] if x.shape[2] else 1
    return by_heads if repeats == 1 else np.repeat(by_heads, repeats, axis=1)


def _write(inputs: tuple[NDArray, ...], out: NDArray, chunk: int) -> None:
    q, k, v, g, beta, state, *removal = inputs
    tokens, heads = v.shape[1:3]
    by_channel = g.ndim == 4
    q, k, v, s, *removal = (_by_heads(x, heads) for x in (q, k, v, state, *removal))
    g, beta = (x.swapaxes(1, 2) for x in (g, beta))
    operands = [q, k, v, g if by_channel else g[..., None], beta[..., None], *removal]
    results = out.swapaxes(1, 2)
    compute: Callable[..., tuple[NDArray, NDArray]]
    if by_channel:
        compute = channel_token if chunk == 1 else channel_chunk
        chunk = min(chunk, CHANNEL_CHUNK)
    else:
        compute = _token if chunk == 1 else _chunk
    with np.errstate(all="ignore"):
        for at in range(0, tokens, chunk):
            part = np.s_[:, :, at : min(at + chunk, tokens)]
            results[part], s = compute(s, *(x[part] for x in operands))
    results[:, :, tokens:] = s


def _token(
    s: NDArray, q: NDArray, k: NDArray, v: NDArray, g: NDArray, beta: NDArray
) -> tuple[NDArray, NDArray]:
    """Return the output of one token and the next state; all are (batch, heads, 1, ...)."""
    s = np.exp(g) * s
    s = s + k.swapaxes(2, 3) * (beta * (v - np.matmul(k, s)))
    return np.matmul(q, s), s


def _chunk(
    s: NDArray, q: NDArray, k: NDArray, v: NDArray, g: NDArray, beta: NDArray
) -> tuple[NDArray, NDArray]:
    """Return the outputs of some tokens and the next state.

    Differences of sums of `g` cancel after a strong decay, so they are of float64.
    """
    tokens = q.shape[2]
    total = np.cumsum(np.maximum(g, MIN_LOG), axis=2, dtype=np.float64)
    begun = np.exp(total.astype(g.dtype))
    lower = np.tri(tokens, dtype=bool)
    logs = np.where(lower, total - total.swapaxes(2, 3), -np.inf)
    decay = np.exp(logs.astype(g.dtype))
    keys = k.swapaxes(2, 3)
    system = beta * np.matmul(k, keys) * decay
    u = beta * (v - begun * np.matmul(k, s))
    for row in range(1, tokens):
        u[:, :, row] -= np.matmul(system[:, :, row, None, :row], u[:, :, :row])[:, :, 0]
    out = begun * np.matmul(q, s) + np.matmul(np.matmul(q, keys) * decay, u)
    last = np.exp((total[:, :, -1:] - total).astype(g.dtype))
    return out, begun[:, :, -1:] * s + np.matmul((last * k).swapaxes(2, 3), u)


def gated_delta_rule_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return o of each token and the last state, (batch, tokens + key size, heads, columns)."""
    _, size, heads, columns = inputs[5].shape
    batch, tokens = inputs[0].shape[:2]
    out: NDArray = np.empty((batch, tokens + size, heads, columns), inputs[5].dtype)
    _write(inputs, out, 1)
    return out


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Compute in chunks, except heads with a growth: it could exceed the range within a chunk.

    Each head of each batch row is computed as if it were alone.
    """
    (tokens, key_heads), heads = inputs[0].shape[1:3], out.shape[2]
    if tokens < MIN_CHUNK:
        return _write(inputs, out, 1)
    _write(inputs, out, CHUNK)
    is_decay = inputs[3] <= 0
    grows = ~is_decay.all(axis=(1, 3) if is_decay.ndim == 4 else 1)  # or NaN
    for row, head in np.argwhere(grows).tolist():
        key = head * key_heads // heads
        own, of_key = (np.s_[row : row + 1, :, at : at + 1] for at in (head, key))
        _write(_parts(inputs, own, of_key), out[own], 1)


def _parts(inputs: tuple[NDArray, ...], own: Index, of_key: Index) -> tuple[NDArray, ...]:
    """Return the operands of some heads. own, of_key: these heads, and their heads of keys."""
    q, k, *others = inputs
    rest = [x[own] for x in others[:OWN_OPERANDS]], [x[of_key] for x in others[OWN_OPERANDS:]]
    return q[of_key], k[of_key], *rest[0], *rest[1]


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by heads of keys."""
    q, state = inputs[0], inputs[5]
    key_heads, heads = q.shape[2], out.shape[2]
    work = 3 * q.shape[1] * state.size
    pieces = max(1, min(key_heads, work // MIN_PIECE))
    for piece in range(pieces):
        of_keys = slice(piece * key_heads // pieces, (piece + 1) * key_heads // pieces)
        each = heads // max(1, key_heads)
        own = np.s_[:, :, of_keys.start * each : of_keys.stop * each]
        yield _parts(inputs, own, np.s_[:, :, of_keys]), out[own]


CPU_KERNEL = CpuKernel(_compute, _cut)
