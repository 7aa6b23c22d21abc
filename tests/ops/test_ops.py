"""Every case of the case table, on every Vulkan device present and with lower limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType

import numpy as np
import pytest
from conftest import NUMPY_ONLY, THOROUGH, vulkan_names
from failures import Failures
from op_runs import (
    LOWERED,
    MIN_ROUNDING,
    OTHER_TYPES,
    OWN_TYPES,
    ROUNDING,
    cases_of,
    choose_function_cases,
    choose_runs,
    runs_of,
)
from selection import select_cases

import vksched as vs
from vksched.bench.peak_throughput import COPY, FMA
from vksched.common.errors import UnsupportedOp
from vksched.ir.op import (
    Call,
    Dispatch,
    all_ops,
    computing_ops,
    view_offset,
)
from vksched.ops import __all__ as PUBLIC
from vksched.ops.elementwise import BINARY, CASTS, UNARY
from vksched.ops.layout.dynamic_update_slice import FUSED_SHADERS
from vksched.ops.lowering.lower import CONVERTER_SHADERS, lower
from vksched.runtime.vulkan.shaders import DIRECTORY, left_out, load_manifest, load_shader
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.coopmat_tolerance import coopmat_tolerance
from vksched.testing.kernel_runner import Runner, check, check_device, check_function
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES, DOUBLES, FAMILIES, FP16, FUNCTIONS, PRECISE
from vksched.topology.limits import Limits

PARTLY_BY_NUMPY: set[str] = set()
"""Functions of which numpy computes a part even on these devices."""
DOTS = Limits(integer_dot=True)
"""A GPU that sums four products of 8 bits at once."""
NOISE = np.random.default_rng(3)
STEPPED = {"reduce_precision", "ceil", "floor", "trunc", "round", "sign", "floor_divide"}
"""Ops with few values as results."""
OPS = computing_ops()
SHADERS = DIRECTORY.parent.parent / "shaders"
CEILINGS = {*COPY, *FMA}
"""What `vksched bench` holds kernels against, and no kernels themselves."""


NAMES = vulkan_names() or [None]


def some(cases: Sequence[OpSample]) -> Sequence[OpSample]:
    """Every case, or in `make test` one in five."""
    return cases if THOROUGH else cases[::5]


@pytest.fixture(scope="module")
def runners() -> Iterator[list[Runner]]:
    """One for each Vulkan device, in the order of `NAMES`."""
    if NAMES == [None]:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler(NAMES) as sched:
        yield [Runner(d) for d in sched.devices if isinstance(d, VulkanDevice)]


@pytest.fixture(params=NAMES)
def runner(request: pytest.FixtureRequest, runners: list[Runner]) -> Iterator[Runner]:
    """Each Vulkan device in turn."""
    found = runners[NAMES.index(request.param)]
    yield found
    found.release_pipelines()


@pytest.mark.scales
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runner", NAMES, indirect=True)
@pytest.mark.parametrize("op", OPS)  # on one device after the other: they share what was lowered
def test_op_equals_numpy(
    op: str, runner: Runner, runners: list[Runner], failures: Failures
) -> None:
    """With the limits of the device and with lower ones, by each variant, on each operand type and
    with each precision.
    """
    limits = tuple(each.device.limits for each in runners)
    device = runners.index(runner)
    runs = runs_of(op, limits[device])
    choose = partial(choose_runs, op, limits, device)
    for run in select_cases(runs, choose, failures.only):
        with failures.of(run.id):
            expected = run.case.expected()
            try:
                got = runner.run_lowered(run.case, run.lowering)
            except UnsupportedOp as reason:
                assert "the page has" in str(reason)  # two windows of conv, unfolded
                continue
            where = ", ".join(filter(None, (runner.device.name, run.limits, run.variant)))
            if run.source == OWN_TYPES:
                check_device(
                    run.case, got, expected, where, coopmat_tolerance(run.case, run.variant)
                )
            elif run.source == OTHER_TYPES:
                check(run.case, got, expected, where, coopmat_tolerance(run.case, run.variant))
            else:
                check(run.case, got, expected, where)


@pytest.mark.scales
@pytest.mark.timeout(600)
@pytest.mark.parametrize("function", sorted({case.function for case in FUNCTIONS}))
def test_function_equals_numpy(function: str, runner: Runner, failures: Failures) -> None:
    cases = [case for case in FUNCTIONS if case.function == function]
    device = NAMES.index(runner.device.name)
    choose = partial(choose_function_cases, function, device, len(NAMES))
    for case in select_cases(cases, choose, failures.only):
        with failures.of(case.id):
            got, reasons = runner.run_function(case, runner.device.limits)
            check_function(case, got, case.expected(), runner.device.name)
            assert not reasons or case.function in PARTLY_BY_NUMPY, reasons


def test_every_op_runs_on_every_device(runner: Runner) -> None:
    """Of each op the device takes most cases: a kernel that refuses them all would pass."""
    refused: dict[str, list[bool]] = {}
    for case in CASES:
        call, op = case.call(runner.device.limits), case.declaration
        refused.setdefault(case.op, []).append(False)
        if view_offset(op, call.inputs, call.attrs) is None:
            try:
                lower(op, call)
            except UnsupportedOp:
                refused[case.op][-1] = True
    assert {op for op, all_of in refused.items() if sum(all_of) * 2 > len(all_of)} == NUMPY_ONLY


@pytest.mark.parametrize("op", sorted({case.op for case in DOUBLES}))
def test_float64_keeps_its_digits(op: str) -> None:
    """The same as float32 up to that type's error, and computed with more digits."""
    for case in DOUBLES:
        if case.op == op:
            keep_digits(case)


def keep_digits(case: OpSample) -> None:
    narrow = case.as_dtypes({"float64": "float32"}).expected()
    wide = case.expected()
    if narrow.dtype != np.float32:
        assert wide.dtype == narrow.dtype
        return
    assert wide.dtype == np.float64 and wide.shape == narrow.shape
    noisy = tuple(
        np.asarray(a * (1 + 1e-9 * NOISE.random(a.shape))) if a.dtype == np.float64 else a
        for a in case.inputs
    )
    finer = replace(case, inputs=noisy).expected()
    digits = finer[np.isfinite(finer) & (np.abs(finer) < 1e38)]
    if digits.size > 20 and case.op not in STEPPED:
        assert not np.array_equal(digits, digits.astype(np.float32)), "computed in float32"


@pytest.mark.parametrize("op", OPS)
def test_reference_leaves_its_inputs_alone_and_has_the_type_of_the_result(op: str) -> None:
    for case in cases_of(op):
        before = [array.copy() for array in case.inputs]
        expected, result = case.expected(), case.result_type()
        assert (expected.shape, str(expected.dtype)) == (result.shape, result.dtype), case.id
        same = (a.tobytes() == b.tobytes() for a, b in zip(case.inputs, before, strict=True))
        assert all(same), case.id


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__.rpartition(".")[2])
def test_bad_calls_are_refused(family: ModuleType, failures: Failures) -> None:
    for case in family.ERRORS:
        if failures.wants(case.match):
            with failures.of(case.match), pytest.raises(case.error, match=case.match):
                case.build()


def test_every_op_has_cases() -> None:
    ops = set(computing_ops())
    assert {case.op for case in CASES} == ops
    ids = [case.id for case in (*CASES, *FUNCTIONS)]
    assert sorted(set(ids)) == sorted(ids)


def test_every_public_function_has_cases() -> None:
    """By its op's cases, or by cases of its own."""
    covered = {case.op for case in CASES} | {case.function for case in FUNCTIONS}
    aliases = {name for name in PUBLIC if getattr(vs, name).__name__ in covered - {name}}
    assert set(PUBLIC) <= covered | aliases


ARRAY_API = """abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_invert
bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor ceil clip copysign cos cosh divide
equal exp expm1 floor floor_divide greater greater_equal hypot isfinite isinf isnan less less_equal
log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor maximum minimum
multiply negative nextafter not_equal positive pow reciprocal remainder round sign signbit sin sinh
sqrt square subtract tan tanh trunc"""
"""The elementwise functions of the Python array API standard, 2024.12, less conj, imag and real."""


def test_every_elementwise_function_of_the_array_api_standard_is_there() -> None:
    assert set(ARRAY_API.split()) <= set(PUBLIC)


def test_every_operand_type_has_cases() -> None:
    used = {(case.op, case.types[0].dtype) for case in CASES if case.types}
    assert {*UNARY, *BINARY} <= used
    casts = {(c.types[0].dtype, str(c.attrs["to"])) for c in CASES if c.op == "cast"}
    assert set(CASTS) <= casts


def test_every_shader_belongs_to_an_op() -> None:
    declared = {s for op in all_ops().values() if op.kernel for s in op.kernel.shaders}
    assert declared | {*CONVERTER_SHADERS, *CEILINGS} == {*load_manifest(), *left_out()}
    sources = {str(entry["source"]) for entry in load_manifest().values()}
    if left_out():
        sources |= {p.relative_to(SHADERS).as_posix() for p in SHADERS.rglob("*_coopmat*.comp")}
    assert sources == {p.relative_to(SHADERS).as_posix() for p in SHADERS.rglob("*.comp")}


@pytest.mark.thorough
def test_every_shader_is_dispatched_by_a_case() -> None:
    used = set()
    laned = [
        Limits(
            software=True,
            subgroup_size=lanes,
            subgroup_shuffle=True,
            int64=True,
            storage_buffers=8,
        )
        for lanes in (4, 8)
    ]
    laned.append(
        Limits(
            float16=True,
            int8=True,
            matrices=("float16*float16+float32 16x16x16", "int8*int8+int32 16x16x16"),
            shared_bytes=32768,
            storage_buffers=8,
            subgroup_shuffle=True,
            subgroup_arithmetic=True,
            mixed_dot=True,
            subgroup_size=32,
            subgroup_sizes=(32,),
        )
    )
    many = replace(laned[-1], storage_buffers=32)
    sums = *many.matrices, "float16*float16+float16 16x16x16"
    many = replace(many, matrices=sums, coopmat_checked=True)
    split = replace(many, memory_model=True, memory_model_checked=True, cores=1024)
    laned += [many, split, *(replace(each, fp16_sums_faster=True) for each in (many, split))]
    laned += [replace(each, matrices=(), mixed_dot=False) for each in laned[-2:]]
    dots = replace(split, matrices=(), integer_dot=True, integer_dot_fast=True)
    laned.append(replace(dots, max_invocations=1024, max_local_size=(1024, 1024, 64)))
    for case in (*CASES, *FP16, *PRECISE):
        op = all_ops()[case.op]
        for call in calls_of(case, (*LOWERED.values(), ROUNDING, MIN_ROUNDING, DOTS, *laned)):
            if op.kernel and view_offset(op, call.inputs, call.attrs) is None:
                with contextlib.suppress(UnsupportedOp):
                    here = {dispatch.shader for dispatch in lower(op, call).dispatches}
                    assert here <= {*op.kernel.shaders, *CONVERTER_SHADERS}, case.id
                    used |= here
    others = {*FUSED_SHADERS.values(), *CEILINGS}  # plans and benchmarks dispatch them, and no call
    unused = {*load_manifest(), *left_out()} - used - others
    assert used | others <= {*load_manifest(), *left_out()}
    assert unused == set()


@pytest.mark.scales
def test_words_of_64_bits_are_for_devices_that_have_them() -> None:
    """A module that asks for them must not be created on another device."""
    asking = {name for name in load_manifest() if INT64 in capabilities(load_shader(name).spirv)}
    assert {"softmax_subgroup", "unary_relu_float32_64"} <= asking
    lanes = [
        Limits(software=True, subgroup_size=n, subgroup_shuffle=True, storage_buffers=8)
        for n in (1, 4, 8, 16)
    ]
    # GPUs, and CPU drivers of short vectors, have no use for them where they can
    lanes += [
        Limits(int64=True, subgroup_size=32, subgroup_shuffle=True),
        Limits(software=True, int64=True, subgroup_size=4, subgroup_shuffle=True),
    ]
    for case in some((*CASES, *FP16)):
        op = all_ops()[case.op]
        for call in calls_of(case, (*LOWERED.values(), *lanes)):
            if op.kernel and view_offset(op, call.inputs, call.attrs) is None:
                with contextlib.suppress(UnsupportedOp):
                    assert not asking & {d.shader for d in lower(op, call).dispatches}, case.id


@pytest.mark.scales
def test_float16_is_for_devices_that_have_it() -> None:
    """A module that asks for it must not be created on another device, nor without a precision."""
    asking = {name for name in load_manifest() if FLOAT16 in capabilities(load_shader(name).spirv)}
    assert "matmul_vec4_mixed_float32" in asking
    for cases, sets in ((PRECISE, LOWERED.values()), ((*CASES, *FP16), (ROUNDING,))):
        for case in some(cases):
            op = all_ops()[case.op]
            for call in calls_of(case, sets):
                if op.kernel and view_offset(op, call.inputs, call.attrs) is None:
                    with contextlib.suppress(UnsupportedOp):
                        assert not asking & {d.shader for d in lower(op, call).dispatches}, case.id


FLOAT16, INT64 = 9, 11
"""Capabilities of a module."""


def capabilities(spirv: bytes) -> set[int]:
    words = np.frombuffer(spirv, "<u4")
    at, found = 5, set[int]()
    while words[at] & 0xFFFF == 17:  # OpCapability
        found.add(int(words[at + 1]))
        at += 2
    return found


def calls_of(case: OpSample, sets: Iterable[Limits] = tuple(LOWERED.values())) -> Iterator[Call]:
    """A case with each set of limits, by each variant."""
    for limits in sets:
        for variant in case.variants(limits):
            yield case.call(limits, variant)


def hazards(dispatches: tuple[Dispatch, ...]) -> list[str]:
    """What dispatches of a node read or write of each other without a barrier between.

    Places that start at other words are taken to be apart; the sentinels see whether they are.
    """
    found: list[str] = []
    read: set[tuple[int, int]] = set()
    written: set[tuple[int, int]] = set()
    for dispatch in dispatches:
        if dispatch.barrier:
            read, written = set(), set()
        shifts = dispatch.shifts or (0,) * len(dispatch.operands)
        access = load_manifest()[dispatch.shader]["access"][: len(dispatch.operands)]
        places = list(zip(dispatch.operands, shifts, access, strict=True))
        reads = {(o, s) for o, s, a in places if a != "write"}
        writes = {(o, s) for o, s, a in places if a != "read"}
        if (reads | writes) & written or writes & read:
            found.append(f"{dispatch.shader} {(reads | writes) & written or writes & read}")
        read, written = read | reads, written | writes
    return found


@pytest.mark.parametrize("op", OPS)
def test_dispatches_of_a_node_wait_for_each_other(op: str) -> None:
    for case, call in ((c, call) for c in cases_of(op, (*CASES, *FP16)) for call in calls_of(c)):
        if view_offset(case.declaration, call.inputs, call.attrs) is None:
            with contextlib.suppress(UnsupportedOp):
                assert hazards(lower(case.declaration, call).dispatches) == [], case.id


def test_local_sizes_fit_the_vulkan_minimum() -> None:
    for name in load_manifest():
        shader, size = load_shader(name), 1
        defaults = {constant: default for constant, _, default in shader.constants}
        for axis in "XYZ":
            size *= defaults[f"LOCAL_{axis}"]
        assert 1 <= size <= 128
        assert shader.push_bytes <= 128
