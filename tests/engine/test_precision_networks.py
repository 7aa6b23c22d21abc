"""Whole networks with each precision against the same in float32, on every kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names
from graphs import transformer

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ops.lowering import native_kernels
from vksched.runtime.device import Device
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.op_cases.linalg.quantized_linear import blocks
from vksched.topology.limits import Limits

RNG = np.random.default_rng(11)
ERRORS = {"mixed": 3e-3, "float16": 1e-2, "bfloat16": 2e-2}
"""Of a network, as a share of its largest result."""
LEAST = 1e-5
"""Of numpy, which rounds: less would be no precision at all."""


def weights(*shape: int) -> vs.Tensor:
    size = float(np.prod(shape[1:]))
    return vs.weight((RNG.standard_normal(shape) / size**0.5).astype(np.float32))


def attention_network() -> vs.Tensor:
    return transformer(layers=3)[0][0]  # type: ignore[return-value]


def convolutions() -> vs.Tensor:
    """A small residual network, with strides, groups and a head."""
    h = vs.conv(vs.input("x", (2, 3, 33, 33)), weights(16, 3, 3, 3), stride=2, padding=1)
    for _ in range(2):
        inner = vs.relu(vs.conv(h, weights(16, 16, 3, 3), padding=1))
        inner = vs.relu(vs.conv(inner, weights(16, 1, 3, 3), padding=1, groups=16))
        h = vs.relu(h + vs.conv(inner, weights(16, 16, 1, 1)))
    return vs.reduce_mean(h, (2, 3)) @ weights(16, 100)


def gradients() -> vs.Tensor:
    """The gradient of a wide layer, whose products are mixed as well."""
    x = vs.input("x", (64, 96))
    first, second = weights(96, 700), weights(700, 8)
    loss = vs.reduce_mean(vs.square(vs.tanh(x @ first) @ second))
    return vs.grad(loss, {"first": first})["first"]


NETWORKS: dict[str, Callable[[], vs.Tensor]] = {
    "attention": attention_network,
    "convolutions": convolutions,
    "gradients": gradients,
}


def like_a_card(name: str) -> Device | None:
    """A CPU driver that is given kernels of GPUs, also those of float16, 8-bit dot products and
    workgroups that find the last one; None without float16.
    """
    info = device_probe.resolve(name)
    spec = device_probe.device_spec(info)
    own = spec.limits
    if not own.float16:
        return None
    limits = Limits(
        storage_buffers=min(own.storage_buffers, 16),
        float16=True,
        max_buffer_bytes=1 << 28,
        memory_model=own.memory_model,
        memory_model_checked=own.memory_model,
        integer_dot=own.integer_dot,
        integer_dot_fast=own.integer_dot,
    )
    return VulkanDevice(replace(spec, limits=limits), info.index)


@pytest.fixture(params=["cpu", *vulkan_names(), *(f"{n} as a card" for n in vulkan_names())])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    name, _, other = request.param.partition(" ")
    device = like_a_card(name) if other else name
    if device is None:
        pytest.skip(f"{name} has no float16")
    with vs.Scheduler([device], tune=False) as sched:
        yield sched


def run(sched: vs.Scheduler, out: vs.Tensor, word: str) -> tuple[NDArray, vs.Plan]:
    compiled = sched.compile(out, precision=word)
    (node,) = compiled.plan.graph.inputs
    values = np.random.default_rng(5).standard_normal(node.type.shape).astype(np.float32)
    result = compiled(x=values)
    assert isinstance(result, np.ndarray)
    return result, compiled.plan


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_near_float32(name: str, sched: vs.Scheduler) -> None:
    out = NETWORKS[name]()
    exact, _ = run(sched, out, "float32")
    for word, most in ERRORS.items():
        got, plan = run(sched, out, word)
        error = np.abs(got - exact).max() / np.abs(exact).max()
        assert error < most, f"{word}: {error:.2e}"
        assert error > LEAST or plan.topology.devices[0].kind != "cpu", f"{word}: {error:.2e}"


def gated(rows: int) -> vs.Tensor:
    """A gated layer by weights of few bits, as language models have them, and a head of float32."""
    x = vs.input("x", (rows, 256))
    held = {
        name: vs.quantized_weight(blocks(name, 512, 256), name, (512, 256))
        for name in ("q4_K", "q8_0")
    }
    h = vs.silu(vs.linear(x, held["q4_K"])) * vs.linear(x, held["q8_0"])
    down = vs.quantized_weight(blocks("q6_K", 64, 512), "q6_K", (64, 512))
    return vs.linear(vs.rms_norm(h, vs.weight(np.ones(512, np.float32))), down) @ weights(64, 24)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_codes_of_8_bits(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By native programs and by numpy alike, near float32 but not as near as float32 is."""
    y, feeds = gated(rows), {"x": RNG.standard_normal((rows, 256)).astype(np.float32)}
    names = ["cpu", *vulkan_names()]
    with vs.Scheduler(names, tune=False) as sched:
        expected = sched.compile(y, placement={"*": "cpu"})(**feeds)
        for name in names:
            run = sched.compile(y, placement={"*": name}, precision="int8")
            error = np.abs(run(**feeds) - expected).max() / np.abs(expected).max()
            assert error < 2e-2, name
            if name == "cpu":
                by_loops = run(**feeds)
                assert "precision: 3 int8" in run.plan.explain() and error > LEAST
    monkeypatch.setattr(native_kernels, "native", None)
    with vs.Scheduler(["cpu"], precision="int8") as sched:
        by_numpy = sched.compile(y)(**feeds)
    np.testing.assert_allclose(by_loops, by_numpy, atol=2e-3 * np.abs(expected).max())
