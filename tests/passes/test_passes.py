"""Passes: what each leaves out, what it must not touch, and that every name is still found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from conftest import Scheds
from fused import assert_names_survive, ops_of
from graphs import numpy_outputs
from test_executor import scheduler

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import PlanError
from vksched.engine.request import least_limits
from vksched.ir.attrs import Attrs
from vksched.ir.graph import Graph, Node
from vksched.passes import RewriteConstraints, optimize, simplify
from vksched.passes.rewrite import Rewriter, Rules, rewrite
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology

SHAPE = (4, 6)
Built = Callable[[vs.Tensor], vs.Tensor]


def both(outputs: vs.Tensor | Sequence[vs.Tensor], **constraints: object) -> tuple[Graph, Graph]:
    """A graph as it is written and as the passes leave it; every name is found in it."""
    before, _ = vs.build_graph(outputs)
    wanted = RewriteConstraints(**constraints).propagate_pins(before)  # type: ignore[arg-type]
    after = simplify(before, wanted)
    after.verify()
    assert_names_survive(before, after)
    assert not {node.name for node in after.nodes} & after.aliases.keys()
    assert [n.name for n in after.inputs] == [n.name for n in before.inputs]
    assert [name for name, _ in after.outputs] == [name for name, _ in before.outputs]
    return before, after


def check(before: Graph, after: Graph, **feeds: NDArray) -> None:
    for got, wanted in zip(numpy_outputs(after, feeds), numpy_outputs(before, feeds), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def x_of(dtype: str = "float32") -> vs.Tensor:
    return vs.input("x", SHAPE, dtype)


EDGES = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 3e38, -1.5] * 3, np.float32)

GONE: Mapping[str, Built] = {
    "mul by one": lambda x: x * 1.0,
    "one times": lambda x: 1.0 * x,
    "div by one": lambda x: x / 1.0,
    "power of one": lambda x: x**1.0,
    "sub zero": lambda x: x - 0.0,
    "add minus zero": lambda x: x + (-0.0),
    "reshape to its shape": lambda x: vs.reshape(x, SHAPE),
    "expand to its shape": lambda x: vs.expand(x, SHAPE),
    "cast to its type": lambda x: vs.cast(x, "float32"),
    "neg of neg": lambda x: vs.neg(-x),
    "transposed twice": lambda x: vs.transpose(vs.transpose(x)),
    "turned by nothing": lambda x: vs.transpose(x, (0, 1)),
}


@pytest.mark.parametrize("name", list(GONE))
def test_what_changes_nothing_is_left_out(name: str) -> None:
    x = x_of()
    before, after = both(vs.exp(GONE[name](x), name="end"))
    assert ops_of(after) == ["exp"]
    check(before, after, x=EDGES.reshape(SHAPE))


UNCHANGED: Mapping[str, Built] = {
    "add zero": lambda x: x + 0.0,  # -0.0 + 0.0 is 0.0
    "zero minus": lambda x: 0.0 - x,
    "sub minus zero": lambda x: x - (-0.0),
    "one over": lambda x: 1.0 / x,
    "a larger one": lambda x: x * np.ones((2, 4, 6), np.float32),
}


@pytest.mark.parametrize("name", list(UNCHANGED))
def test_what_looks_like_nothing_is_retained(name: str) -> None:
    before, after = both(UNCHANGED[name](x_of()))
    assert len(after.ops) == 1
    check(before, after, x=EDGES.reshape(SHAPE))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integers_lose_zeros_and_ones(dtype: str) -> None:
    x = x_of(dtype)
    before, after = both((x + 0) * 1 - 0)
    assert not after.ops
    check(before, after, x=np.arange(24).reshape(SHAPE).astype(dtype))


def test_reshapes_and_transposes_in_a_row_are_one() -> None:
    x = vs.input("x", (2, 3, 4))
    shaped = vs.reshape(vs.reshape(x, (6, 4)), (3, 8))
    transposed = vs.transpose(vs.transpose(x, (1, 2, 0)), (2, 1, 0))
    before, after = both([shaped, transposed])
    assert sorted(ops_of(after)) == ["reshape", "transpose"]
    check(before, after, x=np.arange(24, dtype=np.float32).reshape(2, 3, 4))


def test_a_transpose_of_axes_of_one_is_a_view() -> None:
    before, after = both(vs.transpose(vs.input("x", (1, 5, 3)), (1, 0, 2)))
    assert ops_of(after) == ["reshape"]
    check(before, after, x=np.arange(15, dtype=np.float32).reshape(1, 5, 3))


def test_products_read_their_operands_transposed() -> None:
    x, y = vs.input("x", (2, 3, 4)), vs.input("y", (2, 3, 5))
    transposed = vs.transpose(x, (0, 2, 1), name="turned")
    product = vs.matmul(transposed, y, name="product")
    other = vs.matmul(vs.transpose(y, (0, 2, 1)), x)
    before, after = both([product, other])
    assert ops_of(after) == ["matmul", "matmul"]
    assert after.nodes[after.aliases["turned"]].name == "product"
    feeds = {"x": (2, 3, 4), "y": (2, 3, 5)}
    check(
        before,
        after,
        **{k: np.random.default_rng(1).random(s, np.float32) for k, s in feeds.items()},
    )


def test_a_batch_that_is_transposed_is_not_absorbed() -> None:
    x, y = vs.input("x", (3, 2, 4)), vs.input("y", (2, 4, 5))
    _, after = both(vs.matmul(vs.transpose(x, (1, 0, 2)), y))
    assert ops_of(after) == ["transpose", "matmul"]


def test_equal_calls_are_one() -> None:
    x = x_of()
    one, two = vs.exp(x * 0.3, name="one"), vs.exp(x * 0.3, name="two")
    before, after = both([one, two, vs.exp(x * 0.2), vs.clip(x, 0.0, 1.0), vs.clip(x, -0.0, 1.0)])
    assert ops_of(after).count("exp") == 2 and ops_of(after).count("clip") == 2
    assert after.nodes[after.aliases["two"]].name == "one"
    check(before, after, x=EDGES.reshape(SHAPE))


def test_attributes_that_are_written_differently_are_different_calls() -> None:
    x = x_of()
    graph = vs.build_graph([vs.clip(x, low, 1.0) for low in (0.0, -0.0, 0.0)])[0]
    first, second, third = (graph.signatures[node.id] for node in graph.ops)
    assert first == third != second
    assert Attrs({"a": (1, 0.0)}) == Attrs({"a": (1, np.float64(0.0))})
    assert len({Attrs({"a": a}) for a in (1, True, 1.0, "1")}) == 4


def test_rules_know_who_reads_what_other_rules_built() -> None:
    seen: list[list[bool]] = []
    built: list[int] = []

    def twice(r: Rewriter, node: Node) -> int:
        inner = r.emit("abs", node.inputs)
        built.extend((*node.inputs, inner))
        return r.emit("add", (inner, *node.inputs))

    def gone(r: Rewriter, node: Node) -> int:
        seen.append([r.is_read(i, 1) for i in built] + [r.is_read(built[0], 2)])
        return r.emit("exp", (built[0],))

    def last(r: Rewriter, node: Node) -> None:
        seen.append([r.is_read(built[0], 1), r.is_read(built[1], 0)])

    end = vs.tanh(vs.sqrt(vs.neg(vs.square(x_of()))))
    graph = vs.build_graph(end)[0]
    rules: Rules = {"neg": [twice], "sqrt": [gone], "tanh": [last]}
    assert ops_of(rewrite(graph, rules, RewriteConstraints())) == ["square", "exp", "tanh"]
    assert seen == [[False, True, True], [True, True]]


def test_random_values_of_one_seed_are_one() -> None:
    seeds = [vs.random_uniform((4,), seed=s) for s in (1, 1, 2)]
    _, after = both(seeds)
    assert len(after.ops) < len(vs.build_graph(seeds)[0].ops)
    assert after.outputs[0][1] == after.outputs[1][1] != after.outputs[2][1]


def test_states_are_never_one() -> None:
    one, two = vs.state(np.zeros(3, np.float32)), vs.state(np.zeros(3, np.float32))
    updates = {one: one + 1.0, two: two + 2.0}
    before, _ = vs.build_graph([one + 0.5, two + 0.5], updates)
    after = optimize(before)
    assert ops_of(after) == ops_of(before) and len(after.initial) == 2


def test_what_constants_make_is_a_constant() -> None:
    x = x_of()
    table = vs.sqrt(vs.constant(np.arange(6, dtype=np.float32)) + 1.0, name="table")
    before, after = both(vs.add(x, table, name="end"))
    assert ops_of(after) == ["add"] and after.nodes[after.nodes[-1].inputs[1]].op == "constant"
    again = optimize(vs.build_graph(vs.add(x, table, name="end"))[0])
    assert list(again.keys.values()) == list(after.keys.values())
    check(before, after, x=EDGES.reshape(SHAPE))


def test_large_constants_and_weights_are_not_computed_beforehand() -> None:
    grown = vs.expand(vs.constant(np.ones((1, 1), np.float32)), (300, 300))
    scaled = vs.weight(np.ones((6,), np.float32)) + 1.0
    _, after = both([grown * vs.input("y", ()), scaled * x_of()])
    assert ops_of(after) == ["expand", "mul", "add", "mul"]


def test_scales_are_one_where_that_is_exact() -> None:
    x, n = x_of(), vs.input("n", SHAPE, "int32")
    exact, not_exact, whole = x * 2.0 * 4.0, x * 0.5 * 3.0, n * 7 * 100000
    before, after = both([exact, not_exact, whole, x / 4.0, x / 3.0])
    assert ops_of(after) == ["mul", "mul", "mul", "mul", "mul", "div"]
    check(before, after, x=EDGES.reshape(SHAPE), n=np.arange(24, dtype=np.int32).reshape(SHAPE) - 9)


def test_what_is_observed_or_an_output_stays_a_value_of_its_own() -> None:
    x = x_of()
    seen = vs.mul(x, 1.0, name="seen")
    twin = vs.exp(x, name="twin")
    outputs = [vs.exp(seen, name="end"), twin]
    _, after = both(outputs, observed=frozenset({"seen", "twin"}))
    assert {"seen", "twin", "end"} <= {n.name for n in after.nodes}


def test_only_what_is_in_one_place_becomes_one() -> None:
    x, y = x_of(), vs.input("y", (4, 5))
    transposed = vs.transpose(x, name="turned")
    outputs = [vs.matmul(transposed, y, name="end"), vs.exp(x, name="a"), vs.exp(x, name="b")]
    _, after = both(outputs, pinned_devices={"turned": "cpu", "b": "cpu"})
    assert {"turned", "a", "b", "end"} <= {n.name for n in after.nodes}
    _, after = both(outputs, pinned_devices={"turned": "cpu", "end": "cpu", "b": "cpu", "a": "cpu"})
    assert len(after.ops) == 2


def test_a_graph_in_which_nothing_can_be_left_out_is_itself() -> None:
    before, after = both(vs.exp(x_of()))
    assert before is after


# -- through the scheduler -----------------------------------------------------------------------


def test_a_scheduler_can_leave_graphs_as_they_are(scheds: Scheds) -> None:
    y = vs.exp(vs.mul(x_of(), 1.0, name="gone"), name="end")
    feeds = {"x": EDGES.reshape(SHAPE)}
    with_passes, without = (sched.compile(y) for sched in scheds)
    assert len(with_passes.plan.graph.ops) == 1 and len(without.plan.graph.ops) == 2
    np.testing.assert_array_equal(with_passes(**feeds), without(**feeds))
    with_passes.close(), without.close()


def test_a_variable_turns_passes_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_OPTIMIZE", "0")
    with vs.Scheduler(["cpu"]) as sched:
        assert len(sched.reserve(vs.exp(x_of() * 1.0)).graph.ops) == 2


def test_names_that_are_gone_are_found(scheds: Scheds) -> None:
    transposed = vs.transpose(vs.input("y", (5, 6)), name="first")
    plan = scheds[0].reserve(vs.matmul(x_of(), transposed, name="end"))
    assert plan.find("first") == plan.find("end")
    assert "stands for first" in plan.explain("first")
    assert plan.find("fir*") == plan.find("first")
    with pytest.raises(PlanError, match="close: first"):
        plan.explain("frist")


def test_observers_see_what_they_asked_for(scheds: Scheds) -> None:
    x = x_of()
    stored = vs.mul(x, 1.0, name="kept")
    y = vs.exp(vs.add(stored, stored, name="sum"), name="end")
    seen: dict[str, NDArray] = {}
    first = scheds[0].compile(y, observe={stored: seen.__setitem__, "su*": seen.__setitem__})
    feeds = {"x": np.full(SHAPE, 0.5, np.float32)}
    first(**feeds)
    assert set(seen) == {"kept", "sum"} and np.all(seen["sum"] == 1.0)
    seen.clear()
    again = scheds[0].compile(y, observe={stored: seen.__setitem__, "su*": seen.__setitem__})
    assert again.plan is first.plan  # one compiled graph, which tells the second caller too
    again(**feeds)
    assert set(seen) == {"kept", "sum"}
    first.close(), again.close()


def test_observed_values_stay_two_though_they_become_equal() -> None:
    """As constants of a chain, numbers of different shapes are the same word."""
    x, seen = x_of(), list[str]()
    kinds = (np.array(1.5, np.float32), np.array([1.5], np.float32))
    a, b = (
        vs.mul(vs.relu(vs.add(x, vs.constant(number))), x, name=name)
        for name, number in zip("ab", kinds, strict=True)
    )
    with vs.Scheduler(["cpu"]) as sched:
        see = {"a": lambda name, value: seen.append(name), "b": lambda name, value: False}
        run = sched.compile(a + b, observe=see)
        with pytest.raises(vs.RunCancelled):
            run(x=np.ones(SHAPE, np.float32))
    assert seen == ["a"]


def test_a_pattern_places_what_has_become_part_of_another() -> None:
    x = x_of()
    z = vs.relu(x, name="z")
    parts = [vs.exp(z, name="p3"), vs.add(vs.relu(x, name="p2"), 1.0, name="rest")]
    with scheduler(1)[0] as sched:
        plan = sched.reserve(parts, {"p*": "cpu"})
        assert plan.graph.aliases["p2"] == plan.find("z")[0]
        assert plan.placements[plan.find("p2")[0]].device == plan.topology.cpu


def test_constants_of_constants_cost_no_more_than_their_number() -> None:
    """Keys of folded constants must not hold those of all that they are made of."""
    c = vs.constant(np.full(5, 1e-6, np.float32))
    for _ in range(60):
        c = c + c
    before, after = both(c + vs.input("x", (5,)))
    assert ops_of(after) == ["add"]
    check(before, after, x=np.ones(5, np.float32))
    keys = [after.keys[n.id] for n in after.nodes if n.op == "constant"]
    assert all(len(repr(key)) < 1000 for key in keys)


def test_long_products_are_walked_without_recursion() -> None:
    x = y = x_of()
    for _ in range(3000):
        y = vs.square(y)
    root = vs.sqrt(vs.reduce_mean(y, -1, keepdims=True) + 1e-5)
    graph, _ = vs.build_graph(x / root)
    assert len(optimize(graph).aliases) > 2900


def test_limits_are_what_all_devices_in_use_allow() -> None:
    sizes = [Limits(storage_buffers=8, max_buffer_bytes=100), Limits(storage_buffers=5)]
    specs = [DeviceSpec(f"d{i}", "vulkan", limits=limits) for i, limits in enumerate(sizes)]
    found = least_limits(Topology((*specs, DeviceSpec("cpu", "cpu"))))
    assert found is not None
    assert (found.storage_buffers, found.max_buffer_bytes) == (5, 100)
    gone = replace(specs[1], disabled_reason="lost")
    assert least_limits(Topology((specs[0], gone))) == sizes[0]


def test_limits_are_the_same_for_any_order_of_devices() -> None:
    lanes = [(64, False), (8, True), (4, True)]
    limits = [Limits(subgroup_size=count, software=software) for count, software in lanes]
    for order in permutations(limits):
        specs = tuple(DeviceSpec(f"d{i}", "vulkan", limits=each) for i, each in enumerate(order))
        assert least_limits(Topology(specs)) == limits[2]


def test_placements_hold_by_tensor_and_by_pattern(scheds: Scheds) -> None:
    sched = scheds[0]
    first = sched.devices[0].name
    x = x_of()
    a = vs.exp(x, name="a")
    b = vs.mul(vs.exp(x, name="b"), 1.0, name="one")
    placement: dict[str | vs.Tensor, str] = {"[b]": "cpu", a: first, "one": "cpu"}
    plan = sched.reserve([a, vs.add(b, 1.0, name="end")], placement)
    named = {name: plan.placements[plan.find(name)[0]].device for name in ("a", "b")}
    assert plan.topology.devices[named["a"]].name == first
    assert named["b"] == plan.topology.cpu


@pytest.mark.parametrize("kind", ["weight", "state"])
def test_what_reads_a_placed_parameter_has_its_home(kind: str) -> None:
    """So ops that the planner pulls to two devices do not become one."""
    ones, x = np.ones(SHAPE, np.float32), x_of()
    first, second = (
        vs.state(ones, name) if kind == "state" else vs.weight(ones, name=name) for name in "vw"
    )
    graph, _ = vs.build_graph(vs.mul(vs.mul(x, first, name="a"), second, name="b"))
    pinned_devices = {"v": "vulkan:0", "w": "vulkan:1"}
    wanted = RewriteConstraints(pinned_devices=pinned_devices).propagate_pins(graph)
    assert wanted.pinned_devices == pinned_devices | {"a": "vulkan:0", "b": "vulkan:1"}
    assert ops_of(optimize(graph, wanted)).count("mul") == 2


def test_equal_calls_for_different_devices_stay_two() -> None:
    """What is made once and read on both would have to cross."""
    x = x_of()
    outputs = [
        vs.add(vs.exp(x, name="left"), 1.0, name="a"),
        vs.add(vs.exp(x, name="right"), 2.0, name="b"),
    ]
    _, together = both(outputs)
    assert ops_of(together).count("exp") == 1
    before, apart = both(outputs, pinned_devices={"a": "vulkan:0", "b": "vulkan:1"})
    assert ops_of(apart).count("exp") == 2
    check(before, apart, x=np.ones(SHAPE, np.float32))
