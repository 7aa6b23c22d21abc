"""Routing and SparseMixer against their definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Scheds
from hypothesis import given
from hypothesis import strategies as st

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.gguf.architectures.routing import Routing
from vksched.importers.gguf.architectures.sparse_mixer import sparse_mixer

ROWS, EXPERTS = 5, 12
CLOSE = {"rtol": 2e-6, "atol": 1e-7}


def chosen(
    scores: NDArray, used: int, gating: str, normed: bool, bias: NDArray, groups: int, best: int
) -> tuple[NDArray, NDArray]:
    """Return the weights and numbers of the chosen experts of one token, by loops."""
    shares = 1 / (1 + np.exp(-scores)) if gating == "sigmoid" else np.exp(scores - scores.max())
    shares = shares if gating == "sigmoid" else shares / shares.sum()
    choice, size = shares + bias, len(scores) // groups
    of_group = 2 if gating == "sigmoid" else 1  # DeepSeek V3, and V2
    totals = [sum(sorted(choice[g * size : (g + 1) * size])[-of_group:]) for g in range(groups)]
    allowed = sorted(range(groups), key=lambda g: -totals[g])[:best]
    experts = [e for e in range(len(scores)) if e // size in allowed]
    numbers = sorted(experts, key=lambda e: -choice[e])[:used]
    weights = shares[numbers]
    return weights / weights.sum() if normed else weights, np.array(numbers)


def run(sched: vs.Scheduler, router: object, scores: NDArray) -> tuple[NDArray, NDArray]:
    weights, ids = router(vs.input("scores", scores.shape))  # type: ignore[operator]
    got = sched.compile([weights, ids])(scores=scores)
    return np.asarray(got[0]), np.asarray(got[1])


@pytest.mark.parametrize("gating", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("biased", "groups", "best"), [(False, 1, 1), (True, 1, 1), (True, 4, 2)])
@pytest.mark.parametrize("normed", [False, True])
def test_routing_is_its_definition(
    gating: str, biased: bool, groups: int, best: int, normed: bool, scheds: Scheds
) -> None:
    rng = np.random.default_rng(groups + normed)
    scores = rng.normal(0, 2, (ROWS, EXPERTS)).astype(np.float32)
    bias = rng.normal(0, 0.5, EXPERTS).astype(np.float32) if biased else None
    router = Routing(4, gating, normed, None if bias is None else vs.constant(bias), groups, best)
    for sched in scheds:
        weights, ids = run(sched, router, scores)
        for row in range(ROWS):
            shift = np.zeros(EXPERTS) if bias is None else bias.astype(np.float64)
            wanted = chosen(scores[row].astype(np.float64), 4, gating, normed, shift, groups, best)
            np.testing.assert_array_equal(ids[row], wanted[1])
            np.testing.assert_allclose(weights[row], wanted[0], **CLOSE)


def test_the_bias_decides_the_choice_and_not_the_weights(scheds: Scheds) -> None:
    bias = np.zeros(EXPERTS, np.float32)
    bias[7] = -10  # the best score
    scores = np.linspace(-1, 1, EXPERTS, dtype=np.float32)[None] * np.float32(0.1)
    scores[0, 7] = 3
    weights, ids = run(scheds[0], Routing(2, "sigmoid", False, vs.constant(bias)), scores)
    np.testing.assert_array_equal(ids, [[11, 10]])
    np.testing.assert_allclose(weights[0], 1 / (1 + np.exp(-scores[0, [11, 10]])), **CLOSE)


def test_groups_with_negative_scores_of_choice_beat_others(scheds: Scheds) -> None:
    """A group that is not chosen stays out, though all scores of the chosen one are below 0."""
    bias = np.full(EXPERTS, -2, np.float32)
    scores = np.zeros((1, EXPERTS), np.float32)
    scores[0, 3:6] = 1
    router = Routing(3, "sigmoid", True, vs.constant(bias), 4, 1)
    np.testing.assert_array_equal(run(scheds[0], router, scores)[1], [[3, 4, 5]])


def test_weights_that_are_all_0_stay_0(scheds: Scheds) -> None:
    scores = np.full((1, EXPERTS), -200, np.float32)
    weights, _ = run(scheds[0], Routing(2, "sigmoid", True), scores)
    np.testing.assert_array_equal(weights, [[0, 0]])


def mixed(scores: NDArray) -> tuple[NDArray, NDArray]:
    """Return the two shares and experts of a token, by loops."""
    left, weights, numbers = list(range(len(scores))), [], []
    for _ in range(2):
        best = max(left, key=lambda e: (scores[e], -e))
        top = scores[best]
        close = [e for e in left if not (top - scores[e]) / max(abs(scores[e]), top) > 0.02]
        weights.append(1 / sum(np.exp(scores[e] - top) for e in close))
        numbers.append(best)
        left.remove(best)
    return np.array(weights), np.array(numbers)


@given(st.integers(0, 1 << 30), st.sampled_from([0.01, 0.1, 3.0]), st.sampled_from([-5.0, 1.0]))
def test_sparse_mixer_is_its_definition(seed: int, spread: float, middle: float) -> None:
    scores = np.random.default_rng(seed).normal(middle, spread, (ROWS, EXPERTS)).astype(np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        weights, ids = run(sched, sparse_mixer, scores)
    for row in range(ROWS):
        wanted = mixed(scores[row].astype(np.float64))
        np.testing.assert_array_equal(ids[row], wanted[1])
        np.testing.assert_allclose(weights[row], wanted[0], rtol=1e-5)


def test_sparse_mixer_on_devices(scheds: Scheds) -> None:
    scores = np.random.default_rng(1).normal(1, 0.05, (ROWS, EXPERTS)).astype(np.float32)
    for sched in scheds:
        weights, ids = run(sched, sparse_mixer, scores)
        for row in range(ROWS):
            wanted = mixed(scores[row].astype(np.float64))
            np.testing.assert_array_equal(ids[row], wanted[1])
            np.testing.assert_allclose(weights[row], wanted[0], rtol=1e-5)
