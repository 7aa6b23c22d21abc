"""Rows of products with quantized weights have the same bits in a batch of any size, by each
variant that a measurement may choose: all formats, devices and fused ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.precision import BYTES, MIXED
from vksched.ops.elementwise.epilogue import epilogue_attrs
from vksched.ops.linalg.matmul_kernels import MAX_GEMV_ROWS
from vksched.ops.lowering.variants import call_key
from vksched.ops.quantized.gemv_rows import WITH_DOT, family_of, rows_at_a_time
from vksched.ops.quantized.gguf_formats import FORMATS
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check
from vksched.testing.op_cases.conv.precision import with_precision
from vksched.testing.op_cases.linalg.merged_linear import merged
from vksched.testing.op_cases.linalg.merged_linear_rope import rope
from vksched.testing.op_cases.linalg.quantized_linear import linear
from vksched.testing.op_cases.op_sample import OpSample
from vksched.topology.limits import Limits
from vksched.topology.tuned_variants import TunedVariants

COUNTS = (2, 3, 4, 8)
"""Numbers of rows that are compared with one row; of three, a workgroup's last row is no row."""
GPU = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=32768,
    subgroup_size=32,
    subgroup_sizes=(32,),
    subgroup_shuffle=True,
    subgroup_arithmetic=True,
    storage_buffers=16,
    float16=True,
)


@pytest.fixture(scope="module", params=vulkan_names() or [None])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Each Vulkan device in turn."""
    if request.param is None:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler([request.param]) as sched:
        device = sched.devices[0]
        assert isinstance(device, VulkanDevice)
        yield Runner(device)


def batch(case: OpSample, rows: int, seed: int = 11) -> OpSample:
    """Return a sample with `rows` rows of x, which begin with the same rows for each number."""
    x, *others = case.inputs
    count = MAX_GEMV_ROWS
    spread = 10.0 ** np.linspace(-3, 3, count, dtype=np.float32)[:, None]
    all_rows = np.random.default_rng(seed).standard_normal((count, x.shape[-1]), np.float32)
    lead = x.shape[1:-1]
    new = (all_rows * spread)[:rows].reshape(rows, *lead, x.shape[-1])
    attrs = dict(case.attrs)
    if case.op == "merged_linear_rope":
        angles = np.arange(count, dtype=np.float32)[:rows, None] * np.arange(
            1, others[-1].shape[-1] + 1, dtype=np.float32
        )
        others[-2:] = [np.cos(angles), np.sin(angles)]
    several = len(others) > 1 and case.op != "quantized_linear" and not attrs.get("gate")
    if several and rows > 1:
        attrs["stacked"] = True
    return replace(case, inputs=(new, *others), attrs=attrs, name=f"{case.name} {rows} rows")


def rounded(case: OpSample, precision: str) -> OpSample:
    """Return a sample with a precision."""
    return case if precision == "float32" else with_precision(case, precision)


def with_residual(case: OpSample) -> OpSample:
    """Return a sample whose result is added to a residual, with an activation."""
    ends = epilogue_attrs(2, (("silu", (0,), ()), ("add", (2, 1), ())), ())
    shape = case.result_type().shape
    residual = np.linspace(-2, 2, MAX_GEMV_ROWS * shape[-1], dtype=np.float32)
    residual = residual[: case.result_type().size].reshape(shape)
    return replace(case, inputs=(*case.inputs, residual), attrs={**case.attrs, **ends})


def parts_of(case: OpSample, result: NDArray) -> list[NDArray]:
    """Return the product by each weight, (rows, columns)."""
    rows = case.inputs[0].size // case.inputs[0].shape[-1]
    if not case.attrs.get("stacked"):
        return [result.reshape(rows, -1)]
    first = 1 + bool(case.attrs["normed"])
    last = len(case.inputs) - 2 * (case.op == "merged_linear_rope")
    sizes = [words.shape[0] for words in case.inputs[first:last]]
    ends = np.cumsum([rows * n for n in sizes])[:-1]
    return [p.reshape(rows, n) for p, n in zip(np.split(result, ends), sizes, strict=True)]


def check_rows(
    runner: Runner,
    case: OpSample,
    limits: Limits,
    counts: tuple[int, ...] = COUNTS,
    residual: bool = False,
    only: str = "",
) -> set[str]:
    """Compare rows of variants for all numbers of rows, bit for bit; return the variants.

    only: the name of a variant; all by default.
    """
    known: dict[str, NDArray] = {}
    seen = set()
    for rows in (1, *counts):
        own = batch(case, rows)
        own = with_residual(own) if residual else own
        for variant in own.variants(limits):
            if only and variant != only:
                continue
            got = runner.run(own, limits, variant)
            check(own, got, own.expected(), variant)
            whole = np.concatenate(parts_of(own, got), axis=-1)
            before = known.get(family_of(variant), whole[:0])
            for i in range(min(len(before), rows)):
                assert before[i].tobytes() == whole[i].tobytes(), f"row {i}, {own.id}: {variant}"
            if rows > len(before):
                known[family_of(variant)] = whole
            seen.add(variant)
    return seen


def as_gpu(runner: Runner, **changes: object) -> Limits:
    """Return the limits of a device as if it were a GPU."""
    return replace(runner.device.limits, software=False, **changes)  # type: ignore[arg-type]


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_cpu_driver_have_the_same_bits(runner: Runner, name: str) -> None:
    limits = runner.device.limits
    if not limits.software:
        pytest.skip("not a CPU driver")
    seen = check_rows(runner, linear(name, (1, 9 * FORMATS[name].step), 37, True), limits)
    assert seen == {"gemv_cpu 1", "gemv_cpu 2", "gemv_cpu 4"}


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_float32_have_the_same_bits(runner: Runner, name: str) -> None:
    case = linear(name, (1, 3 * FORMATS[name].step), 37, True)
    seen = check_rows(runner, case, as_gpu(runner))
    assert seen == {"gemv 1", "gemv 2", "gemv 4", "gemv 8"}


@pytest.mark.each_value
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_float16_have_the_same_bits(runner: Runner, name: str) -> None:
    case = rounded(linear(name, (1, 3 * FORMATS[name].step), 37, True), MIXED)
    check_mixed(runner, case, as_gpu(runner), only="gemv_mixed 2")


def check_mixed(runner: Runner, case: OpSample, limits: Limits, only: str = "") -> None:
    """Compare rows of float16; skip a device without them."""
    if not any(name.startswith("gemv_mixed") for name in case.variants(limits)):
        pytest.skip("the device has no float16, or no subgroups of a size that is known")
    check_rows(runner, case, limits, only=only)


@pytest.mark.parametrize("name", ["q4_K", "q6_K"])
def test_variants_of_float16_have_the_same_bits(runner: Runner, name: str) -> None:
    limits = as_gpu(runner)
    few = replace(limits, max_invocations=64)  # subgroups share a row
    check_mixed(runner, rounded(linear(name, (1, 2304), 37), MIXED), few)
    check_mixed(runner, rounded(merged(name, (1, 1), 512, (32, 16, 48)), MIXED), limits)


def test_rows_of_float32_have_the_same_bits_in_a_pair(runner: Runner) -> None:
    """Quicker than all formats and numbers of rows."""
    assert check_rows(runner, linear("q4_K", (1, 768), 37, True), as_gpu(runner), (2,))


MERGED = {
    "q, k and v": merged("q4_K", (1, 1), 768, (32, 16, 48)),
    "gate and up": merged("q8_0", (1, 1), 320, (32, 32), True, "silu"),
    "rotated": rope("q4_K", (64, 32, 32), 3, 32, 32, False, k=512),
    "rotated pairs": rope("q8_0", (96, 48), 6, 24, 16, True, k=320, normed=False),
}


@pytest.mark.each_value
@pytest.mark.parametrize("name", MERGED)
@pytest.mark.parametrize("precision", ["float32", MIXED])
def test_merged_rows_have_the_same_bits(runner: Runner, precision: str, name: str) -> None:
    check_rows(
        runner,
        rounded(MERGED[name], precision),
        as_gpu(runner),
        counts=(2,) if precision == "float32" else COUNTS,
        only="gemv_mixed 2" if precision == MIXED and runner.device.limits.float16 else "gemv",
    )


@pytest.mark.each_value
@pytest.mark.parametrize("precision", ["float32", MIXED])
def test_rows_with_a_residual_have_the_same_bits(runner: Runner, precision: str) -> None:
    for case in (
        linear("q4_K", (1, 512), 36, True),
        merged("q6_K", (1, 1), 256, (48, 48), True, "gelu_tanh"),
    ):
        check_rows(runner, rounded(case, precision), as_gpu(runner), residual=True, counts=(3, 8))


@pytest.mark.parametrize("name", WITH_DOT)
def test_rows_of_int8_have_the_same_bits(runner: Runner, name: str) -> None:
    limits = as_gpu(runner, integer_dot_fast=True)
    if not limits.integer_dot:
        pytest.skip("the device has no integer dot products")
    for case in (
        linear(name, (1, 1024), 37, True),
        merged(name, (1, 1), 512, (32, 16, 48)),
        merged(name, (1, 1), 6144, (32, 32), True, "silu"),  # shared memory holds two rows
        rope(name, (64, 32, 32), 3, 32, 32, False, k=512),
    ):
        seen = check_rows(runner, rounded(case, BYTES), limits)
        assert case.op != "quantized_linear" or {"gemv 1 dot", "gemv 8 dot"} <= seen


@pytest.mark.each_value
@pytest.mark.parametrize("shared_bytes", [8192, 16384])
def test_rows_that_are_staged_in_parts_have_the_same_bits(
    runner: Runner, shared_bytes: int
) -> None:
    """Shared memory holds the runs of one or two rounds."""
    limits = as_gpu(runner, shared_bytes=shared_bytes, max_invocations=64)
    case = rounded(merged("q4_K", (1, 1), 5632, (32, 16)), MIXED)
    if not any(name.startswith("gemv_mixed") for name in case.variants(limits)):
        pytest.skip("the device has no float16, or no subgroups of a size that is known")
    check_rows(runner, case, limits, counts=(4,))


def test_rows_beyond_float32_leave_others_as_they_are(runner: Runner) -> None:
    """Squares of some rows overflow, or are nearly 0, and others hold infinities."""
    limits = as_gpu(runner)
    for precision in ("float32", MIXED):
        case = rounded(merged("q4_K", (1, 1), 512, (32, 16)), precision)
        for rows in (4,):
            own = batch(case, rows)
            x = own.inputs[0].copy()
            x[1] *= np.float32(1e25)
            x[2] *= np.float32(1e-25)
            x[3, 0, 7] = np.inf
            wild = replace(own, inputs=(x, *own.inputs[1:]))
            for variant in wild.variants(limits):
                got = np.concatenate(parts_of(wild, runner.run(wild, limits, variant)), axis=-1)
                plain = np.concatenate(parts_of(own, runner.run(own, limits, variant)), axis=-1)
                finite = [0, *range(4, rows)]
                assert got[finite].tobytes() == plain[finite].tobytes()
                assert np.isfinite(got[:3]).all() and not np.isfinite(got[3]).any()
                for i in (1, 2):
                    alone = replace(case, inputs=(x[i : i + 1], *case.inputs[1:]), attrs=case.attrs)
                    one = runner.run(alone, limits, variant).reshape(-1)
                    assert got[i].tobytes() == one.tobytes(), f"row {i} by {variant}"


# -- choice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", MIXED, BYTES])
@pytest.mark.parametrize(
    "limits",
    [
        GPU,
        replace(GPU, float16=False),
        replace(GPU, integer_dot=True, integer_dot_fast=True),
        replace(GPU, registers=128),
        replace(GPU, mixed_dot=True),
        Limits(software=True, subgroup_size=8, subgroup_shuffle=True, storage_buffers=16),
    ],
)
def test_variants_of_few_rows_are_of_one_family(limits: Limits, precision: str) -> None:
    for case in (
        linear("q4_K", (1, 2048), 2048),
        merged("q4_K", (1, 1), 2048, (32, 16, 48)),
        rope("q4_K", (64, 32, 32), 3, 32, 32, False, k=512),
    ):
        own = rounded(case, precision)
        for rows in COUNTS:
            names = batch(own, rows).variants(limits)
            assert {family_of(n) for n in names} == {family_of(own.variants(limits)[0])}


def test_a_measured_family_of_one_row_counts_for_all() -> None:
    case = rounded(linear("q4_K", (1, 2048), 2048), MIXED)
    call = case.call(GPU)
    key = call_key(case.op, call)
    for name, family in (("gemv 1", "gemv"), ("gemv_mixed 4", "gemv_mixed")):
        tuned = replace(GPU, tuned=TunedVariants({key: name}))
        for rows in COUNTS:
            names = batch(case, rows).variants(tuned)
            assert names and {family_of(n) for n in names} == {family}
    dots = replace(GPU, mixed_dot=True, tuned=TunedVariants({key: "gemv_mixed dot 2"}))
    assert batch(case, 4).variants(dots) == ("gemv_mixed dot 2", "gemv_mixed dot 4")


def test_more_rows_cost_more_by_estimate() -> None:
    """Unpacking is arithmetic, so that calibration tells one row from four."""
    for case in (linear("q4_K", (1, 2048), 2048), merged("q4_K", (1, 1), 2048, (2048, 2048))):
        flops = []
        for rows in (1, 4, 8):
            call = batch(case, rows).call(GPU)
            work = case.declaration.work(call.inputs, call.output, call.attrs)
            flops.append(work.flops)
        one, four, eight = flops
        assert 1.5 * one < four < 3 * one and four < eight < 2 * four


def test_rows_of_a_workgroup() -> None:
    """The least power of two that holds all rows; fewer where registers would spill."""
    assert [rows_at_a_time(n, "q4_K", GPU) for n in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]
    few = replace(GPU, registers=128)
    assert [rows_at_a_time(8, name, few) for name in ("q4_K", "q6_K")] == [4, 2]
