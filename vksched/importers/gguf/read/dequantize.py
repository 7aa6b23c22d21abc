"""Dequantize: converts the blocks of a tensor to float32 by gguf.quants, in chunks."""

from __future__ import annotations

import gguf
import numpy as np

from ....common.dtypes import NDArray, Shape
from ....common.errors import ModelFormatError

CHUNK_ELEMENTS = 1 << 18
"""The chunk size in elements. It is 1.5 to 5 times as fast as gguf.dequantize with its 16 rows.
Threads do not help, because each step is a short numpy call.
"""


def dequantize(name: str, kind: str, shape: Shape, data: memoryview) -> NDArray:
    """Return elements as float32: a view if they are float32 already.

    Raises
    ------
    ModelFormatError
        The type cannot be converted to float32.
    """
    if kind == "F32":
        return np.frombuffer(data, "<f4").reshape(shape)
    if kind == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32).reshape(shape)
    quant = getattr(gguf.quants, kind, None)
    if quant is None:
        raise ModelFormatError(
            f"[gguf] tensor {name!r}: expected a type that becomes float32, got {kind}; try a file "
            "of this model in another type, such as Q4_K_M"
        )
    blocks = np.frombuffer(data, np.uint8).reshape(-1, quant.type_size)
    out = np.empty((len(blocks), quant.block_size), np.float32)
    step = max(1, CHUNK_ELEMENTS // quant.block_size)
    quant.init_grid()  # builds the type's tables once
    with np.errstate(all="ignore"):  # scales may be infinite
        for first in range(0, len(blocks), step):
            out[first : first + step] = quant.dequantize_rows(blocks[first : first + step])
    return out.reshape(shape)
