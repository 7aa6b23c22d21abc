"""A model over the memory of its devices: spilled in whole layers, and copies that never take what
it needs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from graphs import CPU, A, B, C, device_of, make_plan, make_topology, transfers_of
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.plan.plan import Plan
from vksched.planner.search import evaluate
from vksched.topology.topology import Topology

KIB = 1 << 10
WIDTH = 64
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


def model(layers: int, rows: int = 8) -> vs.Tensor:
    """Layers of a 16 KiB matrix, a small bias and a residual."""
    h = vs.input("x", (rows, WIDTH))
    for i in range(layers):
        w = vs.weight(np.ones((WIDTH, WIDTH), np.float32), f"w{i}")
        b = vs.weight(np.ones(WIDTH, np.float32), f"b{i}")
        h = vs.add(vs.relu(vs.add(vs.matmul(h, w, name=f"m{i}"), b, name=f"s{i}")), h)
    return h


def runs_of(plan: Plan) -> list[str]:
    """The devices of the nodes in order, each run of the same once."""
    order = [plan.placements[n.id].device for n in plan.graph.ops if n.id not in plan.graph.views]
    return [plan.topology.devices[d].name for d, _ in groupby(order)]


def fill(plan: Plan, device: int) -> float:
    return plan.memory[device].peak_bytes / plan.topology.devices[device].memory_bytes


def test_two_devices_with_most_of_a_model_each_take_half_a_model_each() -> None:
    whole = 50 * LAYER_BYTES
    for share in (0.55, 0.6, 0.8):
        plan = make_plan(model(50), topology=make_topology(2, [int(share * whole)] * 2))
        assert runs_of(plan) == [A, B], plan.explain()
        assert len(transfers_of(plan)) == 1
        assert fill(plan, 0) > 0.9


@pytest.mark.parametrize("home", [A, B])
def test_weights_count_on_all_devices_that_share_a_memory(home: str) -> None:
    """Four matrices fill it: the others go to the device beside at once, with nothing to repair."""
    h = vs.input("x", (1, WIDTH))
    for i in range(6):
        w = vs.weight(np.ones((WIDTH, WIDTH), np.float32), f"w{i}")
        h = vs.matmul(h, w, name=f"n{i}")
    *shared, second, cpu = make_topology(3).devices
    shared = [replace(spec, memory_node="one", memory_bytes=70_000) for spec in shared]
    plan = make_plan(h, {"w[0-3]": home}, Topology((*shared, second, cpu)))
    assert [device_of(plan, f"n{i}") for i in range(6)] == [home] * 4 + [C] * 2
    assert not plan.notes


def test_a_device_full_of_weights_takes_no_small_ones_from_further_on() -> None:
    """The biases of all layers would fit beside the matrices of the first ones."""
    roomy = 20 * LAYER_BYTES + 15 * KIB
    plan = make_plan(model(30), topology=make_topology(2, [roomy, 1 << 30]))
    assert runs_of(plan) == [A, B] and len(transfers_of(plan)) == 1
    assert fill(plan, 0) > 0.9


def test_three_unequal_devices_take_layers_in_order() -> None:
    memory = [30 * LAYER_BYTES, 10 * LAYER_BYTES, 60 * LAYER_BYTES]
    plan = make_plan(model(90), topology=make_topology(3, memory))
    assert runs_of(plan) == [A, B, C] and len(transfers_of(plan)) == 2
    assert fill(plan, 0) > 0.9 and fill(plan, 1) > 0.85  # one layer is a tenth of the second
    assert "null:1 is full" in "".join(plan.notes)


def test_more_than_all_devices_goes_to_the_cpu_for_the_rest_only() -> None:
    memory = [20 * LAYER_BYTES, 20 * LAYER_BYTES]
    plan = make_plan(model(60), topology=make_topology(2, memory))
    assert runs_of(plan) == [A, B, CPU]
    assert fill(plan, 0) > 0.9 and fill(plan, 1) > 0.9
    on_cpu = sum(device_of(plan, f"m{i}") == CPU for i in range(60))
    assert 20 <= on_cpu <= 24


def test_devices_of_one_memory_fill_it_together() -> None:
    topology = make_topology(2, [40 * LAYER_BYTES] * 2)
    one = [replace(d, memory_node="" if d.kind == "cpu" else "one") for d in topology.devices]
    placement = {f"m{i}": B for i in range(10)}
    plan = make_plan(model(60), placement, Topology(tuple(one)))
    assert set(runs_of(plan)) == {A, B, CPU}
    total = plan.memory[0].peak_bytes + plan.memory[1].peak_bytes
    assert 0.85 * 40 * LAYER_BYTES <= total <= 40 * LAYER_BYTES


def test_large_activations_count() -> None:
    memory = [80 * LAYER_BYTES, 1 << 30]
    plan = make_plan(model(80, rows=512), topology=make_topology(2, memory))
    assert runs_of(plan) == [A, B] and len(transfers_of(plan)) == 1
    assert 0.9 < fill(plan, 0) <= 1


def test_few_plans_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int | None, ...]] = []
    real = evaluate.place

    def counted(support: Any, overrides: Any, caps: Any, hints: Any) -> Any:
        tried.append(tuple(caps.first))
        return real(support, overrides, caps, hints)

    monkeypatch.setattr(evaluate, "place", counted)
    for rows in (8, 512):
        tried.clear()
        plan = make_plan(model(200, rows), topology=make_topology(2, [100 * LAYER_BYTES] * 2))
        assert fill(plan, 0) > 0.9 and len(tried) <= 12, tried


def bulge(layers: int = 40, factor: int = 40) -> vs.Tensor:
    """A model with a moment in its middle that takes many times what the rest does."""
    h = model(layers // 2)
    wide = vs.concat([h] * factor, name="wide")
    h = vs.reduce_max(vs.reshape(wide, (factor, *h.shape)), 0, name="narrow")
    for i in range(layers // 2):
        w = vs.weight(np.ones((WIDTH, WIDTH), np.float32), f"v{i}")
        h = vs.relu(vs.matmul(h, w, name=f"p{i}"))
    return h


def test_one_large_moment_goes_elsewhere_alone() -> None:
    y = bulge()
    free = make_plan(y, topology=make_topology(1))
    value = 4 * 8 * WIDTH
    memory = free.memory[0].peak_bytes - 20 * value
    plan = make_plan(y, topology=make_topology(1, [memory]))
    assert [device_of(plan, n) for n in ("m0", "wide", "narrow", "p19")] == [A, CPU, CPU, A]
    on_cpu = [n for n in plan.graph.ops if plan.placements[n.id].device == 1]
    assert len(on_cpu) <= 4 and len(transfers_of(plan)) <= 2
    assert "which take most, go elsewhere" in plan.explain()
    two = make_plan(y, topology=make_topology(2, [memory, 1 << 30]))
    assert device_of(two, "wide") == B and device_of(two, "p19") == A


# -- copies ----------------------------------------------------------------------------------------


def slot_bytes(topology: Topology, outputs: vs.Tensor) -> int:
    one, two = (make_plan(outputs, topology=topology, copies=n).memory[0] for n in (1, 2))
    return two.peak_bytes - one.peak_bytes


def test_copies_take_what_the_model_leaves() -> None:
    y = model(10)
    least = make_plan(y, topology=make_topology(1)).memory[0].peak_bytes
    slot = slot_bytes(make_topology(1), y)
    for extra, expected in ((0, 1), (slot, 2), (3 * slot - 1, 3), (3 * slot, 4), (9 * slot, 4)):
        plan = make_plan(y, topology=make_topology(1, [least + extra]), copies=4)
        assert plan.copies == expected and runs_of(plan) == [A]
        assert any("copies: 4 asked for" in n for n in plan.notes) == (expected < 4)
    text = make_plan(y, topology=make_topology(1, [least + slot]), copies=4).explain()
    assert f"copies: 4 asked for, 2 made, as null:0 has room for 2: each takes {slot} bytes" in text


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.integers(0, 30 * LAYER_BYTES), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from([8, 128]),
    st.booleans(),
)
def test_copies_never_move_anything(
    memory: list[int], copies: int, rows: int, shared: bool
) -> None:
    topology = make_topology(len(memory), memory)
    if shared:
        pool = [replace(d, memory_node="" if d.kind == "cpu" else "p") for d in topology.devices]
        topology = Topology(tuple(pool))
    one = make_plan(model(20, rows), topology=topology)
    many = make_plan(model(20, rows), topology=topology, copies=copies)
    assert many.placements == one.placements and 1 <= many.copies <= copies
    assert [s.nodes for s in many.splits] == [s.nodes for s in one.splits]
    if many.copies < copies:
        assert "copies: " in many.explain()
        more = make_plan(model(20, rows), topology=topology, copies=many.copies)
        assert more.copies == many.copies  # verified to fit


def test_copies_that_the_cpu_cannot_hold_are_fewer() -> None:
    topology = make_topology(0)
    y = vs.exp(vs.input("x", 1 << 10))
    need = make_plan(y, topology=topology).memory[0].peak_bytes
    small = Topology((replace(topology.devices[0], memory_bytes=2 * need),))
    plan = make_plan(y, topology=small, copies=5)
    assert plan.copies == 2 and plan.memory[0].peak_bytes == 2 * need


def test_automatic_copies_are_two_over_several_devices_that_have_room() -> None:
    graph, _ = vs.build_graph(model(20))
    small, large = [12 * LAYER_BYTES] * 2, [1 << 30] * 2
    half = [("m1?", B)]
    assert vs.plan_graph(graph, make_topology(2, large), copies="auto").copies == 1
    roomy = vs.plan_graph(graph, make_topology(2, large), copies="auto", overrides=half)
    assert roomy.copies == 2
    tight = vs.plan_graph(graph, make_topology(2, small), copies="auto")
    assert len(set(runs_of(tight))) == 2
    assert not any(note.startswith("copies") for note in tight.notes)


def test_states_that_have_no_room_where_they_live_are_a_clear_error() -> None:
    total = vs.state(np.zeros((8, WIDTH), np.float32), "total")
    y = vs.add(vs.input("x", (8, WIDTH)), total, name="y")
    graph, _ = vs.build_graph(y, {total: y})
    there = {0: frozenset(n.id for n in graph.nodes if n.op == "state")}
    assert vs.plan_graph(graph, make_topology(1), resident=there).copies == 1
    with pytest.raises(vs.OutOfMemory, match="on null:0 for the states that live there, got 64"):
        vs.plan_graph(graph, make_topology(1, [64]), resident=there)
