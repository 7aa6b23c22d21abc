"""Writes of several states by one dispatch: which are fused, and values on devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from graphs import A, make_topology

import vksched as vs
from vksched.common.dtypes import FLOAT16, NDArray
from vksched.ir.tensor import apply
from vksched.ops.layout.dynamic_update_slice import FUSED_BUFFERS, FUSED_STATES
from vksched.plan.costs.fused_writes import fused_dispatch, fused_writes
from vksched.plan.plan import Plan
from vksched.topology.topology import Topology

SLOTS, LENGTH, SIZE, ROWS = 3, 16, 7, 2


def states(count: int, dtype: Any = np.float32, size: int = SIZE) -> list[vs.Tensor]:
    """States whose initial values differ."""
    shape = (SLOTS, LENGTH, size)
    each = np.arange(SLOTS * LENGTH * size).reshape(shape) % 97
    return [
        vs.state((each + 100 * i).astype(dtype), f"held{size}.{i}", backup=False)
        for i in range(count)
    ]


def updates(
    held: list[vs.Tensor],
    rows_dtype: str = "float32",
    start: vs.Tensor | None = None,
    overflow_nan: bool = False,
) -> dict[vs.Tensor, vs.Tensor]:
    """Rows for each state, which are inputs, from one start on."""
    start = vs.input("start", (SLOTS,), "int32") if start is None else start
    out = {}
    for state in held:
        rows = vs.input(f"rows.{state.name}", (SLOTS, ROWS, state.shape[2]), rows_dtype)
        attrs = {"axis": 1} | ({"overflow_nan": True} if overflow_nan else {})
        out[state] = apply("dynamic_update_slice", (state, rows, start), attrs)
    return out


def plan_of(written: Mapping[vs.Tensor, vs.Tensor], buffers: int = FUSED_BUFFERS) -> Plan:
    graph, _ = vs.build_graph(vs.input("x", 4) + 1, updates=written)
    spec, *others = make_topology(1).devices
    spec = replace(spec, limits=replace(spec.limits, storage_buffers=buffers))
    return vs.plan_graph(graph, Topology((spec, *others)), overrides=[("*", A)])


def sizes_of(plan: Plan) -> list[int]:
    return [len(g) for split in plan.splits for g in fused_writes(plan, split).values()]


def test_states_of_one_type_are_written_together() -> None:
    plan = plan_of(updates(states(FUSED_STATES + 3)))
    assert sizes_of(plan) == [FUSED_STATES, 3]
    (split,) = [split for split in plan.splits if fused_writes(plan, split)]
    whole, rest = fused_writes(plan, split).values()
    assert {*whole, *rest} == {value for value, _ in split.in_place}
    dispatch = fused_dispatch(plan, split, rest)
    assert dispatch.shader == "dynamic_update_slices" and dispatch.groups[1] == 3
    assert len(dispatch.operands) == FUSED_BUFFERS


def test_other_writes_are_apart() -> None:
    assert sizes_of(plan_of(updates(states(1)))) == []
    assert sizes_of(plan_of(updates(states(4)), buffers=FUSED_BUFFERS - 1)) == []
    held = states(4)
    by_type = [*held[:2], *states(2, size=SIZE + 1)]
    assert sizes_of(plan_of(updates(by_type))) == [2, 2]
    places = [vs.input(name, (SLOTS,), "int32") for name in ("near", "far")]
    apart = updates(held[:2], start=places[0]) | updates(held[2:], start=places[1])
    assert sizes_of(plan_of(apart)) == [2, 2]
    copied = {state: state + vs.input(f"more.{i}", state.shape) for i, state in enumerate(held)}
    assert sizes_of(plan_of(copied)) == [], "no rows are written"


CASES = {
    "float32": (np.float32, "float32", SIZE),
    "whole words of float16": (np.float16, "float16", SIZE + 1),
    "halves of words": (np.float16, "float16", SIZE),
    "rounded": (np.float16, "float32", SIZE),
    "rounded, to NaN beyond the range": (np.float16, "float32", SIZE),
}


@pytest.mark.parametrize("device", vulkan_names())
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [2, FUSED_STATES + 2])
def test_written_rows_are_those_of_numpy(device: str, case: str, count: int) -> None:
    """Each example starts at a row of its own: before the data, within, and at their end."""
    dtype, rows_dtype, size = CASES[case]
    is_nan = "NaN" in case
    held, starts = states(count, dtype, size), np.array([-1, 5, LENGTH - 1], np.int32)
    rng = np.random.default_rng(3)
    rows = {
        f"rows.{state.name}": rng.standard_normal((SLOTS, ROWS, size)).astype(rows_dtype)
        for state in held
    }
    for each in rows.values():
        each[1, 0, 2] = 7e4 if is_nan else 7
    wanted: list[NDArray] = []
    with vs.Scheduler([device], tune=False) as sched:
        written = updates(held, rows_dtype, overflow_nan=is_nan)
        run = sched.compile(vs.input("x", 4) + 1, updates=written)
        assert sum(sizes_of(run.plan)) == count
        for state, new in zip(held, rows.values(), strict=True):
            after = np.array(sched.read(state))
            for example, start in enumerate(starts.tolist()):
                for i in range(ROWS):
                    if 0 <= start + i < LENGTH:
                        after[example, start + i] = np.where(
                            is_nan & (np.abs(new[example, i]) > 65519), np.nan, new[example, i]
                        )
            wanted.append(after)
        run(x=np.zeros(4, np.float32), start=starts, **rows)
        for state, after in zip(held, wanted, strict=True):
            got = sched.read(state)
            assert state.dtype != FLOAT16 or got.dtype == np.float16
            np.testing.assert_array_equal(got, after)
