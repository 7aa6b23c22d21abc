"""Verify accepts every plan the planner makes and refuses each way of breaking one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import (
    NAMED,
    SHAPE,
    A,
    B,
    Named,
    assert_memory,
    chain,
    make_plan,
    make_topology,
    node_id,
    pair,
    random_outputs,
    random_plan,
    source,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.common.dtypes import TensorType
from vksched.ir.graph import Graph
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import Span, scratch_of
from vksched.plan.verify.happens_before import check_plan
from vksched.topology.limits import Limits

Change = Callable[[Plan], Plan]
RANDOM = settings(deadline=None, max_examples=examples(50))
seeds, counts, devices = st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 4)
random_plans = st.builds(random_plan, seeds, counts, devices)


def with_split(plan: Plan, at: int, **changes: Any) -> Plan:
    """The plan with one split changed."""
    splits = tuple(replace(s, **changes) if s.id == at else s for s in plan.splits)
    return replace(plan, splits=splits)


def with_memory(plan: Plan, **changes: Any) -> Plan:
    """The plan with the memory of the first device changed."""
    return replace(plan, memory=(replace(plan.memory[0], **changes), *plan.memory[1:]))


def with_location(plan: Plan, name: str, span: Span | None, device: int = 0) -> Plan:
    """The plan with a value moved, or without a place for it."""
    locations: dict[tuple[int, int], Span] = dict(plan.locations)
    del locations[device, node_id(plan, name)]
    if span is not None:
        locations[device, node_id(plan, name)] = span
    return replace(plan, locations=locations)


def refused(plan: Plan) -> bool:
    """Return True if verify refuses a plan."""
    with suppress(vs.PlanError):
        return plan.verify() is None
    return True


def without_one(plan: Plan, field: str) -> list[Plan]:
    """The plan without one of its waits or barriers, for each of them."""
    out = [
        with_split(plan, s.id, **{field: tuple(x for x in getattr(s, field) if x != gone)})
        for s in plan.splits
        for gone in getattr(s, field)
    ]
    if field == "waits":
        ends = plan.final_waits
        out += [replace(plan, final_waits=tuple(x for x in ends if x != w)) for w in ends]
    return out


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_named_shapes_are_sound_and_nothing_in_them_is_spare(shape: Named) -> None:
    plan = make_plan(*shape.build())
    assert plan.verify() is plan and plan.graph.verify() is plan.graph
    assert all(refused(p) for p in without_one(plan, "waits"))
    assert all(refused(p) for p in without_one(plan, "barriers"))


@RANDOM
@given(random_plans)
def test_random_plans_are_sound_and_need_every_wait_and_barrier(plan: Plan) -> None:
    assert plan.graph.verify() is plan.graph and plan.verify() is plan
    assert_memory(plan)
    assert all(refused(p) for p in without_one(plan, "waits"))
    assert all(refused(p) for p in without_one(plan, "barriers")[:20])


@RANDOM
@given(random_plans)
def test_random_plans_refuse_lost_copies(plan: Plan) -> None:
    """A part that crosses beside its whole is spare: readers find it in the whole."""
    for split in plan.splits:
        for field in ("uploads", "downloads"):
            here = [s for s in plan.splits if s.device == split.device]
            wholes = {c.node for s in here for c in getattr(s, field)}
            for copy in getattr(split, field):
                if plan.graph.view_base(copy.node) not in wholes - {copy.node}:
                    left = tuple(c for c in getattr(split, field) if c != copy)
                    assert refused(with_split(plan, split.id, **{field: left}))


@RANDOM
@given(seeds, counts, devices, st.integers(0, 40_000))
def test_random_graphs_fit_any_memory(seed: int, count: int, devices: int, memory: int) -> None:
    graph, _ = vs.build_graph(random_outputs(np.random.default_rng(seed), count))
    plan = vs.plan_graph(graph, make_topology(devices, [memory] * devices))
    assert all(m.peak_bytes <= memory for m in plan.memory[:-1])


@RANDOM
@given(seeds, counts, devices)
def test_random_graphs_give_the_same_plan_twice(seed: int, count: int, devices: int) -> None:
    one, two = (random_plan(seed, count, devices) for _ in range(2))
    assert one.as_dict() == two.as_dict() and one.explain() == two.explain()
    assert one.splits == two.splits and one.locations == two.locations


def swapped(plan: Plan) -> Plan:
    """The first two splits change places, ids and all."""
    one, two, *rest = plan.splits
    return replace(plan, splits=(replace(two, id=0, waits=()), replace(one, id=1), *rest))


def over_operand(plan: Plan) -> Plan:
    """A result lies on its operand."""
    return with_location(plan, "n1", plan.locations[0, node_id(plan, "n0")])


def moved_page(plan: Plan, page: int = 9, offset: int = 0) -> Plan:
    """The first value lies elsewhere."""
    span = plan.locations[0, node_id(plan, "n0")]
    return with_location(plan, "n0", span._replace(page=page, offset=span.offset + offset))


def elsewhere(plan: Plan) -> Plan:
    """A value is copied in where nobody reads it."""
    (copy,) = plan.splits[0].uploads
    target = plan.locations[0, node_id(plan, "n0")]
    return with_split(plan, 0, uploads=(copy._replace(target=target),))


def small_topology(plan: Plan, **changes: Any) -> Plan:
    """The first device is smaller than the plan thinks."""
    first, *rest = plan.topology.devices
    return replace(
        plan, topology=replace(plan.topology, devices=(replace(first, **changes), *rest))
    )


def copied_from(plan: Plan, source: int) -> Plan:
    """The transfer comes from another split."""
    (copy,) = plan.splits[1].uploads
    return with_split(plan, 1, uploads=(copy._replace(source=source),))


def with_barrier(plan: Plan, position: int) -> Plan:
    """The first split has one more barrier."""
    return with_split(plan, 0, barriers=(*plan.splits[0].barriers, position))


BROKEN: dict[str, tuple[Change, str]] = {
    "wait dropped": (lambda p: with_split(p, 1, waits=()), "reads n1 before split 0 was waited"),
    "end not awaited": (lambda p: replace(p, final_waits=()), "splits .* are not complete"),
    "wait for a later split": (lambda p: with_split(p, 0, waits=(1,)), "before it is submitted"),
    "copy in dropped": (lambda p: with_split(p, 1, uploads=()), "needs n1, which is not there"),
    "input dropped": (lambda p: with_split(p, 0, uploads=()), "needs x, which is not there"),
    "copy out dropped": (lambda p: with_split(p, 0, downloads=()), "does not give it out"),
    "output dropped": (lambda p: with_split(p, 2, downloads=()), "'output_0' is not copied out"),
    "splits swapped": (swapped, "n1 is copied in from split 0, which does not give it out"),
    "splits out of order": (lambda p: replace(p, splits=p.splits[::-1]), "split 2 stands at 0"),
    "split lost": (lambda p: replace(p, splits=p.splits[:-1]), r"or never: \['n3'"),
    "nodes swapped": (lambda p: with_split(p, 0, nodes=p.splits[0].nodes[::-1]), "not there"),
    "node twice": (lambda p: with_split(p, 2, nodes=p.splits[0].nodes), "runs in splits 0, 2"),
    "node lost": (lambda p: with_split(p, 0, nodes=p.splits[0].nodes[:1]), r"or never: \['n1'\]"),
    "other device": (lambda p: with_split(p, 1, device=2), "another device than its place"),
    "copied from elsewhere": (lambda p: copied_from(p, 2), "copied in from split 2"),
    "copied from the caller": (lambda p: copied_from(p, -1), "from the caller, but is no input"),
    "placement lost": (lambda p: replace(p, placements=p.placements[1:]), "placements for"),
    "barriers dropped": (lambda p: with_split(p, 0, barriers=()), "needs a barrier before it"),
    "result over operand": (over_operand, "n1 is written over n0, which is still needed"),
    "page that is not there": (moved_page, "lies outside the pages"),
    "beyond the page": (lambda p: moved_page(p, 0, 1 << 20), "lies outside the pages"),
    "not aligned": (lambda p: moved_page(p, 0, -1), "not aligned to 16 bytes"),
    "copied to another place": (elsewhere, "copied to another place"),
    "weights lost": (lambda p: with_memory(p, weights=()), "constant.*, which is not there"),
    "too few bytes": (lambda p: with_memory(p, peak_bytes=64), "bytes, the plan says 64"),
    "over the memory": (lambda p: small_topology(p, memory_bytes=4096), "of 4096 bytes"),
    "over the page": (
        lambda p: small_topology(p, max_buffer_bytes=2048),
        "over null:0's 2048|the largest",
    ),
    "no cpu": (lambda p: replace(p, topology=replace(p.topology, devices=())), "expected one cpu"),
    "no copies": (lambda p: replace(p, copies=0), "0 copies, memory of 4 devices"),
    "memory lost": (lambda p: replace(p, memory=p.memory[1:]), "1 copies, memory of 3 devices"),
    "resident bytes below none": (lambda p: with_memory(p, resident_bytes=-1), "holds -1 of"),
    "more resident than is kept": (
        lambda p: with_memory(p, resident_bytes=p.memory[0].weight_bytes + 1),
        "null:0 holds .* bytes",
    ),
    "barrier before the first item": (lambda p: with_barrier(p, -1), "has barriers at"),
    "barrier behind the last item": (lambda p: with_barrier(p, 4), "has barriers at .*, of 4"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_plans_are_refused(name: str) -> None:
    change, message = BROKEN[name]
    plan = make_plan(*chain([A, A, B, A]))
    with pytest.raises(vs.PlanError, match=message):
        change(plan).verify()


def stateful() -> Plan:
    """A value that is shown, a weight on another device, states that are read and two that are
    written; of float16, which is computed in scratch memory.

        split 0 on A   a = x + idle, shown          split 1 on A   b = a * one, c = sums (b + two)
        split 2 on B   d = a * w                    split 3 on A   one = b, two = c
    """
    zeros = np.zeros(SHAPE, np.float16)
    idle, one, two = (vs.state(zeros, name, backup=False) for name in ("idle", "one", "two"))
    a = vs.add(vs.input("x", SHAPE, "float16"), idle, name="a")
    b = vs.mul(a, one, name="b")
    c = vs.cumsum(vs.add(b, two, name="bare"), axis=1, name="c")
    d = vs.mul(a, vs.weight(zeros, "w"), name="d")
    graph, ids = vs.build_graph(d, updates={one: b, two: c})
    overrides = [("[abc]", A), ("bare", A), ("[wd]", B)]
    plan = vs.plan_graph(graph, make_topology(), overrides=overrides, observed=[ids[a]])
    return check_plan(plan)


def placed(plan: Plan, device: int, *names: str) -> Plan:
    """The plan with some nodes placed elsewhere."""
    moved = {node_id(plan, name) for name in names}
    placements = (
        replace(p, device=device) if i in moved else p for i, p in enumerate(plan.placements)
    )
    return replace(plan, placements=tuple(placements))


def state_moved(plan: Plan) -> Plan:
    """Two states and their next values change places."""
    one, two = (plan.locations[0, node_id(plan, name)] for name in ("one", "two"))
    for name, span in (("one", two), ("one.next", two), ("two", one), ("two.next", one)):
        plan = with_location(plan, name, span)
    return plan


def on_a_state(plan: Plan) -> Plan:
    """A value lies on a state that nothing reads any more in this run."""
    return with_location(plan, "c", plan.locations[0, node_id(plan, "idle")])


def without_scratch(plan: Plan) -> Plan:
    """A node has no scratch memory."""
    gone = 0, scratch_of(node_id(plan, "c"))
    locations = {key: span for key, span in plan.locations.items() if key != gone}
    return replace(plan, locations=locations)


def shown_late(plan: Plan) -> Plan:
    """The wait for what is shown is made by the split after the next one."""
    return with_split(with_split(plan, 1, waits=()), 2, waits=(0,))


def commit_with_more(plan: Plan) -> Plan:
    """A node runs beside those that write states."""
    *nodes, last = plan.splits[1].nodes
    plan = with_split(plan, 1, nodes=tuple(nodes), barriers=())
    return with_split(plan, 3, nodes=(last, *plan.splits[3].nodes), barriers=(2,))


BROKEN_STATEFUL: dict[str, tuple[Change, str]] = {
    "resident on the host": (lambda p: placed(p, 2, "w"), "w is resident, though"),
    "written elsewhere": (
        lambda p: with_split(placed(p, 1, "one.next", "two.next"), 3, device=1),
        "one.next writes a state of another device",
    ),
    "too few bytes of states": (lambda p: with_memory(p, state_bytes=0), "the plan says 0"),
    "state moved": (state_moved, "is not where its state is"),
    "value on a state": (on_a_state, "c is not in the memory of its kind"),
    "no scratch memory": (without_scratch, "c has no scratch memory"),
    "shown, not copied out": (
        lambda p: with_split(p, 2, observed=(node_id(p, "c"),)),
        "c is observed, but not copied out",
    ),
    "too early for what is shown": (shown_late, "split 1 starts before what split 0 shows"),
    "commit too early": (
        lambda p: with_split(p, 3, waits=(2,)),
        "split 3 writes states before split 1 is complete",
    ),
    "commit with more": (commit_with_more, "split 3 writes states and runs c"),
}


@pytest.mark.parametrize("name", list(BROKEN_STATEFUL))
def test_broken_plans_with_states_are_refused(name: str) -> None:
    change, message = BROKEN_STATEFUL[name]
    plan = stateful()
    assert plan.verify() is plan
    with pytest.raises(vs.PlanError, match=message):
        change(plan).verify()


def counted_from_the_end(plan: Plan) -> Plan:
    """All that is on the first device, as if it were counted from the last one on."""
    back = -len(plan.topology.devices)
    splits = [replace(s, device=back) if s.device == 0 else s for s in plan.splits]
    places = [replace(p, device=back) if p.device == 0 else p for p in plan.placements]
    locations = {
        (back if d == 0 else d, value): span for (d, value), span in plan.locations.items()
    }
    return replace(plan, splits=tuple(splits), placements=tuple(places), locations=locations)


def with_copy(plan: Plan, node: int) -> Plan:
    """The first copy from the caller is of another node."""
    split = next(s for s in plan.splits if s.uploads)
    first, *others = split.uploads
    return with_split(plan, split.id, uploads=(first._replace(node=node), *others))


NUMBERS: dict[str, tuple[Change, str]] = {
    "devices from the end": (counted_from_the_end, r"devices \[-3, .*expected some of 3"),
    "a device that is not there": (lambda p: placed(p, 7, "w"), "devices .*7"),
    "a copy from the end": (lambda p: with_copy(p, -len(p.graph.nodes)), "nodes -"),
    "a copy of no node": (lambda p: with_copy(p, 10**6), "nodes .* to 1000000"),
    "a node from the end": (lambda p: with_split(p, 0, observed=(-1,)), "nodes -1 to"),
    "a place of no node": (
        lambda p: replace(p, locations={**p.locations, (0, scratch_of(10**6)): Span(0, 0, 4)}),
        "nodes .* to 1000000",
    ),
    "what is no weight": (
        lambda p: with_memory(p, weights=(node_id(p, "a"),)),
        r"weights \(\d+,\) of",
    ),
    "what is no state": (
        lambda p: with_memory(p, states=(*p.memory[0].states, node_id(p, "a"))),
        "states .* in the memory of",
    ),
    "a state less": (lambda p: with_memory(p, states=p.memory[0].states[1:]), "states .* of"),
    "a state twice": (
        lambda p: with_memory(p, states=p.memory[0].states * 2),
        "states .* expected",
    ),
}


@pytest.mark.parametrize("name", list(NUMBERS))
def test_numbers_that_name_nothing_are_refused(name: str) -> None:
    change, message = NUMBERS[name]
    with pytest.raises(vs.PlanError, match=message):
        change(stateful()).verify()


def test_two_values_in_one_window_are_refused() -> None:
    plan = make_plan(*pair())
    one, two = plan.splits[0].downloads
    with pytest.raises(vs.PlanError, match="share words of the download buffer"):
        with_split(plan, 0, downloads=(one, two._replace(staging=one.staging))).verify()


def test_node_on_a_device_that_cannot_is_refused() -> None:
    plan = make_plan(vs.gather(source(), np.arange(4, dtype=np.int32), name="pick"))
    with pytest.raises(vs.PlanError, match="pick cannot run where it is placed: gather binds 4"):
        small_topology(plan, limits=Limits(storage_buffers=3)).verify()


def thin(plan: Plan, part: str) -> Plan:
    """A span of fewer words than its value has."""
    if part == "location":
        span = plan.locations[0, node_id(plan, "n0")]
        return with_location(plan, "n0", span._replace(words=4))
    copy = getattr(plan.splits[0], part)[0]
    return with_split(plan, 0, **{part: (copy._replace(staging=Span(0, 0, 4)),)})


GAPS: dict[str, Change] = {
    "place with too few words": lambda p: thin(p, "location"),
    "upload buffer with too few words": lambda p: thin(p, "uploads"),
    "download buffer with too few words": lambda p: thin(p, "downloads"),
    "weight bytes that are too few": lambda p: with_memory(p, weight_bytes=0),
    "value without a place": lambda p: with_location(p, "n0", None),
    "negative offset": lambda p: moved_page(p, 0, -(1 << 20)),
}


@pytest.mark.parametrize("name", list(GAPS))
def test_wrong_sizes_are_refused(name: str) -> None:
    with pytest.raises(vs.PlanError):
        GAPS[name](make_plan(*chain([A, A, B, A]))).verify()


def with_node(graph: Graph, at: int, **changes: Any) -> Graph:
    """The graph with one node changed; node 2, n0, adds the constant 1 to the input 0."""
    nodes = tuple(replace(n, **changes) if n.id == at else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


MALFORMED: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "id": (lambda g: with_node(g, 2, id=7), "expected id 2, got 7"),
    "name twice": (lambda g: with_node(g, 2, name="x"), "two nodes are named 'x'"),
    "order": (lambda g: with_node(g, 2, inputs=(0, 4)), "n0 reads a value that comes later"),
    "no data": (lambda g: replace(g, data={}), "has no data of shape"),
    "shape of data": (lambda g: replace(g, data={1: np.ones(3)}), "has no data of shape"),
    "type": (lambda g: with_node(g, 2, type=TensorType((3,), "float32")), "n0 is .*, its rule"),
    "outputs alike": (lambda g: replace(g, outputs=(("y", 2),) * 2), "two outputs share a name"),
    "output": (lambda g: replace(g, outputs=(("y", 99),)), "output 'y' names no node"),
    "a leaf that reads": (lambda g: with_node(g, 1, inputs=(0,)), "though it is a leaf"),
    "kept": (lambda g: replace(g, backed_up_states=(99,)), "backed-up states or aliases .*99"),
    "merged": (lambda g: replace(g, aliases={"z": -1}), "backed-up states or aliases .*-1"),
    "data of an op": (lambda g: replace(g, data={**g.data, 2: g.data[1]}), "data of weights"),
    "a state of nobody": (lambda g: replace(g, initial={2: np.ones(1)}), "data of weights"),
}


def test_states_begin_with_what_their_type_says() -> None:
    held = vs.state(np.zeros(4, np.float32), "s")
    graph, ids = vs.build_graph([held + 1], updates={held: held + 1})
    for wrong in (np.zeros(3, np.float32), np.zeros(4, np.int32)):
        with pytest.raises(vs.GraphError, match="s starts with"):
            replace(graph, initial={ids[held]: wrong}).verify()


@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_graphs_are_refused(name: str) -> None:
    change, message = MALFORMED[name]
    graph, _ = vs.build_graph(chain([A, A])[0])
    with pytest.raises(vs.GraphError, match=message):
        change(graph).verify()


MALFORMED_STATES: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "next value of an input": (lambda g: with_node(g, 4, inputs=(0, 3)), "assigns to x, no state"),
    "next value from a state": (lambda g: with_node(g, 4, inputs=(1, 1)), "the memory of a state"),
    "no first value": (lambda g: replace(g, initial={}), "s has nothing to start with"),
    "no key": (lambda g: replace(g, keys={}), "s has nothing to start with"),
}


@pytest.mark.parametrize("name", list(MALFORMED_STATES))
def test_malformed_states_are_refused(name: str) -> None:
    change, message = MALFORMED_STATES[name]
    held = vs.state(np.zeros(64, np.float32), name="s")
    graph, _ = vs.build_graph([vs.input("x", 64)], {held: held + 1.0})
    assert [node.op for node in graph.nodes] == ["input", "state", "constant", "add", "assign"]
    graph.verify()
    with pytest.raises(vs.GraphError, match=message):
        change(graph).verify()


SLIPS: dict[str, Callable[[Graph], Graph]] = {
    "element type of data": lambda g: replace(g, data={**g.data, 1: g.data[1].astype(np.int32)}),
    "shapes that do not fit": lambda g: replace(
        with_node(g, 1, type=TensorType((7,), "float32")), data={**g.data, 1: np.ones(7)}
    ),
    "too few operands": lambda g: with_node(g, 2, inputs=(0,)),
    "unknown op": lambda g: with_node(g, 2, op="nonsense"),
}


@pytest.mark.parametrize("name", list(SLIPS))
def test_other_malformed_graphs_are_refused(name: str) -> None:
    graph, _ = vs.build_graph(chain([A, A])[0])
    with pytest.raises(vs.GraphError):
        SLIPS[name](graph).verify()


def test_building_refuses_names_named_twice_and_what_is_no_tensor() -> None:
    x = source()
    with pytest.raises(vs.GraphError, match="two tensors are named 'a'"):
        vs.build_graph([vs.exp(x, name="a"), vs.neg(x, name="a")])
    with pytest.raises(vs.GraphError, match="expected a Tensor as output 'output_0'"):
        vs.build_graph([1.0])  # type: ignore[list-item]
    with pytest.raises(vs.GraphError, match="at least one output"):
        vs.build_graph([])
