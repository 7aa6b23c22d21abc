"""Draws of matmul: sizes, batches that broadcast, transposed operands, a bias."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array, broadcasting
from .epilogue import followed


def _matmul(pick: Pick) -> OpSample:
    m, k, n = (pick(st.one_of(st.integers(0, 9), st.integers(10, 70))) for _ in range(3))
    batches = broadcasting(pick, 2, max_rank=4)
    flips = pick(st.booleans()), pick(st.booleans())
    dtype = pick(st.sampled_from(("float32", "int32", "uint32", "float16")))
    a = (*batches[0], *((k, m) if flips[0] else (m, k)))
    b = (*batches[1], *((n, k) if flips[1] else (k, n)))
    inputs = [array(pick, dtype, a, 1.0), array(pick, dtype, b, 1.0)]
    if pick(st.booleans()):
        inputs.append(array(pick, dtype, (n,)))
    attrs = {"transpose_a": flips[0], "transpose_b": flips[1]}
    return followed(pick, OpSample("matmul", tuple(inputs), dict(attrs)))


DRAWS: dict[str, Draw] = {"matmul": _matmul}
