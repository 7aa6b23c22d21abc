"""The gated delta rule: texts in parts, padding, strong decay, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Scheds

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ops.attention.gated_delta_rule import NAMES
from vksched.ops.attention.gated_delta_rule_cpu import CHUNK, CPU_KERNEL, gated_delta_rule_reference
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner
from vksched.testing.op_cases.linalg.gated_delta_rule import operands
from vksched.testing.op_cases.op_sample import OpSample
from vksched.topology.limits import Limits

SIZES = (2, 2 * CHUNK + 5, 2, 4, 8, 6)
GPU = Limits(max_invocations=256, max_local_size=(256, 256, 64), storage_buffers=8)
"""A GPU: several invocations share a column."""


def test_parts_of_a_text_pass_the_state_on(scheds: Scheds) -> None:
    inputs = operands(SIZES)
    tensors = [vs.input(name, x.shape) for name, x in zip(NAMES, inputs, strict=True)]
    *own, state = tensors
    whole = vs.gated_delta_rule(*tensors)  # type: ignore[arg-type]
    parts = []
    for start, end in ((0, 1), (1, CHUNK), (CHUNK, SIZES[1])):
        out, state = vs.gated_delta_rule(*(x[:, start:end] for x in own), state)
        parts.append(out)
    run = scheds[0].compile([*whole, vs.concat(parts, axis=1), state])
    wanted, last, got, state_of_parts = run(**dict(zip(NAMES, inputs, strict=True)))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state_of_parts, last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [37, 128])
def test_a_column_of_several_invocations_has_the_bits_of_its_head_alone(
    scheds: Scheds, size: int
) -> None:
    inputs = operands((2, 5, 2, 4, size, 21))
    q, k, *others = inputs
    exact = tuple(x.astype(np.float64) for x in inputs)
    wanted = gated_delta_rule_reference(exact, Attrs())
    for device in scheds[0].devices:
        if not isinstance(device, VulkanDevice):
            continue
        runner = Runner(device)
        got = runner.run(OpSample("gated_delta_rule", inputs), GPU)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)
        key, own = np.s_[1:, :, 1:], np.s_[1:, :, 3:]
        alone = (q[key], k[key], *(x[own] for x in others))
        head = runner.run(OpSample("gated_delta_rule", alone), GPU)
        np.testing.assert_array_equal(head, got[own])
        token = (*(x[:, :1] for x in inputs[:5]), inputs[5])
        step = runner.run(OpSample("gated_delta_rule", token), GPU)
        np.testing.assert_array_equal(step[:, 0], got[:, 0])


def cpu_result(inputs: tuple[NDArray, ...]) -> NDArray:
    out = np.empty_like(gated_delta_rule_reference(inputs, Attrs()))
    CPU_KERNEL.compute(inputs, Attrs(), out)
    return out


def test_padding_does_not_change_the_state() -> None:
    padded = operands((1, 24, 1, 2, 8, 5), padding=4)
    inputs = tuple(x[:, :20] for x in padded[:5])
    for compute in (cpu_result, lambda x: gated_delta_rule_reference(x, Attrs())):
        short, long = compute((*inputs, padded[5])), compute(padded)
        np.testing.assert_allclose(long[:, 24:], short[:, 20:], rtol=1e-5, atol=1e-6)
    step = (*(x[:, -1:] for x in padded[:5]), padded[5])
    np.testing.assert_array_equal(cpu_result(step)[:, 1:], padded[5])


@pytest.mark.parametrize("decay", [-np.inf, -3e38, -1e6, -1e4, -80.0, 2.0])
def test_any_decay_is_that_of_tokens_one_by_one(decay: float) -> None:
    q, k, v, g, beta, state = operands((1, CHUNK + 9, 1, 2, 8, 5))
    g = g.copy()
    g[:, ::5] = decay
    inputs = q, k, v, g, beta, state
    exact = tuple(x.astype(np.float64) for x in inputs)
    wanted = gated_delta_rule_reference(exact, Attrs())
    np.testing.assert_allclose(cpu_result(inputs), wanted, rtol=1e-4, atol=1e-5)


def test_sums_of_decays_keep_their_precision() -> None:
    *others, g, beta, state = operands((1, CHUNK, 1, 2, 8, 5))
    g = g.copy()
    g[:, 1:9] = -100.0
    inputs = *others, g, beta, state
    wanted = gated_delta_rule_reference(tuple(x.astype(np.float64) for x in inputs), Attrs())
    np.testing.assert_allclose(cpu_result(inputs), wanted, rtol=1e-5, atol=2e-6)


def test_a_growth_does_not_change_other_heads_and_rows() -> None:
    q, k, v, g, beta, state = operands(SIZES)
    grown = g.copy()
    grown[1, 3, 2], grown[0, 7, 1] = 0.5, np.nan
    without, got = (cpu_result((q, k, v, each, beta, state)) for each in (g, grown))
    is_same = np.ones(got.shape[::2], bool)
    is_same[1, 2] = is_same[0, 1] = False
    by_head = without.swapaxes(1, 2), got.swapaxes(1, 2)
    np.testing.assert_array_equal(by_head[1][is_same], by_head[0][is_same])
    wanted = gated_delta_rule_reference((q, k, v, grown, beta, state), Attrs())
    np.testing.assert_allclose(got[1, :, 2], wanted[1, :, 2], rtol=1e-4, atol=1e-5)
    assert np.isfinite(got[0, :7, 1]).all() and np.isnan(got[0, 7, 1]).all()


def test_a_gradient_has_a_limit_of_tokens() -> None:
    shapes = ((1, 4097, 1, 2), (1, 4097, 1, 2), (1, 4097, 1, 3), (1, 4097, 1), (1, 4097, 1))
    tensors = [vs.input(n, s) for n, s in zip(NAMES, (*shapes, (1, 2, 1, 3)), strict=True)]
    loss = vs.reduce_sum(vs.gated_delta_rule(*tensors)[0])  # type: ignore[arg-type]
    with pytest.raises(vs.ShapeError, match="at most 4096 tokens for a gradient.*got 4097"):
        vs.grad(loss, tensors)
