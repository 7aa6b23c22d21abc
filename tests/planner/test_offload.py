"""Offload: ops whose weights stay in host memory run on a GPU where their arithmetic pays for the
way of the weights there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import CPU, A, B, assert_memory, device_of, make_plan, make_topology, rule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import HOST, Upload
from vksched.runtime.device import PreparedPlan
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link
from vksched.topology.topology import Topology

WIDTH = 64
MATRIX_BYTES = 4 * WIDTH * WIDTH


def matrix(seed: int) -> NDArray:
    return np.asarray(np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)), np.float32) / 8


def layers(count: int, rows: int) -> vs.Tensor:
    """Products with a matrix and a bias each."""
    h = vs.input("x", (rows, WIDTH))
    for i in range(count):
        w = vs.weight(matrix(i), f"w{i}")
        b = vs.weight(np.full(WIDTH, 0.1, np.float32), f"b{i}")
        h = vs.tanh(vs.add(vs.matmul(h, w, name=f"m{i}"), b, name=f"s{i}"))
    return h


def expected(count: int, x: NDArray) -> NDArray:
    for i in range(count):
        x = np.tanh(x @ matrix(i) + np.float32(0.1))
    return x


def streamed(plan: Plan) -> list[tuple[str, str]]:
    """Device and name of each value that is copied from host memory and is no input."""
    return [
        (plan.topology.devices[s.device].name, plan.graph.nodes[c.node].name)
        for s in plan.splits
        for c in s.uploads
        if c.source == HOST and c.node in plan.graph.data
    ]


def apart(count: int, memory: list[int]) -> Topology:
    """Cards whose staging buffers lie in the computer's memory."""
    return make_topology(count, memory, unified_memory=False)


def test_a_weight_in_host_memory_is_streamed_where_the_batch_pays() -> None:
    plan = make_plan(layers(2, 512), {"w1": CPU}, make_topology(2))
    assert device_of(plan, "m1") == A and device_of(plan, "w1") == CPU
    assert streamed(plan) == [(A, "w1")]
    names = {plan.graph.nodes[w].name for w in plan.memory[0].weights}
    assert names == {"w0", "b0", "b1"}
    text = plan.explain()
    assert "weight w1 stays in host memory; streamed, as its rows make 256 flops per byte" in text
    assert "w1: cpu, weight in host memory; streamed to null:0" in plan.explain()
    assert "in   w1 (16.0 KiB) from host memory" in plan.explain()


@pytest.mark.parametrize(("rows", "device"), [(1, CPU), (31, CPU), (32, A), (33, A)])
def test_below_the_threshold_the_op_stays_with_its_weight(rows: int, device: str) -> None:
    plan = make_plan(layers(2, rows), {"w1": CPU})
    assert device_of(plan, "m1") == device
    assert bool(streamed(plan)) == (device == A)
    half = vs.matmul(vs.input("x", (rows, WIDTH)), vs.weight(matrix(0), "w"), name="m")
    assert device_of(make_plan(half, {"w": CPU}, make_topology(1, offload_flops_per_byte=1e9)), "m")


def test_arithmetic_counts_not_rows() -> None:
    """A convolution has few rows and reads each of its weights often; a lookup never."""
    x = vs.input("x", (1, 4, 32, 32))
    kernel = vs.weight(np.ones((4, 4, 3, 3), np.float32), "w")
    plan = make_plan(vs.conv(x, kernel, name="c"), {"w": CPU})
    assert device_of(plan, "c") == A and streamed(plan) == [(A, "w")]
    table = vs.weight(np.ones((1000, WIDTH), np.float32), "table")
    rows = vs.input("i", (512,), "int32", bounds=(0, 999))
    plan = make_plan(vs.gather(table, rows, name="g"), {"table": CPU})
    assert device_of(plan, "g") == CPU and not streamed(plan)


def test_an_override_of_the_op_wins() -> None:
    plan = make_plan(layers(2, 512), {"w1": CPU, "m1": CPU})
    assert device_of(plan, "m1") == CPU and not streamed(plan)
    plan = make_plan(layers(2, 1), {"w1": CPU, "m1": B})
    assert device_of(plan, "m1") == B and streamed(plan) == [(B, "w1")]
    assert rule_of(plan, "m1") == "override: m1 on null:1"


def test_streamed_weights_are_no_memory_of_the_model() -> None:
    """However many layers: one weight at a time beside the values."""
    placement = {"w*": CPU}
    few, many = (make_plan(layers(n, 256), placement, apart(1, [])) for n in (3, 12))
    assert len(streamed(many)) == 12
    bias = 12 * WIDTH * 4
    assert many.memory[0].weight_bytes == bias
    assert sum(many.memory[0].activation_pages) == sum(few.memory[0].activation_pages)
    values = 4 * 256 * WIDTH
    assert 4 * sum(many.memory[0].activation_pages) <= 2 * values + 2 * MATRIX_BYTES
    assert many.memory[0].peak_bytes == bias + 4 * sum(many.memory[0].activation_pages)
    assert 4 * sum(many.memory[0].upload_pages) >= 12 * MATRIX_BYTES
    assert many.memory[1].peak_bytes >= 12 * MATRIX_BYTES  # the staging buffers lie there
    assert_memory(many)
    assert all(len([c for c in s.uploads if c.node in many.graph.data]) <= 1 for s in many.splits)
    assert not any(s.waits for s in many.splits)


def test_full_cards_stream_the_rest_of_the_model() -> None:
    memory = [14 * MATRIX_BYTES]
    plan = make_plan(layers(30, 128), topology=apart(1, memory))
    assert {device_of(plan, f"m{i}") for i in range(30)} == {A}, plan.explain()
    assert {p.device for p in plan.placements if p.reason.startswith("next to")} == {0}
    assert 15 <= sum(name.startswith("w") for _, name in streamed(plan)) < 30
    assert len(plan.splits) <= 30  # biases ride along
    assert 0.85 * memory[0] <= plan.memory[0].peak_bytes <= memory[0]
    small = make_plan(layers(30, 8), topology=apart(1, memory))
    assert not streamed(small) and device_of(small, "m29") == CPU
    own = make_plan(
        layers(30, 128), topology=make_topology(1, memory)
    )  # staging buffers lie there, too
    assert {device_of(own, f"m{i}") for i in range(30)} == {A}, own.explain()
    assert 0.85 * memory[0] <= own.memory[0].peak_bytes <= memory[0]


def test_a_card_too_small_for_one_weight_takes_none() -> None:
    for memory in (0, MATRIX_BYTES, 3 * MATRIX_BYTES):
        plan = make_plan(layers(3, 64), topology=apart(1, [memory]))
        assert plan.memory[0].peak_bytes <= memory
    plan = make_plan(layers(3, 64), {"w*": CPU}, make_topology(1, [MATRIX_BYTES]))
    assert device_of(plan, "m2") == CPU


def test_tied_weights_lie_on_the_device_of_the_op_that_can() -> None:
    """A lookup that only numpy does leaves the table to the product that reads it, too."""
    table = vs.weight(matrix(0), "table")
    h = vs.gather(table, np.arange(WIDTH, dtype=np.int32), name="lookup")
    y = vs.mul(vs.tanh(h), table, name="scores")
    topology = make_topology(1)
    no_gather = replace(topology.devices[0], limits=Limits(storage_buffers=3))
    plan = make_plan(y, topology=Topology((no_gather, topology.devices[-1])))
    assert [device_of(plan, n) for n in ("lookup", "scores", "table")] == [CPU, A, A]
    assert not streamed(plan)


# -- weights of few bits, which an op widens for those that read them ------------------------------


def few_bits(seed: int, dtype: str = "int8") -> NDArray:
    drawn = np.random.default_rng(seed).integers(0, 100, (WIDTH, WIDTH))
    return np.asarray(drawn - (50 if dtype[0] == "i" else 0), dtype)


def narrow_layers(count: int, rows: int, dtype: str = "int8") -> vs.Tensor:
    """Products with a matrix of few bits each."""
    h = vs.input("x", (rows, WIDTH))
    for i in range(count):
        wide = vs.dequantize_linear(
            vs.weight(few_bits(i, dtype), f"w{i}"), np.float32(0.01), name=f"wide{i}"
        )
        h = vs.tanh(vs.matmul(h, wide, name=f"m{i}"), name=f"t{i}")
    return h


def narrow_expected(count: int, x: NDArray, dtype: str = "int8") -> NDArray:
    for i in range(count):
        x = np.tanh(x @ (few_bits(i, dtype).astype(np.float32) * np.float32(0.01)))
    return x


@pytest.mark.parametrize(("rows", "device"), [(1, CPU), (7, CPU), (8, A), (512, A)])
def test_narrow_weights_are_streamed_with_what_widens_them(rows: int, device: str) -> None:
    """A quarter of the bytes pays with a quarter of the rows."""
    plan = make_plan(narrow_layers(2, rows), {"w1": CPU})
    assert [device_of(plan, n) for n in ("wide1", "m1")] == [device, device]
    assert streamed(plan) == ([(A, "w1")] if device == A else [])
    assert device_of(plan, "wide0") == device_of(plan, "m0") == A
    if device == A:
        assert "w1 stays in host memory; streamed, as its rows make" in rule_of(plan, "wide1")
        assert f"in   w1 ({MATRIX_BYTES // 4096:.1f} KiB) from host" in plan.explain()


def test_what_widens_goes_with_a_reader_that_is_placed() -> None:
    plan = make_plan(narrow_layers(2, 1), {"w1": CPU, "m1": B})
    assert device_of(plan, "wide1") == B and streamed(plan) == [(B, "w1")]
    assert rule_of(plan, "wide1") == "next to m1, because quantized weights are streamed"
    plan = make_plan(narrow_layers(2, 512), {"w1": CPU, "m1": CPU})
    assert device_of(plan, "wide1") == CPU and not streamed(plan)
    plan = make_plan(narrow_layers(2, 512), {"w1": CPU, "wide1": CPU})
    assert device_of(plan, "wide1") == CPU and not streamed(plan)


def test_all_readers_of_a_widened_weight_join_the_first() -> None:
    wide = vs.dequantize_linear(vs.weight(few_bits(0), "w"), np.float32(0.01), name="wide")
    x = vs.input("x", (512, WIDTH))
    outputs = {"a": vs.matmul(x, wide, name="a"), "b": vs.matmul(x, wide, name="b"), "wide": wide}
    plan = make_plan(outputs, {"w": CPU})
    assert [device_of(plan, n) for n in ("wide", "a", "b")] == [A, A, A]
    assert streamed(plan) == [(A, "w")]
    alone = make_plan(wide, {"w": CPU})
    assert device_of(alone, "wide") == CPU and not streamed(alone)


def test_full_cards_stream_the_narrow_rest_of_a_model() -> None:
    memory = [14 * MATRIX_BYTES]
    plan = make_plan(narrow_layers(60, 128), topology=apart(1, memory))
    assert {device_of(plan, f"m{i}") for i in range(60)} == {A}, plan.explain()
    assert {device_of(plan, f"wide{i}") for i in range(60)} == {A}
    assert 10 <= len(streamed(plan)) < 60
    assert plan.memory[0].peak_bytes <= memory[0]
    assert_memory(plan)


@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_streamed_narrow_weights_give_the_results_of_numpy(devices: list[str], dtype: str) -> None:
    x = np.asarray(np.random.default_rng(1).standard_normal((48, WIDTH)), np.float32)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(narrow_layers(3, 48, dtype), placement={"w[12]": "cpu"})
        gpus = {d.name for d in sched.devices[:-1]}
        assert {name for _, name in streamed(run.plan)} == ({"w1", "w2"} if gpus else set())
        for k in (1, 2):
            wanted = narrow_expected(3, x * k, dtype)
            np.testing.assert_allclose(run(x=x * k), wanted, atol=1e-4)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(0, 40 * MATRIX_BYTES),
    st.integers(0, 40 * MATRIX_BYTES),
    st.sampled_from([8, 40, 300]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([{}, {"w1*": CPU}, {"w*": CPU}, {"w3": B, "m5": CPU}]),
)
def test_any_memory_gives_a_sound_plan(
    one: int,
    two: int,
    rows: int,
    unified_memory: bool,
    narrow: bool,
    placement: dict[str, str],
) -> None:
    topology = make_topology(2, [one, two], unified_memory=unified_memory)
    built = narrow_layers(20, rows) if narrow else layers(20, rows)
    plan = make_plan(built, placement, topology, copies=2)
    assert_memory(plan)
    assert all(m.peak_bytes <= size for m, size in zip(plan.memory, (one, two), strict=False))


def test_plans_that_lose_a_streamed_weight_are_refused() -> None:
    plan = make_plan(layers(1, 64), {"w0": CPU})
    (split,) = plan.splits
    none = tuple(c for c in split.uploads if c.node not in plan.graph.data)
    with pytest.raises(vs.PlanError, match="m0 in split 0 needs w0, which is not there"):
        replace(plan, splits=(replace(split, uploads=none),)).verify()
    weight = next(n.id for n in plan.graph.weights if n.name == "w0")
    moved = list(plan.placements)
    moved[weight] = replace(moved[weight], device=0)
    with pytest.raises(vs.PlanError, match="w0 is copied in from the caller, but is no input"):
        replace(plan, placements=tuple(moved)).verify()


# -- running ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [1, 2])
def test_streamed_weights_give_the_results_of_numpy(devices: list[str], copies: int) -> None:
    x = np.asarray(np.random.default_rng(1).standard_normal((48, WIDTH)), np.float32)
    with vs.Scheduler(devices, copies=copies) as sched:
        run = sched.compile(layers(4, 48), placement={"w[12]": "cpu"})
        gpus = {d.name for d in sched.devices[:-1]}
        assert {name for _, name in streamed(run.plan)} == ({"w1", "w2"} if gpus else set())
        futures = [run.submit(x=x * k) for k in (1, 2, 3, 4)]
        for k, future in zip((1, 2, 3, 4), futures, strict=True):
            np.testing.assert_allclose(future.result(), expected(4, x * k), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_other_types_are_streamed_too(devices: list[str], dtype: str) -> None:
    a = (np.arange(128 * 32).reshape(128, 32) % 7).astype(dtype)
    w = (np.arange(32 * 16).reshape(32, 16) % 5).astype(dtype)
    with vs.Scheduler(devices) as sched:
        y = vs.matmul(vs.input("a", a.shape, dtype), vs.weight(w, "w"))
        run = sched.compile(y, placement={"w": "cpu"})
        assert bool(streamed(run.plan)) == (len(sched.devices) > 1)
        for _ in range(2):
            assert np.array_equal(run(a=a), a @ w)


class CountingDevice(vs.SimulatedDevice):
    """Keeps what is staged."""

    def prepare(self, plan: Plan, index: int, progress: Any = None) -> PreparedPlan:
        prepared = super().prepare(plan, index, progress)
        self.staged: list[tuple[int, int]] = []
        real = prepared.upload

        def upload(slot: int, copy: Upload, array: NDArray) -> None:
            self.staged.append((slot, copy.node))
            real(slot, copy, array)

        prepared.upload = upload  # type: ignore[method-assign]
        return prepared


def test_a_streamed_weight_is_staged_once_per_slot_and_takes_the_link_in_each_run() -> None:
    clock = vs.SimulatedClock()
    spec = DeviceSpec("null:0", "null", bytes_per_s=1e15, flops_per_s=1e18, submit_s=0.0)
    device = CountingDevice(spec, clock, link=Link(MATRIX_BYTES))
    with vs.Scheduler([device], copies=2, trace=vs.Trace(clock)) as sched:
        run = sched.compile(layers(2, 64), placement={"w0": "cpu"})
        weight = next(n.id for n in run.plan.graph.weights if n.name == "w0")
        x = np.ones((64, WIDTH), np.float32)
        for _ in range(5):
            np.testing.assert_allclose(run(x=x), expected(2, x), atol=1e-5)
        assert sorted(slot for slot, node in device.staged if node == weight) == [0, 1]
        assert run.stats is not None
        assert run.stats.device_seconds["null:0"] == pytest.approx(1.0)
        assert run.stats.input_bytes == x.nbytes


def test_offload_can_be_switched_off() -> None:
    clock = vs.SimulatedClock()
    device = vs.SimulatedDevice(DeviceSpec("null:0", "null"), clock)
    with vs.Scheduler([device], trace=vs.Trace(clock), offload=False) as sched:
        run = sched.compile(layers(2, 512), placement={"w1": "cpu"})
        assert device_of(run.plan, "m1") == CPU and not streamed(run.plan)
