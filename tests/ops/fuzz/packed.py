"""Draws of weights of few bits: any format, rows of one block and of several, few rows of x."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.common.dtypes import NDArray
from vksched.ops.quantized.gguf_formats import FORMATS, unpacked
from vksched.ops.quantized.merged_linear import GATES
from vksched.ops.quantized.quant_layout import RUN
from vksched.testing.op_cases.linalg.quantized_linear import words
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array


def _words(pick: Pick) -> tuple[str, NDArray, int]:
    name = pick(st.sampled_from(list(FORMATS)))
    kind = FORMATS[name]
    columns = kind.step * pick(st.integers(1, 3 if kind.step > RUN else 17))
    return name, words(name, pick(st.integers(1, 9)), columns, pick(st.integers(0, 99))), columns


def _dequantize(pick: Pick) -> OpSample:
    name, held, columns = _words(pick)
    return OpSample("dequantize", (held,), {"format": name, "columns": columns}, exact=True)


def terms(x: NDArray, weights: NDArray) -> NDArray:
    """Return `OpSample.terms` of rows of x (..., k) by rows of weights (..., n, k): (..., n)."""
    left, right = np.square(x, dtype=np.float64), np.square(weights, dtype=np.float64)
    return np.asarray(np.sqrt(left @ right.swapaxes(-1, -2)))


def _linear(pick: Pick) -> OpSample:
    name, held, columns = _words(pick)
    lead = pick(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    inputs = [array(pick, "float32", (*lead, columns)), held]
    if pick(st.booleans()):
        inputs.append(array(pick, "float32", (len(held),)))
    sums = terms(inputs[0], unpacked(name, held, columns))
    return OpSample("quantized_linear", tuple(inputs), {"format": name}, terms=sums)


def _gate_up(pick: Pick) -> OpSample:
    name, gate = pick(st.sampled_from(list(FORMATS))), pick(st.sampled_from(list(GATES)))
    kind, normed = FORMATS[name], pick(st.booleans())
    columns = kind.step * pick(st.integers(1, 3 if kind.step > RUN else 17))
    lead = pick(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    scale = [array(pick, "float32", (columns,))] if normed else []
    counts = pick(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    sizes = [16 * counts[0]] * 2 if gate else [16 * n for n in counts]
    weights = [words(name, n, columns, seed) for seed, n in enumerate(sizes)]
    attrs = {"format": name, "normed": normed, "gate": gate, "eps": 1e-5}
    inputs = (array(pick, "float32", (*lead, columns)), *scale, *weights)
    return OpSample("merged_linear", inputs, attrs)


def _rope(pick: Pick) -> OpSample:
    name, interleaved = pick(st.sampled_from(list(FORMATS))), pick(st.booleans())
    kind, normed = FORMATS[name], pick(st.booleans())
    columns = kind.step * pick(st.integers(1, 3 if kind.step > RUN else 17))
    head_size = 16 * pick(st.integers(1, 5))
    step = 2 if interleaved else 8
    rotary_dim = step * pick(st.integers(1, head_size // step))
    counts = pick(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    weights = [words(name, head_size * n, columns, seed) for seed, n in enumerate(counts)]
    attrs = {"format": name, "normed": normed, "eps": 1e-5, "interleaved": interleaved}
    attrs |= {"heads": pick(st.integers(1, sum(counts)))}
    attrs |= {"head_size": head_size, "rotary_dim": rotary_dim}
    scale = [array(pick, "float32", (columns,))] if normed else []
    tables = [array(pick, "float32", (1, rotary_dim // 2)) for _ in range(2)]
    inputs = (array(pick, "float32", (1, columns)), *scale, *weights, *tables)
    return OpSample("merged_linear_rope", inputs, attrs)


DRAWS: dict[str, Draw] = {
    "dequantize": _dequantize,
    "quantized_linear": _linear,
    "merged_linear": _gate_up,
    "merged_linear_rope": _rope,
}
