"""Products of many rows by quantized weights without cooperative matrices: variants of devices,
workgroups, bytes read, and results in all formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

from vksched.common.dtypes import FLOAT16, FLOAT32, UINT32, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import OUTPUT, Call, Dispatch, get_op
from vksched.ops.elementwise.epilogue import epilogue_attrs
from vksched.ops.lowering.lower import lower, variants_of
from vksched.ops.quantized.gguf_formats import FORMATS, format_of, unpacked
from vksched.ops.quantized.merged_linear import GATES
from vksched.ops.quantized.quant_gemm_tiled import PREFIX, TiledQuantGemm, tiled_quant_gemms
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check
from vksched.testing.op_cases.conv.precision import with_precision
from vksched.testing.op_cases.linalg.merged_linear import merged
from vksched.testing.op_cases.linalg.merged_linear_rope import by_heads
from vksched.testing.op_cases.linalg.quantized_linear import linear
from vksched.testing.op_cases.op_sample import OpSample, floats
from vksched.topology.limits import Limits

CARD = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=65536,
    storage_buffers=16,
    float16=True,
    cores=32,
)
LINEAR = get_op("quantized_linear")
TALL, LARGE, SMALL = (f"{PREFIX} {tile}" for tile in ("256x64", "128x64", "64x64"))
FP16_SUMS = [f"{PREFIX} {tile} fp16acc" for tile in ("128x64", "64x64")]

DOTS = [f"{tile} dot" for tile in (TALL, LARGE, SMALL)]


def stacked(case: OpSample) -> OpSample:
    return replace(case, attrs={**case.attrs, "stacked": True}, name=f"{case.name} stacked")


def call_of(m: int, n: int, k: int = 2048, limits: Limits = CARD, word: str = "mixed") -> Call:
    types = TensorType((m, k)), TensorType((n, format_of("q4_K").row_words(k)), UINT32)
    attrs = Attrs({"format": "q4_K", "precision": word})
    return Call((*types, TensorType((n,))), TensorType((m, n)), attrs, limits)


def names_of(call: Call) -> list[str]:
    return [name for name in variants_of(LINEAR, call) if name.startswith(PREFIX)]


def by(call: Call, variant: str) -> tuple[Dispatch, ...]:
    return lower(LINEAR, replace(call, variant=variant)).dispatches


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, [TALL, LARGE, SMALL, *FP16_SUMS]),
        ({"mixed_dot": True}, [TALL, LARGE, SMALL, *DOTS, *FP16_SUMS]),
        ({"shared_bytes": 16384}, [LARGE, SMALL, *FP16_SUMS]),
        ({"max_invocations": 128}, [LARGE, SMALL]),
        ({"registers": 128}, [SMALL, FP16_SUMS[1]]),
        ({"registers": 128, "max_invocations": 256}, [SMALL]),
        ({"storage_buffers": 6}, []),
        ({"float16": False}, []),
        ({"software": True}, []),
    ],
)
def test_variants_fit_the_device(change: dict[str, object], names: list[str]) -> None:
    limits = replace(CARD, **change)  # type: ignore[arg-type]
    found = names_of(call_of(512, 2048, limits=limits))
    assert sorted(found) == sorted(names)
    if names:
        assert variants_of(LINEAR, call_of(512, 2048, limits=limits))[0] == names[0]


def test_only_calls_of_many_rows_that_may_be_rounded_have_variants() -> None:
    for word, is_there in (("mixed", True), ("float16", True), ("bfloat16", False)):
        assert bool(names_of(call_of(64, 64, 512, word=word))) == is_there
    for m, n in ((32, 64), (64, 32)):
        assert not names_of(call_of(m, n, 512))


def test_small_products_have_small_tiles() -> None:
    assert names_of(call_of(64, 512))[0] == SMALL
    assert names_of(call_of(512, 8192))[0] == TALL


def test_one_dispatch_reads_the_weight_once_per_tile_of_rows() -> None:
    call = call_of(512, 2048)
    (dispatch,) = by(call, TALL)
    assert dispatch.shader == "quant_gemm_q4_k" and dispatch.groups == (2, 32, 1)
    assert dispatch.operands == (0, 1, 1, 1, 2, OUTPUT, 0)
    assert not lower(LINEAR, replace(call, variant=TALL)).scratch
    weight_bytes = 4 * call.inputs[1].size
    assert weight_bytes * dispatch.groups[0] / (2048 * 2048) <= 1.2
    parts = by(call_of(40000, 2048), LARGE)
    assert len(parts) > 1
    row = 0
    for part in parts:
        assert part.shifts == (row * 2048, 0, 0, 0, 0, row * 2048, 0) and not part.barrier
        count = dict(part.push)["m"]
        assert isinstance(count, int)
        row += count
    assert row == 40000


def test_merged_weights_are_multiplied_in_one_dispatch() -> None:
    case = with_precision(merged("q4_K", (100,), 512, (208, 48, 48), False), "mixed")
    call = case.call(CARD)
    assert variants_of(case.declaration, call)[0] == SMALL
    (dispatch,) = lower(case.declaration, replace(call, variant=SMALL)).dispatches
    assert dispatch.groups == (2, 4 + 1 + 1, 1) and dispatch.operands == (0, 1, 2, 3, 0, OUTPUT, 0)
    assert dict(dispatch.push)["begins"] == (0, 208, 256)
    gated = with_precision(merged("q4_K", (100,), 512, (208, 208), False, "silu"), "mixed")
    assert variants_of(gated.declaration, gated.call(CARD))[0] == SMALL
    (dispatch,) = lower(gated.declaration, replace(gated.call(CARD), variant=SMALL)).dispatches
    assert dispatch.groups == (2, 7, 1), "tiles of 32 columns of each weight"
    heads = with_precision(by_heads("q4_K", (128, 64, 64), 3, 64, 32, False, 100), "mixed")
    assert variants_of(heads.declaration, heads.call(CARD))[0] == SMALL
    (dispatch,) = lower(heads.declaration, replace(heads.call(CARD), variant=SMALL)).dispatches
    assert dispatch.operands == (0, 1, 2, 3, 4, OUTPUT, 5)
    assert dict(dispatch.push)["rotations"] == (128, 64, 0)
    few = with_precision(by_heads("q4_K", (128, 64, 64), 3, 64, 32, False, 32), "mixed")
    assert not any(variants_of(few.declaration, few.call(CARD)))


@pytest.fixture(params=vulkan_names() or [None], scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param is None:
        pytest.skip("no Vulkan device here")
    info = device_probe.resolve(request.param)
    if not info.limits.float16:
        pytest.skip("the device has no float16")
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    yield Runner(device)
    device.close()


def run(runner: Runner, case: OpSample, variant: str) -> np.ndarray:
    """The result by a kernel for GPUs, on any device."""
    limits = replace(runner.device.limits, software=False)
    return runner.run(case, limits, variant)


VARIANTS = (SMALL, FP16_SUMS[1])


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_rounded_once(name: str, runner: Runner) -> None:
    """Sums of products of x and of the weight, each rounded to float16, in three tiles of 256."""
    k = 2 * 256 + (32 if FORMATS[name].step < 256 else 256)
    case = with_precision(linear(name, (67, k), 70, True), "mixed")
    x, words, bias = case.inputs
    weight = unpacked(name, words, k)
    rounded = [a.astype(np.float16).astype(np.float64) for a in (x, weight)]
    expected = rounded[0] @ rounded[1].T + bias
    magnitudes = np.abs(rounded[0]) @ np.abs(rounded[1]).T
    # the float32 value of a weight may differ in its last bit, and round to a neighbour
    neighbour = 2.0**-10 * float(np.abs(rounded[0]).max() * np.abs(rounded[1]).max())
    got = run(runner, case, SMALL)
    bound = 1e-6 * magnitudes + 1e-6 + neighbour * (name[0] not in "fb")
    error = np.abs(got - expected)
    assert (error <= bound).all(), (error / bound).max()


CASES = [
    linear("q4_K", (33, 256), 33),
    linear("q6_K", (3, 23, 512), 130),
    linear("q8_0", (65, 32 * 37), 47, True),
    *(linear("mxfp4", (40, 32 * runs), 40) for runs in (9, 24)),
]


@pytest.mark.each_value
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id} {case.inputs[0].shape}")
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_are_those_of_numpy(case: OpSample, variant: str, runner: Runner) -> None:
    case = with_precision(case, "mixed")
    check(case, run(runner, case, variant), case.expected(), variant)


MERGED_CASES = [
    *(merged("q4_K", (40,), 512, sizes, False) for sizes in ((48, 64, 80), (80, 48), (48,))),
    stacked(merged("q6_K", (2, 20), 512, (48, 64, 48), False)),
    *(merged("q4_K", (40,), 512, (48, 48), False, gate) for gate in GATES if gate),
    merged("q5_0", (2, 35), 96, (80, 80), False, "silu"),
    *(by_heads("q4_K", (128, 64, 64), 6, 32, 32, way, k=512) for way in (True, False)),
    *(by_heads("q8_0", (256, 128), 3, 128, 128, way, 70, 64) for way in (True, False)),
    by_heads("q6_K", (96, 48), 4, 24, 10, True, 33),
    by_heads("q8_0", (160, 80, 80), 3, 80, 48, False, 70, 64),
]


@pytest.mark.each_value
@pytest.mark.parametrize("case", MERGED_CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("variant", [SMALL, LARGE, FP16_SUMS[1]])
def test_merged_results_are_those_of_numpy(case: OpSample, variant: str, runner: Runner) -> None:
    case = with_precision(case, "mixed")
    check(case, run(runner, case, variant), case.expected(), variant)


@pytest.mark.parametrize(
    "case",
    [
        linear("q6_K", (3, 23, 512), 130),
        merged("q4_K", (40,), 512, (48, 48), False, "silu"),
        by_heads("q4_K", (128, 64, 64), 6, 32, 32, True, k=512),
    ],
    ids=lambda case: case.op,
)
def test_few_registers_hold_half_of_the_results_with_float16_sums(
    case: OpSample, runner: Runner
) -> None:
    """On Intel's GPUs 4 x 4 float32 sums of an invocation spill if it has float16 sums, too."""
    limits = replace(runner.device.limits, registers=128, software=False)
    if FP16_SUMS[1] not in (tiles := tiled_quant_gemms(limits)):
        pytest.skip("the device has small workgroups")
    assert tiles[SMALL].own == (4, 4) and tiles[FP16_SUMS[1]].own == (2, 4)
    case = with_precision(case, "mixed")
    check(case, runner.run(case, limits, FP16_SUMS[1]), case.expected(), FP16_SUMS[1])


def test_a_gate_has_an_epilogue(runner: Runner) -> None:
    case = merged("q4_K", (40,), 512, (48, 48), False, "silu")
    steps = ("add", (0, 1), ()), ("relu", (2,), ())
    attrs = dict(case.attrs) | epilogue_attrs(2, steps, ())
    case = OpSample("merged_linear", (*case.inputs, floats(40, 48, seed=5)), attrs, "then")
    case = with_precision(case, "mixed")
    check(case, run(runner, case, SMALL), case.expected(), SMALL)


@pytest.mark.parametrize("variant", [TALL, LARGE])
def test_large_tiles_compute_the_same(variant: str, runner: Runner) -> None:
    case = with_precision(linear("q4_K", (130, 256), 70, True), "mixed")
    limits = runner.device.limits
    if not TiledQuantGemm(256, 64, (8, 8)).fits(limits):
        pytest.skip("the device has too little shared memory")
    assert variant in tiled_quant_gemms(limits)
    check(case, run(runner, case, variant), case.expected(), variant)


def test_rows_of_float16_and_an_epilogue(runner: Runner) -> None:
    case = linear("q4_K", (37, 256), 68, True)
    steps = ("add", (0, 1), ()), ("relu", (2,), ())
    attrs = dict(case.attrs) | epilogue_attrs(2, steps, ())
    case = OpSample("quantized_linear", (*case.inputs, floats(37, 68, seed=5)), attrs, "then")
    case = with_precision(case, "mixed")
    halved = replace(case, inputs=(case.inputs[0].astype(np.float16), *case.inputs[1:]))
    assert [t.dtype for t in halved.types[:3]] == [FLOAT16, UINT32, FLOAT32]
    for each in (case, halved):
        check(each, run(runner, each, SMALL), each.expected(), SMALL)


def test_a_group_goes_from_tile_to_tile_of_rows(runner: Runner) -> None:
    own = runner.device.limits
    limits = replace(own, max_groups=(1, *own.max_groups[1:]), software=False)
    case = with_precision(linear("q4_K", (150, 256), 40), "mixed")
    check(case, runner.run(case, limits, SMALL), case.expected(), SMALL)


def test_values_beyond_float16_are_infinite_not_clamped(runner: Runner) -> None:
    case = with_precision(linear("q4_K", (40, 256), 40), "mixed")
    x = case.inputs[0].copy()
    x[::3, 7] = 1e6
    got = run(runner, replace(case, inputs=(x, *case.inputs[1:])), SMALL)
    assert not np.isfinite(got[::3]).any()
    others, plain = (np.delete(each, np.s_[::3], 0) for each in (got, run(runner, case, SMALL)))
    np.testing.assert_array_equal(others, plain)
