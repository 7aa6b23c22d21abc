"""Largest and least values by native loops: as numpy's, whatever is no number."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs

SHAPES = [
    ((1,), 0),
    ((15,), 0),
    ((16,), 0),
    ((1000,), 0),
    ((7, 33), 1),
    ((33, 7), 0),
    ((3, 40, 5), 1),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
def test_as_numpy_has_them(
    shape: tuple[int, ...], axis: int, kind: str, special: float | None
) -> None:
    rng = np.random.default_rng(sum(shape))
    op = {"max": vs.reduce_max, "min": vs.reduce_min}[kind]
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(op(vs.input("x", shape), axis))
        for _ in range(6):
            x = rng.standard_normal(shape).astype(np.float32)
            if special is not None:
                x.flat[rng.integers(x.size, size=1 + x.size // 9)] = special
            np.testing.assert_array_equal(run(x=x), getattr(np, kind)(x, axis))


@pytest.mark.parametrize("at", [0, 1, 15, 16, 31, 40])
def test_one_that_is_no_number_wins(at: int) -> None:
    x = np.arange(41, dtype=np.float32)
    x[at] = np.nan
    with vs.Scheduler(["cpu"]) as sched:
        placeholder = vs.input("x", x.shape)
        found = sched.compile((vs.reduce_max(placeholder, 0), vs.reduce_min(placeholder, 0)))(x=x)
    assert np.isnan(found).all()
