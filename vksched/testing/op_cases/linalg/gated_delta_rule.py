"""Samples of the gated delta rule: tokens alone and in chunks, shared key heads, and padding."""

from __future__ import annotations

from functools import partial

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import apply, as_tensor
from ..op_sample import ErrorSample, OpSample, floats

Sizes = tuple[int, int, int, int, int, int]
"""batch, tokens, key heads, heads, key size, columns"""


def operands(sizes: Sizes, padding: int = 0) -> tuple[NDArray, ...]:
    """Return q, k of length about 1, v, g up to 0, beta of 0 to 1, and a state. padding: the number
    of last tokens that do not change the state.
    """
    batch, tokens, key_heads, heads, size, columns = sizes
    q, k = (
        floats(batch, tokens, key_heads, size, seed=seed, scale=size**-0.5) for seed in range(2)
    )
    v = floats(batch, tokens, heads, columns, seed=2)
    g = -np.abs(floats(batch, tokens, heads, seed=3))
    beta = np.clip(np.abs(floats(batch, tokens, heads, seed=4)), 0, 1).astype(np.float32)
    for each in (g, beta):
        each[:, tokens - padding :] = 0
    return q, k, v, g, beta, floats(batch, size, heads, columns, seed=5)


def channel_operands(sizes: Sizes, padding: int = 0, removal: bool = True) -> tuple[NDArray, ...]:
    """Return operands as `operands` with decays by channel and, if `removal`, keys of the removal
    whose products change no state by more than a part.
    """
    batch, tokens, key_heads, heads, size, _ = sizes
    q, k, v, _, beta, state = operands(sizes, padding)
    g = -np.abs(floats(batch, tokens, heads, size, seed=6))
    g[:, tokens - padding :] = 0
    keys = tuple(
        floats(batch, tokens, key_heads, size, seed=seed, scale=size**-0.5) for seed in (7, 8)
    )
    return q, k, v, g, beta, state, *(keys if removal else ())


def channel_sample(
    sizes: Sizes, label: str, padding: int = 0, removal: bool = True, large: bool = False
) -> OpSample:
    """Return a call of the op with decays by channel."""
    inputs = channel_operands(sizes, padding, removal)
    return OpSample("gated_delta_rule", inputs, name=label, nmse=1e-9, large=large)


def sample(sizes: Sizes, label: str = "", padding: int = 0, large: bool = False) -> OpSample:
    """Return a call of the op."""
    inputs = operands(sizes, padding)
    return OpSample("gated_delta_rule", inputs, name=label, nmse=1e-9, large=large)


CASES = [
    sample((1, 1, 1, 1, 1, 1)),
    sample((1, 1, 2, 4, 8, 7), "step"),
    sample((3, 1, 2, 2, 5, 16), "steps of several sequences"),
    sample((1, 7, 1, 3, 13, 5), "shared keys"),
    sample((2, 37, 2, 4, 8, 6), "chunks"),
    sample((1, 40, 1, 1, 16, 70), "padding", padding=9),
    sample((1, 5, 1, 2, 128, 17), "a column of several invocations"),
    sample((2, 3, 1, 1, 37, 5), "parts of unequal size"),
    sample((1, 70, 1, 1, 256, 2), "several dispatches of a CPU driver"),
    sample((1, 0, 1, 2, 3, 4), "no tokens"),
    sample((0, 2, 1, 2, 3, 4), "no sequences"),
    sample((1, 2, 1, 2, 3, 0), "no columns"),
    sample((1, 2, 0, 0, 3, 4), "no heads"),
    channel_sample((1, 1, 1, 1, 1, 1), "a channel, one value"),
    channel_sample((2, 1, 2, 4, 8, 7), "channels, a step"),
    channel_sample((1, 21, 1, 3, 13, 5), "channels, k is removed", removal=False),
    channel_sample((2, 37, 2, 4, 8, 6), "channels, chunks", padding=9),
    channel_sample((1, 19, 2, 2, 37, 17), "channels, parts of unequal size"),
    channel_sample((1, 70, 1, 1, 256, 2), "channels, several dispatches of a CPU driver"),
    channel_sample((1, 0, 1, 2, 3, 4), "channels, no tokens"),
    channel_sample((1, 2, 1, 2, 3, 0), "channels, no columns"),
]


_SIZES: Sizes = (2, 3, 2, 4, 5, 6)


def _call(name: str, array: NDArray) -> object:
    names = ("q", "k", "v", "g", "beta", "state")
    own = operands(_SIZES)
    q, k, v, g, beta, state = (
        array if each == name else other for each, other in zip(names, own, strict=True)
    )
    return ops.gated_delta_rule(q, k, v, g, beta, state)


_REFUSED: list[tuple[str, type[Exception], str, NDArray]] = [
    (r"expected q \(batch, tokens, ", ShapeError, "q", floats(2, 3, 10)),
    ("k of shape", ShapeError, "k", floats(2, 3, 2, 6)),
    ("multiple of the 2 heads of q as heads of v, got 3", ShapeError, "v", floats(2, 3, 3, 6)),
    ("g of shape .* or ", ShapeError, "g", floats(2, 3, 2)),
    ("beta of shape", ShapeError, "beta", floats(2, 4, 3)),
    (r"state of shape \(2, 5, 4, 6\)", ShapeError, "state", floats(2, 4, 5, 6)),
    ("beta of float32, got int32", DTypeError, "beta", np.zeros((2, 3, 4), np.int32)),
]


def _call_removal(name: str, array: NDArray) -> object:
    *own, a, b = channel_operands(_SIZES)
    a, b = (array if each == name else other for each, other in zip("ab", (a, b), strict=True))
    q, k, v, g, beta, state = own
    return ops.gated_delta_rule(q, k, v, g, beta, state, removal=(a, b))


ERRORS = [
    *(
        ErrorSample(partial(_call, name, array), error, match)
        for match, error, name, array in _REFUSED
    ),
    ErrorSample(partial(_call_removal, "a", floats(2, 3, 4, 5)), ShapeError, "a of shape"),
    ErrorSample(partial(_call_removal, "b", floats(2, 3, 2, 6)), ShapeError, "b of shape"),
    ErrorSample(
        lambda: apply("gated_delta_rule", tuple(map(as_tensor, channel_operands(_SIZES)[:7]))),
        ShapeError,
        "both keys of the removal",
    ),
]
