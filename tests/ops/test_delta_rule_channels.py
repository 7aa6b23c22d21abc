"""The gated delta rule with decays by channel and keys of the removal: texts in parts, padding,
strong decay and growth.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Scheds, vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ops.attention import gated_delta_rule_channels
from vksched.ops.attention.gated_delta_rule import NAMES, REMOVAL_NAMES
from vksched.ops.attention.gated_delta_rule_channels_cpu import CHANNEL_CHUNK
from vksched.ops.attention.gated_delta_rule_cpu import CPU_KERNEL, gated_delta_rule_reference
from vksched.testing.op_cases.linalg.gated_delta_rule import channel_operands, operands

SIZES = (2, 2 * CHANNEL_CHUNK + 5, 2, 4, 8, 6)


def cpu_result(inputs: tuple[NDArray, ...]) -> NDArray:
    out = np.empty_like(gated_delta_rule_reference(inputs, Attrs()))
    CPU_KERNEL.compute(inputs, Attrs(), out)
    return out


def exact(inputs: tuple[NDArray, ...]) -> NDArray:
    wide = tuple(x.astype(np.float64) for x in inputs)
    return gated_delta_rule_reference(wide, Attrs())


def test_parts_of_a_text_pass_the_state_on(scheds: Scheds) -> None:
    inputs = channel_operands(SIZES)
    feeds = dict(zip((*NAMES, *REMOVAL_NAMES), inputs, strict=True))
    q, k, v, g, beta, state, a, b = (vs.input(name, x.shape) for name, x in feeds.items())
    whole = vs.gated_delta_rule(q, k, v, g, beta, state, removal=(a, b))
    parts = []
    for part in (np.s_[:, :1], np.s_[:, 1:20], np.s_[:, 20:]):
        own = (x[part] for x in (q, k, v, g, beta))
        out, state = vs.gated_delta_rule(*own, state, removal=(a[part], b[part]))
        parts.append(out)
    run = scheds[0].compile([*whole, vs.concat(parts, axis=1), state])
    wanted, last, got, state_of_parts = run(**feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state_of_parts, last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("removal", [False, True])
@pytest.mark.parametrize("decay", [-np.inf, -3e38, -1e4, -80.0, 2.0])
def test_any_decay_is_that_of_tokens_one_by_one(decay: float, removal: bool) -> None:
    q, k, v, g, *others = channel_operands((1, 2 * CHANNEL_CHUNK, 1, 2, 8, 5), removal=removal)
    g = g.copy()
    g[:, ::5, :, ::3] = decay
    inputs = q, k, v, g, *others
    np.testing.assert_allclose(cpu_result(inputs), exact(inputs), rtol=1e-4, atol=1e-5)


def test_sums_of_decays_keep_their_precision() -> None:
    q, k, v, g, *others = channel_operands((1, CHANNEL_CHUNK, 1, 2, 8, 5))
    g = g.copy()
    g[:, 1:9] = -100.0
    inputs = q, k, v, g, *others
    np.testing.assert_allclose(cpu_result(inputs), exact(inputs), rtol=1e-5, atol=2e-6)


def test_a_growth_does_not_change_other_heads_and_rows() -> None:
    q, k, v, g, *others = channel_operands(SIZES)
    grown = g.copy()
    grown[1, 3, 2, 5], grown[0, 7, 1, 0] = 0.5, np.nan
    without, got = (cpu_result((q, k, v, each, *others)) for each in (g, grown))
    is_same = np.ones(got.shape[::2], bool)
    is_same[1, 2] = is_same[0, 1] = False
    by_head = without.swapaxes(1, 2), got.swapaxes(1, 2)
    np.testing.assert_array_equal(by_head[1][is_same], by_head[0][is_same])
    wanted = exact((q, k, v, grown, *others))
    np.testing.assert_allclose(got[1, :, 2], wanted[1, :, 2], rtol=1e-4, atol=1e-5)
    assert np.isfinite(got[0, :7, 1]).all() and np.isnan(got[0, 7, 1]).all()


def test_padding_does_not_change_the_state() -> None:
    padded = channel_operands((1, 24, 1, 2, 8, 5), padding=4)
    step = tuple(x if at == 5 else x[:, -1:] for at, x in enumerate(padded))
    np.testing.assert_array_equal(cpu_result(step)[:, 1:], padded[5])
    short = tuple(x if at == 5 else x[:, :20] for at, x in enumerate(padded))
    got, wanted = cpu_result(padded)[:, 24:], cpu_result(short)[:, 20:]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_equal_decays_of_all_channels_are_that_of_the_head() -> None:
    q, k, v, g, beta, state = operands(SIZES)
    by_channel = np.broadcast_to(g[..., None], (*g.shape, q.shape[3]))
    wanted = cpu_result((q, k, v, g, beta, state))
    for removal in ((), (k, k)):
        got = cpu_result((q, k, v, by_channel, beta, state, *removal))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    built = vs.gated_delta_rule(q, k, v, g, beta, state, removal=(k, k))
    with vs.Scheduler(["cpu"]) as sched:
        out, last = sched.compile([*built])()
    np.testing.assert_allclose(np.concatenate([out, last], axis=1), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "parts"), [(12, 3), (13, 4)])
def test_invocations_share_a_column(monkeypatch: pytest.MonkeyPatch, size: int, parts: int) -> None:
    if not vulkan_names():
        pytest.skip("no Vulkan device here")
    monkeypatch.setattr(gated_delta_rule_channels, "parts_of", lambda size, limits: parts)
    inputs = channel_operands((1, 5, 1, 2, size, 21))
    q, k, v, g, beta, state, a, b = (vs.input(f"x{at}", x.shape) for at, x in enumerate(inputs))
    out, last = vs.gated_delta_rule(q, k, v, g, beta, state, removal=(a, b))
    with vs.Scheduler(vulkan_names()[:1]) as sched:
        got = sched.compile([out, last])(**{f"x{at}": x for at, x in enumerate(inputs)})
    wanted = exact(inputs)
    np.testing.assert_allclose(np.concatenate(got, axis=1), wanted, rtol=1e-4, atol=1e-5)
