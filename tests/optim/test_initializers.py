"""First values: by seed and name alone, of the distributions that they say."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs


def test_values_depend_on_seed_and_name_alone() -> None:
    a = vs.init.normal((50, 40), name="a", seed=1)
    np.testing.assert_array_equal(a, vs.init.normal((50, 40), name="a", seed=1))
    for name, seed in (("b", 1), ("a", 2)):
        assert (a != vs.init.normal((50, 40), name=name, seed=seed)).mean() > 0.99
    assert a.dtype == np.float32
    # a change of these would change every training that was begun before
    np.testing.assert_allclose(a[0, :2], [-1.5028846, 0.02841013], rtol=1e-6)


def test_deviations_are_those_of_the_shape() -> None:
    w = vs.init.kaiming_normal((200, 30, 3, 3), name="w")
    assert abs(w.std() * np.sqrt(270 / 2) - 1) < 0.02 and abs(w.mean()) < 0.01
    g = vs.init.glorot_uniform((300, 200), name="g")
    end = np.sqrt(6 / 500)
    assert 0.99 * end < g.max() <= end and -end <= g.min() < -0.99 * end
    tensor = vs.init.kaiming_normal((200, 300), 1.0, name="x", fans=(200, 300))
    assert abs(tensor.std() * np.sqrt(200) - 1) < 0.02


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(vs.ShapeError, match="try fans="):
        vs.init.kaiming_normal((5,), name="b")
    with pytest.raises(vs.ShapeError, match="two numbers of 1 or more, got"):
        vs.init.kaiming_normal((5, 5), name="b", fans=(0, 5))
    with pytest.raises(vs.ShapeError, match="parameter's name"):
        vs.init.normal((5,), name="")
