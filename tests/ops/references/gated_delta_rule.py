"""Oracle of the gated delta rule: the transition matrix of each token, exp(g) (I - beta k k^T)."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle


def gated_delta_rule(case: OpSample) -> NDArray:
    q, k, v, g, beta, state, *removal = (x.astype(np.float64) for x in case.inputs)
    reading, removing = removal or (k, k)
    batch, tokens, key_heads, size = q.shape
    heads, columns = v.shape[2:]
    out = np.zeros((batch, tokens + size, heads, columns))
    for b, head in np.ndindex(batch, heads):
        own, s = head // (heads // key_heads), state[b, :, head]
        for t in range(tokens):
            rate, keys = beta[b, t, head], (x[b, t, own] for x in (removing, reading))
            decay = np.diag(np.broadcast_to(np.exp(g[b, t, head]), size))
            transition = (np.eye(size) - rate * np.outer(*keys)) @ decay
            s = transition @ s + rate * np.outer(k[b, t, own], v[b, t, head])
            out[b, t, head] = q[b, t, own] @ s
        out[b, tokens:, head] = s
    return np.asarray(out, np.float32)


ORACLES: dict[str, Oracle] = {"gated_delta_rule": gated_delta_rule}
