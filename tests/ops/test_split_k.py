"""Split-k: which products are split, into which parts, and that the results are those of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

from vksched.common.dtypes import FLOAT16, FLOAT32, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import OUTPUT, SCRATCH, Call, get_op
from vksched.ops.linalg.split_k import ASSUMED_CORES
from vksched.ops.lowering.lower import choice_of, lower, variants_of
from vksched.ops.lowering.strides import DISPATCH_FLOPS
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check_device
from vksched.testing.op_cases.linalg.matmul import attrs, swapped
from vksched.testing.op_cases.op_sample import OpSample, floats
from vksched.topology.limits import Limits

MATMUL = get_op("matmul")
COOPMAT_NAME = "coopmat "
GPU = Limits(1024, (1024, 1024, 64), shared_bytes=32768, storage_buffers=16, subgroup_size=32)
COOPMAT = replace(
    GPU,
    float16=True,
    matrices=("float16*float16+float32 16x16x16",),
    shared_bytes=65536,
    subgroup_sizes=(32,),
)


def call_of(m: int, k: int, n: int, limits: Limits, dtype: str = FLOAT32, word: str = "") -> Call:
    named = {**attrs(), **({"precision": word} if word else {})}
    types = TensorType((m, k), dtype), TensorType((k, n), dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(named), limits)


def splits_of(call: Call) -> list[str]:
    return [name for name in variants_of(MATMUL, call) if " split " in name]


def groups_of(call: Call) -> int:
    x, y, z = lower(MATMUL, call).dispatches[0].groups
    return x * y * z


@pytest.mark.parametrize("cores", [8, 28, 32, 96, 132])
@pytest.mark.parametrize(("m", "k", "n"), [(32, 4096, 512), (64, 8192, 64), (16, 1024, 1000)])
def test_long_sums_of_few_tiles_are_split_until_most_cores_have_one(
    m: int, k: int, n: int, cores: int
) -> None:
    call = call_of(m, k, n, replace(GPU, cores=cores))
    variant = choice_of(MATMUL, call).variant
    unsplit = groups_of(replace(call, variant=variant.partition(" split ")[0]))
    assert (" split " in variant) == (unsplit < cores)
    assert groups_of(call) >= min(cores // 2, 4 * unsplit)


@pytest.mark.parametrize(
    ("m", "k", "n", "why"),
    [
        (1024, 1024, 1024, "tiles fill the cores"),
        (256, 384, 384, "the sums are short"),
        (64, 64, 64, "the sums are short"),
        (8, 8192, 64, "a kernel of few rows"),
    ],
)
def test_other_products_are_not_split(m: int, k: int, n: int, why: str) -> None:
    call = call_of(m, k, n, replace(GPU, cores=132))
    assert " split " not in choice_of(MATMUL, call).variant, why


@pytest.mark.parametrize("cores", [0, 32, 128])
def test_products_without_steps_are_not_split(cores: int) -> None:
    for m, n in ((64, 64), (16, 1000), (1, 64)):
        call = call_of(m, 0, n, replace(GPU, cores=cores))
        assert splits_of(call) == []
        (dispatch,) = lower(MATMUL, call).dispatches
        assert dict(dispatch.push)["k"] == 0


def test_each_part_is_one_dispatch_though_packing_makes_it_longer() -> None:
    """1e11 operations before the lines are padded to whole vec4s, and more than that after it."""
    m, k = 1238, 32621
    assert 2.0 * m * m * k < DISPATCH_FLOPS < 2.0 * m * m * (k + 3)
    call = call_of(m, k, m, replace(COOPMAT, cores=1024, max_buffer_bytes=1 << 30), word="mixed")
    for variant in variants_of(MATMUL, call):
        lower(MATMUL, replace(call, variant=variant))


def test_without_a_number_of_cores_only_the_tuner_splits() -> None:
    known, unknown, software = (
        call_of(256, 4096, 384, replace(GPU, **change))
        for change in ({"cores": 132}, {}, {"software": True, "cores": 132})
    )
    assert splits_of(known) == list(variants_of(MATMUL, known)[:2])
    assert splits_of(unknown) == splits_of(known)
    assert " split " not in choice_of(MATMUL, unknown).variant
    assert splits_of(software) == []
    assert splits_of(call_of(256, 4096, 384, replace(GPU, cores=132), FLOAT16)) == []


def test_without_a_number_of_cores_tiles_are_those_of_a_large_gpu() -> None:
    unknown, large, small = (
        choice_of(MATMUL, call_of(512, 512, 512, replace(GPU, cores=cores))).variant
        for cores in (0, ASSUMED_CORES, 8)
    )
    assert unknown == large == "vec4 32x64" and small == "vec4 128x128"


def test_cooperative_matrices_are_split_into_as_many_parts_as_there_are_cores() -> None:
    call = call_of(256, 4096, 384, replace(COOPMAT, cores=132), word="mixed")
    names = variants_of(MATMUL, call)
    base = "coopmat 16x16x16 128x128"
    assert names.index(f"{base} split 8") == names.index(base) - 1  # 6 tiles
    assert "coopmat 16x16x16 64x64 split 4" in names  # 24 tiles
    assert not any(COOPMAT_NAME in name for name in splits_of(replace(call, limits=COOPMAT)))
    parts, added = lower(MATMUL, replace(call, variant=f"{base} split 8")).dispatches
    assert (parts.shader, parts.groups, parts.subgroup) == ("matmul_coopmat_float32", (3, 2, 8), 32)
    assert added.shader == "splitk_reduce_vec4"


def test_parts_are_one_dispatch_and_their_sum_another() -> None:
    call = replace(call_of(64, 8000, 64, GPU), variant="vec4 32x64 split 8")
    lowering = lower(MATMUL, call)
    parts, last, added = lowering.dispatches
    assert [dict(each.push)["k"] for each in (parts, last)] == [1024, 832]
    assert [each.groups for each in (parts, last)] == [(1, 2, 7), (1, 2, 1)]
    assert [each.operands for each in (parts, last)] == [(0, 1, 0, SCRATCH)] * 2
    assert last.shifts == (7 * 1024, 7 * 1024 * 64, 0, 7 * 64 * 64)
    assert [each.barrier for each in (parts, last, added)] == [False, False, True]
    assert added.operands == (SCRATCH, SCRATCH, OUTPUT) and dict(added.push)["parts"] == 8
    assert lowering.scratch == (8 * 64 * 64,)


@pytest.fixture(scope="module", params=vulkan_names())
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    info = device_probe.resolve(request.param)
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    yield Runner(device)
    device.close()


def sample(m: int, k: int, n: int, text: str, ta: bool = False, tb: bool = False) -> OpSample:
    a, b = swapped(floats(m, k), ta), swapped(floats(k, n, seed=1), tb)
    return OpSample("matmul", (a, b, floats(n, seed=2)), attrs(ta, tb), text)


EXTREMES = floats(20, 2048)
EXTREMES[3, 2000], EXTREMES[5, 7], EXTREMES[9, 1024] = np.inf, np.nan, -np.inf
SAMPLES = [
    *(
        sample(m, k, n, f"{m}.{k}.{n} t{ta:d}{tb:d}", ta, tb)
        for m, k, n in ((40, 2048, 72), (33, 2051, 35), (65, 1600, 129))
        for ta, tb in ((False, False), (False, True), (True, False))
    ),
    OpSample("matmul", (floats(20, 2048), floats(2048, 24, seed=1)), attrs(), "no bias"),
    OpSample("matmul", (EXTREMES, floats(2048, 24, seed=1)), attrs(), "inf and nan"),
    *(
        OpSample("matmul", (floats(*a, 20, 2048), floats(*b, 2048, 12, seed=1)), attrs(), "batch")
        for a, b in (((3,), (3,)), ((2, 1), (1, 3)), ((3,), (1,)))
    ),
]


@pytest.mark.parametrize("case", SAMPLES, ids=lambda case: case.id)
def test_split_sums_are_those_of_numpy(case: OpSample, runner: Runner) -> None:
    limits = replace(GPU, cores=132)
    splits = [name for name in case.variants(limits) if " split " in name]
    assert splits
    for variant in splits:
        got = runner.run(case, limits, variant)
        check_device(case, got, case.expected(), f"{runner.device.name}, {variant}")
        assert np.array_equal(got, runner.run(case, limits, variant), equal_nan=True)


def test_an_epilogue_follows_the_sum_of_all_parts(runner: Runner) -> None:
    """Steps of each part would be those of partial sums: relu of them is not relu of their sum."""
    steps = (2, (("add", (0, 1), ()), ("relu", (2,), ())), ())
    plain = sample(40, 2048, 72, "residual, relu")
    residual = floats(40, 72, seed=3)
    case = replace(
        plain, inputs=(*plain.inputs, residual), attrs={**plain.attrs, "epilogue": steps}
    )
    limits = replace(GPU, cores=132)
    for variant in case.variants(limits):
        got = runner.run(case, limits, variant)
        check_device(case, got, case.expected(), f"{runner.device.name}, {variant}")
        assert np.array_equal(case.expected(), np.maximum(plain.expected() + residual, 0))
