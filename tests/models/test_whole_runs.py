"""Runs of a model that are runs of one graph: they go to it directly, and nothing else changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_program import parse

import vksched as vs
from vksched.common.errors import DTypeError, PlanError
from vksched.models.compiled_model import CompiledModel, DirectRun

ONE = "g (float[n] x) => (float[n] y, float[n] z) { y = Neg(x)\n z = Exp(x) }"
TWICE = "g (float[n] x) => (float[n] y, float[n] z) { y = Neg(x)\n z = Identity(y) }"
THROUGH = "g (float[n] x) => (float[n] y, float[n] z) { y = Neg(x)\n z = Identity(x) }"
LONG = "g (int64[n] x) => (int64[n] y) { y = Neg(x) }"
X = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Notes each run that goes directly."""
    seen: list[object] = []
    run = DirectRun.run

    def noted(self: DirectRun, *args: object) -> object:
        seen.append(self.segment)
        return run(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DirectRun, "run", noted)
    return seen


def check(run: CompiledModel, x: np.ndarray) -> None:
    found = run(x=x)
    assert list(found) == ["y", "z"]
    np.testing.assert_array_equal(found["y"], -x)
    np.testing.assert_allclose(found["z"], np.exp(x), rtol=1e-6)


def test_runs_of_the_same_types_go_directly(direct: list[object]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(ONE)))
        for count in range(4):
            check(run, X + count)
        assert len(direct) == 3
        check(run, np.ones(5, np.float32))
        check(run, X)  # the graph of these was used before, but not last
        assert len(direct) == 3
        check(run, X[::-1])
        assert len(direct) == 3 + 1
        report = run.report()
        assert report.runs > 1 and report.graphs == 1
        with pytest.raises(DTypeError):
            run(x=X.astype(np.float64))
    with pytest.raises(PlanError, match="closed"):
        run(x=X)


@pytest.mark.parametrize("text", [TWICE, THROUGH])
def test_results_that_share_memory_do_not(text: str, direct: list[object]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(text)))
        for _ in range(3):
            values = X.copy()
            found = run(x=values)
            found["z"][...] = 7
            np.testing.assert_array_equal(found["y"], -X)
            np.testing.assert_array_equal(values, X)
    assert not direct


def test_what_int64_hold_decides_the_graph(direct: list[object]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(LONG)))
        for value in (3, 3, 2**40, 3):
            np.testing.assert_array_equal(run(x=np.array([value]))["y"], [-value])
    assert not direct


def test_a_graph_that_was_dropped_and_rebuilt_is_gone_to_directly(direct: list[object]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(ONE)), limit=1)
        for _ in range(2):
            check(run, X)
        run.prepare(x=(5,))  # drops the other
        for _ in range(3):
            check(run, X)
    first, *later = direct
    assert len(later) == 2 and first not in later


def test_a_graph_that_others_close_is_rebuilt() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(ONE)), limit=1)

        def work(size: int) -> None:
            for count in range(20):
                check(run, np.full(size, count % 3, np.float32))

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work, size) for size in (1, 2, 3)]:
                done.result()
        assert len(run.plans) == 1


def test_a_run_that_another_thread_closes_before_it_begins_makes_no_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(ONE)))
        for _ in range(2):
            check(run, X)
        direct = DirectRun.run

        def closed_first(self: DirectRun, *args: object) -> object:
            run.close()
            return direct(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(DirectRun, "run", closed_first)
        with pytest.raises(PlanError, match="closed"):
            run(x=X)
        assert not run.segments
