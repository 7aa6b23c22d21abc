"""Search: the fastest of some variants, with little time spent on those that will not be it.

    each variant:  run to warm up and once more -> result as the first one's? -> far slower? out
    rounds:        all that are left, in turn -> those clearly slower than the best are left out
    the best median wins, if its median and its least time beat the static choice's by more than
    noise

Rounds go over all variants in turn, so that a machine that slows down slows them all. Complexity:
O(variants * rounds) submissions. Examples: tests/tuning/test_tuner_search.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import DeviceError, VkschedError
from ..ir.precision import BYTES, HALF
from .variant_cache import TuningResult

ROUNDS = 5
FAR_SLOWER, SLOWER = 3.0, 1.3
"""Than the best: left out after two runs, or after two rounds."""
NOISE = 1.03
"""What is not faster than the static choice by more than this does not replace it: a choice that
changes from day to day helps nobody.
"""
ROUND_S = 0.02
"""Of one submission, in which short calls are repeated."""
MAX_REPEATS = 50
CALL_S = 1.0
"""For the rounds of one call: after two of them no other begins when this is over."""
LONGEST_S = 0.5
"""Of one submission: half of what the first took leaves no time to compare."""
LARGEST_ERROR = 1e-6
"""Normalised squared difference to the first variant's result."""
LARGEST_ERROR_OF = {HALF: 1e-4, BYTES: 1e-3}
"""Where sums may be rounded to float16: those of 512 products differ by 1e-5 from exact ones. Where
an operand may be rounded to 8 bits: by 3e-5.
"""


class GivenUp(VkschedError):
    """A call cannot be measured now, and no device is to blame."""


class Bench(Protocol):
    """One call on one device, by any variant of its kernel."""

    def run(self, variant: str, repeat: int) -> float:
        """Run the call so many times in one submission; returns the seconds of all.

        Raises:
            DeviceError: the device failed. VkschedError: this variant cannot run there.
        """

    def result(self) -> NDArray:
        """Return elements of the last result, always the same ones."""


def search(
    key: str,
    names: tuple[str, ...],
    bench: Bench,
    left_s: Callable[[], float],
    largest_error: float = LARGEST_ERROR,
) -> TuningResult | None:
    """Returns what the variants of a call take, the static choice first; None where the time was
    over before two could be compared.

    left_s: how much time there is. largest_error: normalised squared difference of a result that
    counts as right. Raises DeviceError: the device failed.
    """
    once: dict[str, float] = {}
    dropped: dict[str, str] = {}
    expected: NDArray | None = None
    for name in names:
        if once and left_s() <= 0:
            break
        try:
            bench.run(name, 1)
            taken_s = bench.run(name, 1)
        except DeviceError:
            raise
        except VkschedError as error:
            dropped[name] = str(error)
            continue
        result = bench.result()
        expected = result if expected is None else expected
        wrong = _difference(result, expected, largest_error)
        if wrong:
            dropped[name] = wrong
            continue
        once[name] = taken_s
        if min(once.values()) > LONGEST_S:
            break
    if len(once) + len(dropped) < min(2, len(names)) or not once:
        return None
    times = _rounds(once, bench, left_s)
    seconds = {name: statistics.median(times[name]) for name in once}
    static = next(name for name in names if name in once)
    best = min(seconds, key=lambda name: seconds[name])
    for of in (statistics.median, min):
        if of(times[best]) * NOISE > of(times[static]):
            best = static
    return TuningResult(key, best, static, seconds, dropped)


def _rounds(
    once: dict[str, float], bench: Bench, left_s: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the times of one call by variant: of the first run, then of rounds of those that
    seem to be as fast.
    """
    times = {name: [seconds] for name, seconds in once.items()}
    spent_s = 0.0

    def run(name: str) -> None:
        nonlocal spent_s
        repeat = max(1, min(MAX_REPEATS, math.ceil(ROUND_S / once[name])))
        taken_s = bench.run(name, repeat)
        times[name].append(taken_s / repeat)
        spent_s += taken_s

    def far_slower(name: str) -> bool:
        return min(times[name]) > FAR_SLOWER * min(map(min, times.values()))

    for name in filter(far_slower, once):
        run(name)  # once more: one run may have been held up
    live = [name for name in once if not far_slower(name)]
    for number in range(ROUNDS):
        over = number > 1 and spent_s > CALL_S
        if len(live) < 2 or over or (number and left_s() <= 0):
            break
        for name in live:
            run(name)
        if number:
            least = min(min(times[name]) for name in live)
            live = [name for name in live if min(times[name]) <= SLOWER * least]
    return times


def _difference(got: NDArray, expected: NDArray, largest_error: float) -> str:
    """Returns what is wrong with a result, "" where it is as expected."""
    if got.dtype.kind != "f":
        wrong = int(np.count_nonzero(got != expected))
        return f"{wrong} of {got.size} values differ from the first variant's" if wrong else ""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "infinities or NaN differ from the first variant's"
    norm = float(np.square(b[finite]).sum()) or 1.0
    error = float(np.square(a[finite] - b[finite]).sum()) / norm
    if not error <= largest_error:
        return f"a normalised squared error of {error:.1e} against the first variant"
    return ""
