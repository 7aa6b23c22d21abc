"""Random values: their statistics, the error of the normal quantile, and what seeds do."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ops.creation.random import normal_pieces, philox, quantiles

pytest.importorskip("onnx")
pytest.importorskip("scipy")

from references.random import KNOWN_ANSWERS
from scipy import special

COUNT = 200_000


def drawn(y: vs.Tensor, **feeds: NDArray) -> NDArray:
    """The values of one run on the CPU."""
    with vs.Scheduler(["cpu"]) as sched:
        return np.asarray(sched.compile(y)(**feeds))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(philox(np.asarray([counter], np.uint32), key)[0]) == words


def test_normal_quantile_is_close_to_the_exact_one() -> None:
    """In all octaves of both tails, at the ends of the pieces too."""
    edges = [(8 + p) * 2**o // 8 + d for o in range(3, 31) for p in range(8) for d in (-1, 0, 1)]
    few, any_ = np.arange(1 << 16), np.random.default_rng(0).integers(0, 2**31, 1 << 18)
    tails = np.concatenate([few, 2**31 - 1 - few, np.asarray(edges) % 2**31, any_])
    exact = special.ndtri((2.0 * tails + 1) / 2**33)
    for sign, words in ((-1, tails), (1, tails + 2**31)):
        got = quantiles(words.astype(np.uint32), normal_pieces()).astype(np.float64)
        error = np.abs(got - sign * exact)
        assert error.max() < 1e-6
        assert (error / np.abs(exact))[np.abs(exact) > 1e-3].max() < 1e-5
        assert np.abs(got).max() > 6.3


def test_normal_values_are_normal() -> None:
    from scipy import stats  # which takes a second to import

    x = drawn(vs.random_normal((COUNT,), seed=5)).astype(np.float64)
    assert abs(x.mean()) < 5 / np.sqrt(COUNT) and abs(x.var() - 1) < 5 * np.sqrt(2 / COUNT)
    assert abs((x**3).mean()) < 5 * np.sqrt(15 / COUNT)
    assert abs((x**4).mean() - 3) < 5 * np.sqrt(96 / COUNT)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    moved = drawn(vs.random_normal((COUNT,), 3.0, 0.5, seed=5))
    assert np.allclose(moved, 3 + 0.5 * x, atol=1e-6)


def test_uniform_values_are_uniform() -> None:
    from scipy import stats  # which takes a second to import

    x = drawn(vs.random_uniform((COUNT,), seed=6)).astype(np.float64)
    assert 0 <= x.min() < 1e-4 and 1 - 1e-4 < x.max() < 1
    assert abs(x.mean() - 0.5) < 5 * np.sqrt(1 / 12 / COUNT)
    assert stats.kstest(x, "uniform").pvalue > 1e-3
    # neighbours and the four words of a block know nothing of each other
    assert all(abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 5 / np.sqrt(COUNT) for lag in (1, 2, 4))


def test_integers_and_coins_come_as_often_as_they_should() -> None:
    from scipy import stats  # which takes a second to import

    x = drawn(vs.random_integers((COUNT,), -3, 8, seed=7))
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == list(range(-3, 8)) and stats.chisquare(counts).pvalue > 1e-3
    heads = drawn(vs.bernoulli((COUNT,), 0.3, seed=8)).mean()
    assert abs(heads - 0.3) < 5 * np.sqrt(0.21 / COUNT)
    assert (
        drawn(vs.bernoulli((COUNT,), 1.0, seed=8)).all()
        and not drawn(vs.bernoulli((COUNT,), 0.0, seed=8)).any()
    )


def test_dropout_keeps_the_mean() -> None:
    x = drawn(vs.dropout(vs.ones(COUNT), 0.4, seed=9))
    assert set(np.unique(x).tolist()) == {0.0, float(np.float32(1 / 0.6))}
    assert abs(x.mean() - 1) < 5 * np.sqrt(0.4 / 0.6 / COUNT)


def test_seeds_and_streams_give_other_values() -> None:
    calls = [(0, 0), (1, 0), (2**32, 0), (-1, 0), (0, 1), (0, 2**32), (1, 1)]
    rows = [tuple(drawn(vs.random_uniform((64,), seed=s, stream=t)).tolist()) for s, t in calls]
    assert len(set(rows)) == len(rows)
    longer = drawn(vs.random_uniform((99,), seed=0))
    assert tuple(longer[:64].tolist()) == rows[0]  # a value depends on its number alone


def test_a_seed_that_is_an_input_draws_anew_in_every_run(devices: list[str]) -> None:
    seed = vs.input("seed", (), "int32")
    parts = [vs.random_normal((7, 11), seed=seed), vs.random_uniform((5,), seed=seed, stream=1)]
    with vs.Scheduler(devices) as sched:
        run = sched.compile([*parts, vs.dropout(vs.input("x", (9,)), 0.5, seed=seed)])
        x = np.arange(9, dtype=np.float32)
        first, second, again = (run(seed=np.int32(s), x=x) for s in (3, -4, 3))
    fixed = drawn(vs.random_normal((7, 11), seed=-4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], second[0]) and not np.array_equal(first[1], second[1])
    assert np.array_equal(second[0], fixed)
