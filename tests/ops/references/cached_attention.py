"""Oracle of attention to the keys in use: example by example, with all its keys in a row."""

from __future__ import annotations

import math

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .attention import by_rows
from .common import Oracle
from .q8_rows import values as unpack_q8_0


def attention_with_kvcache(case: OpSample) -> NDArray:
    attrs = dict(case.attrs)
    *bshd, result_bshd = attrs.pop("is_bshd")  # type: ignore[misc]
    none = math.nan if attrs.pop("fully_masked_is_nan") else 0.0
    attrs.pop("float32_sums", None)
    operands = [*case.inputs[:3]]
    if pending := case.inputs[6:]:
        operands[1:] = [
            _with_rows(held, rows, case.inputs[3])
            for held, rows in zip(operands[1:], pending, strict=True)
        ]
    if "columns" in attrs:
        sizes = operands[0].shape[-1], attrs.pop("columns")
        operands[1:] = [unpack_q8_0(x, n) for x, n in zip(operands[1:], sizes, strict=True)]
    q, k, v = (
        (x.swapaxes(1, 2) if is_bshd else x).astype(np.float64)
        for x, is_bshd in zip(operands, bshd, strict=True)
    )
    used, new, past = case.inputs[3], case.inputs[4:6], attrs["past_len"]
    chunk, has_positions = attrs.pop("chunk", 0), bool(attrs.pop("has_positions", False))
    assert isinstance(past, int) and isinstance(chunk, int)
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for batch in range(q.shape[0]):
        one = slot = slice(batch, batch + 1)
        count = int(used.reshape(-1)[0] if used.ndim == 0 else used[batch].reshape(-1)[0])
        if used.ndim == 2 and used.shape[1] > 1 + has_positions:
            own = int(used[batch, 1])
            slot = slice(own, own + 1)
            if not 0 <= own < len(k):
                slot, count = slice(0, 1), 0
        count = min(max(count, 0), k.shape[2])
        keys, values = k[slot, :, :count].copy(), v[slot, :, :count]
        if chunk:
            first = count // chunk * chunk
            keys, values, count = keys[:, :, first:], values[:, :, first:], count - first
        if new:
            keys = np.append(keys, new[0][one], axis=2)
            values = np.append(values, new[1][one], axis=2)
        first = past + count + (int(used[batch, -1]) if has_positions else 0)
        out[one] = by_rows([q[one], keys, values], attrs | {"past_len": first}, none)
    half = case.inputs[0].dtype == np.float16
    return (out.swapaxes(1, 2) if result_bshd else out).astype(np.float16 if half else np.float32)


def _with_rows(cached: NDArray, rows: NDArray, used: NDArray) -> NDArray:
    """A cache with the rows of each example behind the keys that it has in use."""
    out = cached.copy()
    for example, (first, slot) in enumerate(used.tolist()):
        for at in range(rows.shape[2]):
            if 0 <= slot < len(out) and 0 <= first + at < out.shape[2]:
                out[slot, :, first + at] = rows[example, :, at]
    return out


ORACLES: dict[str, Oracle] = {"attention_with_kvcache": attention_with_kvcache}
