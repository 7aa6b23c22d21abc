"""The search for the fastest variant, on a device that takes the times it is told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.tuning.search import CALL_S, LONGEST_S, ROUND_S, ROUNDS, search
from vksched.tuning.variant_cache import TuningResult

RIGHT = np.array([1, 2, np.inf, np.nan], np.float32)


class FakeBench:
    """A bench whose clock goes on by the time of each run. results: outputs of other variants."""

    def __init__(
        self,
        seconds: dict[str, float],
        results: dict[str, NDArray] | None = None,
        errors: dict[str, Exception] | None = None,
    ) -> None:
        self.seconds, self.results, self.errors = seconds, results or {}, errors or {}
        self.now_s = 0.0
        self.runs: Counter[str] = Counter()
        self.longest_s = 0.0
        self.held_up, self.held_up_s = ("", 0), 0.0
        """A variant and which of its runs takes longer, and by how much."""
        self._last = ""

    def run(self, variant: str, repeat: int) -> float:
        if variant in self.errors:
            raise self.errors[variant]
        self.runs[variant] += 1
        self._last = variant
        held_up_s = self.held_up_s if (variant, self.runs[variant]) == self.held_up else 0.0
        taken_s = repeat * self.seconds[variant] + held_up_s
        self.now_s += taken_s
        self.longest_s = max(self.longest_s, taken_s)
        return taken_s

    def result(self) -> NDArray:
        return self.results.get(self._last, RIGHT)

    def search(self, budget_s: float = math.inf) -> TuningResult | None:
        left: Callable[[], float] = lambda: budget_s - self.now_s  # noqa: E731
        names = dict.fromkeys([*self.seconds, *self.errors])
        return search("op x", tuple(names), self, left)


def found_by(bench: FakeBench, budget_s: float = math.inf) -> TuningResult:
    found = bench.search(budget_s)
    assert found is not None
    return found


def test_the_fastest_wins() -> None:
    found = found_by(FakeBench({"a": 0.002, "b": 0.001, "c": 0.0015}))
    assert (found.best, found.static, found.op) == ("b", "a", "op")
    assert found.seconds == pytest.approx({"a": 0.002, "b": 0.001, "c": 0.0015})
    assert found.gain == pytest.approx(2.0)


def test_what_is_faster_by_noise_only_leaves_the_static_choice() -> None:
    assert found_by(FakeBench({"a": 0.001, "b": 0.00098})).best == "a"
    assert found_by(FakeBench({"a": 0.001, "b": 0.0009})).best == "b"


def test_far_slower_variants_are_left_out_early() -> None:
    bench = FakeBench({"far": 0.4, "a": 0.001, "slower": 0.0015, "b": 0.0012})
    assert found_by(bench).best == "a"
    assert bench.runs == {"far": 3, "a": 2 + ROUNDS, "slower": 4, "b": 2 + ROUNDS}


@pytest.mark.parametrize("number", range(1, 8))
def test_a_run_that_was_held_up_changes_nothing(number: int) -> None:
    bench = FakeBench({"a": 0.001, "b": 0.0012})
    bench.held_up, bench.held_up_s = ("a", number), 0.1
    found = found_by(bench)
    assert found.best == "a" and found.seconds == pytest.approx({"a": 0.001, "b": 0.0012})


def test_no_submission_takes_long() -> None:
    bench = FakeBench({"a": 1e-6, "b": 0.3, "c": 0.31})
    found_by(bench)
    assert bench.longest_s <= max(2 * ROUND_S, 0.31)
    slow = FakeBench({"a": 0.3, "b": 0.31})
    found_by(slow)
    assert slow.runs["a"] == 4 and slow.now_s < 4 * CALL_S, "two rounds, then the time is over"


def test_calls_too_long_to_compare_are_left() -> None:
    bench = FakeBench({"a": LONGEST_S * 1.1, "b": 0.1})
    assert bench.search() is None
    assert bench.runs == {"a": 2}, "what is slow may end the device"


def test_wrong_results_are_dropped_with_the_reason() -> None:
    wrong = {
        "scaled": np.array([1.1, 2, np.inf, np.nan], np.float32),
        "finite": np.array([1, 2, 3, np.nan], np.float32),
        "near": np.array([1 + 1e-6, 2, np.inf, np.nan], np.float32),
    }
    found = found_by(
        FakeBench({"a": 0.002, "scaled": 0.001, "finite": 0.001, "near": 0.0015}, wrong)
    )
    assert found.best == "near" and found.seconds.keys() == {"a", "near"}
    assert "squared error" in found.dropped["scaled"]
    assert "infinities or NaN" in found.dropped["finite"]
    whole = {"a": np.array([1, 2]), "b": np.array([1, 3])}
    assert found_by(FakeBench({"a": 0.002, "b": 0.001}, whole)).dropped == {
        "b": "1 of 2 values differ from the first variant's"
    }


def test_rounded_factors_are_right_and_sums_in_float16_are_wrong() -> None:
    """Of drivers that offer cooperative matrices and add up in too few bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((32, 512), (512, 32)))
    rounded_a, rounded_b = a.astype(np.float16), b.astype(np.float16)
    sums = np.zeros((32, 32), np.float16)
    for step in range(512):
        sums += np.outer(rounded_a[:, step], rounded_b[step])
    results = {
        "plain": a @ b,
        "rounded": rounded_a.astype(np.float32) @ rounded_b.astype(np.float32),
        "few bits": sums.astype(np.float32),
    }
    found = found_by(FakeBench({"plain": 0.002, "rounded": 0.001, "few bits": 0.0005}, results))
    assert found.best == "rounded" and found.dropped.keys() == {"few bits"}


def test_variants_that_cannot_run_are_dropped_and_a_lost_device_is_reported() -> None:
    refused = vs.UnsupportedOp("too many groups")
    found = found_by(FakeBench({"a": 0.002, "b": 0.001}, errors={"a": refused}))
    assert (found.best, found.static) == ("b", "b")
    assert found.dropped == {"a": "too many groups"} and found.gain == 1.0
    assert FakeBench({}, errors={"a": refused, "b": refused}).search() is None
    with pytest.raises(vs.DeviceLost):
        FakeBench({"a": 0.002}, errors={"b": vs.DeviceLost("[wait] lost")}).search()


def test_time_that_is_over_ends_the_search() -> None:
    names = {"a": 0.1, "b": 0.2, "c": 0.1}
    assert FakeBench(names).search(0.15) is None, "one alone is no comparison"
    some = found_by(FakeBench(names), 0.55)
    assert some.seconds == {"a": 0.1, "b": 0.2} and some.best == "a"


def test_cooperative_matrices_are_compared_with_another_kernel() -> None:
    """They may be the static choice, and wrong nevertheless."""
    wrong = {"coopmat a": RIGHT * 2}
    found = found_by(FakeBench({"coopmat a": 0.001, "b": 0.002, "c": 0.003}, wrong))
    assert (found.best, found.static) == ("b", "b") and list(found.dropped) == ["coopmat a"]
    found = found_by(FakeBench({"coopmat a": 0.001, "b": 0.002}))
    assert (found.best, found.static) == ("coopmat a", "coopmat a") and not found.dropped


def test_kernels_with_counters_are_compared_with_another_kernel() -> None:
    """They may be the static choice, and wrong nevertheless."""
    for wrong in ({"a": RIGHT * 2}, {}):
        bench = FakeBench({"a": 0.001, "b": 0.002, "c": 0.003}, wrong)
        found = search("op x", ("a", "b", "c"), bench, lambda: math.inf, with_counters=("a",))
        assert found is not None and list(found.dropped) == list(wrong)
        best = "b" if wrong else "a"
        assert (found.best, found.static) == (best, best)


@pytest.mark.parametrize("budget_s", [0.5, 0.7, 0.9])
def test_time_that_is_over_keeps_the_static_choice(budget_s: float) -> None:
    bench = FakeBench({"coopmat a": 0.001, "vec4 b": 0.2, "tiled c": 0.25})
    found = found_by(bench, budget_s)
    assert (found.best, found.static) == ("coopmat a", "coopmat a")
    assert list(found.seconds)[:2] == ["vec4 b", "coopmat a"], "first the expected result"


def test_a_static_choice_without_a_time_is_not_replaced() -> None:
    names = {"coopmat a": 0.001, "vec4 b": 0.2, "tiled c": 0.25}
    assert FakeBench(names).search(0.3) is None, "the time is over"
    assert FakeBench({**names, "vec4 b": LONGEST_S * 1.1}).search() is None, "too long to compare"


def test_the_expected_result_is_never_of_cooperative_matrices() -> None:
    """Also if the first other kernel cannot run."""
    bench = FakeBench({"coopmat a": 0.001, "b": 0.002, "c": 0.003}, {"coopmat a": RIGHT * 2})
    bench.errors["b"] = vs.UnsupportedOp("too many groups")
    found = found_by(bench)
    assert (found.best, found.static) == ("c", "c") and list(found.dropped) == ["b", "coopmat a"]
