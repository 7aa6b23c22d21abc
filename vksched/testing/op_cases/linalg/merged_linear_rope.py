"""Samples of fused QKV projections: both kinds of pairs, parts of heads, several formats, one to
three weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ....common.dtypes import FLOAT16
from ....common.errors import DTypeError, ShapeError
from ....ir.precision import BYTES, MIXED
from ....ops.quantized.gguf_formats import FORMATS
from ..conv.precision import with_precision
from ..op_sample import ErrorSample, OpSample, floats
from .merged_linear import IN_INT8, THREE, merged


def rope(
    name: str,
    sizes: tuple[int, ...],
    heads: int,
    head_size: int,
    rotary_dim: int,
    interleaved: bool,
    *,
    lead: tuple[int, ...] = (1, 1),
    k: int = 0,
    normed: bool = True,
) -> OpSample:
    """Return merged products, whose first `heads` heads are rotated."""
    case = merged(name, lead, k or FORMATS[name].step, sizes, normed)
    rows = math.prod(lead)
    angles = floats(rows, rotary_dim // 2, seed=7)
    attrs = {key: value for key, value in case.attrs.items() if key != "gate"}
    if rows > 1:
        attrs["stacked"] = True
    attrs |= {"heads": heads, "head_size": head_size}
    attrs |= {"rotary_dim": rotary_dim, "interleaved": interleaved}
    what = f"{case.name} {heads} heads of {head_size}, {rotary_dim} {'in' * interleaved}"
    return OpSample(
        "merged_linear_rope", (*case.inputs, np.cos(angles), np.sin(angles)), attrs, what
    )


def by_heads(
    name: str,
    sizes: tuple[int, ...],
    heads: int,
    head_size: int,
    rotary_dim: int,
    interleaved: bool,
    rows: int = 40,
    k: int = 0,
) -> OpSample:
    """Return products of many rows, whose heads follow each other, for devices with cooperative
    matrices.
    """
    lead = 1, rows
    case = rope(
        name, sizes, heads, head_size, rotary_dim, interleaved, lead=lead, k=k, normed=False
    )
    attrs = {**case.attrs, "stacked": True, "by_heads": True}
    return replace(case, attrs=attrs, name=f"{case.name} by heads")


def heads_of_fp16(case: OpSample) -> OpSample:
    """Return a case whose heads are stored as float16."""
    attrs = {**case.attrs, "dtype": FLOAT16, "overflow_nan": True}
    return replace(case, attrs=attrs, name=f"{case.name} to float16")


def _of_fp16(case: OpSample) -> OpSample:
    """Return a case whose rows are stored as float16."""
    x, *others = case.inputs
    return replace(case, inputs=(x.astype(np.float16), *others), name=f"{case.name} of float16")


def _with(case: OpSample, **attrs: int) -> OpSample:
    return replace(case, attrs={**case.attrs, **attrs})


BOTH = (False, True)
CASES: list[OpSample] = [
    *(rope(name, THREE, 3, 16, 16, True) for name in FORMATS),
    *(rope("q4_K", (64, 32, 32), 3, 32, 32, way, k=512) for way in BOTH),
    *(rope("q8_0", (64, 32, 32), 3, 32, 16, way, normed=False) for way in BOTH),
    *(rope("q4_K", (128, 64), 1, 128, 128, way) for way in BOTH),
    rope("q4_0", (128, 64, 64), 3, 64, 40, False, lead=(1,)),
    rope("q4_0", (96, 48), 6, 24, 10, True),
    rope("q8_0", (0, 16, 48), 3, 16, 16, True),
    rope("q5_1", (48,), 2, 24, 24, False),
    rope("q8_0", (64, 48, 16), 2, 32, 32, False),
    rope("q8_0", (96, 16), 2, 32, 32, False),
    rope("q6_K", (256, 256, 256), 2, 256, 64, False, k=1536),
    *(rope("q4_K", (64, 32, 32), 3, 32, 32, way, lead=(3, 1)) for way in BOTH),
    rope("q8_0", (96, 48), 6, 24, 16, False, lead=(8, 1), normed=False),
    rope("q4_K", (64, 32), 2, 32, 32, False, lead=(2,)),
    by_heads("q4_K", (64, 32, 32), 3, 32, 32, True),
    by_heads("q8_0", (48, 16), 4, 16, 8, False, rows=5),
]

ROUNDED = [
    *(with_precision(rope(name, THREE, 3, 16, 16, True), MIXED) for name in FORMATS),
    *(with_precision(rope(name, THREE, 3, 16, 16, False), BYTES) for name in IN_INT8),
    *(
        with_precision(rope("q4_K", (64, 32, 32), 3, 32, 32, way, lead=(rows, 1)), MIXED)
        for way in BOTH
        for rows in (1, 3)
    ),
    with_precision(by_heads("q4_K", (64, 32, 32), 3, 32, 32, False, k=512), MIXED),
    with_precision(_of_fp16(by_heads("q8_0", (64, 32), 3, 32, 16, True)), MIXED),
    with_precision(heads_of_fp16(by_heads("q8_0", (64, 32), 3, 32, 16, True)), MIXED),
]
"""Samples whose rows may be rounded."""
_CASE = rope("q4_K", (64, 32), 3, 32, 32, False)
_NO_NAN = {**by_heads("q4_K", (64,), 2, 32, 32, True).attrs, "dtype": FLOAT16}
ERRORS = [
    ErrorSample(lambda: _with(_CASE, heads=4).result_type(), ShapeError, "at most 96"),
    ErrorSample(
        lambda: rope("q4_K", (16, 80), 3, 32, 32, False).result_type(), ShapeError, "of 16 and 80"
    ),
    ErrorSample(lambda: _with(_CASE, head_size=12).result_type(), ShapeError, "heads of a mult"),
    ErrorSample(lambda: _with(_CASE, rotary_dim=16).result_type(), ShapeError, "cos and sin of sh"),
    ErrorSample(
        lambda: rope("q4_K", (64,), 2, 32, 12, False).result_type(), ShapeError, "whole vec4s"
    ),
    ErrorSample(
        lambda: rope("q4_K", (64,), 2, 32, 32, False, lead=(9,)).result_type(),
        ShapeError,
        "1 to 8 rows.*try by_heads",
    ),
    ErrorSample(
        lambda: by_heads("q4_K", (64, 48), 2, 32, 32, True).result_type(), ShapeError, "64 and 48"
    ),
    ErrorSample(
        lambda: _with(by_heads("q4_K", (64,), 2, 32, 32, True), stacked=False).result_type(),
        ShapeError,
        "expected stacked",
    ),
    ErrorSample(lambda: heads_of_fp16(_CASE).result_type(), ShapeError, "expected by_heads"),
    ErrorSample(
        lambda: replace(
            heads_of_fp16(by_heads("q4_K", (64,), 2, 32, 32, True)), attrs=_NO_NAN
        ).result_type(),
        DTypeError,
        "expected overflow_nan",
    ),
    ErrorSample(
        lambda: replace(
            _CASE, inputs=(*_CASE.inputs[:-1], _CASE.inputs[-1].astype(np.int32))
        ).result_type(),
        DTypeError,
        "float32",
    ),
]
