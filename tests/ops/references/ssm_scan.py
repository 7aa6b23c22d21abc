"""Oracle of selective state spaces: each output as a sum over all earlier inputs, in float64."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle


def closed_form(arrays: tuple[NDArray, ...]) -> NDArray:
    """Sequence by sequence and head by head, with the decay from each time step to each later one
    as the exponential of a sum.
    """
    x, dt, a, b, c, state = (array.astype(np.float64) for array in arrays)
    (batch, time, heads, _), (groups, d_state) = x.shape, b.shape[2:]
    out = np.zeros((batch, time + d_state, *x.shape[2:]))
    for n, h in np.ndindex(batch, heads):
        g = h // (heads // groups)
        rates = np.broadcast_to(a[h], (d_state,))
        since = np.concatenate([[0.0], np.cumsum(dt[n, :, h])])
        for t in range(time + 1):  # the states after t time steps
            decay = np.exp(np.outer(since[t] - since[: t + 1], rates))
            inputs = dt[n, :t, h, None] * b[n, :t, g] * decay[1:]
            now = inputs.T @ x[n, :t, h] + decay[0][:, None] * state[n, :, h]
            if t:
                out[n, t - 1, h] = c[n, t - 1, g] @ now
            if t == time:
                out[n, time:, h] = now
    return out.astype(np.float32)


def _op(case: OpSample) -> NDArray:
    return closed_form(case.inputs)


def _function(case: FunctionSample) -> list[NDArray]:
    out, time = closed_form(case.inputs), case.inputs[0].shape[1]
    return [out[:, :time], out[:, time:]]


ORACLES: dict[str, Oracle] = {"ssm_scan": _op}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {"ssm_scan": _function}
