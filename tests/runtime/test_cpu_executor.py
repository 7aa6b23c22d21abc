"""Plans of one split of the CPU: what is told of their runs is what the general way tells, and
nothing that a caller is promised is left out.
"""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.errors import IndexOutOfRange
from vksched.ir.tensor import Tensor
from vksched.runtime.executors.cpu_executor import CpuExecutor, is_single
from vksched.runtime.executors.plan_executor import PlanExecutor

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_CHECK", "0")  # a run that is checked tells all of it


def network() -> dict[str, Tensor]:
    x = vs.input("x", X.shape)
    y = vs.softmax(x @ vs.weight(np.eye(4, dtype=np.float32)) + 1.0)
    z = vs.neg(x)
    return {"y": y, "z": z, "row": z[1], "line": y.reshape((12,))}


def test_it_tells_what_the_general_way_tells() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(network())
        own = run(x=X)
        alone = run.stats
        tape = sched.trace.add(vs.Tape())
        reported = run(x=X)
        general = run.stats
        sched.trace.remove(tape)
        assert is_single(run.plan)
    assert alone is not None and general is not None
    for name in own:
        np.testing.assert_array_equal(own[name], reported[name])
    assert [e.name for e in tape.events if e.name in ("submit", "run")] == ["submit", "run"]
    for field in ("fence_waits", "waits", "transfer_bytes", "input_bytes", "output_bytes"):
        assert getattr(alone, field) == getattr(general, field), field
    (one,), (other,) = alone.splits, general.splits
    assert (one.split, one.device, one.nodes) == (other.split, other.device, other.nodes)
    assert alone.start_s <= one.begin_s <= one.end_s <= alone.end_s
    kinds = [kind for kind, *_ in alone.spans]
    assert kinds == ["copy", "wait", "copy"]  # of the general way, a copy out for each
    ends = [alone.start_s, *(end for *_, end in alone.spans)]
    assert ends == sorted(ends) and alone.run + 1 == general.run


def test_results_are_the_callers_own() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(network())
        first = run(x=X)
        stored = {name: array.copy() for name, array in first.items()}
        run(x=-X)
        for name, array in first.items():
            np.testing.assert_array_equal(array, stored[name])
            array[...] = 7  # nothing of the graph's
        again = run(x=X)
    for name, array in again.items():
        np.testing.assert_array_equal(array, stored[name])


def test_a_run_that_fails_leaves_the_graph_usable() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        table = vs.weight(X)
        run = sched.compile(vs.neg(vs.gather(table, vs.input("ids", (2,), "int32"))))
        for _ in range(2):
            with pytest.raises(IndexOutOfRange):
                run(ids=np.array([0, 3], np.int32))
            np.testing.assert_array_equal(run(ids=np.array([2, 0], np.int32)), -X[[2, 0]])
        assert run.report().runs == 2


@pytest.mark.parametrize("outputs", ["a state", "a view of an input"])
def test_other_plans_go_the_general_way(outputs: str) -> None:
    x = vs.input("x", X.shape)
    with vs.Scheduler(["cpu"]) as sched:
        if outputs == "a state":
            held = vs.state(X)
            run = sched.compile(x + held, updates={held: x * 2.0})
        else:
            run = sched.compile({"y": vs.neg(x), "same": x.reshape((12,))})
        executor = run._compiled._executor
        assert isinstance(executor, PlanExecutor) and not isinstance(executor, CpuExecutor)
        assert not is_single(run.plan)
        run(x=X)
