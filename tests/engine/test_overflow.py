"""Values that float16 does not hold: warned of where results show them, found by the switch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from conftest import vulkan_names
from test_executor import null_devices
from test_precision_networks import like_a_card

import vksched as vs
from vksched.engine.fp16_overflow import SWITCH

LARGE = np.full((2, 8), 300, np.float32)
ONES = np.ones((8, 8), np.float32)


def network() -> tuple[vs.Tensor, vs.Tensor]:
    """A value of 2,400, and one of 5,760,000, which the next product reads."""
    x = vs.input("x", LARGE.shape)
    first = vs.matmul(x, ONES, name="first")
    return first, vs.matmul(first * first, ONES * 1e-7, name="second")


def warnings_of(sched: vs.Scheduler, out: vs.Tensor, precision: str = "mixed") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = sched.compile(out, precision=precision)
        for _ in range(2):
            run(x=LARGE)
        run.submit(x=LARGE).result()
    return [str(w.message) for w in caught if "[precision]" in str(w.message)]


@pytest.fixture
def sched() -> vs.Scheduler:
    with vs.Scheduler(["cpu"]) as sched:
        yield sched  # type: ignore[misc]


@pytest.mark.parametrize("name", ["cpu", *vulkan_names()])
@pytest.mark.parametrize(("precision", "tolerance"), [("mixed", 1e-3), ("float16", 1e-2)])
def test_no_device_hides_an_overflow(name: str, precision: str, tolerance: float) -> None:
    """A value over the range is infinite, or a device computes in float32; it is never clamped."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 48)).astype(np.float32)
    card = None if name == "cpu" else like_a_card(name)
    with warnings.catch_warnings(), vs.Scheduler([card or name], tune=False) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        for rows in (1, 5, 40, 128):
            x = rng.standard_normal((rows, 64)).astype(np.float32)
            x[::3, 7] = 1e6
            out = vs.matmul(vs.input("x", x.shape), vs.weight(w))
            got, exact = sched.compile(out, precision=precision)(x=x), x @ w
            shown = np.isfinite(got)
            assert shown[1::3].all() and shown[2::3].all()
            np.testing.assert_allclose(got[shown], exact[shown], tolerance, 20 * tolerance)


def test_results_that_are_not_finite_are_reported_once(sched: vs.Scheduler) -> None:
    (text,) = warnings_of(sched, network()[1])
    assert "output has values that are not finite" in text and SWITCH in text


def test_float32_is_not_looked_at(sched: vs.Scheduler) -> None:
    assert warnings_of(sched, network()[1], "float32") == []
    assert warnings_of(sched, vs.log(vs.input("x", LARGE.shape) * 0) @ ONES, "float32") == []


def test_the_switch_names_the_first_product(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    (text,) = warnings_of(sched, network()[1])
    assert "second (matmul) overflows float16" in text and "5.76e+06, over 65504" in text
    assert 'precision={"second": "float32"}' in text


def test_a_product_is_found_that_results_do_not_show(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = vs.minimum(network()[1], 1.0)
    assert warnings_of(sched, hidden) == []
    monkeypatch.setenv(SWITCH, "1")
    (text,) = warnings_of(sched, hidden)
    assert "second (matmul)" in text


def test_results_of_float16_overflow_too(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    out = vs.matmul(vs.input("x", LARGE.shape), ONES * 300, name="sums")
    assert warnings_of(sched, out) == []
    (text,) = warnings_of(sched, out, "float16")
    assert "sums (matmul) overflows float16: its result is 720000, over 65504" in text


def test_what_was_infinite_before_is_no_overflow(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    (text,) = warnings_of(sched, vs.log(vs.input("x", LARGE.shape) * 0) @ ONES)
    assert "numpy finds no product that overflows" in text


def test_states_count_with_their_values(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    w = vs.state(ONES, "w")
    out = vs.matmul(vs.input("x", LARGE.shape), w, name="product")
    run = sched.compile(out, updates={w: w * 1e3}, precision="mixed")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            run(x=LARGE)
    (text,) = [str(each.message) for each in caught]
    assert "product (matmul)" in text and "operand w holds 1e+06" in text


@pytest.mark.parametrize(("switch", "words"), [("0", f"try {SWITCH}=1"), ("1", "holds 1e+06")])
def test_runs_ahead_are_looked_at_as_others(
    switch: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each is submitted before the results of the one before are read."""
    monkeypatch.setenv(SWITCH, switch)
    w, found = vs.state(ONES, "w", backup=False), list[object]()
    x = vs.input("x", LARGE.shape)
    out = vs.matmul(x, w, name="product")
    out = out if switch == "1" else out - vs.log(x - 300.0)
    with warnings.catch_warnings(record=True) as caught, vs.Scheduler(null_devices(1)[1]) as sched:
        warnings.simplefilter("always")
        run = sched.compile(out, updates={w: w * 1e3}, precision="mixed", ahead=True)
        assert run.may_run_ahead
        run.run_ahead([{"x": LARGE}] * 4, lambda result: not found.append(result))
    (text,) = [str(each.message) for each in caught if "[precision]" in str(each.message)]
    assert words in text and len(found) == 4
