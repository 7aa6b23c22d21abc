"""NaN stays NaN where a compiler could make a maximum, a minimum or a saturated sum of a choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.testing.op_cases.op_sample import floats

OPS: dict[str, Callable[[vs.Tensor], vs.Tensor]] = {
    "maximum": lambda x: vs.maximum(x, 0.0),
    "maximum with it": lambda x: vs.maximum(vs.constant(np.float32(0)), x),
    "minimum": lambda x: vs.minimum(x, 1.0),
    "minimum with it": lambda x: vs.minimum(vs.constant(np.float32(1)), x),
    "both": lambda x: vs.maximum(vs.minimum(x * 2.0 + 0.5, 1.0), 0.0),
    "clip": lambda x: vs.clip(x, 0.0, 1.0),
    "relu": vs.relu,
    "hard_sigmoid": vs.hard_sigmoid,
    "hard_swish": vs.hard_swish,
    "largest": lambda x: vs.reduce_max(x.reshape((4, 4)), 1),
    "least": lambda x: vs.reduce_min(x.reshape((4, 4)), 0),
}


@pytest.mark.parametrize("device", [*vulkan_names(), "cpu"])
@pytest.mark.parametrize("kind", OPS)
def test_nan_stays(device: str, kind: str) -> None:
    """NaN of both signs, alone and behind another op, in one kernel with it."""
    x = floats(16)
    x[[3, 9]] = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    placeholder = vs.input("x", x.shape)
    outputs = OPS[kind](placeholder), OPS[kind](placeholder * 3.0)
    with vs.Scheduler([device]) as sched:
        alone, behind = sched.compile(outputs)(x=x)
    found = np.isnan(x.reshape(4, 4)).any({"largest": 1, "least": 0}.get(kind, ()))
    found = found.reshape(alone.shape)
    np.testing.assert_array_equal(np.isnan(alone), found)
    np.testing.assert_array_equal(np.isnan(behind), found)


@pytest.mark.parametrize("device", [*vulkan_names(), "cpu"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_nan_stays_in_a_recurrent_layer(device: str, clip: float | None) -> None:
    time, batch, size, hidden = 3, 2, 4, 5
    x = floats(time, batch, size)
    x[1, 1, 2] = np.nan
    w, r = floats(1, hidden, size, seed=1), floats(1, hidden, hidden, seed=2)
    states, last = vs.rnn(
        vs.input("x", x.shape), vs.weight(w), vs.weight(r), activations=("relu",), clip=clip
    )
    with vs.Scheduler([device]) as sched:
        got, end = sched.compile((states, last))(x=x)
    found = np.isnan(got).all(axis=-1).reshape(time, batch)
    assert found.tolist() == [[False, False], [False, True], [False, True]]
    assert np.isnan(end).sum() == hidden and np.isnan(got).sum() == 2 * hidden
