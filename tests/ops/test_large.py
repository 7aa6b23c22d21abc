"""Tensors of more than 2**24 elements, more groups than a dispatch has, and more than one buffer.

Integers that float32 cannot count: an index kept in a float, or cut to 24 bits, would show.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from selection import spread

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, get_op
from vksched.ops.lowering.lower import lower
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check
from vksched.testing.op_table import CASES
from vksched.topology.limits import Limits

matmul = importlib.import_module("vksched.ops.linalg.matmul_kernels")
SIDE = 4099
COUNT = SIDE * SIDE
assert COUNT > 1 << 24 and COUNT > 65535 * 256


@pytest.fixture(params=vulkan_names() or [None], scope="module")
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    """Each Vulkan device in turn."""
    if request.param is None:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler([request.param]) as opened:
        yield opened


def numbers() -> NDArray:
    """0, 1, 2, ... as int32."""
    return np.arange(COUNT, dtype=np.int32)


def run_on(sched: vs.Scheduler, y: Any, **feeds: NDArray) -> Any:
    """The result, every node of it from the Vulkan device."""
    run = sched.compile(y)
    try:
        assert {s.device for s in run.plan.splits} == {0}, run.plan.explain()
        return run(**feeds)
    finally:
        run.close()


def test_elementwise(sched: vs.Scheduler) -> None:
    got = run_on(sched, vs.input("x", COUNT, "int32") * 3 + 1, x=numbers())
    assert np.array_equal(got, numbers() * 3 + 1)


def test_broadcast(sched: vs.Scheduler) -> None:
    rows, columns = vs.input("r", (SIDE, 1), "int32"), vs.input("c", (1, SIDE), "int32")
    r, c = np.arange(SIDE, dtype=np.int32)[:, None] * SIDE, np.arange(SIDE, dtype=np.int32)[None]
    got = run_on(sched, rows + columns, r=r, c=c)
    assert np.array_equal(got.reshape(-1), numbers())


def test_transpose(sched: vs.Scheduler) -> None:
    square = numbers().reshape(SIDE, SIDE)
    got = run_on(sched, vs.transpose(vs.input("x", (SIDE, SIDE), "int32")), x=square)
    assert np.array_equal(got, square.T)


def test_gather(sched: vs.Scheduler) -> None:
    picks = np.array([SIDE - 1, 0, SIDE - 2, 17], np.int32)
    square = numbers().reshape(SIDE, SIDE)
    got = run_on(sched, vs.gather(vs.input("x", (SIDE, SIDE), "int32"), picks, 1), x=square)
    assert np.array_equal(got, square[:, picks])


def test_created_and_rearranged(sched: vs.Scheduler) -> None:
    rolled = vs.roll(vs.arange(COUNT).reshape(SIDE, SIDE), 1, 1)
    got = run_on(sched, vs.tril(rolled, -1))
    assert np.array_equal(got, np.tril(np.roll(numbers().reshape(SIDE, SIDE), 1, 1), -1))


def test_scatter(sched: vs.Scheduler) -> None:
    where = np.array([[SIDE - 1, SIDE - 1], [0, 1], [SIDE - 1, SIDE - 1]], np.int32)
    got = run_on(sched, vs.scatter_nd(vs.full((SIDE, SIDE), 7), where, np.int32([1, 2, 3])))
    assert got[-1, -1] == 3 and got[0, 1] == 2 and np.count_nonzero(got != 7) == 2


def test_random_words(sched: vs.Scheduler) -> None:
    got = run_on(sched, vs.random_bits(COUNT, seed=3))
    with vs.Scheduler(["cpu"]) as numpy:
        assert np.array_equal(got, numpy.compile(vs.random_bits(COUNT, seed=3))())


def test_reductions(sched: vs.Scheduler) -> None:
    x = vs.input("x", COUNT, "int32")
    total, largest = run_on(sched, [vs.reduce_sum(x), vs.reduce_max(x)], x=numbers())
    assert total == numbers().sum(dtype=np.int32) and largest == COUNT - 1


def test_positions(sched: vs.Scheduler) -> None:
    x = vs.input("x", COUNT, "int32")
    most, least = run_on(sched, [vs.argmax(x), vs.argmin(-x)], x=numbers())
    assert most == least == COUNT - 1


def test_running_sums(sched: vs.Scheduler) -> None:
    got = run_on(sched, vs.cumsum(vs.input("x", COUNT, "int32"), 0), x=np.ones(COUNT, np.int32))
    assert np.array_equal(got, numbers() + 1)


def test_product_of_many_factors_keeps_its_exponent(sched: vs.Scheduler) -> None:
    """2**-126 times itself so often that 32 bits cannot count the exponent, and 2**127 likewise."""
    count = 17_045_521
    for factor, expected in ((2.0**-126, 0.0), (2.0**127, np.inf)):
        x = np.full(count, factor, np.float32)
        assert run_on(sched, vs.reduce_prod(vs.input("x", count)), x=x) == expected


def test_float16(sched: vs.Scheduler) -> None:
    x = vs.input("x", COUNT, "float16")
    values = (numbers() % 2048).astype(np.float16)
    got = run_on(sched, vs.cast(vs.cast(x, "float32") + 1.0, "float16"), x=values)
    assert np.array_equal(got, values + np.float16(1))


def test_rows_of_softmax(sched: vs.Scheduler) -> None:
    """More rows than a dispatch has groups."""
    x = np.zeros((300_000, 3), np.float32)
    x[-1] = (0.0, 1.0, 2.0)
    got = run_on(sched, vs.softmax(vs.input("x", x.shape)), x=x)
    e = np.exp(np.float64([0, 1, 2]))
    assert np.allclose(got[:-1], 1 / 3) and np.allclose(got[-1], e / e.sum())


def test_a_node_that_takes_too_long_is_several_submissions(sched: vs.Scheduler) -> None:
    """Drivers kill a submission after about two seconds; here by the estimates of a slow device."""
    info = device_probe.resolve(sched.devices[0].name)
    slow = replace(device_probe.device_spec(info), flops_per_s=1e3)
    x = np.random.default_rng(0).standard_normal((1, 70_000), dtype=np.float32)
    tensor = vs.input("x", x.shape)
    y = [tensor @ vs.transpose(tensor), vs.concat([tensor, -tensor], 1), vs.cumsum(tensor, 1)]
    device = VulkanDevice(slow, info.index)
    with vs.Scheduler([device]) as other:
        run = other.compile(y)
        before = device.context.counters.submissions
        product, both, sums = run(x=x)
        assert device.context.counters.submissions - before > len(run.plan.splits)
        again = run(x=x)
    assert np.allclose(product, (x.astype(np.float64) ** 2).sum(), rtol=1e-5)
    assert np.array_equal(both, np.concatenate([x, -x], 1))
    assert np.allclose(sums, np.cumsum(x, 1, np.float64), atol=1e-3)
    assert all(np.array_equal(a, b) for a, b in zip((product, both, sums), again, strict=True))


@pytest.mark.parametrize("flops", spread([3e4, 1.0, 1e6], 1))
def test_matmul_is_cut_into_short_dispatches(
    sched: vs.Scheduler, flops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and batches are cut on a GPU, each dispatch right by itself."""
    device = sched.devices[0]
    assert isinstance(device, VulkanDevice)
    runner, whole = Runner(device), {}
    chosen = [c for c in CASES if c.op in ("matmul", "conv") and not c.large][::3]
    for case in chosen:
        try:
            whole[case.id] = len(lower(case.declaration, case.call(Limits())).dispatches)
        except vs.UnsupportedOp:
            continue
    monkeypatch.setattr(matmul, "DISPATCH_FLOPS", flops)
    more = 0
    for case in (c for c in chosen if c.id in whole):
        more += len(lower(case.declaration, case.call(Limits())).dispatches) > whole[case.id]
        check(case, runner.run(case, Limits()), case.expected(), device.name)
    assert more > 2 or flops > 1e5


def test_more_than_one_buffer_goes_to_numpy_and_says_so(sched: vs.Scheduler) -> None:
    page = sched.compile(vs.input("x", 1) + 1.0).plan.topology.devices[0].max_buffer_bytes
    count = min(page // 4 + 1, 1 << 26)
    if count * 4 <= page:
        pytest.skip("one buffer holds more than this test wants to take")
    with pytest.warns(vs.VkschedWarning, match="numpy runs neg .y., .* over the largest buffer"):
        run = sched.compile(vs.neg(vs.input("x", count, "int32"), name="y"))
    assert "over the largest buffer" in run.plan.explain()
    x = np.arange(count, dtype=np.int32)
    assert np.array_equal(run(x=x), -x)
    run.close()


@pytest.mark.parametrize("op", ["relu", "add", "transpose", "reduce_sum", "softmax"])
def test_no_dispatch_has_more_groups_than_vulkan_guarantees(op: str) -> None:
    """At sizes that no test can run."""
    attrs: dict[str, Any] = {
        "transpose": {"axes": (1, 0)},
        "reduce_sum": {"axes": (1,), "keepdims": False},
        "softmax": {"axis": 1},
    }.get(op, {})
    for shape in ((1 << 20, 31), (31, 1 << 20), (1 << 25, 1)):
        declared, x = get_op(op), TensorType(shape)
        inputs = (x, x) if op == "add" else (x,)
        result = declared.infer(inputs, Attrs(attrs))
        for limits in (Limits(), Limits(software=True)):
            try:
                lowering = lower(declared, Call(inputs, result, Attrs(attrs), limits))
            except vs.UnsupportedOp as reason:
                assert limits.software and "CPU driver" in str(reason)
                continue
            assert lowering.dispatches
            assert all(g <= 65535 for d in lowering.dispatches for g in d.groups)
