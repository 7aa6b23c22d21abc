"""Nodes without operands, and indices out of range, through planner and runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import make_plan, make_topology

import vksched as vs
from vksched.common.dtypes import TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, get_op
from vksched.ir.value_range import bounds_of_data, bounds_of_result, fits
from vksched.ops.layout.scatter import MOST_IN_ORDER
from vksched.ops.lowering.lower import lower
from vksched.testing.op_cases.creation import create, random
from vksched.testing.op_cases.layout import index, rearrange, scatter
from vksched.testing.op_cases.op_sample import Case
from vksched.topology.limits import Limits

FAMILIES = (create, index, random, rearrange, scatter)
INTEGER_CASES = [
    case
    for family in FAMILIES
    for case in family.CASES
    if not case.result_type().dtype.startswith("float")
]
I3 = np.array([0, 2, 1], np.int32)


def test_nodes_without_operands_run_on_the_device(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        x = vs.input("x", (3, 4))
        base = vs.full((3, 4), 2.5) + vs.eye(3, 4) * x
        parts = [base, vs.arange(12).reshape(3, 4), vs.zeros((0, 3)), vs.linspace(0, 1, 3)]
        run = sched.compile(parts)
        got = run(x=np.full((3, 4), 2, np.float32))
        assert {run.plan.topology.devices[s.device].name for s in run.plan.splits} == {
            sched.devices[0].name
        }, run.plan.explain()
    assert np.array_equal(got[0], 2.5 + 2 * np.eye(3, 4))
    assert np.array_equal(got[1], np.arange(12).reshape(3, 4))
    assert got[2].shape == (0, 3) and got[3].tolist() == [0, 0.5, 1]


def test_a_graph_without_inputs_runs(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.cast(vs.arange(5), "float32") * 0.5)
        assert run().tolist() == [0, 0.5, 1, 1.5, 2]
        assert run().tolist() == [0, 0.5, 1, 1.5, 2]


def test_nodes_without_operands_cross_and_are_placed() -> None:
    a = vs.full((64,), 1.5, name="a")
    y = vs.relu(a + vs.input("x", (64,)), name="y")
    plan = make_plan(y, topology=make_topology(2), placement={"a": "null:0", "y": "null:1"})
    plan.verify()
    assert "a: float32[64] = full() {dtype='float32', shape=(64,), value=1.5}" in str(plan.graph)


def test_int64_created_on_a_device_fits_or_stays_on_the_cpu() -> None:
    small, large = (vs.arange(s, s + 5, dtype="int64", name="a") for s in (7, 2**31))
    assert make_plan(small + 1, topology=make_topology(1)).splits[0].device == 0
    assert make_plan(large + 1, topology=make_topology(1)).splits[0].device != 0


@pytest.mark.parametrize(
    ("reduction", "dtype", "fits"),
    [
        ("none", "float32", True),
        ("add", "int32", True),
        ("add", "float32", False),
        ("mul", "int32", False),
    ],
)
def test_only_so_many_updates_go_in_order(reduction: str, dtype: str, fits: bool) -> None:
    count = MOST_IN_ORDER + 1
    inputs = (TensorType((3,), dtype), TensorType((count,), "int32"), TensorType((count,), dtype))
    attrs = Attrs({"axis": 0, "reduction": reduction})
    for limits in (Limits(), Limits(software=True)):
        call = Call(inputs, inputs[0], attrs, limits)
        if fits or limits.software:
            assert lower(get_op("scatter_elements"), call).dispatches
        else:
            with pytest.raises(vs.UnsupportedOp, match="too long"):
                lower(get_op("scatter_elements"), call)


@pytest.mark.parametrize("case", INTEGER_CASES, ids=lambda c: c.id)
def test_known_bounds_hold(case: Case) -> None:
    """What the graph knows of a result's least and largest value is true."""
    known = tuple(bounds_of_data(a) for a in case.inputs)
    result = case.result_type()
    bounds = bounds_of_result(case.declaration, known, case.types, result, Attrs(case.attrs))
    found = bounds_of_data(case.expected()) if result.size else None
    assert bounds is None or found is None or fits(found, bounds), (bounds, found)


@pytest.mark.parametrize(
    "build",
    [
        lambda ids: vs.gather_elements(vs.weight(np.ones(3, np.float32)), ids),
        lambda ids: vs.gather_nd(vs.weight(np.ones((3, 2), np.float32)), ids.reshape(3, 1)),
        lambda ids: vs.scatter_elements(vs.zeros(3), ids, vs.ones(3)),
        lambda ids: vs.scatter_nd(vs.zeros((3, 2)), ids.reshape(3, 1), vs.ones((3, 2)), "add"),
    ],
    ids=["gather_elements", "gather_nd", "scatter_elements", "scatter_nd"],
)
@pytest.mark.parametrize("bad", [3, -4])
def test_an_index_out_of_range_is_an_error_and_the_graph_lives_on(
    build: Callable[[vs.Tensor], vs.Tensor], bad: int, devices: list[str]
) -> None:
    with vs.Scheduler(devices) as sched:
        run = sched.compile(build(vs.input("ids", (3,), "int32")) + 1.0)
        with pytest.raises(vs.IndexOutOfRange):
            run(ids=np.array([0, bad, 1], np.int32))
        assert np.array_equal(run(ids=I3), run(ids=I3 - 3))
