"""Samples of merged quantized matmuls: one to three, with norm or gate, one row and several,
squares beyond float32, epilogues.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....common.dtypes import FLOAT16, FLOAT32, NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.precision import BYTES, MIXED
from ....ops.elementwise.epilogue import epilogue_attrs
from ....ops.quantized.gemv_rows import WITH_DOT
from ....ops.quantized.gguf_formats import FORMATS
from ....ops.quantized.merged_linear import GATES
from ..conv.precision import with_precision
from ..op_sample import ErrorSample, OpSample, floats
from .quantized_linear import words


def merged(
    name: str,
    lead: tuple[int, ...],
    k: int,
    sizes: tuple[int, ...],
    normed: bool = True,
    gate: str = "",
    what: str = "",
    x: NDArray | None = None,
    eps: float = 1e-5,
) -> OpSample:
    """Return x (*lead, k) times merged weights with `sizes` rows."""
    x = floats(*lead, k) if x is None else x
    scale = (floats(k, seed=3),) if normed else ()
    weights = [words(name, n, k, seed) for seed, n in enumerate(sizes)]
    attrs: dict[str, AttrValue] = {"format": name, "normed": normed, "gate": gate, "eps": eps}
    name_parts = name, "normed" if normed else "", gate, str(lead), what
    return OpSample(
        "merged_linear", (x, *scale, *weights), attrs, " ".join(filter(None, name_parts))
    )


def _spread(power: int) -> NDArray:
    """Return rows of which one has squares beyond float32."""
    x = floats(3, 512)
    x[1] *= np.float32(10.0**power)
    return x


def _followed(case: OpSample, op: str, residual: NDArray | None = None) -> OpSample:
    """Return a case with an epilogue step."""
    registers = (0,) if residual is None else (0, 1)
    attrs = dict(case.attrs) | epilogue_attrs(len(registers), ((op, registers, ()),), ())
    more = () if residual is None else (residual,)
    return OpSample(case.op, (*case.inputs, *more), attrs, f"{case.name} then {op}")


def _stacked(case: OpSample) -> OpSample:
    """Return a case whose products follow each other."""
    attrs = dict(case.attrs) | {"stacked": True}
    return OpSample(case.op, case.inputs, attrs, f"{case.name} stacked")


def _as_fp16(case: OpSample) -> OpSample:
    """Return a case whose result is stored as float16, of rows that keep it within the range."""
    x, *others = case.inputs
    attrs = {**case.attrs, "dtype": FLOAT16}
    return replace(case, inputs=(x / 16, *others), attrs=attrs, name=f"{case.name} to float16")


def _of_fp16(case: OpSample) -> OpSample:
    """Return a case whose rows are stored as float16."""
    return case.as_dtypes({FLOAT32: FLOAT16})


THREE = (32, 16, 48)
IN_INT8 = tuple(name for name in FORMATS if name in WITH_DOT)
"""Formats with kernels that quantize rows to 8 bits."""
CASES: list[OpSample] = [
    *(merged(name, (1,), 3 * kind.step, THREE) for name, kind in FORMATS.items()),
    *(merged("q4_K", (1, 1), 512, (80,) * 2, True, gate) for gate in GATES if gate),
    merged("q4_K", (2, 3), 512, (16, 16), False, "silu"),
    *(merged("q4_K", (2, 3), 512, THREE[:count], False) for count in (1, 2, 3)),
    merged("q4_K", (2, 3), 512, THREE),
    merged("q4_K", (1,), 2560, (272, 16, 16), what="many runs"),
    merged("q8_0", (2,), 32 * 37, THREE, what="ends within a tile"),
    *(merged("mxfp4", (2,), 32 * runs, THREE, what=f"{runs} runs") for runs in (9, 18, 24)),
    merged("q4_K", (0,), 256, (16,), what="no rows"),
    *(
        merged("q4_K", (3,), 512, THREE, what=f"1e{power}, {eps}", x=_spread(power), eps=eps)
        for power, eps in ((25, 1e-5), (-30, 0.0), (-30, 1e-5))
    ),
    merged("q4_K", (3,), 256, THREE, what="zeros", x=floats(3, 256) * 0, eps=0.0),
    _followed(merged("q4_K", (2,), 512, (48,)), "add", floats(2, 48, seed=4)),
    _followed(merged("q4_K", (1,), 256, (16,), False), "silu"),
    _as_fp16(merged("q4_K", (2,), 256, (16, 16), False, "gelu")),
    *(_stacked(merged("q4_K", (rows, 1), 512, THREE, rows > 2)) for rows in (2, 3, 8)),
]
ROUNDED = [
    with_precision(case, MIXED)
    for case in (
        *(merged(name, (1,), 3 * kind.step, THREE) for name, kind in FORMATS.items()),
        *(merged("q4_K", (1, 1), 512, (80,) * 2, True, gate) for gate in GATES if gate),
        merged("q6_K", (1,), 2304, (64,) * 2, False, "silu"),
        _followed(merged("q4_K", (1,), 512, (48,)), "add", floats(1, 48, seed=4)),
        _stacked(merged("q4_K", (40,), 256, THREE, False)),
        _of_fp16(_stacked(merged("q5_K", (40,), 256, THREE, False))),
        _as_fp16(merged("q8_0", (40,), 256, (32,) * 2, False, "silu")),
        _of_fp16(_as_fp16(merged("q4_K", (2, 20), 512, (48,) * 2, False, "gelu_tanh"))),
        _stacked(merged("q4_K", (3, 1), 512, THREE)),
        merged("q8_0", (8, 1), 512, (80,) * 2, True, "silu"),
    )
] + [
    with_precision(merged(name, (rows,), 512, THREE, rows == 1), BYTES)
    for name in IN_INT8
    for rows in (1, 3)
]
"""Samples whose rows may be rounded."""


def _of(*inputs: NDArray, normed: bool = False) -> OpSample:
    attrs: dict[str, AttrValue] = {"format": "q4_K", "normed": normed, "gate": "", "eps": 0.0}
    return OpSample("merged_linear", inputs, attrs)


ERRORS = [
    ErrorSample(lambda: merged("q4_K", (1,), 256, (12,)).result_type(), ShapeError, "16 rows"),
    ErrorSample(lambda: merged("q4_K", (1,), 256, ()).result_type(), ShapeError, "1 to 3 quant"),
    ErrorSample(
        lambda: _as_fp16(merged("q4_K", (1,), 256, (16,))).result_type(), ShapeError, "a gate"
    ),
    ErrorSample(
        lambda: merged("q4_K", (1,), 256, (16,) * 4).result_type(), ShapeError, "2 to 5 operands"
    ),
    ErrorSample(
        lambda: merged("q4_K", (1,), 256, (16, 32), True, "silu").result_type(),
        ShapeError,
        "two weights",
    ),
    ErrorSample(
        lambda: _of(floats(1, 256), floats(255), words("q4_K", 16, 256), normed=True).result_type(),
        ShapeError,
        "a scale",
    ),
    ErrorSample(
        lambda: _of(floats(1, 256).astype(np.int32), words("q4_K", 16, 256)).result_type(),
        DTypeError,
        "float32",
    ),
]
