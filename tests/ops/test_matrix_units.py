"""Products by matrix units: which calls meet them, that none is used unmeasured, results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.cases.case import Case, floats
from vksched.cases.matmul import CASES, HALVES
from vksched.cases.runner import Runner, check
from vksched.machine.choices import Choices
from vksched.machine.limits import Limits
from vksched.ops.core.attrs import Attrs
from vksched.ops.core.lower import choice_of, key_of, lower, variants_of
from vksched.ops.core.op import Call, get_op
from vksched.runtime.vulkan import probe
from vksched.runtime.vulkan.device import VulkanDevice
from vksched.tuner.calls import calls_of, shader_hash
from vksched.tuner.store import Found, Store
from vksched.tuner.tuner import identity_of
from vksched.types import FLOAT16, FLOAT32, TensorType

MATMUL = get_op("matmul")
CARD = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=65536,
    subgroup_size=64,
    subgroup_sizes=(32, 64),
    float16=True,
    matrices=("float16*float16+float16 16x16x16", "float16*float16+float32 16x16x16"),
)
LARGE, SMALL = "matrices 16x16x16 128x128", "matrices 16x16x16 64x64"


def call_of(
    m: int, k: int, n: int, limits: Limits = CARD, dtype: str = FLOAT16, word: str = ""
) -> Call:
    attrs = {"transpose_a": False, "transpose_b": False} | ({"precision": word} if word else {})
    types = TensorType((m, k), dtype), TensorType((k, n), dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(attrs), limits)


def units_of(call: Call) -> list[str]:
    return [name for name in variants_of(MATMUL, call) if name.startswith("matrices")]


def test_units_come_last_so_that_none_is_used_unmeasured() -> None:
    for m in (1, 4, 16, 100, 1000):
        for limits in (CARD, replace(CARD, software=True, subgroup_sizes=(8,), subgroup_size=8)):
            call = call_of(m, 64, 1000, limits)
            names = variants_of(MATMUL, call)
            units = units_of(call)
            assert names[len(names) - len(units) :] == tuple(units)
            assert not choice_of(MATMUL, call).variant.startswith("matrices")
            assert bool(units) == (m >= 16)


def test_a_measured_unit_is_used_there_and_for_like_sizes() -> None:
    call = call_of(512, 512, 512)
    tuned = Choices({key_of(MATMUL, call): LARGE})
    for m in (512, 500):
        here = call_of(m, 512, 512, replace(CARD, tuned=tuned))
        (dispatch,) = lower(MATMUL, here).dispatches
        assert dispatch.shader == "matmul_matrices_float16"
        assert dispatch.groups == (4, 4, 1)
        assert dispatch.subgroup == 32 and dict(dispatch.constants)["LOCAL_X"] == 128


def test_only_what_may_be_rounded_meets_units() -> None:
    assert units_of(call_of(64, 64, 64)) == [LARGE, SMALL]
    for word, units in (("", []), ("mixed", [LARGE, SMALL]), ("float16", [LARGE, SMALL])):
        assert units_of(call_of(64, 64, 64, dtype=FLOAT32, word=word)) == units


@pytest.mark.parametrize(
    ("change", "units"),
    [
        ({}, [LARGE, SMALL]),
        ({"shared_bytes": 16384}, [SMALL]),
        ({"subgroup_sizes": ()}, []),
        ({"max_invocations": 64}, []),
        ({"subgroup_sizes": (16, 32)}, [SMALL]),
        ({"float16": False}, []),
        ({"matrices": ("uint8*uint8+uint32 16x16x32",)}, []),
        ({"matrices": ("float16*float16+float32 24x24x24",)}, []),
        (
            {"matrices": ("float16*float16+float32 16x8x16",)},
            [
                "matrices 16x8x16 128x128",
                "matrices 16x8x16 64x64",
            ],
        ),
    ],
)
def test_units_fit_the_device(change: dict[str, object], units: list[str]) -> None:
    assert units_of(call_of(64, 64, 64, replace(CARD, **change))) == units


def test_sizes_of_no_fours_are_packed_first() -> None:
    call = replace(call_of(64, 62, 61, dtype=FLOAT32, word="mixed"), variant=SMALL)
    shaders = [dispatch.shader for dispatch in lower(MATMUL, call).dispatches]
    assert shaders == ["matmul_pack", "matmul_pack", "matmul_matrices_float32"]


NAMES = [name for name in vulkan_names() if probe.resolve(name).limits.matrices]
MIXED = [replace(case, attrs={**case.attrs, "precision": "mixed"}) for case in CASES]
WITH_UNITS = [
    case for case in (*HALVES, *MIXED) if any(units_of(case.call(CARD))) and not case.large
]


@pytest.fixture(params=NAMES or [None], scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param is None:
        pytest.skip("no device here has matrix units")
    info = probe.resolve(request.param)
    device = VulkanDevice(probe.device_spec(info), info.index)
    if not device.limits.matrices:
        pytest.skip("the shaders for matrix units were left out")
    yield Runner(device)
    device.close()


def test_a_graph_runs_by_the_unit_that_was_measured(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("VKSCHED_TUNE", "1")
    a, b = (floats(48, 48, seed=seed) for seed in range(2))
    product = vs.matmul(vs.input("a", a.shape), vs.weight(b), name="product")
    y = vs.relu(product)
    name = runner.device.name
    with vs.Scheduler([name], precision="mixed", tune=False) as sched:
        spec = sched.devices[0].spec
        (call,) = calls_of(sched.compile(y).plan.graph, spec).values()
    static, *_, unit = call.names
    assert unit.startswith("matrices")
    identity = identity_of(spec)
    assert identity is not None
    seconds = {static: 2e-3, unit: 1e-3}
    Store().add(identity, [Found(call.key, unit, static, seconds, {}, shader_hash("matmul"))])
    with vs.Scheduler([name], precision="mixed") as sched:
        run = sched.compile(y)
        assert run.plan.node_as_dict("product")["variant"] == unit
        halves = (x.astype(np.float16).astype(np.float64) for x in (a, b))
        expected = np.maximum(np.matmul(*halves), 0)
        np.testing.assert_allclose(run(a=a), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", WITH_UNITS, ids=lambda case: case.id)
def test_units_compute_what_numpy_does(case: Case, runner: Runner) -> None:
    limits = runner.device.limits
    units = units_of(case.call(limits))
    assert units
    for variant in units:
        got = runner.run(case, limits, variant)
        check(case, got, case.expected(), f"{runner.device.name} {variant}")
