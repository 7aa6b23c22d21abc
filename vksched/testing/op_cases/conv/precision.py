"""Cases of products, convolutions and attention once more, with each precision.

They are those of float32 with tame values. What a device may round decides the error: operands of
float16 are off by up to 2^-11 of themselves, by 2^-10 where a driver cuts digits off; those of
bfloat16 by 2^-8; sums of hundreds of products in float16 by some times that. Codes of 8 bits are
off by half a step, 1 / 254 of the largest of a run; only products by quantized weights have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ....common.dtypes import FLOAT32
from ....ir.precision import BRAIN, BYTES, HALF, MIXED, PRECISION
from ....ops.quantized.q8_activations import has_int8_activations
from ..op_sample import OpSample

PER_OP = 6
"""How many cases of each op are run with each precision."""
LARGEST = 1e3
"""Of what goes in: float16 holds the sums of such values."""
NMSE = {MIXED: 1e-6, HALF: 2e-5, BRAIN: 4e-5, BYTES: 1e-4}
"""The normalised squared error of a result: the mean square of what its operands are off by."""
OF_LARGEST = {MIXED: 2**-8, HALF: 2**-6, BRAIN: 2**-5, BYTES: 2**-5}
"""The error of one value as a share of the largest result."""
STEEP = {"attention_backward": 4.0}
"""Ops that make more of an error, by how much: exponentials of large scores do."""


def with_precision(case: OpSample, word: str) -> OpSample:
    """Return a case with a precision, and the error that it allows."""
    return replace(
        case,
        attrs={**case.attrs, PRECISION: word},
        name=f"{word} {case.name}".strip(),
        nmse=NMSE[word] * STEEP.get(case.op, 1.0) ** 2,
        of_largest=OF_LARGEST[word] * STEEP.get(case.op, 1.0),
        exact=False,
    )


def precise(cases: Iterable[OpSample]) -> list[OpSample]:
    """Return cases with each precision, some of each op that has factors."""
    able: dict[str, list[OpSample]] = {}
    for case in cases:
        if case.declaration.roundable_operands and not case.large and _in_range(case):
            able.setdefault(case.op, []).append(case)
    out = []
    for group in able.values():
        some = group[:: max(1, len(group) // PER_OP)]
        out += [with_precision(case, word) for case in some for word in (MIXED, HALF, BRAIN)]
        by_format = {case.attrs.get("format"): case for case in reversed(group)}
        codes = [case for name, case in by_format.items() if has_int8_activations(name)]
        out += [with_precision(case, BYTES) for case in codes]
    return out


def _in_range(case: OpSample) -> bool:
    floats = [a for a in case.inputs if a.dtype == np.float32]
    if not floats or case.result_type().dtype != FLOAT32 or "wild" in case.name:
        return False
    return all(np.isfinite(a).all() and np.abs(a).max(initial=0) < LARGEST for a in floats)
