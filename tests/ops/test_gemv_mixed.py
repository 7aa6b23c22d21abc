"""A row of float16 by quantized weights, summed by subgroups: where the kernel fits, results beside
numpy, rows beyond float16, values that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.attrs import AttrValue
from vksched.ir.precision import MIXED, PRECISION
from vksched.ops.elementwise.epilogue import epilogue_attrs
from vksched.ops.lowering.lower import lower
from vksched.ops.quantized.gemv_mixed import DOT, VARIANTS, WITH_DOT
from vksched.ops.quantized.gguf_formats import FORMATS, unpacked
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check, lowering_of
from vksched.testing.op_cases.conv.precision import with_precision
from vksched.testing.op_cases.linalg.merged_linear import merged
from vksched.testing.op_cases.linalg.quantized_linear import linear
from vksched.testing.op_cases.op_sample import OpSample
from vksched.topology.limits import Limits

CARD = Limits(
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
PLAIN = [name for name in VARIANTS if name not in DOT]
GUESS = PLAIN[0]


@pytest.fixture(scope="module", params=vulkan_names() or [None])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Each Vulkan device in turn, where it has float16 and sums of subgroups."""
    if request.param is None:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler([request.param]) as sched:
        device = sched.devices[0]
        assert isinstance(device, VulkanDevice)
        if not mixed_of(row("q4_K", 256, 16), gpu(device.limits)):
            pytest.skip("the device has no float16, or no subgroups of a size that is known")
        yield Runner(device)


def gpu(limits: Limits) -> Limits:
    """Return the limits of a device as if it were a GPU."""
    return replace(limits, software=False)


def row(name: str, k: int, n: int, bias: bool = False) -> OpSample:
    """Return a row times a weight, which may be rounded."""
    return with_precision(linear(name, (1, k), n, bias), MIXED)


def merged_row(name: str, k: int, sizes: tuple[int, ...], normed: bool, gate: str = "") -> OpSample:
    """Return a row times merged weights, which may be rounded."""
    return with_precision(merged(name, (1, 1), k, sizes, normed, gate), MIXED)


def mixed_of(case: OpSample, limits: Limits) -> list[str]:
    """Return the variants of this kernel."""
    return [name for name in case.variants(limits) if name in VARIANTS]


def with_x(case: OpSample, x: NDArray, **attrs: AttrValue) -> OpSample:
    return replace(case, inputs=(x, *case.inputs[1:]), attrs={**case.attrs, **attrs})


def in_float32(case: OpSample) -> NDArray:
    """Return the result without rounding."""
    attrs = {name: value for name, value in case.attrs.items() if name != PRECISION}
    return replace(case, attrs=attrs).expected()


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_those_of_numpy(runner: Runner, name: str) -> None:
    """One block and many, ends within tiles and teams, several subgroups of a team."""
    step, own = FORMATS[name].step, gpu(runner.device.limits)
    for case, limits in (
        (row(name, step, 37, True), own),
        (row(name, 9 * step, 16), replace(own, max_invocations=64)),
        (merged_row(name, 3 * step, (32, 16, 48), True), own),
        (merged_row(name, 2 * step, (48, 48), False, "silu"), own),
    ):
        lowering = lowering_of(case, limits, GUESS)
        (dispatch,) = lowering.dispatches
        assert dispatch.shader == f"quant_gemv_mixed_{name.lower()}"
        check(case, runner.run_lowered(case, lowering), case.expected(), GUESS)


def test_teams_have_one_row_or_more(runner: Runner) -> None:
    own = gpu(runner.device.limits)
    for case in (row("q4_K", 1280, 37), merged_row("q6_K", 512, (16, 32), False)):
        variants = mixed_of(case, own)
        assert len(variants) == 3
        for variant in variants:
            check(case, runner.run(case, own, variant), case.expected(), variant)


@pytest.mark.parametrize("gate", ["silu", "gelu", "gelu_tanh"])
def test_gates_and_epilogues_are_those_of_numpy(runner: Runner, gate: str) -> None:
    own = gpu(runner.device.limits)
    ends = epilogue_attrs(2, (("silu", (0,), ()), ("add", (2, 1), ())), ())
    for case in (merged_row("q4_K", 512, (80, 80), True, gate), row("q4_K", 512, 36, True)):
        residual = np.linspace(-2, 2, case.result_type().size, dtype=np.float32)
        residual = residual.reshape(case.result_type().shape)
        ended = replace(case, inputs=(*case.inputs, residual), attrs={**case.attrs, **ends})
        for variant in mixed_of(ended, own):
            check(ended, runner.run(ended, own, variant), ended.expected(), variant)


@pytest.mark.parametrize("name", ["f16", "q8_0", "q4_K", "mxfp4"])
def test_rows_beyond_float16_are_scaled(runner: Runner, name: str) -> None:
    """By a power of two: the error is that of float16, relative to the largest of a row."""
    own = gpu(runner.device.limits)
    step = FORMATS[name].step
    plain = row(name, 3 * step, 40)
    normed = merged_row(name, 3 * step, (16, 32), True)
    for size in map(np.float32, (1e30, 1e5, 1e-5, 1e-30)):
        for case in (
            with_x(plain, plain.inputs[0] * size),
            with_x(normed, normed.inputs[0] * size, eps=0.0),
            replace(normed, inputs=(normed.inputs[0], normed.inputs[1] * size, *normed.inputs[2:])),
        ):
            check(case, runner.run(case, own, GUESS), in_float32(case), f"{size}")


def test_offsets_of_codes_cost_less_than_rounding_to_float16(runner: Runner) -> None:
    """The offset of 2-bit codes in a half is 341 times the largest of them, times a large x."""
    own = gpu(runner.device.limits)
    case = row("q2_K", 512, 32)
    x = case.inputs[0].astype(np.float16).astype(np.float32) / 2.0**8
    x[0, 4] = 2.0**10  # all values are exact in float16
    weights = unpacked("q2_K", case.inputs[1], 512).astype(np.float64)
    got = runner.run(with_x(case, x), own, GUESS)[0]
    error = np.abs(got - weights @ x[0].astype(np.float64)) / np.abs(2.0**10 * weights[:, 4]).max()
    assert 0 < error.max() < 2.0**-14


@pytest.mark.parametrize("name", ["f16", "bf16", "q8_0", "q4_K", "q3_K", "iq4_nl"])
def test_what_is_not_finite_is_as_numpy_has_it(runner: Runner, name: str) -> None:
    own = gpu(runner.device.limits)
    step = FORMATS[name].step
    for value in (np.nan, np.inf, -np.inf):
        for case in (row(name, 2 * step, 33, True), merged_row(name, 2 * step, (16, 16), True)):
            x = case.inputs[0].copy()
            x[..., step + 7] = value
            wild = with_x(case, x)
            got = runner.run(wild, own, GUESS)
            expected = in_float32(wild)
            assert not np.isfinite(expected).any()
            np.testing.assert_array_equal(got, expected)


def test_zeros_are_zeros(runner: Runner) -> None:
    own = gpu(runner.device.limits)
    case = row("q4_K", 512, 33)
    zero = with_x(case, np.zeros((1, 512), np.float32))
    assert not runner.run(zero, own, GUESS).any()


# -- where it fits ---------------------------------------------------------------------------------


def test_it_comes_first_where_a_row_may_be_rounded() -> None:
    case = row("q4_K", 2048, 2048)
    assert case.variants(CARD) == (*PLAIN, "gemv 1")
    half = replace(case, attrs={**case.attrs, PRECISION: "float16"})
    assert half.variants(CARD)[0] == GUESS
    assert merged_row("q4_K", 2048, (32, 16), True).variants(CARD) == (*PLAIN, "gemv")
    for name, most in (("f16", 2), ("q8_0", 4)):  # registers hold a run of each row, and the next
        assert max(VARIANTS[each] for each in mixed_of(row(name, 2048, 16), CARD)) == most
    gated = merged_row("q4_K", 2048, (32, 32), True, "silu")
    assert gated.variants(CARD) == ("gemv_mixed 2", "gemv_mixed 4", "gemv")


@pytest.mark.parametrize("name", FORMATS)
def test_dot_products_are_no_guess_and_of_formats_that_have_them(name: str) -> None:
    case = row(name, 2048, 16)
    variants = mixed_of(case, replace(CARD, mixed_dot=True))
    dots = [variant for variant in variants if variant in DOT]
    assert bool(dots) == (name in WITH_DOT) and variants == [*mixed_of(case, CARD), *dots]
    for variant in dots:
        (dispatch,) = lowering_of(case, replace(CARD, mixed_dot=True), variant).dispatches
        assert dispatch.shader == f"quant_gemv_mixed_dot2_{name.lower()}"


@pytest.mark.parametrize(
    "change",
    [
        {"float16": False},
        {"software": True},
        {"subgroup_arithmetic": False},
        {"subgroup_shuffle": False},
        {"subgroup_sizes": ()},
        {"subgroup_sizes": (4,)},
        {"subgroup_sizes": (128,)},
        {"storage_buffers": 7},
        {"shared_bytes": 2048},
        {"max_groups": (63, 65535, 65535)},
    ],
)
def test_other_devices_have_the_kernel_in_float32(change: dict[str, object]) -> None:
    limits = replace(CARD, **change)
    assert not mixed_of(row("q4_K", 2048, 2048), limits)
    assert not mixed_of(merged_row("q4_K", 2048, (1024, 1024), True), limits)


def test_other_calls_have_the_kernel_in_float32() -> None:
    case = row("q4_K", 2048, 2048)
    bare = {name: value for name, value in case.attrs.items() if name != PRECISION}
    for attrs in (bare, {**bare, PRECISION: "bfloat16"}):
        assert not mixed_of(replace(case, attrs=attrs), CARD)
    assert not mixed_of(with_precision(linear("q4_K", (9, 256), 16), MIXED), CARD)


def test_long_rows_are_staged_in_parts() -> None:
    """Shared memory holds whole rounds of all subgroups of a team."""
    whole = {"q4_K": 14336, "q2_K": 12288}  # of 32 KiB
    for name, k in whole.items():
        for columns, rows in ((k, 1), (k + 1024, 1), (k, 4), (2048, 8)):
            case = with_precision(linear(name, (rows, columns), 16), MIXED)
            (dispatch,) = lowering_of(case, CARD, GUESS).dispatches
            constants = dict(dispatch.constants)
            in_parts = constants["MAX_RUNS"] * 32 < columns
            assert in_parts == (columns > k or rows > 1) and constants["BATCH"] * 2 >= rows
            assert not in_parts or constants["MAX_RUNS"] % (32 * constants["SPLITS"]) == 0


@pytest.mark.parametrize("sizes", [(8,), (16,), (8, 16, 32), (16, 32), (32,), (32, 64), (64,)])
@pytest.mark.parametrize("invocations", [128, 1024])
def test_groups_cover_all_columns(sizes: tuple[int, ...], invocations: int) -> None:
    intel = sizes[0] < 32
    limits = replace(
        CARD,
        subgroup_sizes=sizes,
        subgroup_size=sizes[-1],
        registers=128 if intel else 255,
        max_invocations=invocations,
        shared_bytes=65536,
    )
    for k in (32, 576, 2048, 5632, 14336):
        for case in (
            row("q8_0", k, 72),
            merged_row("q8_0", k, (16, 48, 32), True),
            merged_row("q8_0", k, (48, 48), False, "silu"),
        ):
            n = case.result_type().shape[-1]
            for variant in mixed_of(case, limits):
                (dispatch,) = lower(case.declaration, case.call(limits, variant)).dispatches
                constants = dict(dispatch.constants)
                lanes, local = dispatch.subgroup, constants["LOCAL_X"]
                teams, rest = divmod(local, lanes * constants["SPLITS"])
                columns = teams * constants["ROWS"] // (2 if constants["GATE"] else 1)
                assert lanes in sizes and local <= min(256, invocations) and not rest
                assert lanes == (sizes[0] if intel else sizes[-1])
                assert constants["ROWS"] <= (2 if intel else 4)
                assert (dispatch.groups[0] - 1) * columns < n <= dispatch.groups[0] * columns
                assert 16 % (columns // teams) == 0  # a team is of one weight
                assert constants["MAX_RUNS"] >= k // 32
