"""Numbers with their units: three digits, and never 1e+03 of one unit for 1 of the next."""

from __future__ import annotations

import pytest

from vksched.common.formatting import format_bytes, format_joules, format_moment, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (1.234e-6, "1.23 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1 ms"),
        (0.9999, "1 s"),
        (41.4e-3, "41.4 ms"),
        (999.9, "1000 s"),
        (12345.6, "12346 s"),
    ],
)
def test_seconds_stay_below_1000_of_a_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_moments_joules_and_bytes_change_units_where_they_round() -> None:
    assert format_moment(9.99e-7) == "999 ns" and format_moment(9.996e-7) == "1 us"
    assert format_joules(0.9996) == "1 J" and format_joules(12.3456e6) == "12346 kJ"
    assert format_bytes((1 << 20) - 1) == "1.0 MiB" and format_bytes(1 << 20) == "1.0 MiB"
    assert format_bytes(1023) == "1023 B" and format_bytes(5000 << 30) == "5000.0 GiB"
