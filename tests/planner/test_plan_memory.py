"""Memory in plans: what is too large, shared, there already, and what the CPU cannot hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import (
    CPU,
    SHAPE,
    A,
    B,
    device_of,
    make_plan,
    make_topology,
    picky,
    rule_of,
    source,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.plan.types.interval_set import Owners, WordSet
from vksched.plan.types.plan_types import Span

BYTES = 4 * SHAPE[0] * SHAPE[1]


def test_one_op_too_large_for_a_device_does_not_empty_it() -> None:
    big = vs.exp(vs.input("big", 1 << 16), name="big_exp")
    small = steps(source(), [f"n{i}" for i in range(40)])
    plan = make_plan([big, small[-1]], topology=make_topology(2, [1 << 17, 1 << 30]))
    assert device_of(plan, "big_exp") == B
    assert "null:0 is full: big_exp alone takes 512.0 KiB of 128.0 KiB" in rule_of(plan, "big_exp")
    assert {device_of(plan, f"n{i}") for i in range(40)} == {A}


def test_devices_of_one_memory_share_it() -> None:
    topology = make_topology(2, [5 * BYTES])
    one = tuple(replace(d, memory_node="one" if d.kind != "cpu" else "") for d in topology.devices)
    shared = replace(topology, devices=one)
    x = source()
    outputs, placement = [vs.exp(x, name="a"), vs.neg(x, name="b")], {"a": A, "b": B}
    assert [device_of(make_plan(outputs, placement, topology), n) for n in "ab"] == [A, B]
    plan = make_plan(outputs, placement, shared)
    assert [device_of(plan, n) for n in "ab"] == [A, CPU]
    assert any("null:1 is full" in note for note in plan.notes)


def test_weights_that_are_there_are_not_charged_again() -> None:
    w = vs.weight(np.ones(SHAPE, np.float32), "w")
    graph, _ = vs.build_graph(vs.mul(source(), w, name="y"))
    topology = make_topology(1, [5 * BYTES - 1])
    there = {0: frozenset({next(n.id for n in graph.nodes if n.name == "w")})}
    assert device_of(vs.plan_graph(graph, topology), "y") == CPU
    plan = vs.plan_graph(graph, topology, resident=there)
    assert device_of(plan, "y") == A and plan.memory[0].resident_bytes == BYTES


def test_what_the_cpu_cannot_hold_is_refused() -> None:
    topology = make_topology(0)
    small = replace(topology, devices=(replace(topology.devices[-1], memory_bytes=BYTES),))
    with pytest.raises(vs.OutOfMemory, match=f"at most {BYTES} bytes"):
        vs.plan_graph(vs.build_graph(vs.exp(source()))[0], small)


def test_overrides_without_effect_are_noted() -> None:
    w = vs.weight(np.ones(SHAPE, np.float32), "w")
    y = vs.gather(w, np.arange(4, dtype=np.int32), name="y")
    plan = make_plan(y, {"w": B}, picky(True, False))
    assert any(
        "w on null:1 has no effect: y, which reads it, runs on null:0" in note
        for note in plan.notes
    ), plan.notes
    plan = make_plan(vs.exp(vs.input("x", 4)), {"x": B})
    assert any("an input goes wherever it is read" in note for note in plan.notes)


spans = st.builds(Span, st.integers(0, 1), st.integers(0, 30), st.integers(0, 8))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(spans, max_size=12), spans)
def test_word_sets_equal_sets_of_words(added: list[Span], asked: Span) -> None:
    def words(span: Span) -> set[tuple[int, int]]:
        return {(span.page, span.offset + i) for i in range(span.words)}

    found, expected = WordSet(), set[tuple[int, int]]()
    for span in added:
        found.add(span)
        expected |= words(span)
    assert found.meets(asked) == bool(expected & words(asked))
    owners, owned = Owners(), dict[tuple[int, int], int]()
    for number, span in enumerate(added):
        before = {owned[w] for w in words(span) if w in owned}
        assert set(owners.take(span, number)) == before
        # who loses a word has lost all: it is over, or the plan was refused
        owned = {w: o for w, o in owned.items() if o not in before}
        owned.update(dict.fromkeys(words(span), number))
