"""Implicit products of convolutions: which calls they serve, and results of all kinds of
windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names

from vksched.common.dtypes import FLOAT32, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, get_op
from vksched.ops.conv.conv_implicit import implicit_variants
from vksched.ops.linalg.split_k import BYTE_COST, LEVEL_COST, occupying_invocations
from vksched.ops.lowering.lower import choice_of, lower, variants_of
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check_device
from vksched.testing.op_cases.conv.conv import call as convolution
from vksched.testing.op_cases.conv.conv import operands
from vksched.testing.op_cases.op_sample import OpSample
from vksched.topology.limits import Limits

CONV = get_op("conv")
GPU = Limits(
    1024, (1024, 1024, 64), shared_bytes=32768, storage_buffers=16, subgroup_size=32, cores=132
)


def call_of(channels: int, side: int, rows: int, stride: int, limits: Limits = GPU) -> Call:
    """Return a convolution with windows of 3 x 3."""
    attrs = {
        "stride": (stride, stride),
        "dilation": (1, 1),
        "groups": 1,
        "begin": (1, 1),
        "end": (1, 1),
    }
    types = TensorType((1, channels, side, side)), TensorType((rows, channels, 3, 3))
    result = TensorType((1, rows, -(-side // stride), -(-side // stride)), FLOAT32)
    return Call(types, result, Attrs(attrs), limits)


@pytest.mark.parametrize(
    ("channels", "side", "rows"), [(64, 56, 128), (128, 28, 256), (256, 14, 512)]
)
def test_windows_with_stride_2_need_no_buffer_and_fill_a_gpu(
    channels: int, side: int, rows: int
) -> None:
    """ResNet's, of which one im2col product had 52 to 16 workgroups."""
    call = call_of(channels, side, rows, 2)
    assert choice_of(CONV, call).variant.startswith("implicit ")
    shaders = [dispatch.shader for dispatch in lower(CONV, call).dispatches]
    assert shaders in (["conv_vec4"], ["conv_vec4", "splitk_reduce_vec4"])
    (groups, _, _) = lower(CONV, call).dispatches[0].groups
    assert groups >= 96


def test_the_time_of_a_convolution_has_that_of_packing_its_weights() -> None:
    """Lines that are no vec4s are written anew, by a dispatch of its own."""
    name = "implicit 32x64 split 8"  # parts of 4 channels, the last one of 1 and of 4
    packed, plain = (call_of(channels, 14, 96, 1) for channels in (29, 32))
    runs = [lower(CONV, replace(call, variant=name)).dispatches for call in (packed, plain)]
    assert [len(run) for run in runs] == [3, 2] and runs[0][0].shader == "matmul_pack"
    apart = implicit_variants(packed)[name] - implicit_variants(plain)[name]
    moved = 4.0 * 96 * (29 * 9 + 264)
    assert apart == pytest.approx(
        LEVEL_COST * occupying_invocations(GPU) + BYTE_COST * moved, rel=1e-9
    )
    # with few steps the packing takes longer than to write and read the windows
    few = [choice_of(CONV, call_of(channels, 32, 32, 1)).variant for channels in (3, 4)]
    assert few == ["im2col", "implicit 32x64"]


def test_without_a_number_of_cores_only_the_tuner_splits_channels() -> None:
    call = call_of(256, 14, 512, 2, replace(GPU, cores=0))
    assert " split " in choice_of(CONV, replace(call, limits=GPU)).variant
    assert " split " not in choice_of(CONV, call).variant
    assert any(" split " in name for name in variants_of(CONV, call))


def test_cpu_drivers_and_other_types_have_other_kernels() -> None:
    call = call_of(64, 14, 64, 2)
    whole = TensorType(call.output.shape, "int32")
    integers = replace(call, inputs=tuple(t.as_dtype("int32") for t in call.inputs), output=whole)
    for other in (integers, replace(call, limits=replace(GPU, software=True))):
        assert not any(name.startswith("implicit") for name in variants_of(CONV, other))


@pytest.fixture(scope="module", params=vulkan_names())
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    info = device_probe.resolve(request.param)
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    yield Runner(device)
    device.close()


def sample(x: tuple[int, ...], w: tuple[int, ...], text: str, **more: Any) -> OpSample:
    return convolution("conv", operands(x, w, w[0]), text, **more)


SAMPLES = [
    sample((1, 64, 14, 14), (48, 64, 3, 3), "stride 2", stride=2, padding=1),
    sample((2, 36, 9, 7), (20, 18, 3, 3), "groups", padding=1, groups=2),
    sample((1, 33, 11, 12), (17, 33, 3, 3), "lines that are no vec4s", stride=2, padding=1),
    sample((1, 3, 30, 31), (40, 3, 7, 7), "7 x 7", stride=2, padding=3),
    sample((3, 40, 5, 5), (130, 40, 1, 1), "1 x 1", stride=2),
    sample((1, 24, 12, 12), (16, 24, 3, 3), "dilation", dilation=2, padding=(0, 3, 2, 0)),
    sample((1, 16, 5, 6, 7), (24, 16, 2, 3, 2), "three axes", padding=1),
    sample((2, 20, 40), (16, 20, 5), "one axis", stride=3),
]


@pytest.mark.parametrize("case", SAMPLES, ids=lambda case: case.id)
def test_results_are_those_of_numpy(case: OpSample, runner: Runner) -> None:
    limits = replace(GPU, cores=1024)  # so that more calls are split
    names = [name for name in case.variants(limits) if name.startswith("implicit ")]
    assert names
    for variant in names:
        got = runner.run(case, limits, variant)
        check_device(case, got, case.expected(), f"{runner.device.name}, {variant}")


def test_values_that_are_not_finite_stay_in_their_windows(runner: Runner) -> None:
    """A tap beyond the edge, or beyond a part of the channels, meets a 0 and no neighbour."""
    case = sample((1, 33, 10, 10), (16, 33, 3, 3), "not finite", stride=2, padding=1)
    x, w, *bias = (array.copy() for array in case.inputs)
    x[0, 3, 0, 0], x[0, 32, 9, 9], w[5, 32, 2, 2] = np.inf, np.nan, -np.inf
    case = replace(case, inputs=(x, w, *bias))
    for variant in case.variants(GPU):
        got = runner.run(case, GPU, variant)
        check_device(case, got, case.expected(), f"{runner.device.name}, {variant}")


def test_the_parts_of_a_sum_are_added_before_bias_and_epilogue(runner: Runner) -> None:
    plain = sample((1, 256, 6, 6), (32, 256, 3, 3), "relu", padding=1)
    steps = (1, (("relu", (0,), ()),), ())
    case = replace(plain, attrs={**plain.attrs, "epilogue": steps})
    split = [name for name in case.variants(GPU) if " split " in name]
    assert split
    for variant in split:
        got = runner.run(case, GPU, variant)
        check_device(case, got, case.expected(), f"{runner.device.name}, {variant}")
        assert np.array_equal(got, runner.run(case, GPU, variant))
