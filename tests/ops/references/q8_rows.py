"""Oracle of rows in q8_0: `gguf.quants`, on the blocks that ggml would have."""

from __future__ import annotations

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle


def blocks_of(words: NDArray, columns: int) -> NDArray:
    """The blocks of rows, uint8 (rows, blocks, 34), what is not there filled up with 0."""
    rows = words.reshape(-1, words.shape[-1])
    out = np.zeros((len(rows), -(-columns // 32), 34), np.uint8)
    for block in range(out.shape[1]):
        scales = 17 * (block // 2)
        codes = scales + 1 + 8 * (block % 2)
        half = np.ascontiguousarray(rows[:, scales]) >> np.uint32(16 * (block % 2))
        out[:, block, :2] = half.astype(np.uint16)[:, None].view(np.uint8)
        held = np.ascontiguousarray(rows[:, codes : codes + 8]).view(np.uint8)
        held = held[:, : 4 * -(-min(32, columns - 32 * block) // 4)]
        out[:, block, 2 : 2 + held.shape[1]] = held
    return out


def values(words: NDArray, columns: int) -> NDArray:
    """What `gguf` makes of rows."""
    gguf = pytest.importorskip("gguf")
    lead = words.shape[:-1]
    if not words.size:
        return np.zeros((*lead, columns), np.float32)
    with np.errstate(all="ignore"):
        built = gguf.quants.dequantize(blocks_of(words, columns), gguf.GGMLQuantizationType.Q8_0)
    return np.asarray(built).reshape(*lead, -1)[..., :columns]


def quantize_q8_0(case: OpSample) -> NDArray:
    gguf = pytest.importorskip("gguf")
    (x,) = case.inputs
    *lead, columns = x.shape
    blocks = -(-columns // 32)
    filled = np.zeros((int(np.prod(lead)), 32 * blocks), np.float32)
    filled[:, :columns] = x.reshape(len(filled), columns)
    words = np.zeros((len(filled), -(-columns // 64) + -(-columns // 4)), np.uint32)
    if not filled.size:
        return words.reshape(*lead, words.shape[1])
    with np.errstate(all="ignore"):
        built = gguf.quants.quantize(filled, gguf.GGMLQuantizationType.Q8_0)
    built = built.reshape(len(filled), blocks, 34)
    for block in range(blocks):
        scales = 17 * (block // 2)
        codes = scales + 1 + 8 * (block % 2)
        half = np.ascontiguousarray(built[:, block, :2]).view(np.uint16)[:, 0].astype(np.uint32)
        words[:, scales] |= half << np.uint32(16 * (block % 2))
        held = np.ascontiguousarray(built[:, block, 2:]).view(np.uint32)
        words[:, codes : codes + 8] = held[:, : words[:, codes : codes + 8].shape[1]]
    return words.reshape(*lead, words.shape[1])


def dequantize_q8_0(case: OpSample) -> NDArray:
    (words,), columns = case.inputs, case.attrs["columns"]
    assert isinstance(columns, int)
    return values(words, columns)


ORACLES: dict[str, Oracle] = {"quantize_q8_0": quantize_q8_0, "dequantize_q8_0": dequantize_q8_0}
