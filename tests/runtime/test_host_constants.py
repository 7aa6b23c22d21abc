"""What weights alone make is computed once by the CPU, within a limit, and where it may be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.ir.tensor import Tensor
from vksched.plan.types.plan_types import PlanValue
from vksched.runtime.cpu import constants, split_program
from vksched.runtime.cpu.evaluate import CpuWeights

W = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def folded_ops(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of each graph the ops whose results are kept."""
    seen: list[list[str]] = []

    def noted(plan: PlanValue, *args: Any) -> dict[int, np.ndarray]:
        found = constants.make_constants(plan, *args)
        seen.append([plan.graph.nodes[n].op for n in found])
        return found

    monkeypatch.setattr(split_program, "make_constants", noted)
    return seen


def network(w: Tensor) -> Tensor:
    transposed = vs.transpose(w)  # (4, 3), then a view of it, then of both
    return vs.input("x", X.shape) @ vs.exp(vs.reshape(transposed, (4, 3))) + vs.reduce_sum(
        transposed, 0
    )


def expected() -> np.ndarray:
    return X @ np.exp(W.T) + W.T.sum(0)


ALL = ["transpose", "exp", "reduce_sum"]


@pytest.mark.parametrize(
    ("limit", "stored"), [(constants.MAX_BYTES, ALL), (60, ["transpose", "reduce_sum"]), (0, [])]
)
def test_it_is_computed_once(
    limit: int, stored: list[str], folded_ops: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "MAX_BYTES", limit)
    with vs.Scheduler(["cpu"], optimize=False) as sched:
        run = sched.compile(network(vs.weight(W)))
        for _ in range(2):
            np.testing.assert_allclose(run(x=X), expected(), rtol=1e-5)
    assert folded_ops == [stored]


def test_what_only_others_of_them_read_is_not_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[set[str]] = []

    class Noted(split_program._Arrays):
        def __init__(
            self, plan: PlanValue, weights: CpuWeights, fixed: dict[int, np.ndarray]
        ) -> None:
            stored.append({plan.graph.nodes[n].op for n in fixed})
            super().__init__(plan, weights, fixed)

    monkeypatch.setattr(split_program, "_Arrays", Noted)
    with vs.Scheduler(["cpu"], optimize=False) as sched:
        run = sched.compile(network(vs.weight(W)))
        for _ in range(2):
            np.testing.assert_allclose(run(x=X), expected(), rtol=1e-5)
    (ops,) = stored
    assert ops >= {"exp", "reduce_sum"} and "transpose" not in ops


def test_what_leaves_is_rebuilt_in_each_run(folded_ops: list[list[str]]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        transposed = vs.transpose(vs.weight(W))
        run = sched.compile({"t": transposed, "y": vs.input("x", X.shape) @ vs.exp(transposed)})
        first = run(x=X)
        first["t"][...] = 7
        np.testing.assert_array_equal(run(x=X)["t"], W.T)
    assert folded_ops == [[]]  # exp reads what leaves


def test_states_are_no_weights(folded_ops: list[list[str]]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        held = vs.state(W)
        x = vs.input("x", X.shape)
        run = sched.compile(x @ vs.transpose(held), updates={held: held * 2.0})
        np.testing.assert_allclose(run(x=X), X @ W.T, rtol=1e-5)
        np.testing.assert_allclose(run(x=X), X @ W.T * 2, rtol=1e-5)
    assert folded_ops == [[]]


def test_weights_of_a_closed_graph_stay_as_they_are() -> None:
    w = vs.weight(W)
    with vs.Scheduler(["cpu"]) as sched:
        for _ in range(2):
            run = sched.compile(network(w))
            np.testing.assert_allclose(run(x=X), expected(), rtol=1e-5)
            run.close()
