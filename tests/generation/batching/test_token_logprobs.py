"""Log-probabilities equal a log-softmax in float64, and ties are in the order of the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_answers import logprob

from vksched.common.errors import SamplingError
from vksched.generation.batching.token_logprobs import token_logprobs

FLOATS = st.floats(-1000, 1000, width=32)


@given(st.lists(FLOATS | st.sampled_from((0.0, 1.0)), min_size=1, max_size=40), st.data())
def test_against_log_softmax(values: list[float], data: st.DataObject) -> None:
    logits = np.array(values, np.float32)
    token = data.draw(st.integers(0, len(values) - 1))
    count = data.draw(st.integers(0, len(values) + 2))
    found = token_logprobs(logits, token, count)
    _, value, top = logprob(logits, token, count)
    assert found.token == token
    np.testing.assert_allclose(found.logprob, value, rtol=1e-12, atol=1e-12)
    assert [i for i, _ in found.top] == [i for i, _ in top]
    np.testing.assert_allclose([v for _, v in found.top], [v for _, v in top], 1e-12, 1e-12)


def test_excluded_tokens_have_a_probability_of_zero() -> None:
    found = token_logprobs(np.array([0, -np.inf], np.float32), 1, 2)
    assert found.logprob == -np.inf
    assert found.top == ((0, 0.0), (1, -np.inf))


@pytest.mark.parametrize("damaged", (np.nan, np.inf))
def test_damaged_logits(damaged: float) -> None:
    with pytest.raises(SamplingError, match=r"\[logprobs\] expected logits without NaN"):
        token_logprobs(np.array([0, damaged], np.float32), 0, 1)
