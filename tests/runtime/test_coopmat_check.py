"""Cooperative matrices without tuning: listed drivers, and the results of their check."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_coopmat import CARD

from vksched.common.dtypes import FLOAT16, FLOAT32, UINT32, NDArray, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, Op, get_op
from vksched.ops.linalg.coopmat import guessed_tiles
from vksched.ops.linalg.split_k import without_split
from vksched.ops.lowering.lower import choice_of, lower, variants_of
from vksched.ops.lowering.variants import COOPMAT
from vksched.ops.quantized.gguf_formats import format_of, unpacked
from vksched.runtime.vulkan import coopmat_check, device_probe
from vksched.runtime.vulkan.coopmat_check import checked_calls
from vksched.runtime.vulkan.open_device import open_device
from vksched.runtime.vulkan.single_call import SingleCall
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.topology.coopmat_drivers import COOPMAT_DRIVERS, CoopmatDriver, lists_coopmat
from vksched.topology.limits import Limits

NAVI31 = "AMD Radeon RX 7900 XTX (RADV NAVI31)"
WITH_MODEL = replace(CARD, memory_model=True, storage_buffers=16)
ANV = "Intel open-source Mesa driver Mesa"


@pytest.mark.parametrize(
    ("driver_id", "driver", "label", "listed"),
    [
        (4, "NVIDIA 550.54.14", "NVIDIA GeForce RTX 4090", True),
        (4, "NVIDIA 580.159.04", "NVIDIA H100 80GB HBM3", True),
        (4, "NVIDIA 545.29.06", "NVIDIA GeForce RTX 4090", False),
        (4, "NVIDIA 580.159.04", "NVIDIA GeForce GTX 1650", False),
        (4, "NVIDIA 580.159.04", "NVIDIA GeForce GTX 1660 Ti with Max-Q Design", False),
        (4, "NVIDIA 580.159.04", "NVIDIA GeForce MX450", False),
        (4, "NVIDIA 580.159.04", "NVIDIA T400 4GB", False),
        (4, "NVIDIA 580.159.04", "NVIDIA T550 Laptop GPU", False),
        (4, "NVIDIA 580.159.04", "Quadro T1000 with Max-Q Design", False),
        (4, "NVIDIA 580.159.04", "NVIDIA T1200 Laptop GPU", False),
        (4, "NVIDIA 580.159.04", "Tesla T4", True),
        (4, "NVIDIA 580.159.04", "NVIDIA GeForce RTX 2060", True),
        (4, "NVIDIA 580.159.04", "NVIDIA RTX 4000 Ada Generation", True),
        (3, "radv Mesa 24.3.0-1", NAVI31, True),
        (3, "radv Mesa 25.0.7-0ubuntu0.24.04.2", NAVI31, True),
        (3, "radv Mesa 25.2.1-arch1.2", NAVI31, True),
        (3, "radv Mesa 24.2.8-1ubuntu1~24.04.1", NAVI31, False),
        (3, "radv Mesa 24.2.8", NAVI31, False),
        (3, "radv", NAVI31, False),
        (1, "AMD proprietary driver 26.3.1", "AMD Radeon RX 7900 XTX", False),
        (6, f"{ANV} 25.0.7", "Intel(R) Arc(tm) B580 Graphics (BMG)", True),
        (6, f"{ANV} 26.1.6", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", True),
        (6, f"{ANV} 25.0.7", "Intel(R) Graphics (LNL)", True),
        (6, f"{ANV} 25.0.7", "Intel(R) Arc(tm) A770 Graphics (DG2)", False),
        (6, f"{ANV} 24.3.4", "Intel(R) Arc(tm) B580 Graphics (BMG)", False),
        (6, f"{ANV} 23.2.1-1ubuntu3.1~22.04.4", "Intel(R) Arc(tm) B580 Graphics (BMG)", False),
        (6, f"{ANV} 25.2.8-0ubuntu0.24.04.1", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", True),
        (6, f"{ANV} 25.2.1", "Intel(R) Graphics (PTL)", False),
        (6, f"{ANV} 25.0.7", "Intel(R) Iris(R) Xe Graphics (TGL GT2)", False),
        (6, f"{ANV} 25.0.7", "Intel(R) Arc(tm) Graphics (MTL)", False),
        (5, "Intel Corporation 101.8826", "Intel(R) Arc(TM) B580 Graphics", False),
        (13, "llvmpipe Mesa 26.1.6 (LLVM 21.1.8)", "llvmpipe (LLVM 21.1.8, 256 bits)", False),
        (0, "NVIDIA 580.159.04", "NVIDIA H100 80GB HBM3", False),
    ],
)
def test_listed_drivers(driver_id: int, driver: str, label: str, listed: bool) -> None:
    assert lists_coopmat(driver_id, driver, label) == listed


@pytest.mark.parametrize("driver", COOPMAT_DRIVERS, ids=lambda driver: driver.name)
def test_entries_have_a_version_and_a_source(driver: CoopmatDriver) -> None:
    assert driver.since and driver.source.startswith("https://")
    assert sum(other.name == driver.name for other in COOPMAT_DRIVERS) == 1


def usual_calls(limits: Limits) -> Iterator[tuple[str, Call]]:
    """Yield the calls of a check with the kernels of devices without matrices."""
    words = format_of("q8_0").row_words(96)
    types = TensorType((20, 96)), TensorType((36, words), UINT32)
    quantized = Call(types, TensorType((20, 36)), Attrs({"format": "q8_0"}), limits)
    yield "quantized_linear", quantized
    for dtype, transpose_a in ((FLOAT32, False), (FLOAT16, True)):
        yield (
            "matmul",
            coopmat_check.matrix_product(limits, dtype, transpose_a, False, (20, 36, 24)),
        )
    yield "conv", coopmat_check.convolution(limits, 20)
    yield "attention", coopmat_check.attention(limits, 20)


def unguessed_calls(limits: Limits) -> Iterator[tuple[str, Call]]:
    """Yield the calls of a check, and attention by the matrices of a CPU driver."""
    yield from checked_calls(limits)
    call = coopmat_check.attention(limits, 96, depth=16)
    names = variants_of(get_op("attention"), call)
    yield from (("attention", replace(call, variant=name)) for name in names if COOPMAT in name)


@pytest.mark.parametrize("name", vulkan_names())
def test_products_are_compared_with_exact_results(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With any kernel: devices without matrices take the usual ones."""
    info = device_probe.resolve(name)
    device = open_device(info, name)
    assert isinstance(device, VulkanDevice)
    run, calls = SingleCall.run, unguessed_calls

    def wrong(*arguments: Any) -> NDArray:
        result = run(*arguments)
        result.reshape(-1)[5:7] += 1
        return result

    try:
        if not guessed_tiles(device.limits):
            assert coopmat_check.check_products(device) == "", "there is nothing to check"
            calls = usual_calls
        monkeypatch.setattr(coopmat_check, "checked_calls", calls)
        assert coopmat_check.check_products(device) == ""
        monkeypatch.setattr(SingleCall, "run", wrong)
        for op, call in calls(device.limits):
            monkeypatch.setattr(coopmat_check, "checked_calls", lambda _, one=(op, call): [one])
            failure = coopmat_check.check_products(device)
            assert failure.startswith("2 of ") and f" of {op} of {call.output.dtype} by" in failure
            assert ("transpose_a" in failure) == (call.attrs.get("transpose_a") is True)
    finally:
        device.close()


def test_sums_in_float16_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a driver whose accumulators are smaller than it reports."""
    device: Any = SimpleNamespace(limits=CARD, context=None, disable_aliasing=False)

    class Exact:
        """A device with the reference's results."""

        def __init__(self, _: Any, __: Any, op: Op, call: Call) -> None:
            self.op, self.call = op, call

        def run(self, operands: tuple[NDArray, ...]) -> NDArray:
            return coopmat_check.expected_of(self.op.name, self.call, operands)

        def close(self) -> None:
            pass

    class Rounded(Exact):
        """A device that rounds the sums after each step along k."""

        def run(self, operands: tuple[NDArray, ...]) -> NDArray:
            a, b = (each.astype(np.float16) for each in operands)
            a = a.T if self.call.attrs["transpose_a"] else a
            b = b.T if self.call.attrs["transpose_b"] else b
            sums = np.zeros(self.call.output.shape, np.float16)
            for step in range(a.shape[1]):
                sums += np.outer(a[:, step], b[step])
            return sums.astype(np.float32)

    monkeypatch.setattr(coopmat_check, "SingleDispatcher", lambda *_: None)
    monkeypatch.setattr(coopmat_check, "SingleCall", Exact)
    assert coopmat_check.check_products(device) == ""
    calls = [each for each in coopmat_check.checked_calls(CARD) if each[0] == "matmul"][1::2]
    monkeypatch.setattr(coopmat_check, "SingleCall", Rounded)
    with np.errstate(over="ignore", invalid="ignore"):
        for op, call in calls:
            monkeypatch.setattr(coopmat_check, "checked_calls", lambda _, one=(op, call): [one])
            failure = coopmat_check.check_products(device)
            # results in float16 are small, and exact in either way
            assert bool(failure) == (call.output.dtype == FLOAT32)


def test_results_of_the_check_are_exact_in_float32_and_not_in_float16() -> None:
    for op, call in coopmat_check.checked_calls(CARD):
        expected = coopmat_check.expected_of(op, call, coopmat_check.operands_of(op, call))
        small = np.clip(expected, -65504, 65504).astype(np.float16)
        if call.output.dtype == FLOAT16:
            assert np.array_equal(small, expected)
        else:
            assert np.mean(small != expected) > 0.1 and np.abs(expected).max() > 2000
            assert np.array_equal(expected * 2, np.rint(expected * 2))
    longest = max(coopmat_check.STEPS, coopmat_check.CONV_CHANNELS * 9)
    assert coopmat_check.LARGEST[FLOAT16] ** 2 * longest <= 2**11
    assert coopmat_check.LARGEST[FLOAT32] ** 2 * longest <= 2**24


@pytest.mark.parametrize("late", ["a part", "the result"])
def test_parts_of_an_earlier_run_are_found(monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    """Of a driver that makes the stores of other workgroups visible too late, with matrices only.

    Its other kernels are right, and the first run of this one.
    """
    device: Any = SimpleNamespace(limits=WITH_MODEL, context=None, disable_aliasing=False)

    class Late:
        """A device whose last workgroup adds the last part of the run before."""

        def __init__(self, _: Any, __: Any, op: Op, call: Call) -> None:
            self.op, self.call, self.before = op, call, None

        def run(self, operands: tuple[NDArray, ...]) -> NDArray:
            exact = coopmat_check.expected_of(self.op.name, self.call, operands)
            if "split" not in self.call.variant:
                return exact
            part, before = (
                self.last_part(operands),
                self.before or (exact, self.last_part(operands)),
            )
            self.before = exact, part
            return before[0] if late == "the result" else exact - part + before[1]

        def last_part(self, operands: tuple[NDArray, ...]) -> NDArray:
            x, words = operands
            values = unpacked("q8_0", words, x.shape[-1])
            return x[:, -96:] @ values[:, -96:].T

        def close(self) -> None:
            pass

    monkeypatch.setattr(coopmat_check, "SingleDispatcher", lambda *_: None)
    monkeypatch.setattr(coopmat_check, "SingleCall", Late)
    failure = coopmat_check.check_products(device)
    assert re.match(r"\d+ of \d+ results of run 2 of quantized_linear .* split 8", failure)
    device.limits = replace(WITH_MODEL, memory_model=False)
    assert coopmat_check.check_products(device) == ""


def test_parts_of_k_are_checked_with_the_memory_model() -> None:
    calls = [c for op, c in coopmat_check.checked_calls(WITH_MODEL) if op == "quantized_linear"]
    split = [call for call in calls if "split" in call.variant]
    tiles = {call.variant for call in calls} - {call.variant for call in split}
    assert {without_split(call.variant) for call in split} == tiles and len(tiles) > 1
    for call in split:
        (dispatch,) = lower(get_op("quantized_linear"), call).dispatches
        assert dispatch.shader == "quant_gemm_coopmat_splitk_q8_0"
        assert math.prod(dispatch.groups) > 40 and dispatch.groups[2] == 8
        x, words = coopmat_check.operands_of("quantized_linear", call)
        weight = np.abs(unpacked("q8_0", words, x.shape[-1])).max()
        assert np.abs(x).max() * weight * x.shape[-1] <= 2**24, "sums are exact"
    for changes in ({"memory_model": False}, {"storage_buffers": 8}):
        calls = [c for _, c in coopmat_check.checked_calls(replace(WITH_MODEL, **changes))]
        assert not any("split" in call.variant for call in calls)


AMD = {"subgroup_size": 64, "subgroup_sizes": (32, 64)}
XE2 = {
    "matrices": ("float16*float16+float32 8x16x16",),
    "subgroup_sizes": (16, 32),
    "registers": 128,
}
DG2 = {
    "matrices": ("float16*float16+float32 8x8x16",),
    "subgroup_sizes": (8, 16, 32),
    "registers": 128,
}


@pytest.mark.parametrize("changes", [{}, AMD, XE2, DG2], ids=["NVIDIA", "AMD", "Xe2", "DG2"])
def test_each_static_choice_is_checked(changes: dict[str, Any]) -> None:
    limits = replace(CARD, **changes)
    known: dict[str, set[str]] = {}
    of_layout: dict[tuple[str, bool, bool], set[str]] = {}
    pipelines = set()
    for op, call in coopmat_check.checked_calls(limits):
        own = [d for d in lower(get_op(op), call).dispatches if "coopmat" in d.shader]
        assert own
        known.setdefault(op, set()).add(call.variant)
        pipelines |= {(d.shader, d.constants, d.subgroup) for d in own}
        if op == "matmul":
            transposes = (call.attrs.as_bool(f"transpose_{side}") for side in "ab")
            of_layout.setdefault((call.output.dtype, *transposes), set()).add(call.variant)
    assert (FLOAT32, False, True) in of_layout and (FLOAT16, False, True) in of_layout
    checked = replace(limits, coopmat_checked=True)

    def chosen(op: str, call: Call) -> str:
        choice = choice_of(get_op(op), replace(call, variant="", limits=checked))
        return without_split(choice.variant)

    for dtype, transpose_a, transpose_b in itertools.product((FLOAT32, FLOAT16), *[(0, 1)] * 2):
        layout = dtype, bool(transpose_a), bool(transpose_b)
        for side, k in itertools.product((64, 256, 4096), (96, 100)):
            call = coopmat_check.matrix_product(limits, *layout, (side, side, k))
            variant = chosen("matmul", call)
            assert variant in of_layout.get(layout, known["matmul"]) or layout not in of_layout
            if not variant.startswith(COOPMAT):
                continue
            for d in lower(get_op("matmul"), replace(call, variant=variant)).dispatches:
                assert (d.shader, d.constants, d.subgroup) in pipelines or not d.subgroup
    quantized = (c for op, c in coopmat_check.checked_calls(limits) if op == "quantized_linear")
    for call in quantized:
        for side in (64, 256, 4096):
            types = TensorType((side, 96)), TensorType((side, *call.inputs[1].shape[1:]), UINT32)
            here = replace(call, inputs=types, output=TensorType((side, side)))
            assert chosen("quantized_linear", here) in known["quantized_linear"]
    for rows in (64, 256):
        assert chosen("conv", coopmat_check.convolution(limits, rows)) in known["conv"]
    variant = chosen("attention", coopmat_check.attention(limits, 512))
    assert known.get("attention", {variant}) == {variant}
    assert variant.startswith(COOPMAT) == ("attention" in known) == (limits.registers >= 200)
