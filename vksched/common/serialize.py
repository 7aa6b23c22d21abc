"""Conversion of values to plain JSON data and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def plain(value: object) -> object:
    """Convert a value to plain data.

    Named tuples and dataclasses become dicts, unknown objects become text.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return str(value)


def float_of(value: object) -> float | None:
    """Return the non-finite float that `plain` encoded as text, or None."""
    if isinstance(value, Mapping) and value.keys() == {"float"}:
        return _WORDS.get(str(value["float"]))
    return None


def number_of(value: Any) -> Any:
    """Decode a number or None that `plain` encoded."""
    result = float_of(value)
    return value if result is None else result


_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
