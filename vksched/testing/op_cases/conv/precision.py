"""Samples of matmuls, convolutions and attention with each reduced precision.

They are float32 samples with moderate values. The tolerance follows from the allowed rounding:
operands in float16 have relative errors up to 2^-11, or 2^-10 if a driver truncates; in bfloat16
2^-8; float16 sums of hundreds of products a multiple of that. 8-bit codes have errors of half a
step, 1 / 254 of the largest in a block; only quantized matmuls use them.
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
"""Samples per op and precision."""
LARGEST = 1e3
"""Maximum magnitude of inputs: float16 represents their sums."""
NMSE = {MIXED: 1e-6, HALF: 2e-5, BRAIN: 4e-5, BYTES: 1e-4}
"""Normalized squared error of a result: the mean square of its operands' errors."""
OF_LARGEST = {MIXED: 2**-8, HALF: 2**-6, BRAIN: 2**-5, BYTES: 2**-5}
"""Error of one value relative to the largest result."""
STEEP = {"attention_backward": 4.0}
"""Ops that amplify errors, with the factor: exponentials of large scores."""


def with_precision(case: OpSample, word: str) -> OpSample:
    """Return a sample with a precision and its tolerance."""
    return replace(
        case,
        attrs={**case.attrs, PRECISION: word},
        name=f"{word} {case.name}".strip(),
        nmse=NMSE[word] * STEEP.get(case.op, 1.0) ** 2,
        of_largest=OF_LARGEST[word] * STEEP.get(case.op, 1.0),
        exact=False,
    )


def precise(cases: Iterable[OpSample]) -> list[OpSample]:
    """Return samples with each precision, some of each op with matmuls."""
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
