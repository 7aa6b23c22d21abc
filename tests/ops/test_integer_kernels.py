"""Kernels of integer convolutions: windows of many images are rows of one product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

from vksched.ops.lowering.lower import lower
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner
from vksched.testing.op_cases.linalg.int8 import convolution
from vksched.topology.limits import Limits

IMAGES = convolution((7, 4, 3, 4), (19, 4, 2, 2), "small images")
"""Of 6 windows each."""


@pytest.fixture(params=vulkan_names() or [None], scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param is None:
        pytest.skip("no Vulkan device here")
    info = device_probe.resolve(request.param)
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    yield Runner(device)
    device.close()


def test_images_with_the_same_weights_share_dispatches() -> None:
    for variant in ("tiled", "rows 8"):
        call = replace(IMAGES.call(Limits()), variant=variant)
        words, product = lower(IMAGES.declaration, call).dispatches
        assert dict(words.push)["rows"] == dict(product.push)["rows"] == 7 * 6


@pytest.mark.parametrize("variant", ["rows 8", "rows 8 dot", "tiled", "float32"])
def test_a_pass_ends_within_an_image(variant: str, runner: Runner) -> None:
    own = runner.device.limits
    if variant.endswith("dot") and not own.integer_dot:
        pytest.skip("no integer dot products")
    # one group of rows in each dispatch
    software = not variant.startswith("tiled")
    least = replace(own, max_groups=(own.max_groups[0], 1, 1), software=software)
    call = replace(IMAGES.call(least), variant=variant)
    passes = [
        d for d in lower(IMAGES.declaration, call).dispatches if d.shader == "int8_pack_activations"
    ]
    firsts = [dict(d.push)["first_row"] for d in passes]
    assert firsts == {"tiled": [0], "float32": []}.get(variant, list(range(0, 42, 8)))
    np.testing.assert_array_equal(runner.run(IMAGES, least, variant), IMAGES.expected())
