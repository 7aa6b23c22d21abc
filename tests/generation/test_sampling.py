"""The next token from the scores of a model, against probabilities worked out by hand."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from vksched.generation import token_filters
from vksched.generation.sampling import Sampling

ALL = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)
LOGITS = np.log([0.5, 0.3, 0.15, 0.05])


def drawn(sampling: Sampling, count: int = 4000) -> np.ndarray:
    found = [sampling.choose(LOGITS, [0] * place) for place in range(count)]
    return np.bincount(found, minlength=4) / count


def test_draws_have_the_probabilities_of_the_scores() -> None:
    np.testing.assert_allclose(drawn(ALL), [0.5, 0.3, 0.15, 0.05], atol=0.03)


@pytest.mark.parametrize(
    ("sampling", "stored"),
    [
        (Sampling(1, top_k=2, top_p=1, min_p=0), [0, 1]),
        (Sampling(1, top_k=0, top_p=0.79, min_p=0), [0, 1]),
        (Sampling(1, top_k=0, top_p=0.81, min_p=0), [0, 1, 2]),
        (Sampling(1, top_k=0, top_p=0, min_p=0), [0]),
        (Sampling(1, top_k=0, top_p=1, min_p=0.29), [0, 1, 2]),
        (Sampling(1, top_k=0, top_p=1, min_p=1), [0]),
        (Sampling(100, top_k=3, top_p=0.6, min_p=0), [0, 1]),
    ],
)
def test_filters_keep_the_likely_tokens(sampling: Sampling, stored: list[int]) -> None:
    assert np.flatnonzero(drawn(sampling, 400)).tolist() == stored


def test_of_equal_scores_the_first_are_retained() -> None:
    scores = np.array([2.0, 5.0, 2.0, -np.inf, 5.0, 2.0])
    for top_k, stored in (
        (1, [1]),
        (2, [1, 4]),
        (3, [0, 1, 4]),
        (4, [0, 1, 2, 4]),
        (9, [0, 1, 2, 4, 5]),
    ):
        sampling = Sampling(1, top_k=top_k, top_p=1, min_p=1e-3)
        found = {sampling.choose(scores, [0] * place) for place in range(400)}
        assert sorted(found) == stored


def sorted_filters(logits: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that pass all filters, by a sort of the whole vocabulary."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: top_k or None]
    weights = [math.exp(logits[i] - logits[order[0]]) for i in order]
    if top_p < 1:
        total = math.fsum(weights)
        count = next(n for n in range(1, len(order) + 1) if math.fsum(weights[:n]) >= top_p * total)
        order = order[:count]
    return {i for i in order if math.exp(logits[i] - logits[order[0]]) >= min_p}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_filters_equal_those_of_a_sorted_vocabulary(
    monkeypatch: pytest.MonkeyPatch, seed: int, dtype: type
) -> None:
    monkeypatch.setattr(token_filters, "_SORTED", 8)
    monkeypatch.setattr(token_filters, "_BOUNDED", 2 if seed % 2 else 1 << 14)
    rng = np.random.default_rng(seed)
    # dyadic scores have many ties, and weights whose sums are exact
    logits = rng.choice([0.0, -1.0, -2.0, -3.0, -7.0], size=int(rng.choice([1, 63, 64, 700])))
    logits = (logits * math.log(2)).astype(dtype)
    top_k = int(rng.choice([0, 1, 3, 9, 500]))
    top_p, min_p = float(rng.choice([0.0, 0.3, 0.77, 1.0])), float(rng.choice([0.0, 0.3, 1.0]))
    places = range(400)
    found = {Sampling(1000, top_k, top_p, min_p, seed=seed).choose(logits, [0] * n) for n in places}
    expected = sorted_filters(logits.tolist(), top_k, top_p, min_p)
    assert found <= expected
    if len(expected) <= 40:
        assert found == expected


def test_temperature_comes_last() -> None:
    flat = drawn(Sampling(1000, top_k=0, top_p=0.79, min_p=0))
    np.testing.assert_allclose(flat, [0.5, 0.5, 0, 0], atol=0.04)


def test_no_temperature_takes_the_largest_score() -> None:
    assert Sampling(0).choose(np.array([1.0, 3.0, 3.0])) == 1


@pytest.mark.filterwarnings("error")
def test_next_to_no_temperature_takes_the_largest_score() -> None:
    chosen = [Sampling(1e-320).choose(np.array([1.0, 3.0, 2.9]), [0] * n) for n in range(20)]
    assert chosen == [1] * 20


def test_a_penalty_makes_repeats_less_likely() -> None:
    once = Sampling(0, repeat_penalty=2)
    assert once.choose(np.array([3.0, 2.0, -1.0]), [0]) == 1
    assert once.choose(np.array([-3.0, -4.0, -7.0]), [0]) == 1
    assert Sampling(0, repeat_penalty=2, repeat_last_n=1).choose(np.array([3.0, 2.0]), [0, 1]) == 0


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**64 - 1), place=st.integers(0, 50), size=st.integers(1, 40))
def test_a_seed_and_a_place_give_one_token(seed: int, place: int, size: int) -> None:
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    sampling = Sampling(seed=seed, repeat_penalty=1.1)
    tokens = [each % size for each in range(place)]
    first = sampling.choose(logits, tokens)
    assert 0 <= first < size
    assert sampling.choose(logits, tokens) == first


def test_places_and_seeds_differ() -> None:
    for change in (lambda each: (each, 1), lambda each: (1, each)):
        pairs = [change(each) for each in range(200)]
        found = {Sampling(1, 0, 1, 0, seed=s).choose(LOGITS, [0] * p) for s, p in pairs}
        assert len(found) > 2


def test_scores_of_minus_infinity_are_never_taken() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf])
    assert {ALL.choose(logits, [0] * place) for place in range(50)} == {1}


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": float("nan")},
        {"top_k": 2.5},
        {"seed": 1.5},
        {"temperature": "warm"},
    ],
)
def test_numbers_outside_of_their_range_are_errors(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\[sampling\] expected"):
        Sampling(**values)


@pytest.mark.parametrize("logits", [[], [[1.0]], [1.0, np.nan], [-np.inf, -np.inf]])
def test_scores_that_are_none_are_errors(logits: list[float]) -> None:
    with pytest.raises(ValueError, match="expected 1-D logits without NaN"):
        ALL.choose(np.array(logits))


@pytest.mark.parametrize("token", [-1, 3])
def test_tokens_without_a_score_are_errors(token: int) -> None:
    with pytest.raises(ValueError, match=rf"expected tokens below 3, got {token}"):
        Sampling(repeat_penalty=1.1).choose(np.zeros(3), [0, token])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-320, 1e-50, 1e-30])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_tiny_temperature_takes_the_largest_score_of_any_type(
    temperature: float, dtype: type
) -> None:
    logits = np.array([0, 5, 4.9, 2, -3], dtype)
    for sampling in (Sampling(temperature), Sampling(temperature, top_k=0, top_p=1, min_p=0)):
        assert {sampling.choose(logits, [0] * n) for n in range(20)} == {1}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("penalty", [1e-3, 1.1, 1e3])
def test_a_penalty_leaves_masked_and_extreme_scores_finite(penalty: float) -> None:
    least = np.finfo(np.float32).min
    sampling = Sampling(repeat_penalty=penalty)
    assert sampling.choose(np.float32([-3e38, -np.inf, -np.inf]), [0]) == 0
    assert sampling.choose(np.float32([least, 1.0, -np.inf]), [0, 2]) == 1
    assert sampling.choose(np.float32([3e38, -1.0]), [0]) == 0


def test_infinite_scores_are_drawn_alone() -> None:
    logits = np.float32([1.0, np.inf, 3.0, np.inf])
    assert {ALL.choose(logits, [0] * n) for n in range(50)} == {1, 3}


GREEDY = {"temperature": 0.0}


def test_frequency_and_presence_penalties_count_generated_tokens() -> None:
    logits, text = np.array([3.0, 2.9, 2.0]), [0, 0, 0, 1, 1, 2]
    present = Sampling(**GREEDY, presence_penalty=1.5)
    assert present.choose(logits, text, prompt_tokens=6) == 0
    assert present.choose(logits, text, prompt_tokens=2) == 0  # all were generated: 1.5, 1.4, 0.5
    assert present.choose(logits, text[:5], prompt_tokens=0) == 2
    often = Sampling(**GREEDY, frequency_penalty=0.6)
    assert often.choose(logits, text, prompt_tokens=0) == 1  # 1.2, 1.7, 1.4
    assert often.choose(logits, text, prompt_tokens=3) == 0  # 3.0, 1.7, 1.4
    assert Sampling(**GREEDY, presence_penalty=-2).choose(logits, [2]) == 2
    both = Sampling(**GREEDY, presence_penalty=1, frequency_penalty=0.5)
    chances = np.exp(np.array([3.0 - 1 - 1.5, 2.9 - 1 - 1.0, 2.0 - 1 - 0.5]))
    sampling = Sampling(1, 0, 1, 0, presence_penalty=1, frequency_penalty=0.5)
    found = [
        Sampling(1, 0, 1, 0, seed=n, presence_penalty=1, frequency_penalty=0.5).choose(logits, text)
        for n in range(3000)
    ]
    np.testing.assert_allclose(np.bincount(found) / 3000, chances / chances.sum(), atol=0.04)
    assert both.choose(logits, text) == int(np.argmax(chances))
    assert sampling.choose(logits, text) == sampling.choose(logits, tuple(text))


def test_penalties_leave_the_logits_of_the_caller() -> None:
    logits = np.float32([1.0, 2.0, -np.inf])
    Sampling(repeat_penalty=2, presence_penalty=1, logit_bias={0: 5.0}).choose(logits, [0, 2])
    assert logits.tolist() == [1.0, 2.0, -np.inf]


def test_a_bias_is_added_before_the_penalties() -> None:
    logits = np.float32([1.0, 2.0, 0.0])
    assert Sampling(**GREEDY, logit_bias={0: 1.5}).choose(logits) == 0
    assert Sampling(**GREEDY, logit_bias={1: -100}).choose(logits) == 0
    assert Sampling(**GREEDY, logit_bias={0: -np.inf, 1: -np.inf}).choose(logits) == 2
    # (1 + 3) / 4 is below 2
    assert Sampling(**GREEDY, logit_bias={0: 3}, repeat_penalty=4).choose(logits, [0]) == 1
    assert Sampling(1, 0, 1, 0, logit_bias={1: -np.inf}).choose(np.float32([-np.inf, 2, 1])) == 2


def test_a_bias_is_part_of_the_value() -> None:
    one, other = Sampling(logit_bias={2: 1, 1: 2.0}), Sampling(logit_bias=((1, 2.0), (2, 1.0)))
    assert one == other and hash(one) == hash(other)
    assert one.logit_bias == ((1, 2.0), (2, 1.0))


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        ({"a": 1}, "expected token ids in logit_bias, got 'a'"),
        ({-1: 1}, "expected token ids in logit_bias, got -1"),
        ({True: 1}, "expected token ids in logit_bias, got True"),
        ({1.5: 1}, "expected token ids in logit_bias, got 1.5"),
        ({1: 101}, "from -100 to 100, or -inf, in logit_bias, got 101 for token 1"),
        ({1: float("nan")}, "got nan for token 1"),
        ({1: "2"}, "got '2' for token 1"),
        ([1], "expected logit_bias as a mapping"),
        ((1,), "expected logit_bias as a mapping"),
        (None, "expected logit_bias as a mapping"),
    ],
)
def test_wrong_biases_are_errors(bias: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Sampling(logit_bias=bias)


def test_biases_of_missing_tokens_are_errors() -> None:
    with pytest.raises(ValueError, match="expected tokens in logit_bias below 3, got 3"):
        Sampling(logit_bias={3: 1}).choose(np.zeros(3))
    with pytest.raises(ValueError, match="expected logit_bias to leave a token, got none"):
        Sampling(logit_bias={0: -np.inf}).choose(np.zeros(1))


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [2.1, -2.1, float("nan"), "1"])
def test_penalties_have_the_range_of_the_api(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"expected {name} from -2 to 2"):
        Sampling(**{name: value})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_penalties_leave_extreme_scores_finite() -> None:
    least = np.finfo(np.float32).min
    for sampling in (
        Sampling(**GREEDY, presence_penalty=2, frequency_penalty=2),
        Sampling(**GREEDY, logit_bias={0: -100}),
    ):
        assert sampling.choose(np.float32([least, -np.inf]), [0, 1]) == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from((0.0, 0.1, 1.0, 3.0, 8.0)),
    top_p=st.sampled_from((0.1, 0.5, 0.9, 0.95, 0.999)),
    min_p=st.sampled_from((0.0, 0.01, 0.05, 0.5)),
)
def test_bounds_find_the_nucleus_of_all_exponentials(
    seed: int, scale: float, top_p: float, min_p: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (scale * rng.standard_normal(1 << 15)).astype(np.float32)
    logits[rng.integers(1 << 15, size=20)] += rng.integers(0, 20)
    top = float(logits.max())
    least = math.log(min_p) + top if min_p else -np.inf
    found = token_filters.nucleus(logits, top, top_p, least)
    order = np.argsort(-logits, kind="stable")
    sums = np.cumsum(np.exp(logits[order].astype(np.float64) - top))
    count = int(np.searchsorted(sums, top_p * sums[-1])) + 1
    found = found[logits[found] >= least]
    expected = order[:count][logits[order[:count]] >= least]
    # one token may be on either side, as the sums are in float32 there
    assert abs(len(found) - len(expected)) <= max(1, len(expected) // 10_000)
    assert set(found.tolist()) <= set(order[: len(found)].tolist())


def test_a_token_does_not_convert_the_bias_again() -> None:
    class Pairs(tuple):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError("the pairs are read for each token")

    sampling = Sampling(temperature=0, logit_bias={3: 5.0, 1: -np.inf})
    object.__setattr__(sampling, "logit_bias", Pairs(sampling.logit_bias))
    assert sampling.choose(np.array([0, 9, 2, 1], np.float32)) == 3
    same = Sampling(temperature=0, logit_bias={1: -np.inf, 3: 5.0})
    again = pickle.loads(pickle.dumps(same))
    assert again == same and hash(again) == hash(same)
    assert again.choose(np.array([0, 9, 2, 1], np.float32)) == 3
