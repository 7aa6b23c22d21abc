"""Links from what transfers took: both numbers come back, and noise does no harm."""

from __future__ import annotations

import math

import pytest

from vksched.distributed.wire.link_benchmark import TRIES, fit_link
from vksched.topology.links import Link


@pytest.mark.parametrize("rate", [1e6, 1e9, 1e11])
@pytest.mark.parametrize("latency_s", [1e-7, 2e-5, 0.1])
def test_a_link_comes_back_from_its_own_times(rate: float, latency_s: float) -> None:
    link = Link(rate, latency_s)
    found = fit_link({size: link.seconds(size) for size in TRIES})
    assert math.isclose(found.bytes_per_s, rate, rel_tol=1e-3)
    assert math.isclose(found.latency_s, latency_s, rel_tol=1e-3, abs_tol=1e-9)


def test_what_cannot_be_is_no_link_backwards() -> None:
    shrinking = fit_link({64: 1.0, 1 << 20: 0.5, 1 << 23: 0.1})
    assert shrinking.bytes_per_s > 0 and shrinking.latency_s >= 0
    assert fit_link(dict.fromkeys(TRIES, 0.0)).latency_s >= 0
