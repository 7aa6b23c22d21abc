"""What a device has beyond Vulkan 1.1: what it claims is enabled, and computes what it should."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_mapped import run_with, to_plant

from vksched.runtime.vulkan import binding, device_probe
from vksched.runtime.vulkan import context as context_module
from vksched.runtime.vulkan.binding import robust_access
from vksched.runtime.vulkan.context import Context, HostBuffer, Pipeline
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.topology.limits import FEATURES, Limits

pytestmark = pytest.mark.own_devices


COUNT = 64
HEAD = """#version 450
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { uint count; };
"""
TYPES = "#extension GL_EXT_shader_explicit_arithmetic_types : require\n"
STORAGE = """#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
"""
DOT = """#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450)
int dot4(int a, int b, spirv_literal int packed);
"""


def words(line: str, head: str = "", types: tuple[str, str] = ("uint", "uint")) -> str:
    """A kernel that makes a word, or a value of another type, of another one."""
    lines = HEAD.split("\n", 1)
    return f"""{lines[0]}
{head}{lines[1]}
layout(std430, binding = 0) readonly buffer From {{ {types[0]} source[]; }};
layout(std430, binding = 1) writeonly buffer To {{ {types[1]} target[]; }};
void main() {{
    uint i = gl_GlobalInvocationID.x;
    if (i < count) {{ {line} }}
}}
"""


WORDS = np.random.default_rng(0).integers(0, 1 << 32, COUNT, dtype=np.uint32)
FP16 = np.random.default_rng(1).standard_normal(2 * COUNT).astype(np.float16)
BYTES = WORDS.view(np.int8).reshape(COUNT, 4).astype(np.int32)
LONG = WORDS.astype(np.uint64)


def half_sums() -> np.ndarray:
    pairs = FP16.reshape(COUNT, 2)
    return np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] * pairs[:, 1]], 1)


SHADERS: dict[str, tuple[str, np.ndarray, np.ndarray]] = {
    "float16": (
        words(
            "f16vec2 v = unpackFloat2x16(source[i]); "
            "target[i] = packFloat2x16(f16vec2(v.x + v.y, v.x * v.y));",
            TYPES,
        ),
        FP16,
        half_sums(),
    ),
    "int64": (
        words(
            "uint64_t v = uint64_t(source[i]); target[i] = uint((v * v) >> 32);",
            TYPES,
        ),
        WORDS,
        (LONG * LONG >> np.uint64(32)).astype(np.uint32),
    ),
    "int16": (
        words(
            "u16vec2 v = unpackUint2x16(source[i]); target[i] = uint(v.x * v.y);",
            TYPES,
        ),
        WORDS,
        ((WORDS & 0xFFFF) * (WORDS >> 16) & 0xFFFF).astype(np.uint32),
    ),
    "int8": (
        words("u8vec4 v = unpack8(source[i]); target[i] = uint(v.x + v.w);", TYPES),
        WORDS,
        ((WORDS & 0xFF) + (WORDS >> 24) & 0xFF).astype(np.uint32),
    ),
    "storage16": (
        words("target[i] = source[i];", STORAGE, ("float16_t", "float16_t")),
        FP16[:COUNT],
        FP16[:COUNT],
    ),
    "storage8": (
        words("target[i] = source[i];", STORAGE, ("uint8_t", "uint8_t")),
        WORDS.view(np.uint8)[:COUNT],
        WORDS.view(np.uint8)[:COUNT],
    ),
    "integer_dot": (
        words("target[i] = uint(dot4(int(source[i]), int(source[i] ^ 255u), 0));", DOT),
        WORDS,
        (BYTES * (WORDS ^ 255).view(np.int8).reshape(COUNT, 4)).sum(1, dtype=np.int32),
    ),
}


@pytest.fixture(params=vulkan_names() or [None], scope="module")
def info(request: pytest.FixtureRequest) -> device_probe.DeviceInfo:
    if request.param is None:
        pytest.skip("no Vulkan device here")
    return device_probe.resolve(request.param)


@pytest.fixture
def context(info: device_probe.DeviceInfo) -> Iterator[Context]:
    opened = Context(info.index, info.name)
    yield opened
    opened.close()


def test_devices_open_with_what_they_claim(context: Context) -> None:
    assert context.featured


@pytest.mark.own_devices
def test_devices_of_nodes_keep_kernels_from_the_memory_of_others(
    info: device_probe.DeviceInfo,
) -> None:
    """Where their drivers can; those of schedulers do without what it costs."""
    opened = Context(info.index, info.name)
    with robust_access():
        safe = Context(info.index, info.name)
    assert not opened.robust and safe.robust and safe.featured
    for each in (opened, safe):
        each.close()


@pytest.mark.parametrize("feature", SHADERS)
def test_what_is_claimed_computes(
    feature: str, info: device_probe.DeviceInfo, context: Context, tmp_path: Path
) -> None:
    if not getattr(info.limits, feature):
        pytest.skip(f"{info.name} has no {feature}")
    source, values, expected = SHADERS[feature]
    code = compiled(source, tmp_path)
    buffers = [context.host(COUNT), context.host(COUNT, read=True)]
    buffers[0].array.view(np.uint8)[: values.nbytes] = values.view(np.uint8)
    words_of = run_once(context, context.pipeline(code, buffers, [COUNT], 4), buffers)
    got = words_of.view(np.uint8)[: expected.nbytes].view(expected.dtype)
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


def test_pipelines_have_the_subgroups_that_they_require(
    info: device_probe.DeviceInfo, context: Context, tmp_path: Path
) -> None:
    """Each size that a device offers, made before it is asked for and made as it is."""
    if not info.limits.subgroup_sizes:
        pytest.skip(f"{info.name} lets nobody choose")
    head = "#extension GL_KHR_shader_subgroup_basic : require\n"
    code = compiled(words("target[i] = source[i] + gl_SubgroupSize;", head), tmp_path)
    buffers = [context.host(COUNT), context.host(COUNT, read=True)]
    sizes = info.limits.subgroup_sizes
    for size in sizes:
        if size != sizes[-1]:
            context.make_pipelines([(code, (COUNT,), 2, 4, size)])
        got = run_once(context, context.pipeline(code, buffers, [COUNT], 4, size), buffers)
        np.testing.assert_array_equal(got, np.full(COUNT, size))
    context.pipeline(code, buffers, [COUNT], 4)  # one that requires nothing is another one
    compiled_here = binding.companion.count_pipelines(context._device.manager)[0]
    assert compiled_here == len(sizes) + 1


def compiled(source: str, folder: Path) -> bytes:
    (folder / "kernel.comp").write_text(source)
    command = ["glslangValidator", "--target-env", "vulkan1.1", "-o", "kernel.spv", "kernel.comp"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return (folder / "kernel.spv").read_bytes()


def run_once(context: Context, pipeline: Pipeline, buffers: list[HostBuffer]) -> np.ndarray:
    """Return the second buffer's words after one group."""
    recording = context.recording()
    recording.begin()
    recording.barrier("host", "shader")
    recording.dispatch(pipeline, (1, 1, 1), struct.pack("I", COUNT))
    recording.barrier("shader", "host")
    recording.end()
    recording.submit()
    recording.wait(60.0)
    return buffers[1].array


def test_features_are_limits_that_the_least_device_lacks(info: device_probe.DeviceInfo) -> None:
    names = {field.name for field in dataclasses.fields(Limits)}
    assert set(FEATURES) < names
    bare = info.limits.without_features()
    assert not any(getattr(bare, name) for name in FEATURES)
    assert dataclasses.replace(bare, **{name: getattr(info.limits, name) for name in FEATURES}) == (
        info.limits
    )


def test_a_device_that_opens_without_them_says_so(
    info: device_probe.DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., None] = Context.__init__

    def plain(self: Context, index: int, name: str, *rest: Any) -> None:
        real(self, index, name, *rest)
        self.featured = False

    monkeypatch.setattr(context_module.Context, "__init__", plain)
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    assert device.spec.limits == device.limits == info.limits.without_features()
    device.close()


# vkCreateDevice of a driver that fails where it is asked for features, by the error in FAIL.
REFUSING = """
#include <dlfcn.h>
#include <stdlib.h>
struct info { int type; const void *next; };
int vkCreateDevice(void *physical, const struct info *info, const void *allocator, void **device)
{
    if (info->next != NULL)
        return atoi(getenv("FAIL"));
    int (*real)(void *, const struct info *, const void *, void **) =
        (int (*)(void *, const struct info *, const void *, void **))
            dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkCreateDevice");
    return real(physical, info, allocator, device);
}
"""
OPEN = """
import os, sys
import numpy as np
import vksched as vs
from vksched.runtime.vulkan.context import Context
os.environ["FAIL"] = sys.argv[2]
context = Context(int(sys.argv[1]), "it")
print(context.featured)
context.close()
with vs.Scheduler([f"vulkan:{sys.argv[1]}"]) as sched:
    print(sched.compile(vs.input("x", (3,)) + 1.0)(x=np.ones(3, np.float32)).tolist())
"""
VK_ERROR_INITIALIZATION_FAILED, VK_ERROR_FEATURE_NOT_PRESENT = -3, -8
VK_ERROR_OUT_OF_DEVICE_MEMORY = -2


@pytest.mark.parametrize(
    "error",
    [
        VK_ERROR_INITIALIZATION_FAILED,
        VK_ERROR_FEATURE_NOT_PRESENT,
        VK_ERROR_OUT_OF_DEVICE_MEMORY,
    ],
)
def test_a_device_that_fails_with_them_opens_without(
    error: int, info: device_probe.DeviceInfo, tmp_path: Path
) -> None:
    done = run_with(to_plant(REFUSING, tmp_path), OPEN, str(info.index), str(error))
    assert done.stdout.splitlines() == ["False", "[2.0, 2.0, 2.0]"], done
