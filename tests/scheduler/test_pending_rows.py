"""Pending rows of attention: graphs in which their early writes are visible are refused, and all
others have the results of numpy on each set of devices, also in their states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_random import SETTINGS, values

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.build_graph import Outputs

ROWS, HEADS, SLOTS, LENGTH, WIDTH = 3, 2, 2, 9, 4
NAMES = ("q", "k_new", "v_new")


class Step(NamedTuple):
    """A step of several tokens of one text over a cache of keys and values."""

    q: vs.Tensor
    k: vs.Tensor
    v: vs.Tensor
    rows: tuple[vs.Tensor, vs.Tensor]
    used: vs.Tensor
    slots: vs.Tensor

    def attend(self, rows: tuple[vs.Tensor, vs.Tensor] | None = None) -> vs.Tensor:
        new = self.rows
        k_pending, v_pending = rows or new
        return vs.attention(
            *(self.q, self.k, self.v),
            causal=True,
            kv_len=self.used,
            slots=self.slots,
            k_new=new[0],
            v_new=new[1],
            k_pending=k_pending,
            v_pending=v_pending,
        )

    def updates(self, start: vs.Tensor | None = None) -> Updates:
        first = self.used if start is None else start
        return {
            state: vs.dynamic_update_slice(state, rows, first, axis=2, slots=self.slots)
            for state, rows in zip((self.k, self.v), self.rows, strict=True)
        }


def step() -> Step:
    held = [values((SLOTS, HEADS, LENGTH, WIDTH), seed) for seed in (1, 2)]
    k, v = (vs.state(x, name=n) for x, n in zip(held, "kv", strict=True))
    q, *rows = (vs.input(name, (ROWS, HEADS, 1, WIDTH)) for name in NAMES)
    used, slots = (vs.input(name, (ROWS,), "int32") for name in ("used", "slots"))
    return Step(q, k, v, (rows[0], rows[1]), used, slots)


def feeds(first: int, slot: int, seed: int = 5) -> dict[str, NDArray]:
    arrays = {n: values((ROWS, HEADS, 1, WIDTH), seed + i) for i, n in enumerate(NAMES)}
    used = np.arange(first, first + ROWS, dtype=np.int32)
    return arrays | {"used": used, "slots": np.full(ROWS, slot, np.int32)}


Updates = dict[vs.Tensor, vs.Tensor]
Graphs = dict[str, tuple[Callable[[Step], tuple[Outputs, Updates]], str]]
REFUSED: Graphs = {
    "no update": (lambda s: (s.attend(), {}), "the state k, .* to be updated .* got no update"),
    "one update": (
        lambda s: (s.attend(), {s.k: s.updates()[s.k]}),
        "the state v, .* to be updated .* got no update",
    ),
    "other rows": (lambda s: (s.attend((s.rows[1], s.rows[1])), s.updates()), "another update"),
    "other start": (lambda s: (s.attend(), s.updates(s.used + 1)), "another update"),
    "other value": (
        lambda s: (s.attend(), {s.k: s.k * 2.0, s.v: s.v * 2.0}),
        "got another update",
    ),
    "output": (lambda s: ([s.attend(), s.k], s.updates()), "neither an output"),
    "view": (
        lambda s: ([s.attend(), vs.reshape(s.v, (-1,))], s.updates()),
        "these pending rows only, got reshape",
    ),
    "reader": (
        lambda s: ([s.attend(), vs.reduce_sum(s.k)], s.updates()),
        "these pending rows only, got reduce_sum",
    ),
    "other call": (
        lambda s: ([s.attend(), s.attend((s.rows[0], s.rows[0] * 2.0))], s.updates()),
        "the same pending rows in all calls",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_graphs_that_show_early_writes_are_refused(name: str) -> None:
    build, message = REFUSED[name]
    outputs, updates = build(step())
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.GraphError, match=message):
        sched.compile(outputs, updates=updates)


def test_equal_rows_may_have_constants_of_nan() -> None:
    one = step()

    def masked() -> vs.Tensor:
        return vs.where(one.rows[0] > 0, one.rows[0], vs.constant(np.float32(np.nan)))

    rows = vs.dynamic_update_slice(one.k, masked(), one.used, axis=2, slots=one.slots)
    with vs.Scheduler(["cpu"]) as sched:
        out = one.attend((masked(), one.rows[1]))
        sched.compile(out, updates={**one.updates(), one.k: rows}).close()


def record(name: str, value: NDArray) -> None:
    """Do nothing."""


def test_a_state_with_pending_rows_is_not_observed() -> None:
    one = step()
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.GraphError, match="nor observed"):
        sched.compile(one.attend(), updates=one.updates(), observe={one.k: record})


@pytest.fixture(scope="module")
def both(devices: list[str]) -> Iterator[list[vs.Scheduler]]:
    """Some devices, and numpy."""
    with vs.Scheduler(devices) as sched, vs.Scheduler(["cpu"]) as numpy:
        yield [sched, numpy]


Results = tuple[list[NDArray], list[NDArray]]


def run_steps(sched: vs.Scheduler, places: list[tuple[int, int]], shown: bool = False) -> Results:
    """Return the outputs of steps from tokens in slots, and the keys and values after them.

    shown: with next values and a further call as outputs, which do not depend on early writes.
    """
    one = step()
    updates = one.updates()
    outputs = [vs.tanh(one.attend())]
    outputs += [one.attend() * 2.0, *updates.values()] if shown else []
    run = sched.compile(outputs, updates=updates)
    try:
        steps = [run(**feeds(*place, seed)) for seed, place in enumerate(places)]
        return [np.asarray(x) for each in steps for x in each], [*map(sched.read, updates)]
    finally:
        run.close()
        for each in updates:
            sched.delete_state(each)


@SETTINGS
@given(st.data())
def test_drawn_steps_equal_numpy(both: list[vs.Scheduler], data: st.DataObject) -> None:
    """Texts in slots that do not exist, and rows behind the end of the cache, leave no rows."""
    places = st.tuples(st.integers(0, LENGTH), st.integers(-1, SLOTS))
    drawn = data.draw(st.lists(places, min_size=1, max_size=3)), data.draw(st.booleans())
    (results, states), (expected, cached) = (run_steps(sched, *drawn) for sched in both)
    for got, wanted in zip(results, expected, strict=True):
        assert np.allclose(got, wanted, atol=1e-5)
    assert all(map(np.array_equal, states, cached))
