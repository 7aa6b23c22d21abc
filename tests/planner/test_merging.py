"""What nothing holds moves beside its neighbours, alone or as a group; no more crosses for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import (
    CPU,
    A,
    B,
    device_of,
    make_plan,
    make_topology,
    picky,
    random_outputs,
    rule_of,
    source,
    steps,
    transfers_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.plan.plan import Plan
from vksched.planner.placement.merge_neighbours import Groups
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology


def lookup(value: vs.Tensor, name: str) -> vs.Tensor:
    """What the first device of `picky(False, True)` cannot."""
    return vs.gather(value, np.arange(8, dtype=np.int32), name=name)


def around(length: int = 2) -> vs.Tensor:
    """A chain with a lookup in its middle."""
    before = steps(source(), [f"a{i}" for i in range(length)])[-1]
    return steps(lookup(before, "pick"), [f"b{i}" for i in range(length)])[-1]


@pytest.mark.parametrize("length", [1, 2, 20])
def test_chains_around_an_op_of_one_device_join_it_as_a_whole(length: int) -> None:
    plan = make_plan(around(length), (), picky(False, True))
    assert {plan.topology.devices[s.device].name for s in plan.splits} == {B}
    assert not transfers_of(plan) and len(plan.splits) == 1
    if length > 1:
        assert (
            rule_of(plan, "a0")
            == f"moved next to pick, {length} nodes as one: 2048 bytes less transferred"
        )


def test_branches_of_a_group_move_with_it() -> None:
    a, b = steps(source(), "ab")
    h = vs.add(vs.exp(b, name="left"), vs.neg(b, name="right"), name="join")
    plan = make_plan(vs.neg(lookup(h, "pick"), name="end"), (), picky(False, True))
    assert {device_of(plan, n) for n in ("a", "b", "left", "right", "join", "end")} == {B}


def test_a_group_stays_where_a_node_of_it_is_placed_or_reads_a_weight() -> None:
    plan = make_plan(around(), {"a0": A}, picky(False, True))
    assert device_of(plan, "a0") == A and len(transfers_of(plan)) == 1
    w = vs.weight(np.ones((8, 64), np.float32), "w")
    h = vs.exp(vs.mul(source(), w, name="m"), name="e")
    plan = make_plan(vs.neg(lookup(h, "pick")), {"w": A}, picky(False, True))
    assert device_of(plan, "m") == A and len(transfers_of(plan)) == 1


def test_numpy_draws_no_group() -> None:
    plan = make_plan(around(20), (), picky(False))
    assert device_of(plan, "pick") == CPU
    assert all(device_of(plan, f"{branch}{i}") == A for branch in "ab" for i in range(1, 19))


@pytest.mark.parametrize(("bytes_per_s", "device"), [(1e12, B), (1e7, A)])
def test_a_slow_device_draws_no_group_that_takes_longer_there_than_the_copy(
    bytes_per_s: float, device: str
) -> None:
    fast = DeviceSpec(A, "null", limits=Limits(storage_buffers=3), bytes_per_s=1e12)
    other = DeviceSpec(B, "null", bytes_per_s=bytes_per_s)
    plan = make_plan(around(8), (), Topology((fast, other, DeviceSpec("cpu", "cpu"))))
    assert [device_of(plan, n) for n in ("a0", "pick", "b7")] == [device, B, device]


@pytest.mark.parametrize(
    ("link", "device"),
    [
        (vs.Link(1e12), A),
        (vs.Link(1e6), B),
        (vs.Link(1e12, latency_s=1e-3), B),
    ],
    ids=["fast", "few bytes a second", "late"],
)
def test_a_group_moves_where_the_link_is_slower_than_the_other_device(
    link: vs.Link, device: str
) -> None:
    """On the other device the group takes some 30 us longer, of bytes that memory holds."""
    fast = DeviceSpec(A, "null", limits=Limits(storage_buffers=3), bytes_per_s=1e12, submit_s=0.0)
    slow = DeviceSpec(B, "null", bytes_per_s=1e9, submit_s=0.0)
    topology = Topology((fast, slow, DeviceSpec("cpu", "cpu")), vs.Links(default=link))
    plan = make_plan(around(8), (), topology)
    assert [device_of(plan, n) for n in ("a0", "pick", "b7")] == [device, B, device]


def test_only_links_on_the_way_count() -> None:
    """The slow link of a third device keeps nothing apart and draws nothing together."""
    specs = [
        DeviceSpec(A, "null", limits=Limits(storage_buffers=3), bytes_per_s=1e12, submit_s=0.0),
        DeviceSpec(B, "null", bytes_per_s=1e9, submit_s=0.0),
        DeviceSpec("null:2", "null", limits=Limits(storage_buffers=3), submit_s=0.0),
    ]
    for name, device in ((B, B), ("null:2", A)):
        links = vs.Links(((name, CPU, vs.Link(1e6)),), vs.Link(1e12))
        topology = Topology((*specs, DeviceSpec(CPU, "cpu")), links)
        plan = make_plan(around(8), (), topology)
        assert device_of(plan, "a0") == device


def test_a_full_device_draws_no_group() -> None:
    topology = picky(False, True)
    small = replace(topology.devices[1], memory_bytes=5 * 2048)
    topology = replace(topology, devices=(topology.devices[0], small, topology.devices[2]))
    x = source()
    branches = [vs.exp(vs.add(x, float(i)), name=f"e{i}") for i in range(8)]
    rows = vs.concat(branches, name="rows")
    first = rows[:8]
    pick = lookup(vs.exp(first, name="a"), "pick")
    plan = make_plan(vs.exp(pick, name="end"), (), topology)
    assert [device_of(plan, n) for n in ("e0", "rows", "pick")] == [A, A, B]
    assert plan.memory[1].peak_bytes <= 5 * 2048


def without_groups(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: Any, free: Any, roomy: Any) -> None:
        """No group moves."""

    patch.setattr(Groups, "merge", nothing)


def costs(plan: Plan) -> tuple[int, int]:
    return len(plan.transfers), plan.transfer_bytes


@settings(deadline=None, max_examples=examples(150))
@given(
    st.integers(0, 1 << 32),
    st.integers(1, 60),
    st.lists(st.booleans(), min_size=2, max_size=4),
    st.floats(0, 0.5),
)
def test_groups_never_make_more_cross(
    seed: int, count: int, candidate_devices: list[bool], pinned: float
) -> None:
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, count))
    topology = picky(*candidate_devices)
    pins = [
        (n.id, topology.devices[int(rng.integers(0, len(candidate_devices) + 1))].name)
        for n in graph.ops
        if rng.random() < pinned
    ]
    with pytest.MonkeyPatch.context() as patch:
        without_groups(patch)
        alone = vs.plan_graph(graph, topology, overrides=pins)
    grouped = vs.plan_graph(graph, topology, overrides=pins)
    assert costs(grouped)[0] <= costs(alone)[0] and costs(grouped)[1] <= costs(alone)[1]


def test_groups_often_make_less_cross() -> None:
    alone, grouped = [], []
    for seed in range(40):
        graph, _ = vs.build_graph(random_outputs(np.random.default_rng(seed), 10 + seed))
        topology = picky(False, True, seed % 2 == 0)
        with pytest.MonkeyPatch.context() as patch:
            without_groups(patch)
            alone.append(costs(vs.plan_graph(graph, topology)))
        grouped.append(costs(vs.plan_graph(graph, topology)))
    assert sum(n for n, _ in grouped) < 0.8 * sum(n for n, _ in alone)


def test_a_part_that_crosses_counts_alone() -> None:
    a = vs.exp(vs.input("x", (64, 64)), name="a")
    b, c = steps(a[0], ["b", "c"])
    outputs = vs.neg(vs.concat([c] * 8, name="wide"), name="end")
    plan = make_plan([outputs, a], {"a": A, "end": B}, make_topology(2))
    assert plan.transfer_bytes == 4 * 64
