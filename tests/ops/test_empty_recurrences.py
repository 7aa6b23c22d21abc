"""Gradients of recurrent ops without batch rows, heads, tokens or columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import Scheds

import vksched as vs
from vksched.common.dtypes import Shape
from vksched.ir.tensor import Tensor


def check(
    scheds: Scheds, op: Callable[..., tuple[Tensor, Tensor]], shapes: tuple[Shape, ...]
) -> None:
    """Check that gradients have the shapes of the operands, and those of the last state."""
    inputs = [vs.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    out, state = op(*inputs)
    loss = vs.reduce_sum(out * out) + vs.reduce_sum(state)
    run = scheds[0].compile([loss, *vs.grad(loss, inputs)])
    feeds = {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    value, *grads = run(**feeds)
    assert value == 0 and [each.shape for each in grads] == list(shapes)
    for each in grads[:-1]:
        np.testing.assert_array_equal(each, np.zeros_like(each))
    np.testing.assert_array_equal(grads[-1], np.ones_like(grads[-1]))


@pytest.mark.parametrize(
    ("batch", "heads", "head_dim", "per_head"),
    [(0, 4, 2, False), (0, 4, 2, True), (2, 0, 3, False), (2, 0, 3, True), (2, 2, 0, True)],
)
def test_gradients_of_ssm_scan(
    scheds: Scheds, batch: int, heads: int, head_dim: int, per_head: bool
) -> None:
    x, of_groups = (batch, 3, heads, head_dim), (batch, 3, 1, 5)
    rates, state = (heads, 1 if per_head else 5), (batch, 5, heads, head_dim)
    check(scheds, vs.ssm_scan, (x, x[:3], rates, of_groups, of_groups, state))


@pytest.mark.parametrize(
    ("batch", "key_heads", "heads", "columns"),
    [(0, 2, 4, 3), (0, 2, 2, 3), (2, 0, 0, 3), (2, 2, 0, 3), (2, 2, 4, 0)],
)
def test_gradients_of_gated_delta_rule(
    scheds: Scheds, batch: int, key_heads: int, heads: int, columns: int
) -> None:
    q, v, state = (batch, 3, key_heads, 4), (batch, 3, heads, columns), (batch, 4, heads, columns)
    check(scheds, vs.gated_delta_rule, (q, q, v, v[:3], v[:3], state))
