"""Draws of products by chosen matrices: any numbers of rows, matrices and choices."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.common.dtypes import NDArray
from vksched.ops.quantized.gguf_formats import FORMATS, unpacked
from vksched.testing.op_cases.linalg.moe_linear import choice
from vksched.testing.op_cases.linalg.quantized_linear import words
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array
from .packed import terms


def _chosen(pick: Pick) -> tuple[NDArray, int, tuple[int, ...]]:
    """Return choices, the number of matrices, and the axes of x before the last."""
    rows, used = pick(st.integers(0, 40)), pick(st.integers(0, 4))
    matrices = pick(st.integers(1, 9))
    low = pick(st.integers(-matrices, matrices - 1))
    high = pick(st.integers(low + 1, matrices))
    lead = (rows, used) if pick(st.booleans()) else (rows,)
    return choice(rows, used, low, high, pick(st.integers(0, 99))), matrices, lead


def _linear(pick: Pick) -> OpSample:
    expert_ids, matrices, lead = _chosen(pick)
    n, k = pick(st.integers(0, 40)), pick(st.integers(0, 70))
    x = array(pick, "float32", (*lead, k))
    return OpSample("moe_linear", (x, array(pick, "float32", (matrices, n, k)), expert_ids))


def _packed(pick: Pick) -> OpSample:
    expert_ids, matrices, lead = _chosen(pick)
    name, n = pick(st.sampled_from(list(FORMATS))), pick(st.integers(1, 9))
    k = FORMATS[name].step * pick(st.integers(1, 2))
    held = words(name, matrices * n, k, pick(st.integers(0, 99))).reshape(matrices, n, -1)
    x = array(pick, "float32", (*lead, k))
    each = x if x.ndim == expert_ids.ndim + 1 else x[:, None]
    sums = terms(each[..., None, :], unpacked(name, held, k)[expert_ids])[..., 0, :]
    return OpSample("quantized_moe_linear", (x, held, expert_ids), {"format": name}, terms=sums)


DRAWS: dict[str, Draw] = {"moe_linear": _linear, "quantized_moe_linear": _packed}
