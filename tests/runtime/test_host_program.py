"""Programs of the CPU backend: what is laid out once lies apart, and results stay as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import CPU, make_plan, numpy_outputs, random_outputs

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.tensor import Tensor
from vksched.ops.lowering import native_kernels
from vksched.plan.plan import Plan
from vksched.runtime.cpu import split_program
from vksched.runtime.cpu.buffer_layout import Layout, lay_out, live_out, overlapping
from vksched.runtime.cpu.native_segment import Segment, native_programs_of

built = pytest.mark.skipif(
    not native_kernels.has_programs(), reason="native programs are not built"
)
WAYS = [pytest.param(True, id="native", marks=built)]
WAYS.append(pytest.param(False, id="numpy"))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With native loops, and as where there was no compiler."""
    if not request.param:
        monkeypatch.setattr(native_kernels, "native", None)
    return bool(request.param)


X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def layers(count: int = 4) -> tuple[Tensor, Tensor]:
    """Return a hidden value and what is made of it: loops and numpy's ops in turns."""
    rng = np.random.default_rng(1)
    y = vs.input("x", X.shape)
    hidden = y
    for at in range(count):
        y = vs.rms_norm(y, rng.standard_normal(64).astype(np.float32))
        y = vs.silu(y) * y + 0.5
        if at % 2:
            y = vs.softmax(vs.transpose(vs.reshape(y, (64, 4)), (1, 0)))
        hidden = y if at == 1 else hidden
    return hidden, vs.relu(y - 0.01)


def plan_of(outputs: Mapping[str, Tensor] | Tensor) -> Plan:
    return make_plan(outputs, [("*", CPU)])


def layout_of(plan: Plan) -> Layout:
    """Return the layout of a plan of one split."""
    (split,), graph = plan.splits, plan.graph
    native = native_programs_of(plan, split, {})
    written = {n for n in split.nodes if graph.nodes[n].declaration.cpu is not None}
    others = {n: [loop.elements for loop in r.loops[:-1]] for n, r in native.items()}
    return lay_out(plan, split, live_out(plan, split.device), written, others)


def test_values_that_live_together_lie_apart(way: bool) -> None:
    for seed in range(20):
        plan = plan_of(
            dict(zip("abc", random_outputs(np.random.default_rng(seed), 30), strict=False))
        )
        assert len(plan.splits) == 1
        layout = layout_of(plan)
        assert not overlapping(layout)
        assert {plan.graph.view_base(i) for _, i in plan.graph.outputs}.isdisjoint(layout.spans)


def test_memory_is_used_again(way: bool) -> None:
    y = vs.input("x", (64, 64))
    for _ in range(20):
        y = vs.exp(y)
    layout = layout_of(plan_of(vs.softmax(y)))
    assert len(layout.lifetimes) == 20 and sum(layout.pages) == 2 * 64 * 64


def test_memory_that_is_used_too_early_is_found(way: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values that live together are put in one place: the check tells, and so does a result."""

    def broken(*args: Any) -> Layout:
        layout = lay_out(*args)
        first = min(layout.lifetimes, key=lambda life: life.first)
        other = next(o for o in layout.lifetimes if first.first < o.first <= first.last)
        spans = {**layout.spans, other.value: layout.spans[first.value]}
        found.append(replace(layout, spans=spans))
        return found[-1]

    found: list[Layout] = []
    x = vs.input("x", X.shape)
    stored = vs.exp(x)
    output = vs.softmax(vs.rms_norm(vs.softmax(stored)) + stored)
    wanted = numpy_outputs(vs.build_graph(output)[0], {"x": X})
    with vs.Scheduler(["cpu"]) as sched:
        np.testing.assert_allclose(sched.compile(output)(x=X), wanted[0], 1e-5)
    monkeypatch.setattr(split_program, "lay_out", broken)
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(output)(x=X)
    assert all(overlapping(layout) for layout in found) and found
    assert not np.allclose(got, wanted[0], 1e-5)


def test_random_graphs_are_as_their_references(way: bool) -> None:
    for seed in range(20):
        outputs = random_outputs(np.random.default_rng(seed), 25)
        graph, _ = vs.build_graph(outputs)
        rng = np.random.default_rng(seed)
        feeds = {n.name: rng.random(n.type.shape, np.float32) for n in graph.inputs}
        wanted = numpy_outputs(graph, feeds)
        with vs.Scheduler(["cpu"]) as sched:
            run = sched.compile(outputs)
            for _ in range(2):
                for got, expected in zip(run(**feeds), wanted, strict=True):
                    np.testing.assert_allclose(got, expected, 1e-4, 1e-5)


def test_a_later_run_changes_no_result(way: bool) -> None:
    hidden, out = layers()
    seen: list[NDArray] = []
    with vs.Scheduler(["cpu"]) as sched:
        named = {"out": out, "view": vs.reshape(out, (64, 4))}
        run = sched.compile(named, observe={hidden: lambda name, value: seen.append(value)})
        results = [run(x=X + at) for at in range(3)]
        stored = [{k: v.copy() for k, v in result.items()} for result in results]
        observed = [v.copy() for v in seen]
        for _ in range(3):
            run(x=-X)
    for result, copy in zip(results, stored, strict=True):
        for name in copy:
            np.testing.assert_array_equal(result[name], copy[name])
    assert not np.array_equal(stored[0]["out"], stored[1]["out"])
    for value, copied in zip(seen, observed, strict=False):
        np.testing.assert_array_equal(value, copied)


def test_runs_of_several_threads_and_copies_do_not_mix(way: bool) -> None:
    _, out = layers()
    with vs.Scheduler(["cpu"], copies=3) as sched:
        run = sched.compile(out)
        wanted = [run(x=X * at) for at in range(4)]
        wrong: list[int] = []

        def many(at: int) -> None:
            for _ in range(20):
                if not np.array_equal(run(x=X * at), wanted[at]):
                    wrong.append(at)

        threads = [threading.Thread(target=many, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_what_a_reference_shows_of_its_operand_lives_on(way: bool) -> None:
    """numpy's transpose is a view: of an operand that is dead by then, and of one that leaves."""
    x = vs.input("x", X.shape)
    transposed = vs.transpose(vs.exp(x), (1, 0))
    other = vs.rms_norm(vs.softmax(vs.exp(-x)))
    last = vs.transpose(vs.softmax(x), (1, 0))
    outputs = [vs.matmul(other, transposed), last]
    wanted = numpy_outputs(vs.build_graph(outputs)[0], {"x": X})
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(outputs)
        for _ in range(2):
            first = run(x=X)
            run(x=X + 1)
            for got, expected in zip(first, wanted, strict=True):
                np.testing.assert_allclose(got, expected, 1e-4, 1e-6)


def test_states_in_place_and_not(way: bool) -> None:
    cache = vs.state(np.zeros((8, 4), np.float32), name="cache")
    total = vs.state(np.zeros((4,), np.float32), name="total")
    row, at = vs.input("row", (1, 4)), vs.input("at", (), "int32", bounds=(0, 7))
    updates = {cache: vs.dynamic_update_slice(cache, row, at), total: total + vs.reshape(row, (4,))}
    seen = vs.reduce_sum(cache, 0) + total
    rows = np.arange(20, dtype=np.float32).reshape(5, 1, 4)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(seen, updates=updates)
        got = [run(row=row, at=np.array(i, np.int32)) for i, row in enumerate(rows)]
        np.testing.assert_array_equal(sched.read(cache)[:5], rows[:, 0])
        np.testing.assert_array_equal(sched.read(total), rows.sum((0, 1)))
    for i in range(5):
        np.testing.assert_array_equal(got[i], 2 * rows[:i].sum((0, 1)))


def test_inputs_may_lie_anyhow(way: bool) -> None:
    x = vs.input("x", (4, 6))
    wide = np.arange(48, dtype=np.float32).reshape(4, 12)
    odd = np.frombuffer(b"-" + wide[:, :6].tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 6)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.neg(x) + 1.0)
        for values in (wide[:, ::2], np.asfortranarray(wide[:, :6]), odd):
            np.testing.assert_array_equal(run(x=values), 1 - values)


PLACES: dict[str, Callable[[NDArray], tuple[Tensor, dict[str, NDArray]]]] = {
    "fed": lambda rows: (vs.input("rows", rows.shape, str(rows.dtype)), {"rows": rows}),
    "weight": lambda rows: (vs.weight(rows, "rows"), {}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, np.int64])
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("place", PLACES)
def test_rows_of_a_state_may_lie_at_any_byte(
    way: bool, place: str, first: int, dtype: type[np.generic]
) -> None:
    wanted = np.random.default_rng(first).integers(0, 2, (2, 4)).astype(dtype)
    rows = np.frombuffer(bytes(first) + wanted.tobytes(), np.uint8)[first:].view(dtype)
    cache = vs.state(np.zeros((8, 4), dtype), "cache", backup=False)
    values, feeds = PLACES[place](rows.reshape(2, 4))
    updates = {cache: vs.dynamic_update_slice(cache, values, np.array(3, np.int32))}
    with vs.Scheduler(["cpu"]) as sched:
        sched.compile(vs.input("x", (4,)) + 1.0, updates=updates)(x=X[0, :4], **feeds)
        np.testing.assert_array_equal(sched.read(cache)[3:5], wanted)


def test_rows_of_a_state_may_be_a_part_of_bools(way: bool) -> None:
    cache = vs.state(np.zeros((8, 3), np.bool_), "cache", backup=False)
    x = vs.input("x", (4, 3))
    positive = vs.greater(x, 0.0)
    values = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    for first in range(3):
        updates = {
            cache: vs.dynamic_update_slice(
                cache, positive[first : first + 2], np.array(3, np.int32)
            )
        }
        with vs.Scheduler(["cpu"]) as sched:
            sched.compile(x + 1.0, updates=updates)(x=values)
            np.testing.assert_array_equal(sched.read(cache)[3:5], (values > 0)[first : first + 2])


@built
def test_a_chain_of_loops_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Segment] = []
    original = Segment.__call__

    def counted(self: Segment, *args: Any) -> None:
        calls.append(self)
        original(self, *args)

    monkeypatch.setattr(Segment, "__call__", counted)
    y = vs.input("x", X.shape)
    for _ in range(50):
        y = vs.rms_norm(y) + y
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(y)
        calls.clear()
        run(x=X)
    assert len(calls) == 1


def test_rows_that_are_written_over_a_value_of_the_run(way: bool) -> None:
    rows = np.random.default_rng(2).standard_normal((2, 64)).astype(np.float32)
    x, over = vs.input("x", X.shape), vs.input("over", rows.shape)
    first = vs.dynamic_update_slice(x, over, 1)
    wanted = X.copy()
    wanted[1:3] = rows
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile({"y": first * 2.0, "z": vs.dynamic_update_slice(first, over, 2)})
        for _ in range(2):
            got = run(x=X, over=rows)
            np.testing.assert_array_equal(got["y"], wanted * 2)
            np.testing.assert_array_equal(got["z"][2:], rows)
            np.testing.assert_array_equal(got["z"][:2], wanted[:2])
