"""All promises of plans, for all policies, on drawn graphs and machines: the checks of verify and
of happens-before, memory, pins, states, and that no plan by cost is slower than one device alone.

VKSCHED_PLANS=2000 draws so many cases for each policy; `make test-rest` draws 50, and
`make test-all` 250.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from drawn_plans import EVERY, Case, draw_case
from graphs import assert_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import by_tier, examples

import vksched as vs
from vksched.plan.dynamic.dispatcher import POLICIES as DECIDE
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.placement_overrides import resolve_overrides
from vksched.plan.verify.happens_before import check_plan
from vksched.planner.placement.candidate_devices import PlacementHints
from vksched.planner.search.candidates import LARGE
from vksched.planner.search.select import MARGIN_ESTIMATED, known
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

PLANS = int(os.environ.get("VKSCHED_PLANS", by_tier(6, 50, 250)))
PIECE = min(PLANS, 50)
"""Cases in one test, so that no test is long."""
ROUNDING = 1 + 1e-9
RANDOM = settings(deadline=None, max_examples=examples(25))

pytestmark = pytest.mark.scales
pieces = pytest.mark.parametrize("first", range(0, PLANS, PIECE))


def check(case: Case, plan: Plan, seed: int) -> None:
    """Raise where a promise of a plan is broken."""
    check_plan(plan.verify(), plan.copies + 1, seed)
    assert_memory(plan)
    devices, graph = plan.topology.devices, plan.graph
    for pool in plan.topology.memory_nodes:
        need = sum(plan.memory[d].needed_bytes for d in pool)
        assert need <= min(devices[d].memory_bytes for d in pool)
    for node_id, (device, _) in resolve_overrides(graph, plan.topology, case.overrides).items():
        node, stays = graph.nodes[node_id], plan.placements[node_id].device == device
        # what cannot be is told: a node that cannot run there, a weight that nothing reads there
        assert stays or node.op == "input" or any(node.name in note for note in plan.notes), node
    written = {node for node, state in graph.states.items() if node != state}
    assert not written or plan.copies == 1
    for device, there in (case.resident or {}).items():
        for node_id in there & graph.states.keys():
            assert plan.placements[node_id].device == device
    for split in plan.splits:
        assert not devices[split.device].disabled_reason


def drawn_hints(case: Case, rng: np.random.Generator) -> PlacementHints:
    """Return a device for each node, drawn: what no schedule would ask for."""
    order = tuple(int(d) for d in rng.permutation(len(case.topology.devices)))
    on = {n.id: int(rng.integers(len(order))) for n in case.graph.ops if rng.random() < 0.8}
    return PlacementHints(order, on, "drawn")


# -- promises --------------------------------------------------------------------------------------


@pieces
@pytest.mark.parametrize("policy", EVERY)
def test_plans_of_every_policy_keep_their_promises(policy: str, first: int) -> None:
    for seed in range(first, first + PIECE):
        case = draw_case(seed)
        if policy in DECIDE and (case.graph.states or case.observed):
            with pytest.raises(vs.PlanError, match=r'try policy="auto"'):
                case.plan(policy)
        else:
            check(case, case.plan(policy), seed)


@pieces
def test_plans_of_any_hints_keep_their_promises(first: int) -> None:
    for seed in range(first, first + PIECE):
        case = draw_case(seed)
        check(case, case.follow(drawn_hints(case, np.random.default_rng(seed))), seed)


@RANDOM
@given(st.integers(0, 1 << 32), st.integers(1, 12), st.sampled_from(["priority", "auto"]))
def test_small_graphs_keep_them_and_are_planned_alike_twice(
    seed: int, most: int, policy: str
) -> None:
    case = draw_case(seed, most)
    one, two = case.plan(policy), case.plan(policy)
    check(case, one, seed)
    assert (one.splits, one.placements, one.memory) == (two.splits, two.placements, two.memory)


# -- never worse -----------------------------------------------------------------------------------


def check_no_single_is_faster(case: Case) -> None:
    """A plan by cost takes at most what each device takes with the CPU and no other one. Where
    costs are estimates the first device stays unless another one is faster by the margin.
    """
    assert len(case.graph.nodes) < LARGE
    plan = case.plan("auto")
    took_s = simulate(plan).seconds
    if plan.decision is not None:
        single = {each.single for each in plan.decision.candidates if each.single}
        names = {case.topology.devices[d].name for d in (*case.competing, case.topology.cpu)}
        assert single <= names  # a schedule is never called a single device
    margin = 1.0 if known(case.topology, case.competing) else 1 - MARGIN_ESTIMATED
    for device in case.competing:
        with suppress(vs.OutOfMemory):  # a state is where it is, though that device is full
            alone_s = simulate(case.alone(device)).seconds
            assert margin * took_s <= alone_s * ROUNDING, case.topology.devices[device].name


@pieces
def test_no_plan_by_cost_is_slower_than_one_device_alone(first: int) -> None:
    for seed in range(first, first + PIECE):
        check_no_single_is_faster(draw_case(seed))


@pieces
def test_one_more_device_never_makes_a_plan_slower(first: int) -> None:
    """The same as users see it: with devices taken away, and nothing placed on them."""
    for seed in range(first, first + PIECE):
        case = replace(draw_case(seed), overrides=(), resident=None)
        if not known(case.topology, case.competing):
            continue
        took_s = simulate(case.plan("auto")).seconds
        devices, cpu = case.topology.devices, case.topology.devices[-1]
        for spec in (devices[d] for d in case.competing):
            left = (spec,) if spec.kind == "cpu" else (spec, cpu)
            fewer = replace(case, topology=Topology(left, case.topology.links))
            alone_s = simulate(fewer.plan("priority")).seconds
            assert took_s <= alone_s * ROUNDING, (seed, spec.name)


# -- what was found --------------------------------------------------------------------------------


def layers(count: int, width: int = 32) -> vs.Tensor:
    x = vs.input("x", (width, width))
    for i in range(count):
        weight = vs.weight(np.zeros((width, width), np.float32), name=f"w{i}")
        x = vs.matmul(x, weight, name=f"p{i}")
    return x


WEIGHT_BYTES = 4 * 32 * 32


def two(flops_per_s: float = 1e9, cpu: float = 1e9, **first: object) -> Topology:
    """Two devices, the first one as given, and the CPU."""
    specs = [
        DeviceSpec("null:0", "null", flops_per_s=1e9, bytes_per_s=1e9, **first),  # type: ignore[arg-type]
        DeviceSpec("null:1", "null", flops_per_s=flops_per_s, bytes_per_s=flops_per_s),
        DeviceSpec("cpu", "cpu", flops_per_s=cpu, bytes_per_s=cpu, submit_s=0.0),
    ]
    return Topology(tuple(specs), Links(default=Link(1e9, 1e-6)))


def test_more_weights_are_placed_on_a_device_than_it_holds() -> None:
    graph, _ = vs.build_graph(layers(4))
    topology = two(memory_bytes=3 * WEIGHT_BYTES, max_buffer_bytes=2 * WEIGHT_BYTES)
    case = Case(graph, topology, tuple((f"w{i}", "null:0") for i in range(4)))
    check(case, case.plan("auto"), 0)


def test_a_weight_in_host_memory_is_streamed_where_that_is_faster() -> None:
    """The first device streams too little; the slow second one would."""
    graph, _ = vs.build_graph(layers(2))
    topology = two(1e6, offload_flops_per_byte=float("inf"))
    case = Case(graph, topology, (("w1", "cpu"),))
    check_no_single_is_faster(case)


def test_a_state_that_has_no_room_where_it_is_placed_is_reported() -> None:
    x, held = vs.input("x", (32, 32)), vs.state(np.zeros((32, 32), np.float32), name="held")
    y = vs.add(x, held)
    graph, _ = vs.build_graph(y, {held: y})
    topology = two(memory_bytes=WEIGHT_BYTES // 2, max_buffer_bytes=2 * WEIGHT_BYTES)
    case = Case(graph, topology, (("held", "null:0"),))
    check(case, case.plan("priority"), 0)
    (reported, *_) = case.plan("priority").notes
    assert reported.startswith("held: override: held on null:0, which cannot: null:0 is full")


def test_a_full_device_with_a_state_takes_nothing_next_to_it() -> None:
    x, held = vs.input("x", (32, 32)), vs.state(np.zeros((32, 32), np.float32), name="held")
    y = vs.add(vs.relu(vs.relu(x)), held)  # the state comes late in the order
    graph, ids = vs.build_graph(y, {held: y})
    topology = two(memory_bytes=3 * WEIGHT_BYTES, max_buffer_bytes=2 * WEIGHT_BYTES)
    case = Case(graph, topology, resident={0: frozenset([ids[held]])})
    plan = case.plan("priority")
    check(case, plan, 0)
    assert {plan.topology.devices[s.device].name for s in plan.splits} == {"null:0", "null:1"}


def test_a_placed_input_holds_nothing() -> None:
    graph, _ = vs.build_graph(vs.exp(vs.input("x", (256, 256))))
    case = Case(graph, two(1e11), (("x", "null:0"),))
    check_no_single_is_faster(case)


def test_what_one_device_cannot_run_goes_to_the_cpu_where_the_other_one_is_slow() -> None:
    y = layers(2)
    graph, _ = vs.build_graph(vs.gather(y, np.arange(4, dtype=np.int32)))
    picky = vs.DeviceSpec("", "").limits
    topology = two(1e4, limits=replace(picky, storage_buffers=3))
    case = Case(graph, topology)
    plan = case.plan("auto")
    assert "null:1" not in {topology.devices[s.device].name for s in plan.splits}
    check_no_single_is_faster(case)


def test_a_device_with_little_memory_is_weighed_as_it_is_then() -> None:
    graph, _ = vs.build_graph(layers(8))
    topology = two(
        3e8, memory_bytes=4 * WEIGHT_BYTES, max_buffer_bytes=2 * WEIGHT_BYTES, submit_s=0.0
    )
    case = Case(graph, topology)
    check_no_single_is_faster(case)
    check(case, case.plan("auto"), 0)


@pytest.mark.parametrize("policy", DECIDE)
@pytest.mark.parametrize("seed", [107, 140])
def test_a_weight_that_more_devices_have_than_asked_is_reported(seed: int, policy: str) -> None:
    case = draw_case(seed)
    check(case, case.plan(policy), seed)


@pytest.mark.parametrize("seed", [11, 14, 34, 43, 80, 123, 147, 234, 325, 432, 1100])
def test_what_draws_have_found_stays_mended(seed: int) -> None:
    case = draw_case(seed)
    for policy in ("priority", "auto"):
        check(case, case.plan(policy), seed)
    check_no_single_is_faster(case)
