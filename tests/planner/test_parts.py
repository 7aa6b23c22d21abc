"""Cutting plans by host: every part is a sound plan, and all of them fit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cut_plans import HOSTS, spread
from drawn_plans import draw_case
from graphs import A, B, chain, make_plan, make_topology, random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.plan.multi_host.host_plan import HostPlan, Recv, Send
from vksched.plan.multi_host.verify_host_plans import verify_host_plan, verify_host_plans
from vksched.planner.partition.host_partition import cut

RANDOM = settings(deadline=None, max_examples=examples(40))
seeds = st.integers(0, 1 << 32)
some_hosts = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=4)


def parts_of(names: list[str], hosts: tuple[str, ...] = ("node1", "node2", "")) -> list[HostPlan]:
    """The parts of a chain of one node per device name."""
    return list(verify_host_plans(cut(spread(make_plan(*chain(names)), hosts))))


# -- what parts are --------------------------------------------------------------------------------


def test_a_chain_over_two_hosts_goes_from_node_to_node_and_ends_with_the_caller() -> None:
    caller, one, two = parts_of([A, B])
    assert [part.host for part in (caller, one, two)] == ["", "node1", "node2"]
    assert one.plan.graph.nodes[one.inputs[0]].name == "x"
    assert two.plan.graph.nodes[_sent(one)[0]].name == "n0"
    assert caller.plan.graph.nodes[_sent(two)[0]].name == "n1"
    assert not caller.plan.splits and caller.taken == set(_sent(two))
    assert two.inputs == () and two.taken == set(_sent(one))
    assert one.steps[1] == (Send(_sent(one)[0], 0, "node2"),)
    assert two.steps[0] == (Recv(_sent(one)[0], "node1"),)


def test_devices_have_the_names_that_their_host_gives_them() -> None:
    _, one, two = parts_of([A, B])
    assert [spec.name for spec in one.plan.topology.devices] == ["null:0", "cpu"]
    assert [spec.name for spec in two.plan.topology.devices] == ["null:1", "cpu"]
    assert one.plan.device_of("n0") == "null:0"


def test_a_plan_of_one_computer_is_one_part_without_steps() -> None:
    plan = make_plan(*chain([A, B, A]))
    (part,) = verify_host_plans(cut(plan))
    assert part.host == "" and not part.steps and part.results == 1
    assert part.plan.splits == plan.splits and part.plan.final_waits == plan.final_waits
    assert part.plan.graph.nodes == plan.graph.nodes


def test_a_value_is_sent_once_to_each_host_however_many_devices_need_it() -> None:
    x = vs.input("x", (8, 64))
    a = vs.exp(x, name="a")
    readers = [vs.add(a, float(i), name=f"r{i}") for i in range(4)]
    names = ["null:1", "null:2", "null:3", "null:2"]
    placement = {"a": A, **{f"r{i}": name for i, name in enumerate(names)}}
    plan = make_plan(readers, placement, make_topology(4))
    parts = verify_host_plans(cut(spread(plan, ("node1", "node2", "node2", "node3"))))
    one = next(part for part in parts if part.host == "node1")
    assert [step.host for step in one.walk()] == ["node2", "node3"]


def test_weights_are_only_where_they_are_needed() -> None:
    x = vs.input("x", (8, 64))
    first, second = (vs.weight(np.full((8, 64), v, np.float32), name=f"w{v}") for v in (1, 2))
    y = vs.mul(vs.mul(x, first, name="a"), second, name="b")
    plan = spread(make_plan([y], {"a": A, "b": B}), ("node1", "node2"))
    held = {p.host: [p.plan.graph.nodes[n].name for n in p.plan.graph.data] for p in cut(plan)}
    assert held == {"": [], "node1": ["w1"], "node2": ["w2"]}


def test_integers_of_other_hosts_keep_their_bounds() -> None:
    x = vs.input("x", (8,), "int64", bounds=(0, 100))
    y = vs.add(vs.add(x, 1, name="a"), 1, name="b")
    parts = verify_host_plans(cut(spread(make_plan([y], {"a": A, "b": B}), ("node1", "node2"))))
    two = parts[2].plan
    assert two.graph.bounds[two.find("a")[0]] == (1, 101)


def test_a_host_may_write_states_and_send_nothing() -> None:
    x, held = vs.input("x", (4,)), vs.state(np.zeros(4, np.float32), "s", backup=False)
    graph, ids = vs.build_graph([vs.exp(x, name="y")], updates={held: vs.add(held, x, name="t")})
    placed = [(ids[held], A), ("t", A), ("y", B)]
    plan = vs.plan_graph(graph, make_topology(2), overrides=placed)
    parts = {part.host: part for part in verify_host_plans(cut(spread(plan, ("node1", "node2"))))}
    caller, one, two = (parts[host] for host in ("", "node1", "node2"))
    assert one.plan.commits and not two.plan.commits and not caller.plan.commits
    assert not one.plan.graph.outputs and one.plan.graph.initial.keys() == {ids[held]}
    assert not two.plan.graph.initial


def test_what_observers_see_goes_to_the_caller_as_soon_as_it_is_there() -> None:
    outputs, placement = chain([A, B])
    graph, _ = vs.build_graph(outputs)
    seen = next(n.id for n in graph.nodes if n.name == "n0")
    plan = vs.plan_graph(
        graph, make_topology(2), overrides=tuple(placement.items()), observed=(seen,)
    )
    caller, one, _ = verify_host_plans(cut(spread(plan, ("node1", "node2"))))
    assert Recv(seen, "node1", (seen,)) in caller.steps[0]
    assert {step.host for step in one.steps[1]} == {"", "node2"}
    assert not any(split.observed for split in one.plan.splits)


def test_plans_that_decide_in_each_run_are_not_cut() -> None:
    graph, _ = vs.build_graph(chain([A])[0])
    plan = vs.plan_graph(graph, make_topology(2), policy="earliest-finish")
    with pytest.raises(vs.PlanError, match="scheduled dynamically"):
        cut(plan)


# -- all plans -------------------------------------------------------------------------------------


@RANDOM
@given(seeds, st.integers(1, 30), st.integers(1, 5), some_hosts)
def test_parts_of_random_plans_are_sound(
    seed: int, count: int, devices: int, hosts: list[str]
) -> None:
    check_parts(spread(random_plan(seed, count, devices), hosts))


@RANDOM
@given(seeds, some_hosts)
def test_parts_of_plans_with_states_weights_and_observers_are_sound(
    seed: int, hosts: list[str]
) -> None:
    check_parts(spread(draw_case(seed).plan("priority"), hosts))


def check_parts(plan: vs.Plan) -> None:
    """Parts verify, and each split of the plan is in one of them, with its nodes and memory."""
    parts = verify_host_plans(cut(plan))
    numbers = sorted(number for part in parts for number in part.numbers)
    assert numbers == list(range(len(plan.splits)))
    for part in parts:
        assert list(part.numbers) == sorted(part.numbers)
        for number, split in zip(part.numbers, part.plan.splits, strict=True):
            whole = plan.splits[number]
            assert (split.nodes, split.barriers) == (whole.nodes, whole.barriers)
            assert [c.target for c in split.uploads] == [c.target for c in whole.uploads]
    transfer = {
        (copy.node, parts_host(plan, split.device))
        for split in plan.splits
        for copy in split.uploads
        if copy.source >= 0
        and parts_host(plan, split.device) != parts_host(plan, plan.splits[copy.source].device)
    }
    takes = {(step.value, p.host) for p in parts for step in p.walk() if isinstance(step, Recv)}
    assert transfer <= takes and all(host == "" for _, host in takes - transfer)


def parts_host(plan: vs.Plan, device: int) -> str:
    return plan.topology.devices[device].name.rpartition("/")[0]


# -- what is refused -------------------------------------------------------------------------------


def changed(parts: list[HostPlan], index: int, **fields: Any) -> list[HostPlan]:
    return [replace(p, **fields) if i == index else p for i, p in enumerate(parts)]


WRONG: dict[str, tuple[Callable[[list[HostPlan]], list[HostPlan]], str]] = {
    "a take is dropped": (
        lambda p: changed(p, 2, steps={1: p[2].steps[1]}),
        "no earlier step provides",
    ),
    "a send is dropped": (lambda p: changed(p, 1, steps={}), "wait for values that are never sent"),
    "a take comes too late": (
        lambda p: changed(p, 2, steps={1: (*p[2].steps[0], *p[2].steps[1])}),
        "no earlier step provides",
    ),
    "a send comes too early": (
        lambda p: changed(p, 1, steps={0: p[1].steps[1]}),
        "before split 0 is submitted",
    ),
    "a value that stays is sent": (
        lambda p: changed(p, 1, steps={1: (Send(p[1].inputs[0], 0, "node2"),)}),
        "does not give out",
    ),
    "a value is sent twice": (
        lambda p: changed(p, 1, steps={1: p[1].steps[1] * 2}),
        "twice|no host receives",
    ),
    "an own value is taken": (
        lambda p: changed(p, 1, steps={0: (Recv(_sent(p[1])[0], "node2"),), 1: p[1].steps[1]}),
        "computes itself",
    ),
    "it sends to itself": (
        lambda p: changed(p, 1, steps={1: (Send(_sent(p[1])[0], 0, "node1"),)}),
        "step of value",
    ),
    "steps stand nowhere": (lambda p: changed(p, 1, steps={7: p[1].steps[1]}), "steps at"),
    "numbers are missing": (lambda p: changed(p, 1, numbers=()), "0 numbers for 1 splits"),
    "a number is too large": (lambda p: changed(p, 1, numbers=(9,)), r"numbers \(9,\) of"),
    "results are too many": (lambda p: changed(p, 1, results=9), "9 results"),
    "two have one name": (lambda p: [*p, p[1]], "one for each host"),
}


@pytest.mark.parametrize("name", WRONG)
def test_parts_that_break_a_promise_are_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(vs.PlanError, match=message):
        verify_host_plans(change(parts_of([A, B])))


def test_a_value_leaves_behind_its_split_and_not_where_it_is_needed() -> None:
    x = vs.input("x", (8, 64))
    a = vs.relu(x, name="a")
    b = vs.mul(vs.relu(x, name="far"), 2.0, name="b")
    outputs = [vs.add(vs.add(b, 1.0, name="c"), a, name="d")]
    plan = spread(
        make_plan(outputs, {"a": A, "far": B, "b": A, "c": B, "d": B}), ("node1", "node2")
    )
    one, two = (p for p in verify_host_plans(cut(plan)) if p.host)
    for part in (one, two):
        assert all(step.split + 1 == at for at, step in _placed(part) if isinstance(step, Send))
        for at, step in _placed(part):
            if isinstance(step, Recv):
                reading = [
                    s.id for s in part.plan.splits for c in s.uploads if c.node == step.value
                ]
                assert reading and at == reading[0]


def _placed(part: HostPlan) -> list[tuple[int, Send | Recv]]:
    return [(at, step) for at, steps in part.steps.items() for step in steps]


def test_hosts_that_wait_in_a_circle_are_refused() -> None:
    caller, one, two = parts_of([A, B, A])
    takes_first = replace(one, steps={1: one.steps[1][::-1], 2: one.steps[2]})
    assert verify_host_plan(takes_first) is takes_first
    with pytest.raises(vs.PlanError, match="wait for values that are never sent: .*node1 at Recv"):
        verify_host_plans([caller, takes_first, two])


def _sends(part: HostPlan) -> list[Send]:
    return [step for step in part.walk() if isinstance(step, Send)]


def _sent(part: HostPlan) -> list[int]:
    return [step.value for step in _sends(part)]
