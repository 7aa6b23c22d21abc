"""Quantized weights as stored in a GGUF file, as floats.

    words uint32, 4.5 bits a value -> dequantize -> float32 -> any op

`quantized_weight` represents such a weight as a float tensor for all ops. The pass
vksched/passes/fuse_dequantize.py lets products, gathers and attention read the words. Layout of the
words: quant_layout.py.
"""

from __future__ import annotations

import math
from typing import Any

from ...common.dtypes import FLOAT32, NDArray, Shape, TensorType
from ...ir.attr_domains import Int
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, register
from ...ir.tensor import Tensor, apply, as_tensor, weight
from ...ir.vjp import no_gradient
from ..lowering.vec4 import both_readings, launch_run, reading
from .gguf_formats import FORMAT, FORMATS, format_of, pack_u32, unpacked
from .quant_layout import RUN, check_words


def _dequantize_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (words,), columns = inputs, attrs.as_int("columns")
    check_words("dequantize", words, format_of(attrs["format"]), columns)
    return TensorType((*words.shape[:-1], columns), FLOAT32)


def _dequantize_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return unpacked(str(attrs["format"]), inputs[0], attrs.as_int("columns"))


def _dequantize_lower(call: Call) -> tuple[Dispatch, ...]:
    (words,) = call.inputs
    if not call.output.size:
        return ()
    rows, columns = math.prod(words.shape[:-1]), call.output.shape[-1]
    return (dequantize_rows(call, (0, OUTPUT), rows, columns),)


def dequantize_rows(
    call: Call,
    operands: tuple[int, int],
    rows: int,
    columns: int,
    matrices: int = 1,
    apart: int = 0,
) -> Dispatch:
    """Return the dispatch that dequantizes rows of a call's weight.

    operands: words and values. matrices: number of groups of `rows` rows, which start `apart` words
    from each other; their values are contiguous.
    """
    kind = format_of(call.attrs["format"])
    each = RUN // 4 if call.limits.software else 1
    (groups, _, _), constants = launch_run(rows * columns // (4 * each), call.limits)
    constants += (("EACH", each),)
    shader = reading(f"dequantize_weights_{kind.name.lower()}", call.limits)
    push = (
        *(("rows", rows), ("columns", columns), ("row_words", kind.row_words(columns))),
        *(("matrices", matrices), ("apart", apart)),
    )
    down = min(matrices, call.limits.max_groups[1])
    return Dispatch(shader, operands, (groups, down, 1), push, constants)


DEQUANTIZE_SHADERS = both_readings(f"dequantize_weights_{name.lower()}" for name in FORMATS)

register(
    Op(
        "dequantize",
        _dequantize_infer,
        _dequantize_reference,
        Kernel(DEQUANTIZE_SHADERS, _dequantize_lower),
        attrs={"format": FORMAT, "columns": Int(0)},
        operands=(1, 1),
        any_dtype=True,
        is_dequantize=True,
    )
)
no_gradient("reads packed words, which have no gradient", "dequantize")


def dequantize(words: Tensor, format: str, columns: int, *, name: str | None = None) -> Tensor:
    """Dequantize weights in the layout of `vs.repack`.

    words: uint32 (..., row words) -> float32 (..., columns). format: e.g. "q4_K".
    """
    return apply("dequantize", (as_tensor(words),), {"format": format, "columns": columns}, name)


def quantized_weight(blocks: Any, format: str, shape: Shape, *, name: str | None = None) -> Tensor:
    """Return a quantized weight of a GGUF file as a float tensor, without dequantizing it.

    blocks: bytes of a GGUF tensor; they must not change, because the host repacks them for each
    device. format: e.g. "q4_K", also "f16" and "bf16". shape: (..., n, k), in values -> float32
    (..., n, k). `vs.linear(x, quantized_weight(...))` and `vs.matmul(..., transpose_b=True)` read a
    quantized matrix directly, `vs.gather` along axis 0 dequantizes the selected rows. For other
    ops, each run dequantizes the whole weight.
    """
    words = weight(pack_u32(format, blocks, shape), name and f"{name}.words")
    return dequantize(words, format, shape[-1], name=name)
