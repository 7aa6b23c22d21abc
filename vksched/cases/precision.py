"""Cases of products, convolutions and attention once more, with each precision.

They are those of float32 with tame values. What a device may round decides the error: operands of
float16 are off by up to 2^-11 of themselves, by 2^-10 where a driver cuts digits off; sums of
hundreds of products in float16 by some times that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..ops.core.precision import HALF, MIXED, PRECISION
from ..types import FLOAT32
from .case import Case

PER_OP = 6
"""How many cases of each op are run with each precision."""
LARGEST = 1e3
"""Of what goes in: float16 holds the sums of such values."""
NMSE = {MIXED: 1e-6, HALF: 2e-5}
"""The normalised squared error of a result: the mean square of what its operands are off by."""
OF_LARGEST = {MIXED: 2**-8, HALF: 2**-6}
"""The error of one value as a share of the largest result."""
STEEP = {"attention_gradient": 4.0}
"""Ops that make more of an error, by how much: exponentials of large scores do."""


def with_precision(case: Case, word: str) -> Case:
    """Returns a case with a precision, and the error that it allows."""
    return replace(
        case,
        attrs={**case.attrs, PRECISION: word},
        name=f"{word} {case.name}".strip(),
        nmse=NMSE[word] * STEEP.get(case.op, 1.0) ** 2,
        of_largest=OF_LARGEST[word] * STEEP.get(case.op, 1.0),
        exact=False,
    )


def precise(cases: Iterable[Case]) -> list[Case]:
    """Returns cases with each precision, some of each op that has factors."""
    able: dict[str, list[Case]] = {}
    for case in cases:
        if case.declaration.factors and not case.large and _is_tame(case):
            able.setdefault(case.op, []).append(case)
    out = []
    for group in able.values():
        step = max(1, len(group) // PER_OP)
        out += [with_precision(case, word) for case in group[::step] for word in (MIXED, HALF)]
    return out


def _is_tame(case: Case) -> bool:
    floats = [a for a in case.inputs if a.dtype == np.float32]
    if not floats or case.result_type().dtype != FLOAT32 or "wild" in case.name:
        return False
    return all(np.isfinite(a).all() and np.abs(a).max(initial=0) < LARGEST for a in floats)
