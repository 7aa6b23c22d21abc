"""Element types through the whole flow: what runs where, what it costs, that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import make_plan, make_topology, node_id

import vksched as vs
from vksched.ir.value_range import fits
from vksched.plan.costs.node_cost import node_seconds
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import Span, scratch_of

RNG = np.random.default_rng(7)
FP16 = RNG.standard_normal((5, 7)).astype(np.float16)


@pytest.fixture(scope="module")
def sched(devices: list[str]) -> Iterator[vs.Scheduler]:
    with vs.Scheduler(devices) as opened:
        yield opened


def run_on(sched: vs.Scheduler, y: Any, **feeds: Any) -> tuple[Any, Plan]:
    run = sched.compile(y)
    try:
        return run(**feeds), run.plan
    finally:
        run.close()


def devices_used(plan: Plan) -> set[str]:
    return {plan.topology.devices[s.device].name for s in plan.splits}


def first_device(sched: vs.Scheduler) -> str:
    return sched.devices[0].name


# -- float16 -----------------------------------------------------------------------------------


def test_float16_runs_on_the_device_and_rounds_once_per_op(sched: vs.Scheduler) -> None:
    x = vs.input("x", (5, 7), "float16")
    w = vs.weight(RNG.standard_normal((7, 3)).astype(np.float16), name="w")
    hidden = vs.relu(x + 1.0)
    parts = [hidden @ w, hidden[1:4, ::2], vs.reduce_sum(x, 1), vs.softmax(x), x > 0.5]
    got, plan = run_on(sched, parts, x=FP16)
    assert devices_used(plan) == {first_device(sched)}, plan.explain()
    up = np.maximum(FP16 + np.float16(1), 0)
    product = (up.astype(np.float32) @ w.data.astype(np.float32)).astype(np.float16)
    assert [a.dtype.name for a in got] == ["float16"] * 4 + ["bool"]
    assert np.allclose(got[0], product, rtol=2e-3, atol=1e-3)
    assert np.array_equal(got[1], up[1:4, ::2])
    assert np.allclose(got[2], FP16.astype(np.float32).sum(1), rtol=2e-3, atol=1e-3)
    assert np.allclose(np.sum(got[3], 1, np.float32), 1, atol=3e-3)
    assert np.array_equal(got[4], FP16 > 0.5)


def test_float16_takes_half_the_memory_and_what_a_node_needs_next_to_it() -> None:
    x = vs.input("x", (1000, 7), "float16")
    plan = make_plan(vs.relu(x, name="y"), topology=make_topology(1))
    words = 3500
    assert plan.graph.nodes[node_id(plan, "y")].type.words == words
    assert plan.locations[0, node_id(plan, "y")].words == words
    others = plan.locations[0, scratch_of(node_id(plan, "y"))]
    assert others.words >= 2 * 7000 and sum(plan.memory[0].upload_pages) < words + 64


@pytest.mark.parametrize("width", [6, 7])
def test_float16_rows_of_even_length_are_moved_as_words(sched: vs.Scheduler, width: int) -> None:
    values = RNG.standard_normal((4, 5, width)).astype(np.float16)
    x = vs.input("x", values.shape, "float16")
    ids = np.array([3, 0, 0], np.int32)
    parts = [
        (vs.transpose(x, (1, 0, 2)), values.transpose(1, 0, 2)),
        (x[::2, 1:4], values[::2, 1:4]),
        (vs.concat([x, x[:, :2]], 1), np.concatenate([values, values[:, :2]], 1)),
        (vs.expand(x[:, :1], (2, 4, 3, width)), np.broadcast_to(values[:, :1], (2, 4, 3, width))),
        (vs.gather(x, ids), values[ids]),
    ]
    got, plan = run_on(sched, [tensor for tensor, _ in parts], x=values)
    assert devices_used(plan) == {first_device(sched)}
    assert all(np.array_equal(a, b) for a, (_, b) in zip(got, parts, strict=True))
    others = {value for _, value in plan.locations if value < 0}
    assert bool(others) == (width == 7 and first_device(sched) != "cpu")


def test_what_conversion_moves_is_part_of_the_estimate() -> None:
    ids = vs.constant([0])
    tables = [vs.input(f"t{n}", (2000, n), "float16") for n in (1024, 1025)]
    plan = make_plan([vs.gather(t, ids, name=f"y{t.shape[1]}") for t in tables])
    spec, nodes = plan.topology.devices[0], plan.graph.nodes
    even, odd = (
        node_seconds(spec, plan.graph, nodes[node_id(plan, n)]) for n in ("y1024", "y1025")
    )
    assert odd > 100 * even  # the whole table is unpacked for one row


def with_scratch(plan: Plan, span: Span | None) -> Plan:
    key = (0, scratch_of(node_id(plan, "y")))
    locations = {k: v for k, v in plan.locations.items() if k != key}
    return replace(plan, locations=locations | ({key: span} if span else {}))


def test_verify_refuses_scratch_memory_that_is_missing_short_or_taken() -> None:
    x = vs.input("x", (40, 40), "float16")
    after = vs.add(vs.relu(x, name="y"), x)
    plan = make_plan([after, vs.concat([x, x, x, x])], topology=make_topology(1))
    span = plan.locations[0, scratch_of(node_id(plan, "y"))]
    taken = plan.locations[0, node_id(plan, "x")]
    with pytest.raises(vs.PlanError, match="no scratch memory"):
        with_scratch(plan, None).verify()
    with pytest.raises(vs.PlanError, match="is not of its"):
        with_scratch(plan, span._replace(words=span.words - 1)).verify()
    with pytest.raises(vs.PlanError, match="scratch memory of y is written over"):
        with_scratch(plan, span._replace(page=taken.page, offset=taken.offset)).verify()


def test_scratch_memory_is_used_again_behind_a_barrier() -> None:
    x = vs.input("x", (40, 40), "float16")
    a, b = vs.relu(x, name="a"), vs.tanh(x, name="b")
    plan = make_plan(vs.add(a, b, name="y"), topology=make_topology(1))
    places = [plan.locations[0, scratch_of(node_id(plan, n))] for n in ("a", "b")]
    assert places[0].page == places[1].page
    (split,) = plan.splits
    ends = [p.offset + p.words for p in places]
    overlap = places[0].offset < ends[1] and places[1].offset < ends[0]
    position = len(split.uploads) + split.nodes.index(node_id(plan, "b"))
    assert not overlap or position in split.barriers


# -- int64 -------------------------------------------------------------------------------------


def test_int64_runs_on_a_device_when_its_bounds_fit(sched: vs.Scheduler) -> None:
    table = vs.weight(np.arange(20, dtype=np.float32).reshape(10, 2), name="table")
    ids = vs.input("ids", (3,), "int64", bounds=(-5, 4))
    y = [vs.gather(table, ids), ids + 1, vs.cast(ids * ids, "int32"), vs.concat([ids, ids])]
    feed = np.array([-5, 0, 4])
    got, plan = run_on(sched, y, ids=feed)
    assert devices_used(plan) == {first_device(sched)}, plan.explain()
    assert np.array_equal(got[0], np.arange(20, dtype=np.float32).reshape(10, 2)[feed])
    assert np.array_equal(got[1], feed + 1) and got[1].dtype == np.int64
    assert np.array_equal(got[2], feed * feed) and got[2].dtype == np.int32
    assert np.array_equal(got[3], np.tile(feed, 2)) and got[3].dtype == np.int64


def test_int64_of_unknown_bounds_runs_on_numpy_and_says_so(sched: vs.Scheduler) -> None:
    y = vs.input("n", (2,), "int64") * 3
    feed = np.array([2**40, -(2**50)])
    got, plan = run_on(sched, y, n=feed)
    assert np.array_equal(got, feed * 3) and devices_used(plan) == {"cpu"}
    if first_device(sched) != "cpu":
        assert "may not fit 32 bits (bounds: unknown); try vs.input" in plan.explain()


def test_int64_that_grows_out_of_32_bits_moves_to_numpy(sched: vs.Scheduler) -> None:
    n = vs.input("n", (2,), "int64", bounds=(0, 2**20))
    small = vs.add(n, 1, name="small")
    got, plan = run_on(sched, [small, vs.mul(small, small, name="square")], n=np.array([3, 2**20]))
    assert got[1].tolist() == [16, (2**20 + 1) ** 2]
    square = plan.placements[node_id(plan, "square")]
    assert plan.topology.devices[square.device].name == "cpu"
    if first_device(sched) != "cpu":
        assert f"(bounds: (1, {(2**20 + 1) ** 2}))" in plan.explain()


def test_values_outside_their_bounds_are_refused(sched: vs.Scheduler) -> None:
    run = sched.compile(vs.input("n", (2,), "int64", bounds=(0, 9)) + 1)
    for bad in (np.array([0, 10]), np.array([-1, 0])):
        with pytest.raises(vs.IndexOutOfRange, match=r"values in 0\.\.9 for input 'n'"):
            run(n=bad)
    run.close()


@pytest.mark.parametrize("bounds", [(3, 2), (0, 1)])
def test_bounds_belong_to_integers(bounds: tuple[int, int]) -> None:
    dtype = "int64" if bounds[0] > bounds[1] else "float32"
    with pytest.raises(vs.DTypeError, match="bounds"):
        vs.input("n", (2,), dtype, bounds=bounds)


def test_bounds_know_that_64_bits_wrap(sched: vs.Scheduler) -> None:
    """Beyond 64 bits nothing is known, and a later op may not claim that it is."""
    x, z = (vs.input(name, (5,), "int64", bounds=(0, 2**40)) for name in "xz")
    small = vs.minimum(x * z, 5)
    feeds = {"x": np.full(5, 2**31), "z": np.full(5, 2**33 - 1)}
    got, _ = run_on(sched, vs.reduce_sum(small - vs.weight(np.ones(5, np.int64))), **feeds)
    assert got == (np.minimum(feeds["x"] * feeds["z"], 5) - 1).sum()
    y = x
    for _ in range(30):
        y = y * y
    graph, ids = vs.build_graph([y, vs.pow(x, x), vs.cumprod(x, 0)])
    assert all(graph.bounds[i] is None for _, i in graph.outputs)


@pytest.mark.parametrize("value", [-(2**63), -(2**63) + 1, -7, 7, 2**63 - 1])
def test_int64_division_is_exact(value: int) -> None:
    by = np.array([1, 2, -2, 3, -(2**63), 0])
    with vs.Scheduler(["cpu"]) as cpu:
        tensor = vs.div(vs.input("a", (1,), "int64"), vs.weight(by))
        got = cpu.compile(tensor)(a=np.array([value]))
    expected = [
        0 if b == 0 else abs(value) // abs(b) * (1 if (value < 0) == (b < 0) else -1)
        for b in by.tolist()
    ]
    assert got.tolist() == expected


def test_memory_of_the_cpu_counts_wide_types_in_full() -> None:
    count = 1 << 12
    plan = make_plan(vs.input("x", count, "float64") + 1.0, topology=make_topology(1))
    assert plan.memory[-1].peak_bytes >= 2 * 8 * count
    wide = vs.weight(np.zeros(count, np.int64))
    plan = make_plan(vs.input("y", count, "int64") + wide, topology=make_topology(1))
    assert plan.memory[-1].weight_bytes == 8 * count and "y (32.0 KiB)" in plan.explain()


def test_every_value_lies_within_its_bounds() -> None:
    """Bounds are promises: computed values must keep them."""
    a = vs.input("a", (50,), "int64", bounds=(-7, 9))
    b = vs.input("b", (50,), "int64", bounds=(2, 5))
    built = [a + b, a - b, a * b, -a, vs.abs(a), vs.div(a, b), vs.maximum(a, b), vs.minimum(a, b)]
    built += [vs.where(a > b, a, b), vs.reduce_sum(a), vs.concat([a, b]), vs.gather(a, [1, 2])]
    built += [
        vs.cast(a > b, "int64"),
        vs.reduce_max(a),
        vs.relu(a),
        vs.cast(vs.cast(a, "int32"), int),
    ]
    built += [vs.fmod(a, b), vs.floor_divide(a, b), vs.remainder(a, b), vs.square(a), vs.sign(a)]
    built += [vs.clip(a, -3, 4), vs.clip(a, low=11), vs.clip(a, high=-20), vs.bitwise_invert(a)]
    built += [vs.bitwise_and(a, b), vs.bitwise_or(a, b), vs.bitwise_xor(b, b + 4)]
    built += [vs.bitwise_right_shift(a, b), vs.floor(a), vs.round(b), vs.positive(a)]
    square = vs.input("m", (4, 4), "int64", bounds=(-3, 3))
    built += [square @ square, vs.pow(a, vs.weight(np.array([0, 1, 2, 3, 4] * 10))), a % b]
    built += [vs.reduce_prod(square, 0), vs.cumprod(square, 1), vs.bitwise_left_shift(a, b)]
    pixels = vs.reshape(square, (1, 1, 4, 4))
    built += [vs.conv(pixels, pixels[:, :, :2, :3]), vs.conv_transpose(pixels, pixels[:, :, :2])]
    built += [vs.einsum("ij,kj->ik", square, square)]
    graph, ids = vs.build_graph(built)
    feeds = {
        "m": RNG.integers(-3, 4, (4, 4)),
        "a": RNG.integers(-7, 10, 50),
        "b": RNG.integers(2, 6, 50),
    }
    with vs.Scheduler(["cpu"]) as cpu:
        results = cpu.compile(built)(**feeds)
    for tensor, value in zip(built, results, strict=True):
        bounds = graph.bounds[ids[tensor]]
        assert bounds is not None and fits(bounds), tensor
        assert fits((int(value.min()), int(value.max())), bounds), tensor


# -- float64, uint32 ---------------------------------------------------------------------------


def test_float64_is_exact_on_numpy(sched: vs.Scheduler) -> None:
    x = vs.input("x", (3, 3), "float64")
    feed = np.eye(3) + 1e-12
    (product, third), plan = run_on(sched, [x @ x, x / 3], x=feed)
    assert devices_used(plan) == {"cpu"} and product.dtype == np.float64
    assert np.array_equal(product, feed @ feed) and np.array_equal(third, feed / 3)
    if first_device(sched) != "cpu":
        assert "float64 is computed by numpy only" in plan.explain()


def test_float64_error_functions_have_all_their_digits() -> None:
    special = pytest.importorskip("scipy.special")
    x = np.linspace(-6, 6, 241)
    with vs.Scheduler(["cpu"]) as cpu:
        tensor = vs.input("x", x.shape, "float64")
        erf, gelu = cpu.compile([vs.erf(tensor), vs.gelu(tensor)])(x=x)
    assert np.allclose(erf, special.erf(x), rtol=1e-15, atol=0)
    assert np.allclose(gelu, x * special.ndtr(x), rtol=1e-13, atol=0)


def test_numbers_beyond_float16_are_refused() -> None:
    x = vs.input("x", (2,), "float16")
    for value in (70000.0, [1e6, 1], -1e9):
        with pytest.raises(vs.DTypeError, match="values of float16"):
            vs.maximum(x, value)
    vs.maximum(x, float("-inf"))  # is one


def test_uint32_runs_on_the_device(sched: vs.Scheduler) -> None:
    values = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    x = vs.input("x", (4,), "uint32")
    got, plan = run_on(
        sched, [x + 1, x > 2, vs.cast(x, "float32"), vs.sort(x, descending=True)], x=values
    )
    assert devices_used(plan) == {first_device(sched)}, plan.explain()
    assert np.array_equal(got[0], values + np.uint32(1)) and np.array_equal(got[1], values > 2)
    assert np.array_equal(got[2], values.astype(np.float32))
    assert np.array_equal(got[3], values[::-1]) and got[3].dtype == np.uint32


def test_types_do_not_mix_by_themselves() -> None:
    for one, other in (("float16", "float32"), ("float64", "float32"), ("int64", "int32")):
        with pytest.raises(vs.DTypeError, match=f"{one}|{other}"):
            vs.add(vs.input("a", (2,), one), vs.input("b", (2,), other))


def test_floats_of_a_list_mask_take_the_type_of_what_they_mask() -> None:
    x = vs.input("x", (1, 1, 2, 3), "float16")
    assert vs.softmax(x, mask=[0.0, -np.inf, 1.0]).inputs[1].dtype == "float16"
    assert vs.softmax(x, mask=[True, False, True]).inputs[1].dtype == "bool"
    assert vs.attention(x, x, x, [0.0, -np.inf]).inputs[3].dtype == "float16"


def test_attention_takes_float16_next_to_float32(devices: list[str]) -> None:
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, 2, 5, 8)).astype(np.float32) for _ in range(3))
    stored = k.astype(np.float16), v.astype(np.float16)
    wide = [vs.constant(x.astype(np.float32)) for x in stored]
    fp16 = [vs.constant(x) for x in stored]
    built = vs.attention(q, *fp16, causal=True), vs.attention(q, *wide, causal=True)
    again = (
        vs.attention(q, *fp16, kv_len=3, k_new=fp16[0], v_new=fp16[1]),
        vs.attention(*(q, *wide), kv_len=3, k_new=wide[0], v_new=wide[1]),
    )
    assert {each.dtype for each in (*built, *again)} == {"float32"}
    with vs.Scheduler(devices) as sched:
        one, other, stored_one, stored_other = sched.compile([*built, *again])()
    np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    np.testing.assert_allclose(stored_one, stored_other, 1e-5, 1e-6)


def test_functions_on_float16_keep_their_type_and_name() -> None:
    x, m = vs.input("x", (2, 3), "float16"), vs.input("m", (3, 4), "float16")
    for built in (
        *(vs.gemm(x, m, name="n"), vs.gemm(x, m, alpha=3e5, name="n")),
        *(vs.lp_normalize(x, name="n"), vs.reduce_l2(x, name="n"), vs.instance_norm(x, name="n")),
        vs.instance_norm(x, [1.0, 2.0, 3.0], name="n"),
    ):
        assert (built.name, built.dtype) == ("n", "float16")
