"""Products of weights of few bits and rows rounded to 8 bits by integer dot products of devices,
beside numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.ir.attrs import AttrValue
from vksched.ir.precision import BYTES, PRECISION
from vksched.ops.elementwise.epilogue import epilogue_attrs
from vksched.ops.quantized.gemv_rows import DOT, WITH_DOT
from vksched.ops.quantized.gguf_formats import FORMATS
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check, lowering_of
from vksched.testing.op_cases.linalg.merged_linear import merged
from vksched.testing.op_cases.linalg.merged_linear_rope import rope
from vksched.testing.op_cases.linalg.quantized_linear import words
from vksched.testing.op_cases.op_sample import OpSample, floats
from vksched.topology.limits import Limits

DOTS = Limits(storage_buffers=8, integer_dot=True, integer_dot_fast=True)
AS_NUMPY = 1e-6
"""Squared error of a result: a code may be another one where a quotient is half way between."""


@pytest.fixture(scope="module", params=vulkan_names() or [None])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Each Vulkan device in turn, where it has integer dot products."""
    if request.param is None:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler([request.param]) as sched:
        device = sched.devices[0]
        assert isinstance(device, VulkanDevice)
        if not device.limits.integer_dot:
            pytest.skip("the device has no integer dot products")
        yield Runner(device)


def case_of(
    name: str, m: int, blocks: int, n: int, more: dict[str, AttrValue], *others: object
) -> OpSample:
    k = blocks * FORMATS[name].step
    attrs = {"format": name, PRECISION: BYTES, **more}
    inputs = floats(m, k), words(name, n, k), *others
    return OpSample(
        "quantized_linear", inputs, attrs, f"{name} {m}", nmse=AS_NUMPY, of_largest=1e-2
    )  # type: ignore[arg-type]


def dots_of(case: OpSample, limits: Limits) -> list[str]:
    """Return the variants by integer dot products: several rows have them where one row does."""
    found = [name for name in case.variants(limits) if name in DOT]
    assert found and len(found) <= case.inputs[0].shape[0]
    return found


@pytest.mark.parametrize("name", WITH_DOT)
def test_dot_products_are_those_of_numpy(runner: Runner, name: str) -> None:
    own = replace(runner.device.limits, integer_dot_fast=True)
    ends = epilogue_attrs(2, (("silu", (0,), ()), ("mul", (2, 1), ())), ())
    few = 1 if FORMATS[name].step == 256 else 9  # rows that end within a tile
    for case in (
        case_of(name, 1, few, 37, {}),
        case_of(name, 1, 8, 300, {}, floats(300, seed=2)),
        case_of(name, 3, 2, 40, {}),
        case_of(name, 8, few, 36, ends, floats(36, seed=2), floats(8, 36, seed=3)),
    ):
        for limits in (own, replace(own, max_groups=(3, 2, 1)), DOTS):
            for variant in dots_of(case, limits):
                lowering = lowering_of(case, limits, variant)
                shaders = [dispatch.shader for dispatch in lowering.dispatches]
                assert shaders == ["quantize_activations", f"gemv_q8_activations_{name.lower()}"]
                check(case, runner.run_lowered(case, lowering), case.expected(), variant)


def test_what_is_not_finite_is_not_hidden(runner: Runner) -> None:
    own = replace(runner.device.limits, integer_dot_fast=True)
    case = case_of("q4_K", 5, 2, 36, {})
    x = case.inputs[0].copy()
    x[0, 7], x[1, 300], x[2], x[3, :32] = np.nan, -np.inf, 0, 1e-38
    wild = replace(case, inputs=(x, *case.inputs[1:]))
    stored = wild.expected()[3:]
    for variant in dots_of(wild, own):
        got = runner.run_lowered(wild, lowering_of(wild, own, variant))
        assert np.isnan(got[:2]).all() and not got[2].any()
        np.testing.assert_allclose(got[3:], stored, atol=1e-2 * np.abs(stored).max())


def test_they_come_first_where_they_are_fast() -> None:
    case = case_of("q8_0", 1, 4, 36, {})
    assert case.variants(DOTS)[0] == "gemv 1 dot"
    assert case.variants(replace(DOTS, integer_dot_fast=False))[-1] == "gemv 1 dot"
    others = (
        replace(case, attrs={"format": "q8_0"}),
        case_of("q5_1", 1, 4, 36, {}),
        case_of("q8_0", 40, 4, 36, {}),
    )
    for other in others:
        assert not DOT.keys() & set(other.variants(DOTS))
    assert not DOT.keys() & set(case.variants(Limits()))


# -- merged products: workgroups quantize the rows themselves --------------------------------------

MERGED = Limits(storage_buffers=8, integer_dot=True, integer_dot_fast=True, shared_bytes=32768)


def merged_case(name: str, lead: tuple[int, ...], blocks: int, **options: object) -> OpSample:
    case = merged(name, lead, blocks * FORMATS[name].step, **options)  # type: ignore[arg-type]
    attrs = {**case.attrs, PRECISION: BYTES}
    return replace(case, attrs=attrs, nmse=AS_NUMPY, of_largest=1e-2)


@pytest.mark.parametrize("name", WITH_DOT)
def test_merged_products_round_their_rows(runner: Runner, name: str) -> None:
    few = 1 if FORMATS[name].step == 256 else 9
    for case in (
        merged_case(name, (1,), few, sizes=(32, 16, 48)),
        merged_case(name, (1, 1), 8, sizes=(80, 80), gate="silu"),
        merged_case(name, (2,), few, sizes=(16,), normed=False),
    ):
        lowering = lowering_of(case, MERGED)
        (one,) = lowering.dispatches
        assert one.shader == f"quant_gemv_merged_int8_{name.lower()}"
        check(case, runner.run_lowered(case, lowering), case.expected(), runner.device.name)


def test_merged_products_round_their_rows_and_rotate_the_results(runner: Runner) -> None:
    for interleaved in (False, True):
        case = rope("q4_K", (64, 32, 32), 3, 32, 24, interleaved, k=512)
        attrs = {**case.attrs, PRECISION: BYTES}
        case = replace(case, attrs=attrs, nmse=AS_NUMPY, of_largest=1e-2)
        lowering = lowering_of(case, replace(MERGED, storage_buffers=9))
        (one,) = lowering.dispatches
        assert one.shader == "quant_gemv_merged_rope_int8_q4_k"
        check(case, runner.run_lowered(case, lowering), case.expected(), runner.device.name)


def test_merged_rows_that_are_not_finite_are_nan(runner: Runner) -> None:
    case = merged_case("q4_K", (4,), 2, sizes=(16,), normed=False)
    x = case.inputs[0].copy()
    x[0, 7], x[1, 300], x[2] = np.nan, -np.inf, 0
    wild = replace(case, inputs=(x, *case.inputs[1:]))
    got = runner.run_lowered(wild, lowering_of(wild, MERGED))
    assert np.isnan(got[:2]).all() and not got[2].any()
    check(wild, got, wild.expected(), runner.device.name)


def test_merged_rows_of_any_size_are_normed(runner: Runner) -> None:
    for power in (25, -30):
        x = floats(3, 512)
        x[1] *= np.float32(10.0**power)
        case = merged_case("q4_K", (3,), 2, sizes=(16, 32), x=x, eps=0.0)
        got = runner.run_lowered(case, lowering_of(case, MERGED))
        check(case, got, case.expected(), runner.device.name)


def test_others_multiply_in_float32() -> None:
    case = merged_case("q4_K", (1,), 4, sizes=(16,))
    for limits in (
        replace(MERGED, integer_dot_fast=False),
        replace(MERGED, shared_bytes=1024),
    ):
        assert lowering_of(case, limits).dispatches[0].shader == "quant_gemv_merged_q4_k"
    other = merged_case("q5_1", (1,), 4, sizes=(16,))
    assert lowering_of(other, MERGED).dispatches[0].shader == "quant_gemv_merged_q5_1"
