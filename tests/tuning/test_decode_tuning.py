"""Tuning of attention with a KV cache: key counts of a conversation, and the expected result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names
from graphs import make_topology
from test_tuner_search import RIGHT, FakeBench

import vksched as vs
from vksched.ir.op import Call, Dispatch, get_op
from vksched.ops.attention.attention_decode import DECODE
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.topology.device_spec import DeviceSpec
from vksched.tuning.autotuner import _measure
from vksched.tuning.benchmarker import numbers_of
from vksched.tuning.kernel_benchmark import CallBench
from vksched.tuning.measurement import Measurement
from vksched.tuning.search import search
from vksched.tuning.tunable_calls import Tunable, calls_of

KEYS = 1024


def decode_step(spec: DeviceSpec) -> Tunable:
    shapes = {"q": (1, 4, 1, 64), "k": (1, 2, KEYS, 64), "v": (1, 2, KEYS, 64)}
    q, k, v = (vs.input(name, shape) for name, shape in shapes.items())
    graph, _ = vs.build_graph(vs.attention(q, k, v, kv_len=vs.input("used", (), "int32")))
    return next(iter(calls_of(graph, spec).values()))


@pytest.mark.parametrize("checked", [False, True])
def test_another_kernel_gives_the_expected_result(checked: bool) -> None:
    spec = make_topology(1).devices[0]
    with_model = replace(
        spec.limits, memory_model=True, memory_model_checked=checked, storage_buffers=16
    )
    step = decode_step(replace(spec, limits=with_model))
    assert (step.names[0] == DECODE) == checked and DECODE in step.names
    reported = FakeBench(
        {name: 0.001 + 0.001 * (name != DECODE) for name in step.names}, {DECODE: RIGHT * 2}
    )

    @contextmanager
    def bench(device: Device, call: Tunable) -> Iterator[FakeBench]:
        yield reported

    found = _measure(CpuDevice(spec), step, {}, bench, Measurement(9.0))
    assert found is not None and list(found.dropped) == [DECODE]


def test_numpy_is_timed_with_half_of_the_cache() -> None:
    step = decode_step(make_topology(1).devices[0])
    assert numbers_of(step.op, step.call, 3) == KEYS // 2


@pytest.fixture(params=vulkan_names())
def device(request: pytest.FixtureRequest) -> Iterator[VulkanDevice]:
    """A software device that is taken for a GPU."""
    info = device_probe.resolve(request.param)
    limits = replace(info.limits, software=False, storage_buffers=16)
    device = VulkanDevice(replace(device_probe.device_spec(info), limits=limits), info.index)
    yield device
    device.close()


def test_kernels_are_compared_with_the_whole_cache(device: VulkanDevice) -> None:
    """One that reads half of the cache is right with the count that is timed."""
    step = decode_step(device.spec)
    declared = get_op(step.op.name)
    own, half = declared.kernel, "half"
    assert own is not None

    def full(call: Call) -> Call:
        return replace(call, variant=step.names[0]) if call.variant == half else call

    def lower(call: Call) -> tuple[Dispatch, ...]:
        count = KEYS // 2 if call.variant == half else KEYS
        return tuple(
            replace(each, push=tuple((n, count if n == "keys" else v) for n, v in each.push))
            for each in own.lower(full(call))
        )

    kernel = replace(
        own,
        lower=lower,
        scratch=lambda call: own.scratch(full(call)),
        counters=lambda call: own.counters(full(call)),
        variants=lambda call: (*own.variants(call), half),
    )
    names = (*step.names, half)
    with CallBench(device, replace(declared, kernel=kernel), step.call) as bench:
        found = search(step.key, names, bench, lambda: math.inf)
        bench._copy(bench._inputs[3], 0, bench._block, 0, 1)
        assert bench._block.array[0] == KEYS // 2, "timed"
        assert bench.result().size == 2 * step.call.output.size
    assert found is not None and list(found.dropped) == [half]
    assert "squared error" in found.dropped[half]
    assert np.isfinite(list(found.seconds.values())).all()
