"""The op `ssm_scan` as matmuls within chunks of time steps, for its gradient.

    y = (c b.T * decay) (dt x) + c decay state        within a chunk: decay[t, u] from u to t
    state = decay state + b.T decay (dt x)            from one chunk to the next

The matrix of a chunk has the square of its time steps; the number of chunks grows with the time.

Source: https://arxiv.org/abs/2405.21060
"""

from __future__ import annotations

import numpy as np

from ...ir.tensor import Tensor, constant
from ..elementwise import exp, where
from ..layout.reshape import concat, reshape, transpose
from ..linalg.matmul import matmul
from ..reduction.reduce import reduce_sum
from ..reduction.scan import cumsum

HEAD_CHUNK, STATE_CHUNK = 64, 16
"""Time steps of a chunk with a rate for each head, or for each of its states."""


def chunked(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> Tensor:
    """Return the result of the op `ssm_scan`."""
    time = x.shape[1]
    size = HEAD_CHUNK if a.shape[1] == 1 else STATE_CHUNK
    outputs = []
    for start in range(0, time, size):
        part = slice(start, min(start + size, time))
        y, state = _chunk(x[:, part], dt[:, part], a, b[:, part], c[:, part], state)
        outputs.append(y)
    return concat([*outputs, state], axis=1)


def _chunk(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a chunk, and the states after it."""
    (batch, time, heads), (groups, d_state) = dt.shape, b.shape[2:]
    each = heads // groups
    log_decay = cumsum(reshape(dt, (batch, time, heads, 1)) * a, 1)
    entering = transpose(x * reshape(dt, (batch, time, heads, 1)), (0, 2, 1, 3))
    y = matmul(_within(log_decay, b, c, each), entering)

    def by_head(projection: Tensor, decay: Tensor) -> Tensor:
        """Return a projection of each head times a decay, (batch, heads, time, d_state)."""
        rates = decay.shape[3]
        own = reshape(projection, (batch, time, groups, 1, d_state))
        both = own * reshape(decay, (batch, time, groups, each, rates))
        return transpose(reshape(both, (batch, time, heads, d_state)), (0, 2, 1, 3))

    earlier = transpose(state, (0, 2, 1, 3))  # (batch, heads, d_state, head_dim)
    y = y + matmul(by_head(c, exp(log_decay)), earlier)
    whole = log_decay[:, time - 1 :]
    added = matmul(by_head(b, exp(whole - log_decay)), entering, transpose_a=True)
    left = reshape(exp(whole), (batch, heads, a.shape[1], 1)) * earlier
    return transpose(y, (0, 2, 1, 3)), transpose(left + added, (0, 2, 1, 3))


def _within(log_decay: Tensor, b: Tensor, c: Tensor, each: int) -> Tensor:
    """Return the weight of each time step in each output, (batch, heads, time, time)."""
    batch, time, heads, rates = log_decay.shape
    groups, d_state = b.shape[2:]
    later = reshape(log_decay, (batch, time, 1, heads, rates))
    between = later - reshape(log_decay, (batch, 1, time, heads, rates))
    seen = constant(np.tri(time, dtype=bool).reshape(1, time, time, 1, 1))
    decay = where(seen, exp(where(seen, between, 0.0)), 0.0)
    decay = reshape(decay, (batch, time, time, groups, each, rates))
    leaving = reshape(c, (batch, time, 1, groups, d_state))
    products = leaving * reshape(b, (batch, 1, time, groups, d_state))
    if rates == 1:
        products = reduce_sum(products, -1, keepdims=True)
    products = reshape(products, (batch, time, time, groups, 1, products.shape[-1]))
    weights = reduce_sum(products * decay, -1)
    return transpose(reshape(weights, (batch, time, time, heads)), (0, 3, 1, 2))
