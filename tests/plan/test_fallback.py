"""What numpy has to take is said once per op, with reasons; what is meant to be there is not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from graphs import CPU, A, make_plan, make_topology, picky, source

import vksched as vs
from vksched.plan.explain.cpu_fallback import Fallback, find_fallbacks, warn_of_fallbacks
from vksched.topology.limits import Limits

FOUR = np.arange(4, dtype=np.int32)
WHY = "gather binds 4 buffers, the device allows 3"


def picks(count: int = 2) -> vs.Tensor:
    """Some gathers, one after the other, with an op before and after each."""
    h = vs.exp(source(), name="start")
    for i in range(count):
        h = vs.neg(vs.gather(h, FOUR, name=f"pick{i}"), name=f"neg{i}")
    return h


def null_scheduler(*able: bool) -> vs.Scheduler:
    clock = vs.SimulatedClock()
    return vs.Scheduler([vs.SimulatedDevice(spec, clock) for spec in picky(*able).devices[:-1]])


def test_ops_that_no_device_runs_are_found_with_their_reasons() -> None:
    found = find_fallbacks(make_plan(picks(), {"start": A}, picky(False, False)))
    assert found == (Fallback("gather", ("pick0", "pick1"), ((A, WHY), ("null:1", WHY))),)


def test_nothing_is_found_where_a_device_can() -> None:
    for topology in (picky(False, True), picky(True), make_topology(0)):
        assert find_fallbacks(make_plan(picks(), topology=topology)) == ()


def test_what_the_user_put_on_the_cpu_is_wanted() -> None:
    plan = make_plan(picks(), {"pick*": CPU}, picky(False))
    assert find_fallbacks(plan) == ()
    plan = make_plan(picks(), {"pick*": A}, picky(False))  # what cannot be kept is told
    assert [f.nodes for f in find_fallbacks(plan)] == [("pick0", "pick1")]


def test_what_a_cpu_neighbour_drew_there_is_none_of_it() -> None:
    plan = make_plan(picks(), {"pick*": CPU, "neg0": CPU}, picky(False))
    assert find_fallbacks(plan) == ()


def test_few_numbers_count_only_once_a_device_has_worked_on_them() -> None:
    n = vs.input("n", (4,), "int64")
    assert find_fallbacks(make_plan(vs.add(n, n), topology=picky(True))) == ()
    pick = vs.gather(vs.exp(vs.input("x", (4,)), name="e"), FOUR)
    assert [f.op for f in find_fallbacks(make_plan(pick, {"e": A}, picky(False)))] == ["gather"]
    many = vs.input("m", (32,), "int64")
    assert [f.op for f in find_fallbacks(make_plan(many + many, topology=picky(True)))] == ["add"]


def test_a_scheduler_warns_once_per_op_at_the_line_that_compiles() -> None:
    with null_scheduler(False) as sched:
        with pytest.warns(vs.VkschedWarning) as caught:
            sched.compile(picks(3))
        assert [str(w.message) for w in caught] == [
            f"[fallback] numpy runs gather (pick0 and 2 more), as null:0 cannot: {WHY}; try "
            "print(run.plan.explain('pick0')), or a placement on cpu if that is meant"
        ]
        assert caught[0].filename == __file__
        sched.compile(picks(1))  # warnings are errors here
    with null_scheduler(False) as other, pytest.warns(vs.VkschedWarning, match="pick0"):
        other.compile(picks(1))


def test_a_second_op_is_a_second_warning() -> None:
    with null_scheduler(False) as sched:
        with pytest.warns(vs.VkschedWarning, match="gather"):
            sched.compile(picks(1))
        with pytest.warns(vs.VkschedWarning, match="numpy runs nonzero"):
            sched.compile([picks(1), vs.nonzero(vs.input("z", (32,)))[0]])


def test_ops_with_the_same_reason_share_a_warning() -> None:
    x = vs.input("x", (32,), "float64")
    plan = make_plan(vs.exp(vs.neg(x), name="last"), topology=make_topology(2))
    reported: set[str] = set()
    with pytest.warns(vs.VkschedWarning) as caught:
        warn_of_fallbacks(plan, reported)
    assert reported == {"neg", "exp"} and len(caught) == 1
    assert "numpy runs neg, exp (last), as null:0 and null:1 cannot: float64" in str(
        caught[0].message
    )


def test_warning_as_error_leaves_the_scheduler_usable() -> None:
    with null_scheduler(False) as sched:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(vs.VkschedWarning):
                sched.compile(picks(1))
        sched.compile(picks(1)).close()


def test_devices_without_the_limit_are_named_alone() -> None:
    spec = vs.DeviceSpec("small", "null", limits=Limits(), max_buffer_bytes=1024)
    topology = vs.Topology((spec, *picky(False).devices))
    plan = make_plan(vs.gather(source(), FOUR, name="pick"), topology=topology)
    (found,) = find_fallbacks(plan)
    assert [device for device, _ in found.reasons] == ["small", A]
    assert "over the largest buffer" in found.reasons[0][1] and found.reasons[1][1] == WHY
    assert "small cannot: float32[8,64] takes 2048 bytes" in plan.explain()
