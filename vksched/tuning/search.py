"""Search: find the fastest variant with little time spent on slow ones.

    each variant:  warm-up run, timed run -> result equals the first one's? -> far slower? drop
                   other kernels before cooperative matrices and kernels with counters: the
                   expected result is theirs
    rounds:        all remaining variants in rotation -> drop those clearly slower than the best
    the best median wins, if its median and its least time beat the static choice's by more than
    noise

Rounds alternate between all variants, so that a slowdown of the machine affects them equally.
Complexity: O(variants * rounds) submissions. Examples: tests/tuning/test_tuner_search.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection
from typing import Protocol

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import DeviceError, VkschedError
from ..ir.precision import BYTES, HALF
from ..ops.lowering.variants import COOPMAT
from .variant_cache import TuningResult

ROUNDS = 5
FAR_SLOWER_FACTOR, SLOWER = 3.0, 1.3
"""Factors over the best time at which a variant is dropped, after two runs and after two rounds."""
NOISE = 1.03
"""A variant must be faster than the static choice by this factor to replace it: a choice that
changes from day to day is of no use.
"""
ROUND_S = 0.02
"""Duration of one submission, in which short calls are repeated."""
MAX_REPEATS = 50
CALL_S = 1.0
"""Time for the rounds of one call: after two rounds no other one begins when it is over."""
LONGEST_S = 0.5
"""A submission longer than this is not compared: the first run used half of the time already."""
LARGEST_ERROR = 1e-6
"""Maximum normalized squared difference from the first variant's result."""
LARGEST_ERROR_OF = {HALF: 1e-4, BYTES: 1e-3}
"""Maximum differences if sums may be rounded to float16 (sums of 512 products differ by 1e-5) and
if an operand may be rounded to 8 bits (3e-5).
"""


class MeasurementSkipped(VkschedError):
    """A call cannot be measured now, without a fault of the device."""


class Bench(Protocol):
    """One call on one device, with any variant of its kernel."""

    def run(self, variant: str, repeat: int) -> float:
        """Run the call `repeat` times in one submission; return the total seconds.

        Raises
        ------
        DeviceError
            The device failed.
        VkschedError
            This variant cannot run there.
        """

    def result(self) -> NDArray:
        """Return elements of the last result, always at the same positions."""


def search(
    key: str,
    names: tuple[str, ...],
    bench: Bench,
    left_s: Callable[[], float],
    largest_error: float = LARGEST_ERROR,
    with_counters: Collection[str] = (),
) -> TuningResult | None:
    """Return the times of the variants of a call, the static choice first. Return None if the time
    was over before two variants were compared, or before the static choice was.

    Parameters
    ----------
    left_s
        Returns the remaining time.
    largest_error
        Maximum normalized squared difference of a correct result.
    with_counters
        Variants that depend on the order of memory accesses of workgroups. As with cooperative
        matrices, another kernel gives the expected result.

    Raises
    ------
    DeviceError
        The device failed.
    """
    once: dict[str, float] = {}
    dropped: dict[str, str] = {}
    expected: NDArray | None = None
    pending = list(names)
    while pending and not (once and left_s() <= 0):
        plain = (name for name in pending if COOPMAT not in name and name not in with_counters)
        name = pending[0] if once else next(plain, pending[0])
        pending.remove(name)
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
    few = len(once) + len(dropped) < min(2, len(names))
    if few or not once or names[0] in pending:
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
    """Return the times of one call by variant: of the first run, then of rounds with the variants
    that seem equally fast.
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
        return min(times[name]) > FAR_SLOWER_FACTOR * min(map(min, times.values()))

    for name in filter(far_slower, once):
        run(name)  # once more: one run may have been delayed
    live = [name for name in once if not far_slower(name)]
    for number in range(ROUNDS):
        over = number > 1 and spent_s > CALL_S
        if len(live) < 2 or over or (number and left_s() <= 0):
            break
        for name in live:
            run(name)
        if number:
            best = min(min(times[name]) for name in live)
            live = [name for name in live if min(times[name]) <= SLOWER * best]
    return times


def _difference(got: NDArray, expected: NDArray, largest_error: float) -> str:
    """Return a description of the error of a result, "" if it is correct."""
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
