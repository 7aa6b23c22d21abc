"""Log-probabilities against a log-softmax of the whole vocabulary in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vksched.common.errors import SamplingError, ShapeError
from vksched.generation.logprobs import token_logprobs


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.longdouble) - np.longdouble(logits.max())
    return (wide - np.log(np.exp(wide).sum())).astype(np.float64)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from((1, 2, 63, 700, 40_000)),
    count=st.integers(0, 20),
    has_ties=st.booleans(),
)
def test_they_are_those_of_a_log_softmax(seed: int, size: int, count: int, has_ties: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = (5 * rng.standard_normal(size)).astype(np.float32)
    if has_ties:
        logits = np.round(logits)
    logits[rng.random(size) < 0.1] = -np.inf
    logits[0] = 1
    token = int(rng.integers(size))
    expected = log_softmax(logits)
    found = token_logprobs(logits, token, count)
    assert found.token == token
    np.testing.assert_allclose(found.logprob, expected[token], rtol=1e-13, atol=1e-13)
    order = sorted(range(size), key=lambda each: (-logits[each], each))[:count]
    assert [each for each, _ in found.top] == order
    np.testing.assert_allclose([p for _, p in found.top], expected[order], rtol=1e-13, atol=1e-13)


def test_huge_logits_do_not_overflow() -> None:
    found = token_logprobs(np.float32([3e38, -3e38, 3e38]), 0, 2)
    assert found.logprob == pytest.approx(-np.log(2))
    assert [token for token, _ in found.top] == [0, 2]


@pytest.mark.parametrize("wrong", [[np.nan, 1], [-np.inf, -np.inf], [np.inf, 0]])
def test_logits_that_are_not_finite_are_errors(wrong: list[float]) -> None:
    with pytest.raises(SamplingError, match="expected logits without NaN and inf"):
        token_logprobs(np.float32(wrong), 0)


@pytest.mark.parametrize("token", [-1, 3])
def test_tokens_without_a_logit_are_errors(token: int) -> None:
    with pytest.raises(ShapeError, match=f"with token {token}"):
        token_logprobs(np.zeros(3, np.float32), token)
