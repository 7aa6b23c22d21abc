"""copysign by its bits: all pairs of special values, in sizes that end amid a vector."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

MAGNITUDES = (
    *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000),  # 0, denormals, the least normal number
    *(0x3F800000, 0x3FC00000, 0x4B000001, 0x55555555, 0x2AAAAAAA),
    *(0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FD55555),  # the largest, infinity, NaN
)
"""Bits of float32."""
SIGN = 0x80000000


def pairs() -> tuple[NDArray, NDArray]:
    """Every special value with every other one, each with both signs."""
    words = np.array([sign | each for each in MAGNITUDES for sign in (0, SIGN)], np.uint32)
    return np.repeat(words, len(words)), np.tile(words, len(words))


def check(sched: vs.Scheduler, a: NDArray, b: NDArray) -> None:
    x, y = vs.input("x", a.shape), vs.input("y", b.shape)
    got = sched.compile(vs.copysign(x, y))(x=a.view(np.float32), y=b.view(np.float32))
    wanted = np.where(b & SIGN, a | SIGN, a & ~np.uint32(SIGN))
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), wanted)


def test_all_pairs_of_special_values(devices: list[str]) -> None:
    a, b = pairs()
    with vs.Scheduler(devices) as sched:
        check(sched, a, b)
        check(sched, a[:-1], b[:-1])  # a size that is no multiple of four


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 9, 13, 17, 31, 33, 63, 65, 257])
def test_the_last_elements_are_as_right_as_the_first(devices: list[str], size: int) -> None:
    a, b = pairs()
    order = np.random.default_rng(size).permutation(len(a))
    with vs.Scheduler(devices) as sched:
        check(sched, a[order[:size]], b[order[:size]])


def test_a_sign_behind_other_ops(devices: list[str]) -> None:
    """In a chain the result goes on in registers, with a choice behind it."""
    a, b = (words.view(np.float32) for words in pairs())
    selected = np.isfinite(a) & ~np.isnan(b) & (np.abs(a) > 1e-30)
    a, b = a[selected][:-1], b[selected][:-1]
    x, y = vs.input("x", a.shape), vs.input("y", b.shape)
    with vs.Scheduler(devices) as sched:
        got = sched.compile(vs.where(vs.less(x, y), vs.copysign(x, y), vs.neg(x)))(x=a, y=b)
    np.testing.assert_array_equal(got, np.where(a < b, np.copysign(a, b), -a))
