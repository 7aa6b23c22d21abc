"""JSON as RFC 8259 defines it: Python's decoder also takes NaN, Infinity and 1e999."""

from __future__ import annotations

import json
import math


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {text[:20]}")
    return number


DECODER = json.JSONDecoder(parse_float=_finite_number, parse_constant=_finite_number)
"""A decoder that raises ValueError for numbers that are not finite."""
