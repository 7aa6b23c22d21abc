"""Gradients beside sources: states are wanted as weights are, draws are constants."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs


def test_the_gradient_of_a_state_is_that_of_its_value_of_now() -> None:
    held = vs.state(np.asarray([1.0, -2.0], np.float32), "held")
    step = held - vs.grad(vs.reduce_sum(held * held), held) * 0.25
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.reduce_sum(held * held), updates={held: step})
        assert [float(run()) for _ in range(3)] == [5.0, 1.25, 0.3125]
        np.testing.assert_array_equal(sched.read(held), [0.125, -0.25])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dropout_passes_what_it_keeps(dtype: str) -> None:
    x = vs.input("x", (200,), dtype)
    stored = vs.dropout(x, 0.5, seed=3)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile((stored, vs.grad(vs.reduce_sum(stored), x)))
        result, got = run(x=np.ones(200, dtype))
    assert 0 < np.count_nonzero(got) < 200
    np.testing.assert_array_equal(got, result)


def test_draws_and_filled_tensors_are_constants() -> None:
    x = vs.input("x", (4,))
    drawn = vs.random_normal(4, seed=1) + vs.linspace(0.0, 1.0, 4) * vs.full((4,), 2.0)
    of_x, of_drawn = vs.grad(vs.reduce_sum(x * drawn), [x, drawn])
    with vs.Scheduler(["cpu"]) as sched:
        values, got, other = sched.compile((drawn, of_x, of_drawn))(x=np.ones(4, np.float32))
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(other, 1)


def test_nothing_comes_back_to_a_seed() -> None:
    x = vs.input("x", ())
    seed = vs.cast(x, "int32")
    with pytest.raises(vs.GradientError, match="cast, which gives int32"):
        vs.grad(vs.reduce_sum(vs.random_uniform(3, seed=seed)), x)
