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
from vksched.ops.quantized.gguf_formats import FORMATS
from vksched.ops.quantized.quantized_linear import DOT, WITH_DOT
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check, lowering_of
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


def variant_of(case: OpSample, limits: Limits) -> str:
    """Return the variant by integer dot products, which there is once."""
    (found,) = [name for name in case.variants(limits) if name in DOT]
    return found


@pytest.mark.parametrize("name", WITH_DOT)
def test_dot_products_are_those_of_numpy(runner: Runner, name: str) -> None:
    own = runner.device.limits
    ends = epilogue_attrs(2, (("silu", (0,), ()), ("mul", (2, 1), ())), ())
    few = 1 if FORMATS[name].step == 256 else 9  # rows that end within a tile
    for case in (
        case_of(name, 1, few, 37, {}),
        case_of(name, 1, 8, 300, {}, floats(300, seed=2)),
        case_of(name, 3, 2, 40, {}),
        case_of(name, 8, few, 36, ends, floats(36, seed=2), floats(8, 36, seed=3)),
    ):
        for limits in (own, replace(own, max_groups=(3, 2, 1)), DOTS):
            lowering = lowering_of(case, limits, variant_of(case, limits))
            shaders = [dispatch.shader for dispatch in lowering.dispatches]
            assert shaders == ["quantize_activations", f"gemv_q8_activations_{name.lower()}"]
            check(case, runner.run_lowered(case, lowering), case.expected(), runner.device.name)


def test_what_is_not_finite_is_not_hidden(runner: Runner) -> None:
    own = runner.device.limits
    case = case_of("q4_K", 5, 2, 36, {})
    x = case.inputs[0].copy()
    x[0, 7], x[1, 300], x[2], x[3, :32] = np.nan, -np.inf, 0, 1e-38
    wild = replace(case, inputs=(x, *case.inputs[1:]))
    got = runner.run_lowered(wild, lowering_of(wild, own, variant_of(wild, own)))
    assert np.isnan(got[:2]).all() and not got[2].any()
    stored = wild.expected()[3:]
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
